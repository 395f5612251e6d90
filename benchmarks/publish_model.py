"""Make a shipped model of a finished training: weights with their card, and the card as a page to read.

    ringflow train clic_base --out runs/base --json > training.json
    ringflow evaluate data/test/* --model runs/base/model.safetensors --out report
    python benchmarks/publish_model.py clic --training training.json --model runs/base/model.safetensors \
        --uncertainty runs/base/model.uncertainty.safetensors --metrics report/metrics.json \
        --commit $(git rev-parse HEAD) --where "one H200, 16 cores" --wall-seconds 361

Writes `src/ringflow/weights/NAME.safetensors`, its card `NAME.md`, its uncertainties `NAME.uncertainty.safetensors` if given,
and `benchmarks/results/shipped_NAME.json`. `--full-simulation` takes the record of `benchmarks/full_simulation.py`, whose rows
of this model go into the card.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ringflow.base.rundir import write_atomic
from ringflow.infer.shipped import WEIGHTS
from ringflow.models.file import load_model, save_model
from ringflow.models.uncertainty import file_beside, head_for, load_uncertainty, save_uncertainty

RESULTS = Path(__file__).parent / "results"
RECONSTRUCTIONS = ("perfect", "baseline", "model")
FIGURES = {
    "jet_iqr_over_median": "jet width",
    "jet_median": "jet median",
    "particle_f1": "F1",
    "generated_f1": "F1 against all generated",
    "met_iqr_over_median": "missing pT width",
    "visible_energy_resolution": "energy width",
}
_NO_BOUND = (
    "`perfect` (true associations, measured energies) is no bound: a network also calibrates energies by shower shapes."
)
LIMITS = {
    "clic": (
        "Trained and tested on this package's own fast simulation of a CLIC-like detector, not on full simulation or "
        "data.",
        "Trained on e+e- collisions at 380 GeV, ttbar and qq; tested on ZH, WW and overlaid events too. At 500 GeV, where"
        " jets are more energetic than any it has seen, its jets come out 1 % low and are wider than at 380 GeV.",
        "Tracks and clusters as `ringflow simulate` makes them. Groups of features may be missing (each was hidden in 5 %"
        " of the training events): without cluster shapes, dE/dx and times its jets are 15 % wider; with the essential "
        "features alone they are twice as wide as those of the rules.",
        _NO_BOUND,
        "Classes are point estimates; energy and momentum have uncertainties in `clic.uncertainty.safetensors`.",
    ),
    "any": (
        "Trained on this package's own fast simulation alone. Its rows of full simulation are of one process in one "
        "detector, whose tracks and clusters our `ild` was tuned to.",
        "It sees elements relative to their detector and takes those of `clic`, `cld`, `ild` and `sid` as they are; for "
        "any other, or one of these with another geometry, `ringflow adapt` tells it first.",
        "Trained on e+e- collisions between 91 and 500 GeV without overlaid events.",
        "In every third training event the features were hidden that the ILD files of full simulation lack (shapes, hits,"
        " times and depth of clusters, dE/dx and times of tracks).",
        _NO_BOUND,
    ),
}


def main() -> None:
    """Read what the training and the evaluation left, write the model and its card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(LIMITS))
    for name in ("training", "model"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name in ("uncertainty", "full-simulation"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--metrics", type=Path, nargs="+", required=True)
    for name in ("commit", "where"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--wall-seconds", type=float, required=True, help="of the whole command, from start to end")
    arguments = parser.parse_args()
    loaded = load_model(arguments.model)
    training = json.loads(arguments.training.read_text())
    samples = {
        name: entry for file in arguments.metrics for name, entry in json.loads(file.read_text())["samples"].items()
    }
    loaded.card["provenance"]["code"] = {"commit": arguments.commit}
    card = {
        **loaded.card,
        "name": arguments.name,
        "parameters": loaded.model.num_parameters,
        "training": {
            **loaded.card["training"],
            "where": arguments.where,
            "wall_seconds": arguments.wall_seconds,
            "step_events_per_second": round(training["events_per_second"]),
            "padding_share": training.get("padding_share"),
        },
        "test": {_called(name, entry, loaded.card["detector"]): _figures(entry) for name, entry in samples.items()},
        "full_simulation": _full_simulation(arguments.full_simulation, arguments.name)
        if arguments.full_simulation
        else [],
        "limits": list(LIMITS[arguments.name]),
    }
    path = WEIGHTS / f"{arguments.name}.safetensors"
    save_model(path, loaded.model, threshold=loaded.threshold, card=card)
    if arguments.uncertainty:
        head, about = head_for(arguments.uncertainty, arguments.model), load_uncertainty(arguments.uncertainty).card
        save_uncertainty(file_beside(path), head, path, about)  # of the same weights, in a file with a card
    write_atomic(path.with_suffix(".md"), page(card))
    write_atomic(RESULTS / f"shipped_{arguments.name}.json", json.dumps(card, indent=1) + "\n")
    print(page(card))


def _called(name: str, entry: dict[str, Any], detectors: str) -> str:
    """Name of a sample, with its detector where there are several."""
    detector = entry["detector"]
    return f"{name.removesuffix(f'_{detector}')}_{detector}" if "," in detectors else name


def _figures(entry: dict[str, Any]) -> dict[str, Any]:
    """Figures with their 68 % intervals."""
    found = {name: {figure: entry["reconstructions"][name][figure] for figure in FIGURES} for name in RECONSTRUCTIONS}
    return {"events": entry["events"], "manifest_sha256": entry["manifest_sha256"], **found}


#: Figures of full simulation in the card.
FULL = {
    "jet_iqr_over_median": "jet width",
    "jet_matched_fraction": "jets found",
    "visible_energy_median": "energy median",
    "visible_energy_resolution": "energy width",
    "generated_f1": "F1",
}


def _full_simulation(record: Path, name: str) -> list[dict[str, Any]]:
    """What the record has of a model, and of what it is compared with."""
    found = []
    for dataset in json.loads(record.read_text())["datasets"]:
        rows = [
            {"reconstruction": row["reconstruction"], **{figure: row["full"][figure] for figure in FULL}}
            for row in dataset["rows"]
            if row["reconstruction"].split(",")[0] in ("candidate", "rules", name)
        ]
        about = {key: dataset[key] for key in ("detector", "sample", "events", "manifest_sha256")}
        found.append({**about, "rows": rows})
    return found


def page(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    training, settings = card["training"], card["settings"]
    data = ", ".join(dict.fromkeys(part["simulated"] for part in card["data"]))
    varied = ", ".join(dict.fromkeys(part["detector"] for part in card["data"]))
    detectors = ", ".join(f"`{name}`" for name in card["detector"].split(","))
    unique = -(-training["events"] // settings["source"]["reuse"])
    lines = [
        f"# Model card: {card['name']}",
        "",
        f"Particle flow for {detectors} on tracks and clusters: `{settings['model']['backbone']}`, "
        f"{card['parameters']:,} parameters.",
        "",
        f"- Data: {data} in {varied}, simulated while training on the same device, about {unique:,} different events, each "
        f"shown {settings['source']['reuse']} times; {training['events']:,} presentations in {training['steps']:,} steps.",
        f"- Recipe: `ringflow train {card['name']}_base --out runs/base`; {training['wall_seconds']:.0f} s on "
        f"{training['where']}, start-up, simulation and validation included.",
        f"- Code: commit `{card['provenance']['code']['commit'][:12]}`, ringflow {card['provenance']['ringflow']}.",
        "- Chosen among the validations by the width of jets; the numbers below are of other events, with seeds nobody "
        "trained on.",
        "",
        "## Test",
        "",
        "Half widths of the 68 % intervals behind the numbers. Widths are IQR / median.",
        "",
        "| sample | events | reconstruction | " + " | ".join(FIGURES.values()) + " |",
        "|---|---|---|" + "---|" * len(FIGURES),
    ]
    for name, entry in card["test"].items():
        for reconstruction in RECONSTRUCTIONS:
            cells = " | ".join(_cell(entry[reconstruction][figure]) for figure in FIGURES)
            lines.append(f"| {name} | {entry['events']} | {reconstruction} | {cells} |")
    for full in card["full_simulation"]:
        lines += ["", f"## Full simulation: {full['events']} events of {full['sample']} in {full['detector']}", ""]
        lines += [
            "Nothing of it was trained on; `candidate` is what came with the events, for them Pandora's particles.",
            "",
        ]
        lines += ["| reconstruction | " + " | ".join(FULL.values()) + " |", "|---|" + "---|" * len(FULL)]
        for row in full["rows"]:
            cells = " | ".join(_cell(row[figure]) for figure in FULL)
            lines.append(f"| {row['reconstruction']} | {cells} |")
    return "\n".join([*lines, "", "## Limits", "", *(f"- {limit}" for limit in card["limits"])]) + "\n"


def _cell(figure: dict[str, float] | None) -> str:
    if figure is None or figure["value"] is None:
        return "–"
    return f"{figure['value']:.4f} ± {(figure['hi'] - figure['lo']) / 2:.4f}"


if __name__ == "__main__":
    main()

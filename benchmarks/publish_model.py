"""Make the shipped model of a finished training: weights with their card, and the card as a page to read.

    ringflow train clic_base --out runs/base --json > training.json
    ringflow evaluate data/test/* --model runs/base/model.safetensors --out report
    python benchmarks/publish_model.py --training training.json --model runs/base/model.safetensors \
        --uncertainty runs/base/model.uncertainty.safetensors --metrics report/metrics.json \
        --commit $(git rev-parse HEAD) --where "one H200, 16 cores" --wall-seconds 361

Writes `src/ringflow/weights/clic.safetensors`, its card `clic.md`, its uncertainties `clic.uncertainty.safetensors`, and
`benchmarks/results/shipped_model.json`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ringflow.base.rundir import write_atomic
from ringflow.infer.shipped import MODEL
from ringflow.models.file import load_model, save_model
from ringflow.models.uncertainty import file_beside, head_for, load_uncertainty, save_uncertainty

RECORD = Path(__file__).parent / "results" / "shipped_model.json"
RECONSTRUCTIONS = ("perfect", "baseline", "model")
FIGURES = {
    "jet_iqr_over_median": "jet width",
    "jet_median": "jet median",
    "particle_f1": "F1",
    "generated_f1": "F1 against all generated",
    "met_iqr_over_median": "missing pT width",
    "visible_energy_resolution": "energy width",
}
LIMITS = (
    "Trained and tested on this package's own fast simulation of a CLIC-like detector, not on full simulation or data.",
    "Trained on e+e- collisions at 380 GeV, ttbar and qq; tested on ZH, WW and overlaid events too. At 500 GeV, where jets are "
    "more energetic than any it has seen, its jets come out 1 % low and are wider than at 380 GeV.",
    "Tracks and clusters as `ringflow simulate` makes them. Groups of features may be missing (each was hidden in 5 % of the "
    "training events): without cluster shapes, dE/dx and times its jets are 15 % wider; with the essential features alone they "
    "are twice as wide as those of the rules.",
    "`perfect` (true associations, measured energies) is no bound: a network also calibrates energies by shower shapes.",
    "Classes are point estimates; energy and momentum have uncertainties in `clic.uncertainty.safetensors`.",
)


def main() -> None:
    """Read what the training and the evaluation left, write the model and its card."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("training", "model", "uncertainty"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--metrics", type=Path, nargs="+", required=True)
    for name in ("commit", "where"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--wall-seconds", type=float, required=True, help="of the whole command, from start to end")
    arguments = parser.parse_args()
    loaded = load_model(arguments.model)
    head, about = head_for(arguments.uncertainty, arguments.model), load_uncertainty(arguments.uncertainty).card
    training = json.loads(arguments.training.read_text())
    samples = {
        name: entry for file in arguments.metrics for name, entry in json.loads(file.read_text())["samples"].items()
    }
    loaded.card["provenance"]["code"] = {"commit": arguments.commit}
    card = {
        **loaded.card,
        "name": "clic",
        "parameters": loaded.model.num_parameters,
        "training": {
            **loaded.card["training"],
            "where": arguments.where,
            "wall_seconds": arguments.wall_seconds,
            "step_events_per_second": round(training["events_per_second"]),
            "padding_share": training["padding_share"],
        },
        "test": {name: _figures(entry) for name, entry in samples.items()},
        "limits": list(LIMITS),
    }
    save_model(MODEL, loaded.model, threshold=loaded.threshold, card=card)
    save_uncertainty(file_beside(MODEL), head, MODEL, about)  # of the same weights, in a file with a card
    write_atomic(MODEL.with_suffix(".md"), page(card))
    write_atomic(RECORD, json.dumps(card, indent=1) + "\n")
    print(page(card))


def _figures(entry: dict[str, Any]) -> dict[str, Any]:
    """Figures with their 68 % intervals."""
    found = {name: {figure: entry["reconstructions"][name][figure] for figure in FIGURES} for name in RECONSTRUCTIONS}
    return {"events": entry["events"], "manifest_sha256": entry["manifest_sha256"], **found}


def page(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    training, settings = card["training"], card["settings"]
    data = ", ".join(part["simulated"] for part in card["data"])
    unique = -(-training["events"] // settings["source"]["reuse"])
    lines = [
        "# Model card: clic",
        "",
        f"Particle flow for the `{card['detector']}` detector on tracks and clusters: `{settings['model']['backbone']}`, "
        f"{card['parameters']:,} parameters.",
        "",
        f"- Data: {data}, simulated while training on the same device, about {unique:,} different events, each shown "
        f"{settings['source']['reuse']} times; {training['events']:,} presentations in {training['steps']:,} steps.",
        f"- Recipe: `ringflow train clic_base --out runs/base`; {training['wall_seconds']:.0f} s on {training['where']}, "
        "start-up, simulation and validation included.",
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
    return "\n".join([*lines, "", "## Limits", "", *(f"- {limit}" for limit in card["limits"])]) + "\n"


def _cell(figure: dict[str, float]) -> str:
    return f"{figure['value']:.4f} ± {(figure['hi'] - figure['lo']) / 2:.4f}"


if __name__ == "__main__":
    main()

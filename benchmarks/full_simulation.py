"""Every reconstruction on full simulation, and the same ones on our simulation of the same detector: a table and a record.

    python benchmarks/full_simulation.py data/ild_ttbar --models any ild=runs/ild --hepmc ild_ttbar.hepmc3.zst

Reconstructions are the candidates that a dataset of full simulation brings (usually Pandora's), the rules, and any number of
networks: each as it is, and adapted without labels to the very events (`ringflow adapt`), where it can be. All figures are
those of `ringflow evaluate`, with 68 % intervals.

- **One truth for all**: every stable generated particle but neutrinos up to |eta| < 3 is a target of its own, whether it could
  be seen or not. Jets, visible energy and F1 are against these.
- **Beside it** the same on our simulation: fresh events of `--sample` in the detector of the same name, or those of `--own`,
  without the columns of elements that the full simulation lacks. A network is adapted there to as many events as here.
- **The same events**: with `--hepmc` the generated events of the datasets go through our simulation, too, and the ratio of ours
  to full simulation is taken event by event.
- **Paired**: every row as a ratio to the candidates, and to the first network (adapted ones to the first that is adapted), in
  which events fluctuate together; these intervals are narrower than those of the figures.

Cost: 45 s of processor time for 25 events, 1,000 and again 25 of ours, the rules and one network; each further one 10 to 15 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from compare_full_simulation import different_events

from ringflow.base.errors import DatasetError, RingflowError, UsageError
from ringflow.base.log import say
from ringflow.base.provenance import describe_input
from ringflow.bench import write_record
from ringflow.data.candidates import write_candidates
from ringflow.data.manifest import Columns, manifest_hash
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset, to_awkward
from ringflow.evaluate.metrics import BY_KEY, Measured, written
from ringflow.evaluate.momenta import GENERATED_ETA, counts_as_generated
from ringflow.evaluate.report import paired_ratio
from ringflow.event.block import EventBlock, cast, concatenate
from ringflow.event.particles import CHARGED_HADRON, NEUTRAL_HADRON, PARTICLE_CLASSES, PHOTON, label_of
from ringflow.event.schema import COLLECTIONS, parquet_name
from ringflow.infer.reconstructions import NEEDS, Reconstruct, open_reconstruction
from ringflow.infer.shipped import model_file
from ringflow.recipes.adapt import adapt
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings
from ringflow.train.device import hardware

#: Trainings draw seeds of 63 bits; nobody types this one.
SEED = 500_220_025
ELEMENTS = ("track", "cluster", "hit")
PARTICLE = ("pdg", "px", "py", "pz", "energy", "charge")
CANDIDATES, RULES, ADAPTED = "candidate", "rules", ", adapted"
#: Candidates of ours for the same events, as they are called while both are judged together.
OURS = " in our simulation of the same events"
#: Of a reconstruction: key and name, the F1 of classes last.
FIGURES = {
    "jet_iqr_over_median": "jet width",
    "jet_matched_fraction": "jets found",
    "visible_energy_median": "visible energy, median",
    "visible_energy_resolution": "visible energy, width",
    "generated_f1": "F1",
}
CLASSES = {
    f"generated_f1_{PARTICLE_CLASSES[label]}": f"F1, {PARTICLE_CLASSES[label].replace('_', ' ')}s"
    for label in (CHARGED_HADRON, NEUTRAL_HADRON, PHOTON)
}
F1 = ("generated_f1", *CLASSES)
RATIOS = {
    "jet_iqr_over_median": "jet width",
    "visible_energy_resolution": "visible energy, width",
    "generated_f1": "F1",
}


def with_generated_truth(block: EventBlock) -> EventBlock:
    """The block with a target for each particle that counts as generated, of its own class, and no other."""
    particles = block["particle"]
    counts = counts_as_generated(particles)
    event = np.repeat(np.arange(len(block)), particles.counts)
    per_event = np.bincount(event[counts], minlength=len(block)).astype(np.int64)
    first = np.cumsum(per_event) - per_event
    place = np.where(counts, np.cumsum(counts) - 1 - first[event], -1)
    label = np.where(counts, label_of(particles["pdg"]), 0)
    columns = {name: particles[name] for name in PARTICLE} | {"label": label, "target": place}
    targets = {name: columns[name][counts] for name in ("label", "charge", "px", "py", "pz", "energy")}
    targets["num_particles"] = np.ones(int(counts.sum()))
    truth = {
        "particle": cast("particle", particles.counts, columns),
        "target": cast("target", per_event, targets),
    }
    return EventBlock(block.event_number, {**block.collections, **truth})


def within_reach(block: EventBlock) -> EventBlock:
    """The block without tracks, clusters and candidates where no generated particle counts: forward calorimeters of a full
    simulation see photons of tens of GeV that the truth does not have."""
    cut = {}
    for name in {*ELEMENTS, "candidate"} & set(block.collections):
        part = block[name]
        eta = (
            part["eta"] if name != "candidate" else np.arcsinh(part["pz"] / np.hypot(part["px"], part["py"]).clip(1e-9))
        )
        inside = np.abs(eta) < GENERATED_ETA
        event = np.repeat(np.arange(len(block)), part.counts)
        columns = {key: values[inside] for key, values in part.columns.items() if key not in ("track", "cluster")}
        cut[name] = cast(name, np.bincount(event[inside], minlength=len(block)).astype(np.int64), columns)
    return EventBlock(block.event_number, {**block.collections, **cut})


def measured_columns(dataset: Dataset) -> Columns:
    """What a dataset tells of its elements; who made them is truth."""
    columns = {
        kind: tuple(
            column.name
            for column in COLLECTIONS[kind]
            if column.name in dataset.columns.get(kind, ()) and column.points_to != "particle"
        )
        for kind in ELEMENTS
    }
    return {kind: names for kind, names in columns.items() if names}


def copied(dataset: Dataset, kept: Columns, out: Path, event_number: Any = None) -> Dataset:
    """The dataset with these columns of elements, its candidates, and the truth of this benchmark."""
    for kind, names in kept.items():
        if lacking := [name for name in names if name not in dataset.columns.get(kind, ())]:
            raise DatasetError(
                f"{dataset.path} has no {kind}_{lacking[0]}, which the full simulation has; give one that was simulated here"
            )
    wanted = [parquet_name(kind, name) for kind, names in kept.items() for name in names]
    wanted += [parquet_name("particle", name) for name in PARTICLE]
    wanted += [CANDIDATES] if CANDIDATES in dataset.columns else []
    block = within_reach(with_generated_truth(concatenate(list(dataset.events(columns=wanted)))))
    events, manifest = to_awkward(block), dataset.manifest
    return write_dataset(
        out,
        detector=manifest.detector,
        sample=manifest.sample,
        event_number=block.event_number if event_number is None else event_number,
        make_targets=False,
        provenance=manifest.provenance,
        **{f"{name}s": events[name] for name in block.collections},
    )


def hidden(own: Dataset, kept: Columns) -> list[str]:
    """Columns of elements that a dataset of ours has and does not show."""
    return [
        parquet_name(kind, name)
        for kind, names in measured_columns(own).items()
        for name in names
        if name not in kept.get(kind, ())
    ]


def makers(
    dataset: Dataset, models: Mapping[str, Path], match: Any, events: int, folder: Path
) -> tuple[dict[str, Reconstruct], dict[str, str]]:
    """What makes candidates of a dataset, by name, and why others cannot; networks are adapted to its first `events` events."""
    detector = dataset.manifest.detector
    made: dict[str, Reconstruct] = {}
    reasons: dict[str, str] = {}
    folder.mkdir()

    def add(name: str, kind: str, file: Path | None = None, *, adapted: bool = False) -> None:
        try:
            if adapted:
                source, file = file, folder / f"{len(made) + len(reasons)}.safetensors"
                adapt(str(dataset.path), file, model=source, match=match, events=events)
            make = open_reconstruction(kind, detector, file)
            make(next(dataset.events(columns=list(measured_columns(dataset)))).take(0, 1))
        except (RingflowError, KeyError) as error:  # a KeyError is a column that the rules want
            reasons[name] = str(error)
        else:
            made[name] = make

    add(RULES, "baseline")
    for label, file in models.items():
        add(label, "model", file)
        add(label + ADAPTED, "model", file, adapted=True)
    return made, reasons


def judged(
    dataset: Dataset, reconstructed: Sequence[tuple[str, Dataset, Reconstruct]], workers: int, folder: Path
) -> Any:
    """The entry of `ringflow evaluate` for a dataset: its own candidates, and those made of elements of datasets by name."""
    folder.mkdir()
    files = []
    for number, (name, elements, make) in enumerate(reconstructed):
        wanted = list(measured_columns(elements))
        blocks = (
            EventBlock(block.event_number, {CANDIDATES: make(block)}) for block in elements.events(columns=wanted)
        )
        files.append(folder / f"{number}.parquet")
        write_candidates(files[-1], dataset, blocks, reconstruction=name, provenance={})
    names = [CANDIDATES] if CANDIDATES in dataset.columns else []
    names += [name for name, _, _ in reconstructed]
    found = evaluate([dataset.path], candidates=files, reconstructions=names, workers=workers)
    [entry] = found["samples"].values()
    return entry


def figures_of(metrics: Mapping[str, Any]) -> dict[str, Measured]:
    """Those of the table, by key."""
    of_class = metrics["classes"]
    classes = {key: of_class[key.removeprefix("generated_f1_")]["generated_f1"] for key in CLASSES}
    return {key: metrics[key] for key in FIGURES} | classes


def difference(ours: Measured, full: Measured) -> dict[str, float | None]:
    """Ours minus full simulation; of other events, so that the intervals add in quadrature."""
    values = [one.get(end) for one in (ours, full) for end in ("value", "lo", "hi")]
    if any(value is None for value in values):
        return {"value": None, "lo": None, "hi": None}
    value, low, high, other, other_low, other_high = (float(one) for one in values if one is not None)
    found = value - other
    down, up = np.hypot(value - low, other_high - other), np.hypot(high - value, other - other_low)
    return {"value": found, "lo": float(found - down), "hi": float(found + up)}


def ratios(entry: Mapping[str, Any], above: str, below: str) -> dict[str, Measured | None]:
    """Of two reconstructions of the same events, by key; None where there is none."""
    found = {key: paired_ratio(entry["comparisons"], key, above, below) for key in RATIOS}
    return {
        key: None if one is None else dict(zip(("value", "lo", "hi"), one, strict=True)) for key, one in found.items()
    }


def rows_of(full: Mapping[str, Any], own: Mapping[str, Any], models: Sequence[str], same: bool) -> list[dict[str, Any]]:
    """A row per reconstruction of the full simulation, the candidates first."""
    made, ours = full["reconstructions"], own["reconstructions"]
    names = [name for name in made if not name.endswith(OURS)]
    rows = []
    for name in names:
        kind = ADAPTED if name.endswith(ADAPTED) else ""
        first = next((label + kind for label in models if label + kind in names), None)
        row: dict[str, Any] = {"reconstruction": name, "full": figures_of(made[name])}
        row["own"] = figures_of(ours[name]) if name in ours and name != CANDIDATES else None
        row["own_minus_full"] = row["own"] and {key: difference(row["own"][key], row["full"][key]) for key in F1}
        row["same_events_own_to_full"] = ratios(full, name + OURS, name) if same and name != CANDIDATES else None
        row["to_candidates"] = ratios(full, name, CANDIDATES) if CANDIDATES in names and name != CANDIDATES else None
        is_network = name not in (CANDIDATES, RULES)
        row["to_first_network"] = ratios(full, name, first) if is_network and first not in (None, name) else None
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]], called: str) -> str:
    """Markdown: the figures, and then what is paired."""

    def name(row: Mapping[str, Any]) -> str:
        return called if row["reconstruction"] == CANDIDATES else str(row["reconstruction"])

    def ratio(measured: Measured | None) -> str:
        value, low, high = ((measured or {}).get(end) for end in ("value", "lo", "hi"))
        return "-" if value is None else f"{value:.3f} ({low:.3f} to {high:.3f})"

    def shown(measured: Measured | None, key: str) -> str:
        text = "-" if measured is None else written(measured, BY_KEY.get(key, BY_KEY["generated_f1"]))
        return f"−{text[1:]}" if text.startswith("-0") else text

    names = FIGURES | CLASSES
    head = ["reconstruction", *names.values(), "F1, own simulation", "F1, own minus full"]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        own, less = ((row[key] or {}).get("generated_f1") for key in ("own", "own_minus_full"))
        cells = [*(shown(row["full"][key], key) for key in names), shown(own, "generated_f1")]
        lines.append([name(row), *cells, shown(less, "generated_f1")])
    parts = {
        "to_candidates": f"to {called}",
        "to_first_network": "to the first network",
        "same_events_own_to_full": "own to full simulation of the same events",
    }
    there = {key: text for key, text in parts.items() if any(row[key] for row in rows)}
    paired = []
    if there:
        head = ["reconstruction", *(f"{label} {text}" for text in there.values() for label in RATIOS.values())]
        paired = [head, ["---"] * len(head)]
        for row in rows:
            if any(row[key] for key in there):
                paired.append([name(row), *(ratio((row[key] or {}).get(one)) for key in there for one in RATIOS)])
    text = ["\n".join(f"| {' | '.join(line)} |" for line in part) for part in (lines, paired) if part]
    return "\n\n".join(text)


def named(given: Sequence[str]) -> dict[str, Path]:
    """Model files by label: `label=FILE`, or a file, the folder of a run or a name, which is then its own label."""
    models: dict[str, Path] = {}
    for text in given:
        label, equals, place = text.partition("=")
        path = Path(place if equals else text)
        label = label if equals else path.stem
        if label in models or label in (*NEEDS, RULES) or label.endswith((ADAPTED, OURS)):
            raise UsageError(f"a network cannot be called {label!r} here; give another label: NAME={path}")
        models[label] = model_file(path)
    return models


def simulated(
    detector: str, given: GeneratorSettings, events: int | None, hits: bool, workers: int, out: Path
) -> Dataset:
    """Events in our simulation."""
    production = ProductionSettings(events=events, workers=workers, keep_hits=hits)
    simulate(SimulateSettings(detector=detector, generator=given, production=production), out)
    return Dataset(out)


def compared(
    given: Dataset,
    own: Dataset,
    same: Dataset | None,
    models: Mapping[str, Path],
    match: str,
    workers: int,
    folder: Path,
) -> dict[str, Any]:
    """What there is to say of one dataset of full simulation, ready for JSON."""
    kept = measured_columns(given)
    full, ours = copied(given, kept, folder / "full"), copied(own, kept, folder / "own")
    of_full, reasons = makers(full, models, match, len(full), folder / "of_full")
    for name, reason in reasons.items():
        say(f"{given.path.name}: no {name}: {reason}")
    of_ours, _ = makers(ours, models, match, len(full), folder / "of_own")
    to_judge = [(name, full, make) for name, make in of_full.items()]
    if same is not None:
        events, fast = (concatenate(list(one.events(columns=["particle"]))) for one in (given, same))
        different = different_events(events, fast)
        again = copied(same, kept, folder / "same", events.event_number)
        of_again, _ = makers(again, models, match, len(full), folder / "of_same")
        to_judge += [(name + OURS, again, make) for name, make in of_again.items()]
    entry = judged(full, to_judge, workers, folder / "judged_full")
    beside = judged(ours, [(name, ours, make) for name, make in of_ours.items()], workers, folder / "judged_own")
    record = {
        "dataset": given.path.name,
        "manifest_sha256": manifest_hash(given.path),
        "detector": given.manifest.detector,
        "sample": given.manifest.sample,
        "events": len(given),
        "candidates": given.manifest.provenance.get("reconstruction"),
        "own": {
            "sample": own.manifest.sample,
            "detector": own.manifest.detector,
            "manifest_sha256": manifest_hash(own.path),
            "geometry_sha256": own.manifest.provenance.get("geometry_sha256"),
            "events": len(own),
            "hidden_columns": hidden(own, kept),
        },
        "not_made": reasons,
        "rows": rows_of(entry, beside, list(models), same is not None),
    }
    if same is not None:
        record["same_events"] = {"manifest_sha256": manifest_hash(same.path), "events_that_differ": different}
    return record


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate, adapt, reconstruct, judge; print the tables and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("full", type=Path, nargs="+", help="datasets of full simulation with generated particles")
    parser.add_argument(
        "--models", nargs="*", default=[], metavar="[LABEL=]MODEL", help="files, runs or names of networks"
    )
    parser.add_argument(
        "--match", choices=("geometry", "scales", "features"), default="scales", help="of the adaptation"
    )
    one_each = "one for each dataset in their order, the last for all that follow"
    parser.add_argument("--own", type=Path, nargs="*", default=[], help=f"datasets of ours, not fresh ones: {one_each}")
    parser.add_argument("--sample", nargs="+", default=["ttbar@500"], help=f"what is simulated: {one_each}")
    parser.add_argument("--events", type=int, default=1000, help="events to simulate")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--hepmc", type=Path, nargs="*", default=[], help="generated events of the datasets, in their order"
    )
    parser.add_argument("--candidates", help="who made the candidates of the datasets, where these do not tell")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "full_simulation.json")
    options = parser.parse_args(arguments)
    models = named(options.models)
    datasets = [Dataset(path) for path in options.full]
    if len(options.hepmc) > len(datasets):
        raise UsageError(f"{len(options.hepmc)} files of generated events for {len(datasets)} datasets; give one each")
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        fresh: dict[tuple[str, str, bool], Dataset] = {}
        for number, dataset in enumerate(datasets):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            detector, hits = dataset.manifest.detector, "hit" in dataset.columns
            if options.own:
                own = Dataset(options.own[min(number, len(options.own) - 1)])
            else:
                what = detector, options.sample[min(number, len(options.sample) - 1)], hits
                if what not in fresh:
                    generator = GeneratorSettings(sample=what[1], seed=options.seed)
                    fresh[what] = simulated(
                        detector, generator, options.events, hits, options.workers, folder / "fresh"
                    )
                own = fresh[what]
            same = None
            if number < len(options.hepmc):
                generator = GeneratorSettings(hepmc=options.hepmc[number], seed=options.seed)
                same = simulated(detector, generator, None, hits, options.workers, folder / "of_hepmc")
            record = compared(dataset, own, same, models, options.match, options.workers, folder)
            found.append(record)
            called = record["candidates"] or options.candidates or "candidates of the dataset"
            print(
                f"{dataset.path.name}: {len(dataset)} events of {dataset.manifest.sample} in {detector}; "
                f"own simulation: {len(own)} events of {own.manifest.sample} in {own.manifest.detector}\n"
            )
            print(f"{table(record['rows'], called)}\n")
    result = {
        "benchmark": "full_simulation",
        "truth": "stable generated particles but neutrinos, |eta| < 3, each a target",
        "candidates": options.candidates,
        "seed": options.seed,
        "match": options.match,
        "models": {label: describe_input(file) for label, file in models.items()},
        "datasets": found,
        **hardware("cpu"),
    }
    print(write_record(result, options.out))


if __name__ == "__main__":
    try:
        main()
    except RingflowError as error:
        sys.exit(str(error))

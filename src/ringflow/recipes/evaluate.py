"""Evaluate: every reconstruction of every dataset side by side, as numbers, histograms and a report.

A dataset is read once, shard by shard. Each shard gives one score sheet per reconstruction, and sheets add up, so memory does
not grow without end and the result does not depend on the number of workers. Measured on one core, 1,000 ttbar
events: 1 s for reading, 4 s for the rules, 0.8 s per reconstruction for the comparison; below 700 MB.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.errors import DatasetError, FailureError, UsageError
from ringflow.base.log import printable, progress, say, table
from ringflow.base.output import print_json
from ringflow.base.page import PAGE_FILE
from ringflow.base.provenance import collect
from ringflow.base.rundir import METRICS_FILE, prepared, write_atomic
from ringflow.baseline.rules import load_constants
from ringflow.data.candidates import CandidateFile
from ringflow.data.manifest import MANIFEST_FILE, SPLITS, Manifest, Shard, manifest_hash
from ringflow.data.read import Dataset, has_truth
from ringflow.evaluate.metrics import comparisons, metrics
from ringflow.evaluate.momenta import checked
from ringflow.evaluate.sheet import Histograms, Sheet, Truth, measure
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.schema import parquet_name
from ringflow.infer import shipped
from ringflow.infer.inputs import open_input
from ringflow.infer.reconstructions import (
    Reconstruct,
    available,
    columns_for,
    missing_reasons,
    open_model,
    open_reconstruction,
)
from ringflow.infer.shipped import model_file

#: Blocks are compared with the truth in groups of at least so many events: matrix products like them large.
EVENTS_AT_ONCE = 250
#: Columns of the short table.
_SHOWN = {
    "jet_iqr_over_median": "jet width",
    "jet_matched_fraction": "jets found",
    "met_iqr_over_median": "missing pT width",
    "visible_energy_resolution": "energy width",
    "particle_efficiency": "efficiency",
    "particle_fake_rate": "fake rate",
    "particle_f1": "F1",
    "generated_f1": "F1 generated",
}
#: A reconstruction may be called like a collection.
_CANDIDATES_OF = "candidates of "


@dataclass(frozen=True)
class _Scored:
    """One dataset to evaluate, the reconstructions of it, the candidate files among them by name, and the network to use."""

    name: str
    dataset: Dataset
    reconstructions: tuple[str, ...]
    files: dict[str, Path]
    model: Path | None  # the shipped one unless given
    constants: str | None  # of the rules; those of the detector unless given

    @property
    def uses_network(self) -> bool:
        """Whether the network is asked, not a file of that name."""
        return "model" in self.reconstructions and "model" not in self.files

    @property
    def uses_constants(self) -> bool:
        """Whether something is asked that knows the detector by constants."""
        return not {"perfect", "baseline"}.isdisjoint(set(self.reconstructions) - set(self.files))

    def empty_sheets(self) -> dict[str, Sheet]:
        """One per reconstruction."""
        sample, truth = self.dataset.manifest.sample, has_truth(self.dataset)
        return {name: Sheet.empty(sample, has_truth=truth) for name in self.reconstructions}

    def makers(self) -> dict[str, Reconstruct]:
        """What makes the candidates of a block, by reconstruction."""
        return {name: self._maker(name) for name in self.reconstructions}

    def _maker(self, name: str) -> Reconstruct:
        if name in self.files:
            file = CandidateFile(self.files[name])
            return lambda block: file.select(block.event_number)
        make = open_reconstruction(name, self.dataset.manifest.detector, self.model, self.constants)

        def candidates(block: EventBlock) -> Collection:
            try:
                return make(block)
            except KeyError as missing:  # outside data need not have every column
                raise DatasetError(
                    f"{name} needs the column {missing}, which the dataset lacks; name the others with --reconstructions"
                ) from None

        return candidates


class _Task(NamedTuple):
    """The first `events` events of (a split of) one shard."""

    sample: _Scored
    shard: Shard
    events: int
    split: str | None


def evaluate(
    datasets: Sequence[Path],
    *,
    candidates: Sequence[Path] = (),
    model: Path | None = None,
    constants: str | None = None,
    out: Path | None = None,
    reconstructions: Sequence[str] | None = None,
    workers: int = 1,
    events: int | None = None,
    split: str | None = None,
) -> dict[str, Any]:
    """Figures per sample and reconstruction, ready for JSON; with `out` also histograms and the report in that folder.

    Every reconstruction that a dataset allows is evaluated unless some are named; the first `events` of a split or of all.
    The network is that of `model`, a file or a run, or the one that comes with the package; `constants` of the rules are those
    of a file, or of a detector, other than that of a dataset.
    """
    model = None if model is None else model_file(model)
    samples = _samples(datasets, candidates, reconstructions, model, constants)
    if split is not None and split not in SPLITS:
        raise UsageError(f"unknown split {split!r}; choose from {', '.join(SPLITS)}")
    with nullcontext() if out is None else prepared(out, marks=(METRICS_FILE,)):
        return _evaluate(samples, candidates, model, constants, out, workers, events, split)


def _evaluate(
    samples: Sequence[_Scored],
    candidates: Sequence[Path],
    model: Path | None,
    constants: str | None,
    out: Path | None,
    workers: int,
    events: int | None,
    split: str | None,
) -> dict[str, Any]:
    results: dict[str, Any] = {"samples": {}}
    histograms: dict[str, dict[str, Histograms]] = {}
    tasks = {sample.name: _tasks(sample, events, split) for sample in samples}
    for sample in samples:
        manifest, dataset = sample.dataset.manifest, sample.dataset
        likeness = _likeness(sample, split)
        sheets = _score(sample, tasks[sample.name], workers)
        results["samples"][sample.name] = {
            "sample": manifest.sample,
            "detector": manifest.detector,
            "dataset": dataset.path.name,
            "manifest_sha256": manifest_hash(dataset.path),
            "events": sum(task.events for task in tasks[sample.name]),
            "split": split,
            "truth": has_truth(dataset),
            **_told(manifest),
            "not_available": missing_reasons(dataset, model, constants),
            **likeness,
            "reconstructions": {name: metrics(sheet, manifest.sample) for name, sheet in sheets.items()},
            "comparisons": comparisons(sheets),
        }
        histograms[sample.name] = {name: sheet.histograms for name, sheet in sheets.items()}
    used = model is not None or any(sample.uses_network for sample in samples)
    network = [model or shipped.MODEL] if used else []
    inputs = [sample.dataset.path / MANIFEST_FILE for sample in samples] + [*candidates, *network]
    asked: dict[str, Any] = {"events": events, "split": split}
    if constants is not None:
        asked["constants"] = constants
        inputs += [Path(constants)] if constants.endswith(".toml") else []
    results["provenance"] = collect(asked, {}, inputs)
    if out is not None:
        from ringflow.evaluate.report import write_report  # drawing costs a second of imports

        say("drawing the report")
        write_report(results, histograms, out, {name: _first_event(parts[0]) for name, parts in tasks.items()})
        write_atomic(out / METRICS_FILE, json.dumps(results, indent=1, allow_nan=False) + "\n")
    return results


def show(results: Mapping[str, Any], *, as_json: bool) -> None:
    """The short table for people: one row per sample and reconstruction, with half the width of the 68 % interval."""
    if as_json:
        print_json(results)
        return
    rows = []
    for sample, entry in results["samples"].items():
        for name, figures in entry["reconstructions"].items():
            rows.append([sample, name, entry["events"], *(_cell(**(figures.get(figure) or {})) for figure in _SHOWN)])
        for name, reason in entry["not_available"].items():
            say(f"{sample}: no {name}: {reason}")
        if "candidate" in entry["reconstructions"]:
            by = f", made by {entry['candidates_by']}" if "candidates_by" in entry else ""
            say(f"{sample}: candidate is the reconstruction that came with the dataset{by}")
    table(
        "Evaluation (a width is IQR / median; generated: against all stable particles but neutrinos)",
        ["sample", "reconstruction", "events", *_SHOWN.values()],
        rows,
    )


def report_page(out: Path | None) -> Path | None:
    """Where the report is."""
    return None if out is None else out / PAGE_FILE


def _cell(value: float | None = None, lo: float | None = None, hi: float | None = None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if lo is None or hi is None else f"{value:.4f} ± {(hi - lo) / 2:.4f}"


def _samples(
    datasets: Sequence[Path],
    candidates: Sequence[Path],
    reconstructions: Sequence[str] | None,
    model: Path | None,
    constants: str | None,
) -> list[_Scored]:
    """What to evaluate; a candidate file goes to the dataset it was made of, and is refused if that is not given."""
    if not datasets:
        raise UsageError("no dataset was given; give the folder that `ringflow simulate --out` made")
    opened = [Dataset(path) for path in datasets]
    owned: list[dict[str, Path]] = [{} for _ in opened]
    for path in candidates:
        file = CandidateFile(path)
        owner = next((n for n, dataset in enumerate(opened) if file.is_of(dataset)), None)
        if owner is None:
            file.require(opened[0])
        assert owner is not None
        taken = {*available(opened[owner], model, constants), *owned[owner]}
        name = file.reconstruction if file.reconstruction not in taken else path.stem
        if name in taken:
            raise UsageError(f"there are two reconstructions called {name!r}; rename {path}")
        owned[owner][name] = path
    samples: dict[str, _Scored] = {}
    for dataset, files in zip(opened, owned, strict=True):
        # With the detector, and then a number, where two datasets are of the same sample.
        sample = dataset.manifest.sample
        names = chain([sample, f"{sample}_{dataset.manifest.detector}"], (f"{sample}_{n}" for n in count(2)))
        name = next(name for name in names if name not in samples)
        chosen = _choose(dataset, files, reconstructions, model, constants)
        samples[name] = _Scored(name, dataset, chosen, files, model, constants)
    return list(samples.values())


def _choose(
    dataset: Dataset,
    files: dict[str, Path],
    wanted: Sequence[str] | None,
    model: Path | None,
    constants: str | None,
) -> tuple[str, ...]:
    possible = [*available(dataset, model, constants), *files]
    reasons = missing_reasons(dataset, model, constants)
    if model is not None and "model" in reasons and (wanted is None or "model" in wanted):
        raise DatasetError(f"{model} cannot reconstruct {dataset.path}: {reasons['model']}")
    if not possible:
        raise UsageError(f"{dataset.path} allows no reconstruction ({'; '.join(reasons.values())}); give --candidates")
    for name in wanted or ():
        if name not in possible:
            because = f" ({reasons[name]})" if name in reasons else ""
            raise UsageError(f"no reconstruction {name!r} of {dataset.path}{because}; there is {', '.join(possible)}")
    return tuple(name for name in possible if wanted is None or name in wanted)


def _tasks(sample: _Scored, events: int | None, split: str | None) -> list[_Task]:
    left = len(sample.dataset) if events is None else events
    tasks = []
    for shard in sample.dataset.manifest.shards:
        size = min(shard.num_events if split is None else shard.splits[split], left)
        if size:
            tasks.append(_Task(sample, shard, size, split))
        left -= size
    if not tasks:
        raise UsageError(f"{sample.dataset.path} has no events in split {split!r}; choose another")
    return tasks


def _likeness(sample: _Scored, split: str | None) -> dict[str, Any]:
    """Whether the network, if it is asked, knows such events; what differs is said."""
    if not sample.uses_network:
        return {}
    from ringflow.infer.likeness import likeness

    session = open_model(sample.model, sample.dataset.manifest.detector)
    found = likeness(session, open_input(sample.dataset.path, split, None, None))
    found.warn(sample.name)
    return {"likeness": found.record()}


def _told(manifest: Manifest) -> dict[str, str]:
    """What a dataset says of where it comes from, what its truth is, and who made its candidates."""
    told = manifest.provenance
    settings = told.get("settings")
    profile = settings.get("profile") if isinstance(settings, dict) else None
    by = told.get("reconstruction", profile.get("candidates") if isinstance(profile, dict) else None)
    found = {"source": told.get("source"), "definition_of_truth": told.get("truth")}
    found |= {"candidates_by": by} if "candidate" in manifest.columns else {}
    return {name: printable(text) for name, text in found.items() if isinstance(text, str) and text}


def _score(sample: _Scored, tasks: list[_Task], workers: int) -> dict[str, Sheet]:
    """One sheet per reconstruction."""
    detector = sample.dataset.manifest.detector
    if not has_truth(sample.dataset):
        say(f"{sample.name} has no truth: only what needs none is computed")
    derived_for = load_constants(sample.constants).detector if sample.uses_constants and sample.constants else detector
    if derived_for != detector:
        say(
            f"{sample.name}: the constants of the rules are of the detector {derived_for!r}, the dataset is of {detector!r}"
        )
    sheets = sample.empty_sheets()
    # Ctrl-C reaches all processes: only the parent answers, and ends the others. A pool starts none before it is given work.
    deaf = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(min(workers, len(tasks)), get_context("spawn"), signal.signal, deaf)
    try:
        with progress(sum(task.events for task in tasks), f"evaluating {sample.name}") as advance:
            alone = workers == 1 or len(tasks) == 1
            for task, parts in zip(tasks, (map if alone else pool.map)(_score_shard, tasks), strict=True):
                for name, part in parts.items():
                    sheets[name].add(part)
                advance(task.events)
    except BrokenProcessPool:
        raise FailureError("a worker ended unexpectedly, perhaps for want of memory; use fewer workers") from None
    finally:
        pool.shutdown(cancel_futures=True)
    return sheets


def _score_shard(task: _Task) -> dict[str, Sheet]:
    """One sheet per reconstruction, of blocks of `EVENTS_AT_ONCE` events or more."""
    scored, dataset = task.sample, task.sample.dataset
    made_here = tuple(name for name in scored.reconstructions if name not in scored.files)
    present = columns_for(dataset, made_here, scored.model)
    columns = [parquet_name(name, column) for name, part in present.items() for column in part]
    sheets, makers = scored.empty_sheets(), scored.makers()
    waiting: list[EventBlock] = []
    left = task.events
    for block in dataset.one_shard(task.shard).events(task.split, columns):
        waiting.append(_reconstruct(block.take(0, min(len(block), left)), makers))
        left -= len(waiting[-1])
        if not left or sum(map(len, waiting)) >= EVENTS_AT_ONCE:
            joined = concatenate(waiting)
            truth = Truth.of(joined) if has_truth(dataset) else None
            for name, sheet in sheets.items():
                reco = checked(joined[_CANDIDATES_OF + name], joined.event_number, name)
                measure(sheet, dataset.manifest.sample, joined.event_number, truth, reco)
            waiting = []
        if not left:
            break
    return sheets


def _reconstruct(block: EventBlock, makers: dict[str, Reconstruct]) -> EventBlock:
    """The truth of a block and the momenta of all candidates; what they were made of is let go."""
    kept = {name: block[name] for name in ("particle", "target") if name in block}
    for name, make in makers.items():
        found = make(block)
        columns = {column: found[column] for column in ("label", "px", "py", "pz", "energy")}
        kept[_CANDIDATES_OF + name] = Collection(found.counts, columns)
    return EventBlock(block.event_number, kept)


def _first_event(task: _Task) -> tuple[EventBlock, dict[str, Collection]]:
    """The first event of a task with all its columns, and the candidates of every reconstruction, to be drawn."""
    event = next(task.sample.dataset.one_shard(task.shard).events(task.split)).take(0, 1)
    return event, {name: make(event) for name, make in task.sample.makers().items()}

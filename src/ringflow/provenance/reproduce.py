"""Reproduce: train a run again, or simulate shards of a dataset again, from what was recorded, and compare.

Where code, versions and processor are the same, every figure and every weight must be the same to the last bit. Elsewhere
sums are rounded in another way, and a training goes its own way from there: the losses are compared within a tolerance.
Shards must be equal byte by byte; those of other versions may hold equal events in other bytes.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ringflow import __version__
from ringflow.base.errors import FailureError, InputFileError, RingflowError, UsageError
from ringflow.base.log import progress, say
from ringflow.base.provenance import KEY_DEPENDENCIES, code_version, package_version
from ringflow.base.rundir import SETTINGS_FILE, temporary_folder, write_errors
from ringflow.data.manifest import Manifest, Shard, read_manifest, reason_of
from ringflow.data.production import PlannedShard, Production, plan_shards
from ringflow.data.read import read_shard
from ringflow.data.write import columns_in, file_hash
from ringflow.event.block import concatenate
from ringflow.infer.shipped import MODEL_FILE
from ringflow.provenance.trace import json_file, model_header, records_of, sha256_of, weights
from ringflow.sim.blocks import SimulatedBlocks
from ringflow.sim.settings import SimulateSettings
from ringflow.train.data import describe_data
from ringflow.train.run import describe_machine, train
from ringflow.train.runs import LAST_MODEL_FILE, RUN_FILE, read_history, settings_of
from ringflow.train.settings import TrainSettings

#: What the losses may differ by where bits cannot be the same.
TOLERANCE = 0.05
#: What lines of a history are about, and what is not the same in two equal trainings.
_NOT_FIGURES = ("kind", "step", "events", "events_per_second")
#: Threads beyond which a record is not believed.
_MOST_THREADS = 1024
#: How the answer begins when nothing but the bytes differs.
_EQUAL_VALUES = "every value is equal"

Record = dict[str, Any]


def differences(record: Mapping[str, Any], machine: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
    """What a record tells that is different here, said and returned; what it does not tell is said to be not recorded."""
    codes, packages = (record.get("code"), code_version()), record.get("packages") or {}
    told = record.get("machine") or {}
    pairs = {
        "commit": tuple(code["commit"][:12] if code else "not a checkout" for code in codes),
        "source": tuple("changed since its commit" if code and code.get("dirty") else "as committed" for code in codes),
        "ringflow": (record.get("ringflow"), __version__),
        "Python": (record.get("python"), platform.python_version()),
        "platform": (record.get("platform"), f"{platform.system()} {platform.machine()}"),
        **{name: (packages[name], package_version(name)) for name in KEY_DEPENDENCIES if name in packages},
        **{name: (told.get(name), now) for name, now in (machine or {}).items()},
    }
    apart = [
        {"what": what, "was": "not recorded" if was is None else str(was), "now": str(now)}
        for what, (was, now) in pairs.items()
        if was != now or (what == "source" and was != "as committed")  # changed then and now: who knows how
    ]
    for difference in apart:
        say("note: {what} was {was}, is {now} now".format(**difference))
    return apart


@contextmanager
def _new_folder(out: Path | None) -> Iterator[Path]:
    """A folder to repeat something in, which is removed unless it is named."""
    if out is not None and out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty; give another folder")
    with temporary_folder(out or "reproduce") as folder:
        yield folder
        if out is not None:
            with write_errors(out):
                folder.rename(out)


# A run


def reproduce_run(
    run: Path, out: Path | None = None, *, events: int | None = None, tolerance: float = TOLERANCE
) -> Record:
    """Repeat a run, or its first `events`, in the folder `out` or in one that is removed; what is the same, ready for JSON."""
    path = settings_of(run)
    if path is None:
        raise InputFileError(f"{run} is no run: it has no {RUN_FILE} beside its settings; give the folder of a run")
    settings, record = TrainSettings.resolve(path, complete=False), json_file(run / RUN_FILE)
    if settings.sync != "allreduce":
        raise UsageError(f"{run} was trained with sync={settings.sync}, in which chance decides; it cannot be repeated")
    compute = settings.compute.model_copy(update={"strategy": "replicate", "parts": 0})  # in one process
    settings = settings.model_copy(update={"compute": compute, "profile": False})
    threads = torch.get_num_threads()
    with records_of(run):
        until = _length(run, settings, events)
        _require_the_same_data(run, settings, record)
        apart = differences(record, describe_machine(settings, 1))
        if record.get("earlier"):
            say("note: the run was gone on with by other code than it was begun with; only the last one is used here")
        # How many threads add up shows in the last bit: as many as then.
        as_then = min(int((record.get("machine") or {}).get("threads") or threads), _MOST_THREADS)
    with _new_folder(out) as folder:
        torch.set_num_threads(max(as_then, 1))
        try:
            train(settings, folder, pace=None if until is None else lambda shown, figures: until)
        finally:
            torch.set_num_threads(threads)
        with records_of(run):
            rows = _compare_runs(run, folder, exact=not apart, tolerance=tolerance)
    return {**_asked(run, out, until, apart), "rows": rows, "same": all(row["ok"] for row in rows)}


def _asked(path: Path, out: Path | None, events: int | None, apart: list[dict[str, str]]) -> Record:
    return {"path": str(path), "again": str(out) if out else None, "events": events, "differences": apart}


def _length(run: Path, settings: TrainSettings, events: int | None) -> int | None:
    """Events to repeat; None: all of them. Refused if there is nothing to compare with."""
    history = read_history(run)
    last = next((int(line["events"]) for line in reversed(history) if line["kind"] == "validation"), None)
    if last is None:
        raise InputFileError(f"{run} has no validation yet; let it train until the first one")
    if events is None:
        return None if last >= settings.length.events or settings.length.patience > 0 else last
    first = min(line["events"] for line in history)
    if events < first:
        raise UsageError(f"--events {events} ends before the first line of its history; ask for {first} or more")
    return events if events < last else None


def _require_the_same_data(run: Path, settings: TrainSettings, record: Mapping[str, Any]) -> None:
    """Other data are another training: refused."""
    told = record.get("data")
    if told is None and (run / MODEL_FILE).is_file():
        told = model_header(run / MODEL_FILE)["card"].get("data")
    now = describe_data(settings)  # an error in one line if they are gone
    if told is None:
        say("note: which version of the data it was trained on is not recorded")
    else:
        identity = ("manifest_sha256", "simulated", "seed")
        before, here = ([[entry.get(name) for name in identity] for entry in data] for data in (told, now))
        if before != here:
            raise FailureError(
                f"the data of {run} ({settings.data}) are not what they were; it cannot be repeated with others"
            )
    start = next(iter(record.get("inputs") or ()), None)
    if settings.start is not None and start is not None and sha256_of(Path(settings.start)) != start["sha256"]:
        raise FailureError(f"{settings.start}, which {run} started from, is gone or has changed; put it back")


def _compare_runs(run: Path, again: Path, *, exact: bool, tolerance: float) -> list[Record]:
    before, now = read_history(run), read_history(again)
    lines, values, departures = compare_histories(before, now)
    if not lines:
        steps = [", ".join(f"{line['kind']} at step {line['step']}" for line in lines[:2]) for lines in (before, now)]
        found = f"no line is about the same steps: {steps[0]} then, {steps[1]} now"
        return [{"compared": "history", "asked": "the same steps", "found": found, "ok": False}]
    largest = max((departure.size for departure in departures if departure.figure == "loss"), default=0.0)
    shown = str(departures[0]) if departures else "equal"
    rows: list[Record] = [{"compared": f"{values} figures of {lines} lines"}]
    if exact:
        rows[0] |= {"asked": "equal", "found": shown, "ok": not departures}
    else:
        asked = f"loss within {tolerance:.2g}"
        rows[0] |= {"asked": asked, "found": f"{largest:.2g}; {shown}", "ok": largest <= tolerance}
    for name in (MODEL_FILE, LAST_MODEL_FILE):
        files = [path for path in (run / name, again / name) if path.is_file()]
        steps = [json.dumps(model_header(file)["card"].get("training")) for file in files]
        if len(files) == 2 and steps[0] == steps[1]:
            tensors, different, largest = compare_weights(*files)
            found = f"{len(different)} differ, by {largest:.2g} at most" if different else "equal"
            row = {"compared": f"{tensors} tensors of {name}", "asked": "equal" if exact else "-"}
            rows.append({**row, "found": found, "ok": not (exact and different)})
    return rows


class Departure(NamedTuple):
    """A figure that is not the same in two histories."""

    kind: str
    step: int
    figure: str
    was: float | None
    now: float | None

    def __str__(self) -> str:
        return f"first at step {self.step}: {self.kind} {self.figure} {self.was} → {self.now}"

    @property
    def size(self) -> float:
        """Relative to the value before; infinite if one of them is not a number."""
        if self.was is None or self.now is None:
            return float("inf")
        return abs(self.now - self.was) / max(abs(self.was), 1e-12)


def compare_histories(before: Sequence[Record], now: Sequence[Record]) -> tuple[int, int, list[Departure]]:
    """Lines that are about the same steps, the values in them, and those that are not equal to the last bit, by step."""
    later, departures, values, lines = dict(_places(now)), [], 0, 0
    for place, one in _places(before):
        if (other := later.get(place)) is not None:
            lines += 1
            for name in dict.fromkeys([*one, *other]):
                if name not in _NOT_FIGURES:
                    values += 1
                    if one.get(name) != other.get(name):
                        departures.append(Departure(one["kind"], one["step"], name, one.get(name), other.get(name)))
    return lines, values, sorted(departures, key=lambda departure: departure.step)


def _places(lines: Sequence[Record]) -> Iterator[tuple[tuple[Any, ...], Record]]:
    """Lines with what they are about; one of steps is a mean since the one before, which has to be the same too."""
    previous = 0
    for line in lines:
        of_steps = line["kind"] == "train"
        yield (line["kind"], line["step"], line.get("events"), previous if of_steps else None), line
        previous = line["step"] if of_steps else previous


def compare_weights(before: Path, now: Path) -> tuple[int, list[str], float]:
    """Tensors of two model files, those that are not equal to the last bit, and the largest difference of a value."""
    one, other = weights(before), weights(now)
    names = sorted(one.keys() | other.keys())
    different, largest = [], 0.0
    for name in names:
        if name not in one or name not in other or one[name].shape != other[name].shape:
            different.append(name)
            largest = float("inf")
        elif one[name].tobytes() != other[name].tobytes():
            different.append(name)
            apart = np.abs(one[name].astype(np.float64) - other[name].astype(np.float64))
            largest = max(largest, float(apart.max()))
    return len(names), different, largest


# A dataset


def reproduce_dataset(dataset: Path, out: Path | None = None, *, events: int | None = None) -> Record:
    """Make the first shard again, or those that hold the first `events`; what is the same, ready for JSON."""
    manifest = read_manifest(dataset)
    with records_of(dataset):
        settings = _production_settings(dataset, manifest)
        chosen = _chosen(manifest, settings, events)
        apart = differences(manifest.provenance)
    total = sum(shard.num_events for shard, _ in chosen)
    with _new_folder(out) as folder:
        production = Production(folder)
        production.workshop.mkdir(parents=True, exist_ok=True)
        with closing(SimulatedBlocks(settings)) as source, progress(total, "simulating again") as advance:
            made = [(was, production.write(source, task, advance)) for was, task in chosen]
        rows = [_compare_shards(dataset, was, folder, now, manifest, exact=not apart) for was, now in made]
    return {**_asked(dataset, out, total, apart), "rows": rows, "same": all(row["ok"] for row in rows)}


def _production_settings(dataset: Path, manifest: Manifest) -> SimulateSettings:
    """The settings of the production; refused if it was none, or if what it read has changed."""
    path = dataset / SETTINGS_FILE
    if "generator" not in manifest.provenance or not path.is_file():
        raise UsageError(
            f"{dataset} was not simulated, so it cannot be simulated again; give one made by `ringflow simulate`"
        )
    settings = SimulateSettings.resolve(path, complete=False)
    read = [settings.generator.hepmc, Path(settings.detector) if settings.detector.endswith(".toml") else None]
    known = {entry["file"]: entry["sha256"] for entry in manifest.provenance.get("inputs", ())}
    for file in filter(None, read):
        if sha256_of(file) != known.get(file.name):
            raise FailureError(f"{file}, which {dataset} was made of, is gone or has changed; put it back")
    return settings


def _chosen(manifest: Manifest, settings: SimulateSettings, events: int | None) -> list[tuple[Shard, PlannedShard]]:
    """Shards to make again, and what makes each."""
    production, chosen, held = settings.production, [], 0
    plan = plan_shards(manifest.num_events, production.events_per_shard, production.block_events)
    tasks = {task.file: task for task in plan}
    for shard in manifest.shards:
        if shard.file not in tasks:
            raise FailureError(f"{shard.file} is not what the settings beside it would make; put the settings back")
        chosen.append((shard, tasks[shard.file]))
        held += shard.num_events
        if events is None or held >= events:
            break
    return chosen


def _compare_shards(dataset: Path, was: Shard, folder: Path, now: Shard, manifest: Manifest, *, exact: bool) -> Record:
    """The hash in the manifest and that of the new shard; the file in the dataset may be damaged beside."""
    found, ok = "equal", True
    if was.sha256 != now.sha256:
        found = _first_difference(dataset, was, folder, now, manifest)
        ok = found.startswith(_EQUAL_VALUES) and not exact
    path = dataset / was.file
    if not path.is_file() or file_hash(path) != was.sha256:
        found, ok = f"{found}; the file in the dataset is not what its manifest says", False
    return {"compared": was.file, "asked": f"sha256 {was.sha256[:12]}", "found": found, "ok": ok}


def _first_difference(dataset: Path, was: Shard, folder: Path, now: Shard, manifest: Manifest) -> str:
    """The first event and column that are not the same; bytes may also differ where no value does."""
    try:
        before, after = (
            concatenate(list(read_shard(place, shard, manifest.columns, verify=False)))
            for place, shard in ((dataset, was), (folder, now))
        )
    except (RingflowError, ValueError) as error:
        return f"differs, and cannot be compared value by value ({reason_of(error)})"
    for event, number in enumerate(before.event_number):
        for name, part in before.collections.items():
            one, other = (slice(*block[name].offsets[event : event + 2]) for block in (before, after))
            for column, values in part.columns.items():
                if not np.array_equal(values[one], after[name][column][other], equal_nan=values.dtype.kind == "f"):
                    return f"first at event {number}: {name}_{column}"
    known = manifest.columns
    there = columns_in(folder / now.file)
    more = [f"{name}_{column}" for name in there for column in there[name] if column not in known.get(name, ())]
    return f"{_EQUAL_VALUES}, but not the bytes" + (f": {len(more)} columns are new, such as {more[0]}" if more else "")

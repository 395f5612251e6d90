"""Reconstruct: from the events of a dataset or a file to a file of candidates.

Events are streamed through the network and kept in parts until all are there; then the file appears whole. The same command
goes on where a killed one stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringflow import __version__
from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import progress, say
from ringflow.base.provenance import code_version, describe_input
from ringflow.base.rundir import require_suffix, write_errors
from ringflow.data.candidates import CandidateFile, write_candidate_file
from ringflow.data.manifest import ROOT_SUFFIX
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.infer.inputs import EventInput, open_input
from ringflow.infer.reconstruct import Parts, after, drop, made_of, parts_folder
from ringflow.infer.remote import (
    HERE,
    PLACES,
    CarriedModel,
    Place,
    ShardSource,
    carry,
    open_cluster,
    reconstruct_on,
    shard_tasks,
)
from ringflow.infer.runtime import Reconstructor
from ringflow.infer.shipped import SHIPPED, model_file

SUFFIXES = (".parquet", ".root")


def reconstruct(
    source: Path,
    out: Path,
    *,
    model: Path | None = None,
    engine: str | None = None,
    device: str = "auto",
    threads: int = 1,
    split: str | None = None,
    events: int | None = None,
    profile: str | None = None,
    overwrite: bool = False,
    on: Place = HERE,
    uncertainty: Path | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write the candidates of events; what was done, where and how fast, ready for JSON.

    Events of which the network knows nothing are refused, unless by `force`.
    """
    started = time.perf_counter()
    there = _there(out, overwrite)
    _require_place(on, source, device, threads)
    given = open_input(source, split, events, profile)
    field = given.field if out.suffix == ROOT_SUFFIX else None  # where it is not known, that is told at once
    for note in given.notes:
        say(note)
    path = model_file(model)
    # Torch takes seconds to load: whatever was asked for wrongly is told before.
    from ringflow.infer.likeness import likeness
    from ringflow.infer.session import choose_engine, open_session
    from ringflow.train.device import choose_device

    path, engine = choose_engine(path, engine)
    computed_on = choose_device("cpu" if on != HERE or (engine == "onnx" and device == "auto") else device)
    errors = _uncertainties(uncertainty, path, engine)
    carried = None if on == HERE else carry(path, engine, errors, given.detector)
    session = carried.open() if carried else open_session(path, computed_on, engine, threads, errors, given.detector)
    found = likeness(session, given)
    if found.hopeless and not force:
        raise UsageError(
            f"{path.name} knows nothing of events such as {source}: {found.summary()}; adapt a network to them (ringflow adapt "
            f"{source} --out adapted.safetensors), train one with start={model or SHIPPED}, or --force"
        )
    found.warn()
    origin = {"model": describe_input(path), "engine": engine, "ringflow": __version__, "threshold": session.threshold}
    origin |= {"uncertainty": describe_input(errors)} if errors else {}
    chosen = {"split": split, "events": given.num_events}
    record = given.record(out.stem, {**origin, "code": code_version(), **chosen, "card": session.card})
    where: dict[str, Any] = {"on": on.on}
    if there is not None:
        _require_same(out, there, record)
        say(f"{out} is already there, made of the same events, model and settings")
        drop(parts_folder(out))  # of a process that was killed when all was done
        candidates, new, seconds = _count(out), 0, 0.0
    else:
        with write_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)
        cluster = _on(on, Dataset(source), split, given.num_events, carried) if carried else None
        with Parts(out, {**given.identity, **origin, "device": str(computed_on)}) as parts:
            with cluster or _here(session, given, threads) as (made_after, where):
                if parts.num_events:
                    say(f"going on after {parts.num_events} events that are done")
                with progress(given.num_events, "reconstructing") as advance:
                    begun = time.perf_counter()
                    new = parts.keep(made_after(parts.num_events), record, advance)
                    seconds = time.perf_counter() - begun
            candidates = _finish(out, parts, given, record, field)
    return {
        "path": str(out),
        "events": given.num_events,
        "new_events": new,
        "candidates": candidates,
        "model": path.name,
        "engine": engine,
        "device": str(computed_on),
        "detector": given.detector,
        "likeness": found.record(),
        **where,
        "seconds": round(time.perf_counter() - started, 3),
        "events_per_second": round(new / seconds, 2) if new else 0.0,
    }


#: Candidates yet to be made, those that follow the first so many events; and by whom, for the summary.
_Making = tuple[Callable[[int], Iterator[EventBlock]], dict[str, Any]]


@contextmanager
def _here(session: Reconstructor, given: EventInput, threads: int) -> Iterator[_Making]:
    """In this process. How many threads torch has shows in the last bit of a number: it has those it is given."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield lambda done: made_of(session.reconstruct, after(given.blocks(session.kinds), done)), {"on": "here"}
    finally:
        torch.set_num_threads(before)


@contextmanager
def _on(place: Place, dataset: Dataset, split: str | None, events: int, model: CarriedModel) -> Iterator[_Making]:
    begun = time.perf_counter()
    with open_cluster(place, ShardSource.of(dataset, split), model) as cluster:
        workers, seconds = cluster.workers(), round(time.perf_counter() - begun, 3)
        say(f"{place.on} is ready, with {workers} workers")
        where = {"on": place.on, "workers": workers, "start_seconds": seconds}
        yield lambda done: reconstruct_on(cluster, shard_tasks(dataset, split, events, done)), where


def _require_place(place: Place, source: Path, device: str, threads: int) -> None:
    """What goes together with where it is to be done."""
    if place.on not in PLACES:
        raise UsageError(f"cannot reconstruct on {place.on!r}; choose from {', '.join(PLACES)}")
    if place.on == "here":
        if place != HERE:
            raise UsageError("workers are for --on spark and --on ray; use --threads, or say where the workers are")
        return
    if threads != 1:
        raise UsageError(f"--threads {threads} is for --on here; with --on {place.on} every worker has one thread")
    if device not in ("auto", "cpu"):
        raise UsageError(f"--on {place.on} computes on the cpu, not on {device}; leave --device out, or use --on here")
    if source.is_file() and source.suffix == ROOT_SUFFIX:
        raise UsageError(
            f"--on {place.on} takes the folder of a dataset, {source} is a file; use --on here, or make a dataset of it: "
            f"ringflow convert {source} --out data/{source.stem}"
        )


def _uncertainties(given: Path | None, model: Path, engine: str) -> Path | None:
    """The file of uncertainties that is meant: the one given, or one beside the model that belongs to it."""
    if engine != "torch":
        if given is not None:
            raise UsageError(f"--uncertainty {given} is for --engine torch; leave it out")
        return None
    from ringflow.models.uncertainty import found_beside

    return given or found_beside(model)


def _there(out: Path, overwrite: bool) -> dict[str, Any] | None:
    """What a file of candidates that is there and not to be replaced says of its origin."""
    require_suffix(out, *SUFFIXES)
    if out.is_dir():
        raise UsageError(f"{out} is a folder; give a file name")
    if overwrite or not out.exists():
        return None
    try:
        if out.suffix == ROOT_SUFFIX:
            from ringflow.data.edm4hep.write import read_record

            return read_record(out) or {}
        return CandidateFile(out).record
    except InputFileError:
        return {}  # of others


def _require_same(out: Path, there: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse a file of other events, another model or other settings; other code may have made it."""

    def compared(record: dict[str, Any]) -> dict[str, Any]:
        plain: dict[str, Any] = json.loads(json.dumps(record))
        return {**plain, "provenance": {**plain.get("provenance", {}), "code": None}}

    if compared(there) != compared(wanted):
        raise UsageError(f"{out} is there already; give another name, or --overwrite to replace it")


def _count(out: Path) -> int:
    """Candidates in a file."""
    if out.suffix == ROOT_SUFFIX:
        from ringflow.data.edm4hep.write import count_candidates

        return count_candidates(out)
    return sum(len(block["candidate"]) for block in CandidateFile(out).blocks())


def _finish(out: Path, parts: Parts, given: EventInput, record: dict[str, Any], field: float | None) -> int:
    """Join the parts into the output, which appears whole, and drop them; the number of candidates."""
    found = 0

    def counted() -> Iterator[EventBlock]:
        nonlocal found
        for block in parts.blocks():
            found += len(block["candidate"])
            yield block

    if field is not None:
        from ringflow.data.edm4hep.write import write_edm4hep

        write_edm4hep(out, _with_elements(counted(), given), field=field, record=record)
    else:
        write_candidate_file(out, record, counted())
    parts.remove()
    return found


def _with_elements(made: Iterator[EventBlock], given: EventInput) -> Iterator[EventBlock]:
    """Candidates beside the tracks and clusters that they refer to."""
    kinds = ("track", "cluster")
    for block, elements in zip(made, given.blocks(kinds), strict=True):
        present = {kind: elements[kind] for kind in kinds if kind in elements}
        yield EventBlock(block.event_number, {**block.collections, **present})

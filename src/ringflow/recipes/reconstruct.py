"""Reconstruct: from the events of a dataset or a file to a file of candidates.

Events are streamed through the network and kept in parts until all are there; then the file appears whole. The same command
goes on where a killed one stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ringflow import __version__
from ringflow.base.errors import UsageError
from ringflow.base.log import progress, say
from ringflow.base.provenance import describe_input
from ringflow.base.rundir import write_errors
from ringflow.data.candidates import write_candidate_file
from ringflow.event.block import EventBlock
from ringflow.infer.engine import reconstruct_into
from ringflow.infer.parts import Parts
from ringflow.infer.session import open_session
from ringflow.recipes.inputs import EventInput, open_input
from ringflow.recipes.models import model_file
from ringflow.train.device import choose_device

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
) -> dict[str, Any]:
    """Write the candidates of events; what was done and how fast, ready for JSON."""
    started = time.perf_counter()
    _require_free(out, overwrite)
    given = open_input(source, split, events, profile)
    for note in given.notes:
        say(note)
    path = model_file(model)
    engine = engine or ("onnx" if path.suffix == ".onnx" else "torch")
    place = choose_device("cpu" if engine == "onnx" and device == "auto" else device)
    session = open_session(path, place, engine, threads)
    if session.detector is not None and session.detector != given.detector:
        say(f"the model was trained for the detector {session.detector!r}, the events are of {given.detector!r}")
    origin = {"model": describe_input(path), "engine": engine, "ringflow": __version__, "threshold": session.threshold}
    record = given.record(out.stem, {**origin, "card": session.card})
    with write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    parts = Parts(out, {**given.identity, **origin, "device": str(place)})
    if parts.num_events:
        say(f"going on after {parts.num_events} events that are done")
    with progress(given.num_events, "reconstructing") as advance:
        begun = time.perf_counter()
        new = reconstruct_into(parts, session, given.blocks(session.kinds), record, advance)
        seconds = time.perf_counter() - begun
    candidates = _finish(out, parts, given, record)
    return {
        "path": str(out),
        "events": given.num_events,
        "new_events": new,
        "candidates": candidates,
        "model": path.name,
        "engine": engine,
        "device": str(place),
        "detector": given.detector,
        "seconds": round(time.perf_counter() - started, 3),
        "events_per_second": round(new / seconds, 2) if new else 0.0,
    }


def _require_free(out: Path, overwrite: bool) -> None:
    if out.suffix not in SUFFIXES:
        raise UsageError(f"cannot tell the format of {out}; let its name end in {' or '.join(SUFFIXES)}")
    if out.is_dir():
        raise UsageError(f"{out} is a folder; give a file name")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} is there already; give another name, or --overwrite to replace it")


def _finish(out: Path, parts: Parts, given: EventInput, record: dict[str, Any]) -> int:
    """Join the parts into the output, which appears whole, and drop them; the number of candidates."""
    found = 0

    def counted() -> Iterator[EventBlock]:
        nonlocal found
        for block in parts.blocks():
            found += len(block["candidate"])
            yield block

    if out.suffix == ".root":
        from ringflow.data.edm4hep_write import write_edm4hep

        write_edm4hep(out, _with_elements(counted(), given), field=given.field)
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

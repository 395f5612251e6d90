"""Reproduce: train again from what a run recorded, and compare.

Where code, versions and processor are the same, every figure and every weight must be the same to the last bit. Elsewhere
sums are rounded in another way, and a training goes its own way from there: the losses are compared within a tolerance.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ringflow.base.errors import FailureError, InputFileError, UsageError
from ringflow.base.log import say
from ringflow.infer.shipped import MODEL_FILE
from ringflow.provenance.circumstances import differences
from ringflow.provenance.headers import json_file, model_header
from ringflow.provenance.histories import compare_histories, compare_weights
from ringflow.provenance.places import sha256_of
from ringflow.train.data import describe_data
from ringflow.train.run import train
from ringflow.train.run_record import describe_machine
from ringflow.train.runs import RUN_FILE, read_history, settings_of
from ringflow.train.settings import TrainSettings

LAST_MODEL_FILE = "last.safetensors"
#: What the losses may differ by where bits cannot be the same.
TOLERANCE = 0.05

Row = dict[str, Any]


@dataclass(frozen=True)
class _Until:
    """A pace that ends a training after so many events."""

    events: int

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        """See `train.pace.Pace`."""
        return self.events


def reproduce_run(
    run: Path, out: Path | None = None, *, events: int | None = None, tolerance: float = TOLERANCE
) -> dict[str, Any]:
    """Repeat a run, or its first `events`, in the folder `out` or in one that is removed; what is the same, ready for JSON."""
    settings, record = _recorded(run)
    history = read_history(run)
    until = _length(run, settings, history, events)
    _require_the_same_data(run, settings, record)
    apart = differences(record, describe_machine(settings, 1))
    for difference in apart:
        say(f"note: {difference}")
    if record.get("earlier"):
        say("note: the run was gone on with by other code than it was begun with; only the last one is used here")
    with _folder(out) as folder, _threads(record):
        train(settings, folder, pace=None if until is None else _Until(until))
        rows = _compare(run, folder, not apart, tolerance)
    return {
        "path": str(run),
        "again": str(out) if out else None,
        "events": until,
        "differences": [difference._asdict() for difference in apart],
        "rows": rows,
        "same": all(row["ok"] for row in rows),
    }


def _recorded(run: Path) -> tuple[TrainSettings, dict[str, Any]]:
    """The settings to repeat a run with in one process, and its record."""
    path = settings_of(run)
    if path is None:
        raise InputFileError(f"{run} is no run: it has no {RUN_FILE} beside its settings; give the folder of a run")
    settings = TrainSettings.resolve(path, complete=False)
    if settings.sync != "allreduce":
        raise UsageError(f"{run} was trained with sync={settings.sync}, in which chance decides; it cannot be repeated")
    compute = settings.compute.model_copy(update={"strategy": "replicate", "parts": 0})
    return settings.model_copy(update={"compute": compute, "profile": False}), json_file(run / RUN_FILE)


def _length(run: Path, settings: TrainSettings, history: list[dict[str, Any]], events: int | None) -> int | None:
    """Events to repeat; None: all of them. Refused if there is nothing to compare with."""
    validations = [line for line in history if line["kind"] == "validation"]
    if not validations:
        raise InputFileError(f"{run} has no validation yet; let it train until the first one")
    if events is not None:
        first = min(line["events"] for line in history)
        if events < first:
            raise UsageError(f"--events {events} ends before the first line of its history; ask for {first} or more")
        return events if events < validations[-1]["events"] else None
    whole = validations[-1]["events"] >= settings.length.events or settings.length.patience > 0
    return None if whole else int(validations[-1]["events"])


def _require_the_same_data(run: Path, settings: TrainSettings, record: Mapping[str, Any]) -> None:
    """Other data are another training: refused."""
    told = record.get("data")
    if told is None and (run / MODEL_FILE).is_file():
        told = model_header(run / MODEL_FILE)["card"].get("data")
    now = describe_data(settings)  # an error in one line if they are gone
    if told is None:
        say("note: which version of the data it was trained on is not recorded")
    elif [_identity(entry) for entry in told] != [_identity(entry) for entry in now]:
        raise FailureError(
            f"the data of {run} ({settings.data}) are not what they were; it cannot be repeated with others"
        )
    start = next((entry for entry in record.get("inputs") or ()), None)
    if settings.start is not None and start is not None and sha256_of(Path(settings.start)) != start["sha256"]:
        raise FailureError(f"{settings.start}, which {run} started from, is gone or has changed; put it back")


def _identity(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return entry.get("manifest_sha256"), entry.get("simulated"), entry.get("seed")


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} is not empty; give another folder")
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="ringflow-reproduce-") as folder:
        yield Path(folder) / "run"


@contextmanager
def _threads(record: Mapping[str, Any]) -> Iterator[None]:
    """How many threads add up shows in the last bit: as many as then."""
    before, then = torch.get_num_threads(), (record.get("machine") or {}).get("threads")
    torch.set_num_threads(then or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _compare(run: Path, again: Path, exact: bool, tolerance: float) -> list[Row]:
    before, now = read_history(run), read_history(again)
    histories = compare_histories(before, now)
    if not histories.lines:
        steps = [", ".join(f"{line['kind']} at step {line['step']}" for line in lines[:2]) for lines in (before, now)]
        found = f"no line is about the same steps: {steps[0]} then, {steps[1]} now"
        return [{"compared": "history", "asked": "the same steps", "found": found, "ok": False}]
    largest, first = histories.largest("loss"), next(iter(histories.departures), None)
    shown = "equal"
    if first is not None:
        shown = f"first at step {first.step}: {first.kind} {first.figure} {first.was} → {first.now}"
    row: Row = {"compared": f"{histories.values} figures of {histories.lines} lines"}
    if exact:
        row |= {"asked": "equal", "found": shown, "ok": histories.same}
    else:
        row |= {"asked": f"loss within {tolerance:.2g}", "found": f"{largest:.2g}; {shown}", "ok": largest <= tolerance}
    networks = [_weights_row(run, again, name, exact) for name in (MODEL_FILE, LAST_MODEL_FILE)]
    return [row, *(network for network in networks if network is not None)]


def _weights_row(run: Path, again: Path, name: str, exact: bool) -> Row | None:
    """Compare two networks if both are of the same step."""
    before, now = run / name, again / name
    if not (before.is_file() and now.is_file()):
        return None
    steps = [json.dumps(model_header(path)["card"].get("training")) for path in (before, now)]
    if steps[0] != steps[1]:
        return None
    found = compare_weights(before, now)
    told = f"{len(found.different)} differ, by {found.largest:.2g} at most" if found.different else "equal"
    what = f"{found.tensors} tensors of {name}"
    return {"compared": what, "asked": "equal" if exact else "-", "found": told, "ok": not (exact and found.different)}

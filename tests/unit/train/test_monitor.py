"""History, TensorBoard files and progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from ringflow.base.errors import FailureError
from ringflow.train import trainer as monitor_module
from ringflow.train.checkpoint import TrainingState
from ringflow.train.step import Record
from ringflow.train.trainer import Monitor


def records(first: int, count: int) -> list[Record]:
    values = [{"total": float(step), "particle": 1.0, "gradient": 2.0} for step in range(first, first + count)]
    return [Record(int(value["total"]), (), value) for value in values]


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def board_events(path: Path) -> list[Event]:
    """Events of a TensorBoard file: length, checksum, event, checksum."""
    content, events = path.read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        events.append(Event.FromString(content[12 : 12 + size]))
        content = content[12 + size + 4 :]
    return events


def test_a_hundred_steps_make_a_line_and_so_does_a_validation_and_tensorboard_has_the_same(run: Path):
    state = TrainingState(step=100, events=1000, step_seconds=2.0, computed=200, padding=10)
    with Monitor(run, TrainingState(), 5000) as monitor:
        monitor.steps(records(0, 60), state, 0.5)
        assert lines(run) == []
        monitor.steps(records(60, 40), state, 0.5)
        monitor.validation({"loss": 3.0, "jet_iqr_over_median": None}, state)
        monitor.flush()
        (path,) = (run / "tensorboard").iterdir()
        first, *written = board_events(path)
    where = {"step": 100, "events": 1000}
    means = {"loss": 49.5, "loss_particle": 1.0, "gradient": 2.0, "rate": 0.5}
    counts = {"events_per_second": 500.0, "padding_share": 0.05}
    assert lines(run) == [
        {"kind": "train", **where, **means, **counts},
        {"kind": "validation", **where, "loss": 3.0, "jet_iqr_over_median": None},
    ]
    assert path.name.startswith("events.out.tfevents.")  # how TensorBoard knows its files
    assert first.file_version == "brain.Event:2"
    found = {value.tag: (event.step, value.simple_value) for event in written for value in event.summary.value}
    assert found["validation/loss"] == (100, 3.0)
    assert found["train/loss"] == (100, 49.5)
    assert "validation/jet_iqr_over_median" not in found


def test_what_was_written_after_the_state_that_is_gone_on_from_is_taken_away(run: Path):
    path = run / "history.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    for step in (2, 1):
        with Monitor(run, TrainingState(step=step), 10):
            pass
        assert lines(run) == [{"step": number} for number in range(1, step + 1)]
    events = [event for path in (run / "tensorboard").iterdir() for event in board_events(path)]
    begun = [event.step for event in events if event.session_log.status == SessionLog.START]
    assert sorted(begun) == [2, 3], "which hides the later steps of earlier files"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="writes to /dev/full")
@pytest.mark.parametrize("what", ["history.jsonl", "tensorboard"])
def test_a_full_disk_is_one_line(run: Path, monkeypatch: pytest.MonkeyPatch, what: str):
    if what == "history.jsonl":
        monkeypatch.setattr(monitor_module, "cut_history", lambda path, step: path.symlink_to("/dev/full"))
    else:
        monkeypatch.setattr("tensorboardX.record_writer.open_file", lambda path: open("/dev/full", "wb"))  # noqa: SIM115
    with (
        pytest.raises(FailureError, match=f"cannot write {run}: the disk is full"),
        Monitor(run, TrainingState(), 10) as monitor,
    ):
        monitor.validation({"loss": 3.0}, TrainingState(step=7))


def test_few_plain_lines_outside_a_terminal(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(monitor_module.time, "monotonic", lambda: now[0])
    with Monitor(run, TrainingState(), 100) as monitor:
        for events in range(1, 118):
            monitor.steps(records(0, 1), TrainingState(events=events, step_seconds=events / 5), 0.1)
    said = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in said] == [f"train: {n} of 100 events" for n in (*range(10, 101, 10), 100)]
    assert said[1] == "train: 20 of 100 events, loss 0.0000, 5 events/s, 16 s left"
    with Monitor(run, TrainingState(), 1000) as monitor:
        monitor.steps(records(0, 1), TrainingState(events=1), 0.1)
        now[0] = 31.0
        monitor.steps(records(0, 1), TrainingState(events=2), 0.1)
    assert capsys.readouterr().err.startswith("train: 2 of 1,000 events, loss 0.0000")


def test_a_bar_on_a_terminal(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(monitor_module, "interactive", lambda: True)
    with Monitor(run, TrainingState(), 1000) as monitor:
        monitor.steps(records(0, 1), TrainingState(step=1, events=100, step_seconds=1.0), 0.1)
        monitor.validation({"loss": 3.0}, TrainingState(step=1, events=100))
    shown = capsys.readouterr().err
    assert "validation    100 events  loss  3.0000" in shown
    assert "100/1000" in shown


def test_validations_are_aligned_lines_in_words_and_marked_against_the_rules(
    run: Path, capsys: pytest.CaptureFixture[str]
):
    names = ("loss", "loss_momentum", "jet_iqr_over_median", "particle_f1", "missing_momentum_error")
    rules = {"jet_iqr_over_median": 0.06, "particle_f1": 0.8, "missing_momentum_error": 3.0}
    with Monitor(run, TrainingState(), 100_000, rules) as monitor:
        for events, figures in (
            (900, (12.5, 1.0, None, 0.5, 20.0)),
            (20_000, (1.25, 1.0, 0.07, 0.81, 2.5)),
            (100_000, (1.0, 1.0, 0.05, 0.9, 2.0)),
        ):
            monitor.validation(dict(zip(names, figures, strict=True)), TrainingState(step=1, events=events))
    assert capsys.readouterr().err.splitlines() == [
        "validation      900 events  loss 12.5000  jet width       -  F1  0.5000  missing momentum   20.00 GeV",
        "validation   20,000 events  loss  1.2500  jet width  0.0700  F1  0.8100  missing momentum    2.50 GeV"
        "  ahead of the rules in F1, missing momentum",
        "validation  100,000 events  loss  1.0000  jet width  0.0500  F1  0.9000  missing momentum    2.00 GeV"
        "  ★ beats the rules",
    ]
    assert [line["loss_momentum"] for line in lines(run)] == [1.0, 1.0, 1.0]  # machines get everything

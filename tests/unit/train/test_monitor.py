"""History, TensorBoard files and progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import FailureError
from ringflow.train import monitor as monitor_module
from ringflow.train.checkpoint import TrainingState
from ringflow.train.monitor import Monitor, cut_history
from ringflow.train.step import Record


def records(first: int, count: int) -> list[Record]:
    return [
        Record(step, (), {"total": float(step), "particle": 1.0, "gradient": 2.0})
        for step in range(first, first + count)
    ]


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def test_a_hundred_steps_make_a_line_and_so_does_a_validation(run: Path):
    state = TrainingState(step=100, events=1000, step_seconds=2.0, computed=200, padding=10)
    with Monitor(run, TrainingState(), 5000) as monitor:
        monitor.steps(records(0, 60), state, 0.5)
        assert lines(run) == []
        monitor.steps(records(60, 40), state, 0.5)
        monitor.validation({"loss": 3.0, "jet_iqr_over_median": None}, state)
    train, validation = lines(run)
    assert train == {
        "kind": "train",
        "step": 100,
        "events": 1000,
        "loss": 49.5,
        "loss_particle": 1.0,
        "gradient": 2.0,
        "rate": 0.5,
        "events_per_second": 500.0,
        "padding_share": 0.05,
    }
    assert validation == {
        "kind": "validation",
        "step": 100,
        "events": 1000,
        "loss": 3.0,
        "jet_iqr_over_median": None,
    }


def board_events(path: Path) -> list[Any]:
    """Events of a TensorBoard file: length, checksum, event, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    content, events = path.read_bytes(), []
    while content:
        size = int.from_bytes(content[:8], "little")
        events.append(Event.FromString(content[12 : 12 + size]))
        content = content[12 + size + 4 :]
    return events


def test_tensorboard_files_hold_the_same(run: Path):
    with Monitor(run, TrainingState(), 5000) as monitor:
        monitor.validation({"loss": 3.0}, TrainingState(step=7))
        monitor.flush()
        (path,) = (run / "tensorboard").iterdir()
        assert path.name.startswith("events.out.tfevents.")  # how TensorBoard knows its files
        first, second = board_events(path)
    assert first.file_version == "brain.Event:2"
    assert [(second.step, value.tag, value.simple_value) for value in second.summary.value] == [
        (7, "validation/loss", 3.0)
    ]


def test_going_on_hides_the_later_steps_of_earlier_files(run: Path):
    from tensorboardX.proto.event_pb2 import SessionLog

    for step in (0, 5):
        with Monitor(run, TrainingState(step=step), 10):
            pass
    events = [event for path in (run / "tensorboard").iterdir() for event in board_events(path)]
    assert len(events) == 3
    assert [event.step for event in events if event.session_log.status == SessionLog.START] == [6]


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


def test_a_history_is_cut_at_the_step_that_is_gone_on_from(run: Path):
    path = run / "history.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"ste')
    cut_history(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    with Monitor(run, TrainingState(step=1), 10):
        pass
    assert lines(run) == [{"step": 1}]


def test_few_plain_lines_outside_a_terminal(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]
    monkeypatch.setattr(monitor_module.time, "monotonic", lambda: now[0])
    with Monitor(run, TrainingState(), 100) as monitor:
        for events in range(1, 118):
            monitor.steps(records(0, 1), TrainingState(events=events, step_seconds=float(events)), 0.1)
        said = capsys.readouterr().err.splitlines()
        assert [line.split(",")[0] for line in said] == [
            f"train: {n} of 100 events" for n in (*range(10, 101, 10), 100)
        ]
    with Monitor(run, TrainingState(), 1000) as monitor:
        monitor.steps(records(0, 1), TrainingState(events=1), 0.1)
        now[0] = 31.0
        monitor.steps(records(0, 1), TrainingState(events=2), 0.1)
    assert capsys.readouterr().err.startswith("train: 2 of 1,000 events, loss 0.0000")


def test_a_line_tells_loss_speed_and_time_left(run: Path, capsys: pytest.CaptureFixture[str]):
    with Monitor(run, TrainingState(), 1000) as monitor:
        monitor.steps(records(0, 1), TrainingState(step=1, events=100, step_seconds=60.0), 0.1)
        state = TrainingState(step=2, events=200, step_seconds=61.0, computed=100, padding=2)
        monitor.steps(records(1, 1), state, 0.1)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "train: 200 of 1,000 events, loss 1.0000, 100 events/s, 8 s left"
    )


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
    def figures(loss: float, jets: float | None, f1: float, missing: float) -> dict[str, float | None]:
        return {
            "loss": loss,
            "loss_momentum": 1.0,
            "jet_iqr_over_median": jets,
            "particle_f1": f1,
            "missing_momentum_error": missing,
        }

    rules = {"jet_iqr_over_median": 0.06, "particle_f1": 0.8, "missing_momentum_error": 3.0}
    with Monitor(run, TrainingState(), 100_000, rules) as monitor:
        monitor.validation(figures(12.5, None, 0.5, 20.0), TrainingState(step=1, events=900))
        monitor.validation(figures(1.25, 0.07, 0.81, 2.5), TrainingState(step=2, events=20_000))
        monitor.validation(figures(1.0, 0.05, 0.9, 2.0), TrainingState(step=3, events=100_000))
    assert capsys.readouterr().err.splitlines() == [
        "validation      900 events  loss 12.5000  jet width       -  F1  0.5000  missing momentum   20.00 GeV",
        "validation   20,000 events  loss  1.2500  jet width  0.0700  F1  0.8100  missing momentum    2.50 GeV"
        "  ahead of the rules in F1, missing momentum",
        "validation  100,000 events  loss  1.0000  jet width  0.0500  F1  0.9000  missing momentum    2.00 GeV"
        "  ★ beats the rules",
    ]
    assert [line["loss_momentum"] for line in lines(run)] == [1.0, 1.0, 1.0]  # machines get everything

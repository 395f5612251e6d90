"""The master: what it counts, when it ends, what it writes and asks for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ringflow.elements.batch import ElementBatch
from ringflow.train.asynchronous.account import Account
from ringflow.train.asynchronous.master import Master
from ringflow.train.asynchronous.messages import Report, row_for
from ringflow.train.batches import BEGINNING, DataPosition
from ringflow.train.checkpoint import Checkpoints
from ringflow.train.keeper import Assignment, Keeper
from ringflow.train.settings import TrainSettings
from ringflow.train.signals import Wish
from ringflow.train.step import TrainingStep
from ringflow.train.team import ALONE

Tiny = Callable[..., TrainSettings]
VALUES = {"total": 1.0, "gradient": 2.0}


class Steps:
    """A rule that puts the number of the step into the row."""

    def __init__(self, needs_states: bool) -> None:
        self.needs_states, self.rates = needs_states, []

    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        self.rates.append(rate)
        row.fill_(number)
        return None


def report(version: int, batch: int, lane: int = 0, **more: Any) -> Report:
    place = {lane: DataPosition(0, 0, batch)}
    return Report(version, events=20, computed=100, real=90, positions=place, shape=None, values=VALUES, **more)


@pytest.fixture
def lead(
    tiny: Tiny, make_step: Callable[..., TrainingStep], events: Callable[..., ElementBatch], run: Path, post: Any
) -> Callable[..., Any]:
    """A master who hears prepared reports of workers, and what it then has to say."""

    def go(script: list[tuple[int, Any]], *words: str, needs_states: bool = False, workers: int = 2) -> tuple[Any, ...]:
        settings = tiny("source.lanes=2", "sync=easgd" if needs_states else "sync=downpour", *words)
        keeper = Keeper(Assignment(settings, events(6, 99), None, run, {}), ALONE)
        keeper.state.positions = [BEGINNING] * 2
        step, rule = make_step(settings), Steps(needs_states)
        row = row_for(step.model)
        heard = post(*((who, what, row if isinstance(what, Report) else None) for who, what in script))
        master = Master(settings, keeper, step, rule, lambda events: events / 1000, Wish())
        stopped = master.go(heard, range(1, workers + 1))
        assert not heard.script
        return heard, keeper, stopped, rule

    return go


def ended(seconds: float = 1.0) -> Account:
    return Account({"forward": seconds}, 10, 20)


def test_every_report_counts_and_the_last_ones_are_answered_with_the_end(lead: Callable[..., Any], run: Path):
    script = [
        (1, report(0, 1)),
        (2, report(0, 1, lane=1)),
        (1, report(1, 2)),
        (1, ended()),
        (2, report(2, 2, lane=1)),
        (2, ended(2.0)),
    ]
    heard, keeper, stopped, rule = lead(script, "length.events=60", "length.validate_every=1000")
    assert stopped is None
    answers = [(to, answer.version, answer.events, answer.go_on, int(row[0])) for to, answer, row in heard.sent]
    assert answers == [(1, 1, 20, True, 0), (2, 2, 40, True, 1), (1, 3, 60, False, 2), (2, 4, 80, False, 3)]
    assert rule.rates == [0.02, 0.04, 0.06, 0.08]
    state = keeper.state
    assert (state.step, state.events, state.computed, state.padding) == (4, 80, 400, 40)
    found = Checkpoints(run).read()
    assert found is not None
    assert (found.state.step, found.state.positions) == (4, [DataPosition(0, 0, 2)] * 2)
    record = json.loads((run / "asynchronous.json").read_text())
    assert (record["staleness_mean"], record["staleness_largest"]) == (pytest.approx((0 + 1 + 1 + 1) / 4), 1)
    assert [rank["role"] for rank in record["ranks"]] == ["master", "worker", "worker"]
    assert record["ranks"][2]["seconds"] == {"forward": 2.0}


def validations(run: Path) -> list[int]:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [line["events"] for line in lines if line["kind"] == "validation"]


def test_it_validates_on_the_way_and_once_at_the_end(lead: Callable[..., Any], run: Path):
    script = [(1, report(n, n + 1)) for n in range(5)]
    lead([*script, (1, ended())], "length.events=100", "length.validate_every=50", workers=1)
    assert validations(run) == [60, 100]


def test_it_stops_when_nothing_gets_better(lead: Callable[..., Any], run: Path, capsys: pytest.CaptureFixture[str]):
    script = [(1, report(n, n + 1)) for n in range(4)]  # the weights do not move: nothing gets better
    words = ("length.events=1000", "length.validate_every=20", "length.patience=2")
    _, keeper, stopped, _ = lead([*script, (1, ended())], *words, workers=1)
    assert (stopped, keeper.stopped_early, validations(run)) == (None, True, [20, 40, 60])
    assert "stopped early: 2 validations without a better one" in capsys.readouterr().err


def test_a_signal_of_a_worker_stops_all(lead: Callable[..., Any], run: Path):
    script = [(2, report(0, 1, lane=1, signal="SIGUSR1")), (2, ended()), (1, report(0, 1)), (1, ended())]
    heard, _, stopped, _ = lead(script, "length.events=1000", "length.validate_every=1000")
    assert str(stopped).startswith("stopped by SIGUSR1 after 40 events, and all is saved")
    assert [answer.go_on for _, answer, _ in heard.sent] == [False, False]
    found = Checkpoints(run).read()
    assert found is not None
    assert found.state.events == 40


def state_of(worker: int, number: int) -> dict[str, Tensor]:
    return {"weights/w": torch.tensor([float(worker), float(number)])}


def test_a_checkpoint_has_the_state_of_every_worker_as_of_its_last_report(lead: Callable[..., Any], run: Path):
    script = [
        (1, report(0, 1)),  # it is time for a checkpoint: all are asked from now on
        (1, report(1, 2)),
        (1, state_of(1, 2)),
        (1, report(2, 3)),
        (1, state_of(1, 3)),
        (2, report(0, 1, lane=1)),
        (2, state_of(2, 1)),  # written here
    ]
    # The script ends: the master dies after the checkpoint, and what is there is what it wrote.
    with pytest.raises(IndexError):
        lead(script, "length.events=1000", "length.validate_every=20", needs_states=True)
    found = Checkpoints(run).read()
    assert found is not None
    assert (found.state.step, found.state.positions) == (4, [DataPosition(0, 0, 3), DataPosition(0, 0, 1)])
    assert found.tensors["worker-1/weights/w"].tolist() == [1.0, 3.0]
    assert found.tensors["worker-2/weights/w"].tolist() == [2.0, 1.0]

"""A training that is told from outside how far it goes, whatever interrupts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.made_up import Ends, assert_same_weights, dying_at, history
from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.train.checkpoint import read_checkpoint
from ringflow.train.run import train as recipe
from ringflow.train.settings import TrainSettings

Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]
Start = Callable[..., Any]


class Rungs:
    """Sends a training from one number of events to the next, and ends it at the last; remembers what it was told."""

    def __init__(self, *rungs: int, look: Callable[[int], None] = lambda events: None) -> None:
        self.rungs, self.told, self._look = rungs, [], look

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        self._look(events)
        self.told.append((events, dict(figures)))
        return next((rung for rung in self.rungs if rung > events), 0)


@pytest.fixture
def paced(start: Start) -> Start:
    return lambda settings, pace, *folder: start(settings, *folder, pace=pace and pace.ask)


def validations(run: Path) -> list[tuple[int, float]]:
    return [(line["events"], line["loss"]) for line in history(run, "validation")]


def told_losses(pace: Rungs) -> list[tuple[int, float | None]]:
    return [(events, figures["loss"]) for events, figures in pace.told if figures]


def test_it_goes_as_far_as_it_is_told_and_tells_every_validation(tiny: Tiny, paced: Start, run: Path):
    pace = Rungs(25, 90, 200)
    result = paced(tiny("length.events=1000"), pace)
    assert pace.told[0] == (0, {})
    assert told_losses(pace) == validations(run)
    reached = [events for events, _ in validations(run)]
    # At its rungs and at every 60 events, with the rest of a batch.
    for expected, events in zip([25, 60, 90, 120, 180, 200], reached, strict=True):
        assert expected <= events < expected + 20
    assert result.ended_by_pace
    assert not result.stopped_early
    assert result.events == reached[-1]


def test_everything_is_on_disk_when_it_asks(tiny: Tiny, paced: Start, run: Path):
    def look(events: int) -> None:
        found = read_checkpoint(run)
        assert (found.state.events, found.state.last["events"]) == (events, events) if found else events == 0
        if events:
            assert validations(run)[-1][0] == events
            assert (run / "model.safetensors").is_file()

    pace = Rungs(25, 90, look=look)
    paced(tiny("length.events=1000"), pace)
    assert len(pace.told) == 4


def test_a_pace_that_wants_all_changes_nothing(tiny: Tiny, paced: Start, run: Path, tmp_path: Path):
    without = paced(tiny("model.dropout=0.1"), None, tmp_path / "without")
    pace = Rungs(10**9)
    result = paced(tiny("model.dropout=0.1"), pace)
    assert not result.ended_by_pace
    assert (result.steps, result.best) == (without.steps, without.best)
    assert told_losses(pace) == validations(run)
    assert_same_weights(run, tmp_path / "without")


def test_the_answer_to_the_last_validation_of_all_is_not_looked_at(tiny: Tiny, paced: Start, run: Path):
    pace = Rungs(120)
    result = paced(tiny(), pace)
    assert told_losses(pace) == validations(run)
    assert (result.events >= 120, result.ended_by_pace) == (True, False)


def test_one_that_may_not_begin_trains_nothing(tiny: Tiny, paced: Start):
    result = paced(tiny(), Rungs(0))
    assert (result.ended_by_pace, result.steps, result.events) == (True, 0, 0)


def test_one_that_was_ended_asks_again_and_may_go_on(tiny: Tiny, paced: Start, run: Path, tmp_path: Path):
    settings = tiny("length.events=1000", "model.dropout=0.1")
    first, again, further = Rungs(25), Rungs(25), Rungs(25, 90)
    ended = paced(settings, first)
    assert paced(settings, again).ended_by_pace
    assert again.told == first.told[-1:]
    went_on = paced(settings, further)
    assert further.told[0] == first.told[-1]
    assert went_on.steps > ended.steps
    whole = Rungs(25, 90)
    paced(settings, whole, tmp_path / "whole")
    assert [*first.told[:-1], *further.told] == whole.told
    assert_same_weights(run, tmp_path / "whole")


def test_a_finished_one_tells_its_last_validation_once(tiny: Tiny, paced: Start, run: Path):
    paced(tiny(), None)
    pace = Rungs(10**9)
    result = paced(tiny(), pace)
    assert not result.ended_by_pace
    assert len(pace.told) == 1
    assert told_losses(pace) == validations(run)[-1:]


@pytest.mark.parametrize("asks", [0, 1, 2])
def test_an_answer_that_got_lost_is_asked_for_again(
    tiny: Tiny, paced: Start, run: Path, tmp_path: Path, asks: int, monkeypatch: pytest.MonkeyPatch
):
    settings = tiny("length.events=1000", "model.dropout=0.1")
    whole = Rungs(25, 90)
    paced(settings, whole, tmp_path / "whole")

    def dies(events: int) -> None:
        if len(killed.told) == asks:
            killed.told.append("asked")
            raise Ends

    killed = Rungs(25, 90, look=dies)
    with pytest.raises(Ends):
        paced(settings, killed)
    steps = dying_at(monkeypatch, -1)
    after = Rungs(25, 90)
    paced(settings, after)
    assert [*killed.told[:-1], *after.told] == whole.told
    last = read_checkpoint(run)
    before = (
        0
        if not asks
        else next(line["step"] for line in history(run, "validation") if line["events"] == after.told[0][0])
    )
    assert last is not None
    assert [number for number, *_ in steps] == list(range(before, last.state.step)), "no step is done twice"
    assert_same_weights(run, tmp_path / "whole")


@pytest.mark.parametrize("step", [1, 9])
def test_one_killed_between_validations_tells_only_what_happened(
    tiny: Tiny, paced: Start, run: Path, tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
):
    settings = tiny("length.events=1000", "model.dropout=0.1", "length.checkpoint_seconds=1e-9")
    whole, killed, after = Rungs(25, 90), Rungs(25, 90), Rungs(25, 90)
    paced(settings, whole, tmp_path / "whole")
    with monkeypatch.context() as patch:
        dying_at(patch, step)
        with pytest.raises(Ends):
            paced(settings, killed)
    paced(settings, after)
    # The last validation before the end is told twice, and nothing else is.
    assert after.told[0] == killed.told[-1]
    assert [*killed.told, *after.told[1:]] == whole.told
    assert_same_weights(run, tmp_path / "whole")


def test_a_goal_that_is_already_passed_is_validated_at_the_next_step(tiny: Tiny, paced: Start, run: Path):
    settings = tiny("length.events=1000", "length.checkpoint_seconds=1e-9")
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, 4)
        with pytest.raises(Ends):
            paced(settings, Rungs(55))
    found = read_checkpoint(run)
    assert found is not None
    assert found.state.events > 20
    pace = Rungs(20)
    result = paced(settings, pace)
    assert result.steps == found.state.step + 1
    assert [events for events, _ in pace.told] == [0, result.events]


def test_without_waiting_for_each_other_there_is_no_pace(tmp_path: Path, tiny: Tiny):
    for sync in ("downpour", "easgd"):
        with pytest.raises(UsageError, match=f"paced from outside needs sync=allreduce, not sync={sync}"):
            recipe(tiny(f"sync={sync}"), tmp_path / "run", pace=Rungs(1).ask)
    assert not (tmp_path / "run").exists()

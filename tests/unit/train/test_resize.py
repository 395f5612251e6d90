"""A training that goes on with another number of lanes: where they are in the data, how fast, and whatever interrupts it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ringflow.data.chunks import Lane
from ringflow.elements.batch import ElementBatch
from ringflow.train.batches import DataPosition
from ringflow.train.checkpoint import Checkpoints, TrainingState
from ringflow.train.collisions import Stream
from ringflow.train.optim import rewarmed
from ringflow.train.settings import TrainSettings
from ringflow.train.simulated_chunks import SimulatedChunks
from ringflow.train.step import TrainingStep
from ringflow.train.trainer import Assignment, TrainingResult, train

Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]
Source = Callable[..., Any]
Start = Callable[..., TrainingResult]

LONG = ("length.events=400", "length.validate_every=100", "model.dropout=0.1", "source.reuse=2")


def test_the_rate_rises_again_from_its_half():
    assert [rewarmed(events, 100, 50.0) for events in (100, 110, 125, 150, 400)] == [0.5, 0.6, 0.75, 1.0, 1.0]
    assert rewarmed(100, 0, 50.0) == 1.0, "it was never resized"
    assert rewarmed(100, 100, 0.0) == 1.0, "it is not to rise again"


@pytest.mark.parametrize(
    ("before", "lanes", "chunk", "cut"),
    [
        ([(3, 0, 2)], 2, 4, True),
        ([(3, 1, 0)], 2, 4, True),  # a chunk that was gone through once is begun
        ([(3, 0, 0)], 4, 3, False),
        ([(3, 0, 0), (2, 1, 7)], 1, 3, True),
        ([(3, 0, 1), (2, 1, 7)], 3, 4, True),
        ([(0, 0, 1)], 2, 1, True),
    ],
)
def test_lanes_begin_with_a_chunk_that_none_has_begun(
    before: list[tuple[int, int, int]], lanes: int, chunk: int, cut: bool
):
    state = TrainingState(step=9, events=70, positions=[DataPosition(*position) for position in before])
    assert state.resize(lanes) == cut
    assert state.positions == [DataPosition(chunk, 0, 0)] * lanes
    assert state.resized_at == 70


def test_states_of_earlier_versions_are_read():
    record = asdict(TrainingState(step=9, events=70))
    del record["last"], record["resized_at"]
    state = TrainingState.of(record)
    assert (state.step, state.last, state.resized_at) == (9, {}, 0)


@pytest.fixture
def start(events: Events, source: Source, run: Path) -> Start:
    def go(settings: TrainSettings, folder: Path = run, sources: dict[int, Any] | None = None) -> TrainingResult:
        folder.mkdir(exist_ok=True)
        lanes = range(max(settings.source.lanes, 1))
        given = sources or {lane: source(num_events=24 - 7 * lane) for lane in lanes}
        return train(Assignment(settings, events(10, 99), None, folder, {}), given)

    return go


class Ends(KeyboardInterrupt):
    """As if the process was killed."""


def dying_at(patch: pytest.MonkeyPatch, step: int) -> list[tuple[int, float]]:
    """End in a step; events and rates of the steps until then."""
    take, taken = TrainingStep.take, []

    def dies(self: TrainingStep, batches: Any, number: int, rate: float) -> None:
        if number == step:
            raise Ends
        taken.append((sum(batch.num_events for batch in batches), rate))
        take(self, batches, number, rate)

    patch.setattr(TrainingStep, "take", dies)
    return taken


def begin(start: Start, settings: TrainSettings, folder: Path, step: int) -> TrainingState:
    """Train with one lane up to a step, and end there."""
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, step)
        with pytest.raises(Ends):
            start(settings, folder)
    return state_of(folder)


def state_of(folder: Path) -> TrainingState:
    found = Checkpoints(folder).read()
    assert found is not None
    return found.state


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(sorted((run / "checkpoints").iterdir())[-1] / "tensors.safetensors")


def history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]


def test_it_goes_on_with_more_lanes_in_chunks_that_are_new(
    tiny: Tiny, start: Start, source: Source, run: Path, capsys: pytest.CaptureFixture[str]
):
    every_step = (*LONG, "length.checkpoint_seconds=1e-9")
    before = begin(start, tiny(*every_step), run, 9)
    assert before.positions[0][1:] != (0, 0), "in the middle of a chunk"
    capsys.readouterr()
    sources = {lane: source() for lane in range(2)}
    result = start(tiny(*every_step, "source.lanes=2"), sources=sources)
    assert result.events >= 400
    said = capsys.readouterr().err
    assert "source.lanes=2, not 1 as before; the rest of this pass through the events is left out\n" in said
    following = before.positions[0].chunk + 1
    for given in sources.values():
        assert sorted(set(given.asked)) == list(range(following, max(given.asked) + 1))
    after = state_of(run)
    assert len(after.positions) == 2
    assert min(after.positions) > (following, 0, 0)
    assert after.resized_at == before.events
    start(tiny(*every_step, "source.lanes=2", "length.events=500"), sources=sources)
    assert state_of(run).resized_at == before.events, "the same number of lanes is no change"


NEVER = -1
#: A rate that depends on nothing but the number of lanes.
EVEN = (
    "optimizer.rate=0.01",
    "optimizer.warmup=0",
    "optimizer.final=1",
    "optimizer.rule=sqrt",
    "optimizer.rule_elements=100",
    "optimizer.rewarmup=0.2",
    "length.checkpoint_seconds=1e-9",
)


def test_a_step_grows_and_its_rate_with_it(tiny: Tiny, start: Start, run: Path, monkeypatch: pytest.MonkeyPatch):
    before = begin(start, tiny(*LONG, *EVEN), run, 9)
    taken = dying_at(monkeypatch, NEVER)
    start(tiny(*LONG, *EVEN, "source.lanes=2"))
    full, shown, factors = 0.01 * 2**0.5, before.events, []
    for events, rate in taken:
        shown += events
        factors.append(rate / full)
        assert factors[-1] == pytest.approx(min(1.0, 0.5 + 0.5 * (shown - before.events) / 80))
    assert len([factor for factor in factors if factor < 1.0]) > 2
    assert factors[-1] == pytest.approx(1.0)


def test_the_loss_keeps_falling(tiny: Tiny, start: Start, run: Path):
    settings = (
        "optimizer.rate=0.01",
        "optimizer.rule=sqrt",
        "optimizer.rule_elements=100",
        "length.validate_every=300",
    )
    start(tiny(*settings, "length.events=1200"))
    start(tiny(*settings, "length.events=2400", "source.lanes=2"))
    losses = [line["loss"] for line in history(run) if line["kind"] == "validation"]
    assert len(losses) == 8
    assert min(losses[4:]) < 0.95 * min(losses[:4])
    assert losses[-1] < losses[3] < losses[0]


@pytest.mark.parametrize("every_step", [True, False], ids=["checkpoint every step", "checkpoint at validations"])
@pytest.mark.parametrize("stop", [9, 10, 17])
def test_it_goes_on_as_if_it_had_only_been_resized(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, stop: int, every_step: bool
):
    one = tiny(*LONG, "length.checkpoint_seconds=1e-9")
    two = tiny(*LONG, "source.lanes=2", f"length.checkpoint_seconds={1e-9 if every_step else 1e9}")
    for folder in (run, tmp_path / "whole"):
        begin(start, one, folder, 9)
    whole = start(two, tmp_path / "whole")
    assert whole.steps > 17
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, stop)
        with pytest.raises(Ends):
            start(two)
    result = start(two)
    assert (result.steps, result.events, result.best) == (whole.steps, whole.events, whole.best)
    assert state_of(run).resized_at == state_of(tmp_path / "whole").resized_at
    expected, found = weights(tmp_path / "whole"), weights(run)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_fewer_lanes_are_a_change_too(tiny: Tiny, start: Start, run: Path):
    start(tiny(*LONG, "source.lanes=2"))
    before = state_of(run)
    start(tiny(*LONG, "length.events=500"))
    after = state_of(run)
    assert after.resized_at == before.events
    assert len(after.positions) == 1
    assert after.positions[0].chunk > min(before.positions).chunk


def test_a_finished_one_has_no_lanes_to_change(tiny: Tiny, start: Start, run: Path, capsys: pytest.CaptureFixture[str]):
    first = start(tiny())
    capsys.readouterr()
    again = start(tiny("source.lanes=2"))
    assert (again.steps, again.best) == (first.steps, first.best)
    said = capsys.readouterr().err
    assert "is finished" in said
    assert "source.lanes" not in said


@pytest.mark.parametrize("chunk_events", [100, 750, 800, 2050])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 3), (2, 4), (3, 12)])
def test_a_multiple_of_the_lanes_repeats_no_simulated_event(chunk_events: int, before: int, after: int):
    streams = [Stream(name, "clic", seed, 50) for seed, name in enumerate(("ttbar", "qq"))]

    def blocks(lanes: int, chunks: range) -> set[tuple[Stream, int]]:
        workers: Any = None  # nothing is simulated
        made = set()
        for number in range(lanes):
            lane = Lane(number, lanes)
            options = {"calorimeter": "cluster", "chunk_events": chunk_events, "detector": None, "lane": lane}
            source = SimulatedChunks(streams, workers, **options)
            made |= {task for index in chunks for task in source._tasks(index)}
            source.close()
        return made

    for reached in range(4):
        assert not blocks(before, range(reached + 1)) & blocks(after, range(reached + 1, reached + 4))

"""Lanes: an epoch dealt into parts, steps on batches of several, and runs that go on with another number of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.fake_events import contents, write_fake_dataset
from fixtures.made_up import Ends, assert_same_weights, dying_at, history
from ringflow.base.errors import SettingsError, UsageError
from ringflow.data.chunks import DatasetChunks, Lane
from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch, join
from ringflow.models.attention import Layout
from ringflow.models.model import Model
from ringflow.train.batches import BEGINNING, DataPosition, TrainingBatch
from ringflow.train.checkpoint import Checkpoint, TrainingState, read_checkpoint, write_checkpoint
from ringflow.train.collisions import Stream
from ringflow.train.data import SimulatedChunks
from ringflow.train.loss import _centres, losses, norms
from ringflow.train.run import resolved, train
from ringflow.train.runs import settings_of
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

CPU = torch.device("cpu")
Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]
Source = Callable[..., Any]
Start = Callable[..., Any]
Command = Callable[..., Any]


@pytest.fixture
def batch(events: Events) -> ElementBatch:
    """Events of which the third has no particle."""
    made = events(24)
    assert made.targets is not None
    first, last = made.offsets_B[2:4]
    made.targets.label_N[first:last] = 0
    made.targets.momentum_N4[first:last] = 0.0
    return made


def parts_of(batch: ElementBatch) -> list[ElementBatch]:
    """The events in three parts of different sizes."""
    return [batch.take(events) for events in torch.arange(batch.num_events).split([3, 7, batch.num_events - 10])]


def test_the_norms_of_parts_sum_to_those_of_the_whole(batch: ElementBatch, tiny: Tiny):
    settings = tiny("loss.cones=5").loss
    sums = torch.stack([norms(part, settings) for part in parts_of(batch)]).sum(0)
    torch.testing.assert_close(sums, norms(batch, settings))
    assert batch.targets is not None
    momentum, label = batch.targets.momentum_N4, batch.targets.label_N
    assert sums[0] == (label > 0).sum()
    assert sums[1].item() == pytest.approx(momentum[label > 0, :2].norm(dim=1).sqrt().sum().item(), rel=1e-5)
    _, exists_BK = _centres(momentum[:, :3], label, batch, 5)
    assert sums[2] == exists_BK.sum() == 5 * (batch.num_events - 1)


def gradients(model: Model) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def test_gradients_of_parts_sum_to_that_of_the_whole(batch: ElementBatch, tiny: Tiny):
    torch.manual_seed(3)
    settings = tiny("loss.jet=0")
    model = Model(settings.model)

    def backward(part: ElementBatch, divided_by: Tensor | None) -> None:
        prediction = model(part.features_NF, part.kind_N, part.position_N2, Layout.of(part))
        losses(prediction, part, settings.loss, divided_by)["total"].backward()

    backward(batch, None)
    expected = gradients(model)
    model.zero_grad()
    common = norms(batch, settings.loss)
    for part in parts_of(batch):
        backward(part, common)
    torch.testing.assert_close(gradients(model), expected, atol=1e-5, rtol=1e-4)
    model.zero_grad()
    for part in parts_of(batch):
        backward(part, None)
    assert not torch.allclose(gradients(model)["heads.out.weight"], expected["heads.out.weight"], rtol=0.1)


def test_a_step_on_batches_of_lanes_is_a_step_on_all_their_events(batch: ElementBatch, tiny: Tiny):
    settings = tiny("loss.jet=0", "source.hide=0", "optimizer.clip=0")

    def stepped(*parts: ElementBatch) -> tuple[dict[str, Tensor], dict[str, float]]:
        torch.manual_seed(3)
        step = TrainingStep(Model(settings.model), settings, CPU)
        given = [
            TrainingBatch(part, Layout.of(part), BEGINNING, part.num_events, part.num_elements, 1) for part in parts
        ]
        step.take(given, 0, 1e-3)
        return gradients(step.model), step.read()[0].values

    parts = parts_of(batch)
    found, values = stepped(*parts)
    expected, whole = stepped(join(parts))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert values == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("stop", [3, 8])
def test_a_training_of_two_lanes_goes_on_as_if_it_had_not_stopped(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, stop: int
):
    settings = tiny("source.lanes=2", "model.dropout=0.1", "length.checkpoint_seconds=1e-9", "length.events=240")
    start(settings, tmp_path / "whole")
    begin(start, settings, run, stop)
    torch.rand(5)
    start(settings)
    assert_same_weights(run, tmp_path / "whole")


def fingerprints(batch: ElementBatch) -> list[tuple[float, ...]]:
    """One per event: the momenta of its targets, which are copied and not computed."""
    assert batch.targets is not None
    return [tuple(values.tolist()) for values in batch.targets.momentum_N4[:, 0].split(batch.counts_B.tolist())]


def epochs(path: Path, chunk_events: int, lane: Lane, count: int) -> list[list[tuple[float, ...]]]:
    """The events of a lane, by epoch."""
    source = DatasetChunks(
        [Dataset(path)], detector="fake", calorimeter="cluster", chunk_events=chunk_events, seed=1, lane=lane
    )
    try:
        size = source._per_epoch
        return [
            [
                event
                for index in range(number * size, (number + 1) * size)
                for event in fingerprints(source.chunk(index))
            ]
            for number in range(count)
        ]
    finally:
        source.close()


@pytest.mark.parametrize(
    ("events", "chunk_events", "by_shards"),
    [(170, 50, True), (50, 12, False), (50, 1000, False)],
    ids=["by shards", "by events", "all in one chunk"],
)
def test_lanes_share_an_epoch_without_overlap(tmp_path: Path, events: int, chunk_events: int, by_shards: bool):
    path = write_fake_dataset(tmp_path / "dataset", events=events)
    (whole,) = epochs(path, chunk_events, Lane(0, 1), 1)
    assert len(set(whole)) == len(whole) == Dataset(path).manifest.splits["train"]
    for of in (2, 4):
        lanes = [epochs(path, chunk_events, Lane(number, of), 2) for number in range(of)]
        for epoch in range(2):
            shared = [event for lane in lanes for event in lane[epoch]]
            assert sorted(shared) == sorted(whole)  # so no event is in two lanes
        sizes = [len(lane[0]) for lane in lanes]
        assert max(sizes) - min(sizes) <= (10 if by_shards else 5)  # a shard, or one event of every chunk
        if by_shards:
            assert any(sorted(first) != sorted(second) for first, second in lanes), "every epoch is dealt anew"


def test_lanes_take_other_blocks_of_the_simulation():
    streams = [Stream(name, "clic", seed, 50) for seed, name in enumerate(("ttbar", "qq"))]

    def blocks(lane: Lane, chunks: range) -> list[tuple[Stream, int]]:
        workers: Any = None  # nothing is simulated
        source = SimulatedChunks(streams, workers, calorimeter="cluster", chunk_events=800, detector=None, lane=lane)
        try:
            return [task for index in chunks for task in source.tasks(index)]
        finally:
            source.close()

    whole = blocks(Lane(0, 1), range(3))
    assert [number for stream, number in whole if stream is streams[0]] == list(range(24))
    for of in (2, 4):
        lanes = [blocks(Lane(number, of), range(3)) for number in range(of)]
        assert {len(lane) for lane in lanes} == {len(whole) // of}
        shared = [task for lane in lanes for task in lane]
        assert len(set(shared)) == len(shared)
        assert set(shared) == set(whole)


LONG = ("length.events=400", "length.validate_every=100", "model.dropout=0.1", "source.reuse=2")


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
    record = TrainingState(step=9, events=70).model_dump(mode="json")
    del record["last"], record["resized_at"]
    state = TrainingState.model_validate(record)
    assert (state.step, state.last, state.resized_at) == (9, {}, 0)


def begin(start: Start, settings: TrainSettings, folder: Path, step: int) -> TrainingState:
    """Train with one lane up to a step, and end there."""
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, step)
        with pytest.raises(Ends):
            start(settings, folder)
    return state_of(folder)


def state_of(folder: Path) -> TrainingState:
    found = read_checkpoint(folder)
    assert found is not None
    return found.state


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
    for _, events, rate in taken:
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
    losses = [line["loss"] for line in history(run, "validation")]
    assert len(losses) == 8
    assert min(losses[4:]) < 0.95 * min(losses[:4])
    assert losses[-1] < losses[3] < losses[0]


@pytest.mark.parametrize("every_step", [True, False], ids=["checkpoint every step", "checkpoint at validations"])
@pytest.mark.parametrize("stop", [9, 17])
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
    assert_same_weights(run, tmp_path / "whole")


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


@pytest.mark.parametrize("chunk_events", [100, 750, 2050])
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
            made |= {task for index in chunks for task in source.tasks(index)}
            source.close()
        return made

    for reached in range(4):
        assert not blocks(before, range(reached + 1)) & blocks(after, range(reached + 1, reached + 4))


SMALL = (
    "detector=fake",
    "model.width=16",
    "model.layers=1",
    "model.heads=2",
    "model.hidden=16",
    "length.events=60",
    "length.validate_every=30",
    "length.validation_events=4",
    "compute.batch_elements=100",
    "compute.device=cpu",
)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_fake_dataset(tmp_path / "dataset", events=40)


def settings(dataset: Path, *overrides: str) -> TrainSettings:
    return TrainSettings.resolve(None, [f"data={dataset}", *SMALL, *overrides])


def last_checkpoint(run: Path) -> Checkpoint:
    found = read_checkpoint(run)
    assert found is not None
    return found


def test_another_number_of_lanes_is_gone_on_with_and_kept(dataset: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(settings(dataset), run)
    train(settings(dataset, "source.lanes=2", "length.events=120"), run)
    found = last_checkpoint(run)
    assert (len(found.state.positions), found.settings["source"]["lanes"]) == (2, 2)
    assert found.state.resized_at == first["events"]
    train(settings(dataset, "length.events=180"), run)  # as before
    assert len(last_checkpoint(run).state.positions) == 2
    assert last_checkpoint(run).state.resized_at == first["events"]
    assert TrainSettings.resolve(settings_of(run)).source.lanes == 2


def test_the_command_names_the_lanes_to_go_on_with(dataset: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    assert command("train", f"data={dataset}", *SMALL, "--out", run).code == 0
    expected = "2 processes cannot share 1 lanes evenly; start a number that divides 1, or go on with source.lanes=2"
    with pytest.raises(UsageError, match=re.escape(expected)):
        resolved(settings(dataset), run, 2, overwrite=False)
    with pytest.raises(UsageError, match=r"share 1 lanes evenly; .* or train anew with source.lanes=2"):
        resolved(settings(dataset, "source.lanes=1"), tmp_path / "new", 2, overwrite=False)
    with pytest.raises(UsageError, match=r"2 workers cannot share 1 lanes .* or train anew with source.lanes=2"):
        resolved(settings(dataset, "sync=easgd"), run, 3, overwrite=False)
    done = command("train", "source.lanes=2", "length.events=120", "--out", run)
    assert done.code == 0
    assert "source.lanes=2, not 1 as before" in done.stderr


def test_a_run_of_an_earlier_version_goes_on(dataset: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    train(settings(dataset), run)
    made = last_checkpoint(run)
    del made.settings["optimizer"]["rewarmup"]
    write_checkpoint(run, made)
    path = run / "settings.toml"
    text = path.read_text()
    assert text.count("rewarmup = 0.02\n") == 1
    path.write_text(text.replace("rewarmup = 0.02\n", ""))
    with pytest.raises(SettingsError, match=r"missing setting 'optimizer.rewarmup'"):
        TrainSettings.resolve(path)
    done = command("train", "length.events=90", "--out", run)
    assert done.code == 0, done.stderr
    path.write_text(text.replace("rewarmup = 0.02\n", ""))
    assert train(settings(dataset, "length.events=120", "source.lanes=2"), run)["events"] >= 120
    kept = contents(run)
    with pytest.raises(UsageError, match=r"has optimizer.rewarmup=0.02, not 0.5"):
        train(settings(dataset, "length.events=150", "optimizer.rewarmup=0.5"), run)
    assert contents(run) == kept


class Until:
    """Lets a training go to a number of events, and remembers what it was told."""

    def __init__(self, events: int) -> None:
        self.events, self.told = events, []

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        self.told.append((events, dict(figures)))
        return self.events


def test_a_run_is_paced_and_promoted_to_more_lanes(dataset: Path, tmp_path: Path) -> None:
    run, first, second = tmp_path / "run", Until(20), Until(90)
    asked = ("length.events=1000", "length.validate_every=1000")
    ended = train(settings(dataset, *asked), run, pace=first.ask)
    assert ended["ended_by_pace"]
    assert [events for events, _ in first.told] == [0, ended["events"]]
    assert 20 <= ended["events"] < 90
    assert "particle_f1" in first.told[1][1]
    further = train(settings(dataset, *asked, "source.lanes=2"), run, pace=second.ask)
    assert second.told[0] == first.told[-1]
    assert [events for events, _ in second.told] == [ended["events"], further["events"]]
    assert last_checkpoint(run).state.resized_at == ended["events"]
    assert not train(settings(dataset), tmp_path / "other")["ended_by_pace"]

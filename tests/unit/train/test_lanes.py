"""Lanes: an epoch dealt into parts, and batches of several parts that train a network as one batch would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fixtures.fake_events import write_fake_dataset
from ringflow.data.chunks import DatasetChunks, Lane
from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch, join
from ringflow.models.attention import Layout
from ringflow.models.model import Model
from ringflow.train.batches import BEGINNING, TrainingBatch
from ringflow.train.collisions import Stream
from ringflow.train.loss import _centres, losses, norms
from ringflow.train.settings import TrainSettings
from ringflow.train.simulated_chunks import SimulatedChunks
from ringflow.train.step import TrainingStep
from ringflow.train.trainer import Assignment, train

CPU = torch.device("cpu")
Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]


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
        return gradients(step.model), step.records.read()[0].values

    parts = parts_of(batch)
    found, values = stepped(*parts)
    expected, whole = stepped(join(parts))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert values == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("stop", [3, 8])
def test_a_training_of_two_lanes_goes_on_as_if_it_had_not_stopped(
    tiny: Tiny, events: Events, source: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int
):
    settings = tiny("source.lanes=2", "model.dropout=0.1", "length.checkpoint_seconds=1e-9", "length.events=240")

    def go(run: Path) -> dict[str, Tensor]:
        run.mkdir(exist_ok=True)
        # Lanes of different lengths: after some steps they are in different chunks.
        train(Assignment(settings, events(10, 99), None, run, {}), {0: source(), 1: source(num_events=17)})
        return load_file(sorted((run / "checkpoints").iterdir())[-1] / "tensors.safetensors")

    expected = go(tmp_path / "whole")
    take = TrainingStep.take

    def dies(self: TrainingStep, batches: Any, number: int, rate: float) -> None:
        if number == stop:
            raise KeyboardInterrupt
        take(self, batches, number, rate)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "take", dies)
        with pytest.raises(KeyboardInterrupt):
            go(tmp_path / "run")
    torch.rand(5)
    found = go(tmp_path / "run")
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


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
            return [task for index in chunks for task in source._tasks(index)]
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

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
from ringflow.base.errors import SettingsError, UsageError
from ringflow.data.chunks import DatasetChunks, Lane
from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch, join
from ringflow.models.attention import Layout
from ringflow.models.model import Model
from ringflow.train.batches import BEGINNING, TrainingBatch
from ringflow.train.checkpoint import Checkpoint, TrainingState, read_checkpoint, write_checkpoint
from ringflow.train.collisions import Stream
from ringflow.train.data import SimulatedChunks
from ringflow.train.loss import norms
from ringflow.train.run import resolved, train
from ringflow.train.runs import settings_of
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

Tiny = Callable[..., TrainSettings]
Command = Callable[..., Any]


@pytest.fixture
def parts(events: Callable[..., ElementBatch]) -> list[ElementBatch]:
    """Events in three parts of different sizes, of which the third event has no particle."""
    made = events(24)
    assert made.targets is not None
    first, last = made.offsets_B[2:4]
    made.targets.label_N[first:last] = 0
    made.targets.momentum_N4[first:last] = 0.0
    return [made.take(chosen) for chosen in torch.arange(24).split([3, 7, 14])]


def test_the_norms_of_parts_sum_to_those_of_the_whole(parts: list[ElementBatch], tiny: Tiny):
    settings, whole = tiny("loss.cones=5").loss, join(parts)
    sums = torch.stack([norms(part, settings) for part in parts]).sum(0)
    torch.testing.assert_close(sums, norms(whole, settings))
    assert whole.targets is not None
    momentum, label = whole.targets.momentum_N4, whole.targets.label_N
    assert sums[0] == (label > 0).sum()
    assert sums[1].item() == pytest.approx(momentum[label > 0, :2].norm(dim=1).sqrt().sum().item(), rel=1e-5)
    assert sums[2] == 5 * 23


def test_a_step_on_batches_of_lanes_is_a_step_on_all_their_events(parts: list[ElementBatch], tiny: Tiny):
    settings = tiny("loss.jet=0", "source.hide=0", "optimizer.clip=0")

    def stepped(*given: ElementBatch) -> tuple[dict[str, Tensor], dict[str, float]]:
        torch.manual_seed(3)
        step = TrainingStep(Model(settings.model), settings, torch.device("cpu"))
        batches = [TrainingBatch(one, Layout.of(one), BEGINNING, one.num_events, one.num_elements, 1) for one in given]
        step.take(batches, 0, 1e-3)
        gradients = {name: weight.grad for name, weight in step.model.named_parameters() if weight.grad is not None}
        return gradients, step.read()[0].values

    found, values = stepped(*parts)
    expected, whole = stepped(join(parts))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert values == pytest.approx(whole, rel=1e-4)


def epochs(path: Path, chunk_events: int, lane: Lane, count: int) -> list[list[tuple[float, ...]]]:
    """The events of a lane, by epoch; each is known by the momenta of its targets, which are copied and not computed."""
    common = {"detector": "fake", "calorimeter": "cluster", "seed": 1}
    source = DatasetChunks([Dataset(path)], **common, chunk_events=chunk_events, lane=lane)
    found: list[list[tuple[float, ...]]] = []
    for number in range(count):
        chunks = [source.chunk(number * source._per_epoch + index) for index in range(source._per_epoch)]
        momenta = [chunk.targets.momentum_N4[:, 0].split(chunk.counts_B.tolist()) for chunk in chunks]
        found.append([tuple(values.tolist()) for events in momenta for values in events])
    source.close()
    return found


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
            assert sorted(event for lane in lanes for event in lane[epoch]) == sorted(whole)  # so none is in two lanes
        sizes = [len(lane[0]) for lane in lanes]
        assert max(sizes) - min(sizes) <= (10 if by_shards else 5)  # a shard, or one event of every chunk
        if by_shards:
            assert any(sorted(first) != sorted(second) for first, second in lanes), "every epoch is dealt anew"


def blocks(lanes: int, chunks: range, chunk_events: int) -> list[tuple[Stream, int]]:
    """The blocks of the simulation that some lanes take, for some chunks."""
    streams = [Stream(name, "clic", seed, 50) for seed, name in enumerate(("ttbar", "qq"))]
    workers: Any = None  # nothing is simulated
    made = []
    for number in range(lanes):
        options = {
            "calorimeter": "cluster",
            "chunk_events": chunk_events,
            "detectors": {},
            "lane": Lane(number, lanes),
        }
        source = SimulatedChunks(streams, workers, **options)
        made += [task for index in chunks for task in source.tasks(index)]
        source.close()
    return made


def test_lanes_take_other_blocks_of_the_simulation():
    whole = blocks(1, range(3), 800)
    assert sorted({number for _, number in whole}) == list(range(24))
    for lanes in (2, 4):
        shared = blocks(lanes, range(3), 800)
        assert len(set(shared)) == len(shared)
        assert set(shared) == set(whole)


@pytest.mark.parametrize("chunk_events", [100, 750, 2050])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (1, 3), (3, 12)])
def test_a_multiple_of_the_lanes_repeats_no_simulated_event(chunk_events: int, before: int, after: int):
    for reached in range(4):
        seen, following = range(reached + 1), range(reached + 1, reached + 4)
        assert not set(blocks(before, seen, chunk_events)) & set(blocks(after, following, chunk_events))


SMALL = (
    *("detector=fake", "model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16", "length.events=60"),
    *("length.validate_every=30", "length.validation_events=4", "compute.batch_elements=100", "compute.device=cpu"),
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_dataset(tmp_path_factory.mktemp("lanes") / "dataset", events=40)


def settings(dataset: Path, *overrides: str) -> TrainSettings:
    return TrainSettings.resolve(None, [f"data={dataset}", *SMALL, *overrides])


def last_checkpoint(run: Path) -> Checkpoint:
    found = read_checkpoint(run)
    assert found is not None
    return found


def test_another_number_of_lanes_is_gone_on_with_and_kept(dataset: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    first = train(settings(dataset), run)
    done = command("train", "source.lanes=2", "length.events=120", "--out", run)
    assert done.code == 0
    assert "source.lanes=2, not 1 as before" in done.stderr
    found = last_checkpoint(run)
    assert (len(found.state.positions), found.settings["source"]["lanes"]) == (2, 2)
    assert found.state.resized_at == first["events"]
    train(settings(dataset, "length.events=180"), run)  # as before
    assert len(last_checkpoint(run).state.positions) == 2
    assert last_checkpoint(run).state.resized_at == first["events"]
    assert TrainSettings.resolve(settings_of(run)).source.lanes == 2
    train(settings(dataset), run, overwrite=True)
    assert TrainSettings.resolve(settings_of(run)).source.lanes == 1


@pytest.mark.parametrize(
    ("words", "processes", "begun", "expected"),
    [
        ([], 2, True, "2 processes cannot share 1 lanes evenly; start a number that divides 1, or go on with source.lanes=2"),
        (["source.lanes=1"], 2, False, "2 processes cannot share 1 lanes evenly; start a number that divides 1, or train anew"),
        (["sync=easgd"], 3, True, "2 workers cannot share 1 lanes evenly; start a number that divides 1, or train anew"),
    ],
)  # fmt: skip
def test_lanes_that_cannot_be_shared_are_one_line(
    dataset: Path, tmp_path: Path, words: list[str], processes: int, begun: bool, expected: str
) -> None:
    if begun:
        train(settings(dataset, "length.events=20"), tmp_path / "run")
    with pytest.raises(UsageError, match=re.escape(expected)):
        resolved(settings(dataset, *words), tmp_path / "run", processes, overwrite=False)


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
    earlier = TrainingState(step=9, events=70).model_dump(exclude={"last", "resized_at"})
    assert TrainingState.model_validate(earlier) == TrainingState(step=9, events=70)


def test_a_run_is_paced_and_promoted_to_more_lanes(dataset: Path, tmp_path: Path) -> None:
    told: list[tuple[int, Mapping[str, float | None]]] = []
    run, asked = tmp_path / "run", ("length.events=1000", "length.validate_every=1000")

    def until(goal: int) -> Callable[[int, Mapping[str, float | None]], int]:
        def pace(events: int, figures: Mapping[str, float | None]) -> int:
            told.append((events, figures))
            return goal

        return pace

    ended = train(settings(dataset, *asked), run, pace=until(20))
    assert ended["ended_by_pace"]
    assert [events for events, _ in told] == [0, ended["events"]]
    assert 20 <= ended["events"] < 90
    assert "particle_f1" in told[1][1]
    further = train(settings(dataset, *asked, "source.lanes=2"), run, pace=until(90))
    assert told[2] == told[1]
    assert [events for events, _ in told[2:]] == [ended["events"], further["events"]]
    assert last_checkpoint(run).state.resized_at == ended["events"]

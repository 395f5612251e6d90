"""A master and its workers, started by mpiexec: what they train, how they end, and how they go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures import FOLDER
from fixtures.tiny_training import (
    SECONDS,
    TINY,
    assert_same_training,
    assert_same_weights,
    checkpoints,
    make_dataset,
    ringflow,
    running,
    shown,
    spoken,
    train_alone,
    trainings_below,
    wait_for,
)
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.train.batches import Feed
from ringflow.train.checkpoint import Checkpoint, read_checkpoint
from ringflow.train.data import open_training_data
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

pytestmark = pytest.mark.xdist_group("processes")

CPU = torch.device("cpu")
ELASTIC = ("sync=easgd", "asynchronous.period=2", "asynchronous.elastic=0.3")
ENDLESS = ("length.events=100000000", "length.checkpoint_seconds=0.1")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


def trained(folder: Path, processes: int, dataset: Path, runs: dict[str, list[tuple[str, ...]]]) -> Path:
    """Runs in a folder, each one of some trainings after each other, all in processes that are started once."""
    commands = [
        ["train", f"data={dataset}", *TINY, *words, "--out", str(folder / name), "--json"]
        for name, trainings in runs.items()
        for words in trainings
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*torchrun, str(FOLDER / "several_commands.py"), json.dumps(commands)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def two_workers(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = {"downpour": [("sync=downpour", "source.lanes=0")], "easgd": [(*ELASTIC, "source.lanes=4")]}
    return trained(tmp_path_factory.mktemp("two"), 3, dataset, runs)


@pytest.fixture(scope="module")
def one_worker(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trainings that were stopped in the middle and went on."""
    downpour, elastic = ("sync=downpour", "source.lanes=1", "model.dropout=0.1"), (*ELASTIC, "source.lanes=1")
    runs = {name: [(*words, "length.events=80"), words] for name, words in (("downpour", downpour), ("easgd", elastic))}
    return trained(tmp_path_factory.mktemp("one"), 2, dataset, runs)


@pytest.mark.heavy
def test_downpour_with_one_worker_is_an_ordinary_training(one_worker: Path, dataset: Path, tmp_path: Path):
    alone = train_alone(dataset, tmp_path / "alone", (*TINY, "source.lanes=1", "model.dropout=0.1"))
    assert_same_training(one_worker / "downpour", alone)
    assert load_model(one_worker / "downpour" / "last.safetensors").card["training"]["steps"] >= 20


@pytest.mark.heavy
def test_batches_between_two_talks_are_as_one(dataset: Path, tmp_path: Path):
    alone = train_alone(dataset, tmp_path / "alone", (*TINY, "length.events=40"))  # a batch of both lanes in every step
    trained(tmp_path, 2, dataset, {"run": [("sync=downpour", "asynchronous.period=2", "length.events=40")]})
    assert_same_training(tmp_path / "run", alone)


def resolved(dataset: Path, *words: str) -> TrainSettings:
    return TrainSettings.resolve(None, [f"data={dataset}", *TINY, *words])


def feed_of(settings: TrainSettings, source: Any, lane: int) -> Feed:
    shape = {"budget": settings.compute.batch_elements, "reuse": settings.source.reuse, "seed": settings.seed}
    return Feed(source, **shape, device=CPU, lane=lane)


def test_easgd_follows_its_formulas_even_when_interrupted(one_worker: Path, dataset: Path, tmp_path: Path):
    settings = resolved(dataset, *ELASTIC, "source.lanes=1")
    with open_training_data(settings, CPU, tmp_path) as data:
        feed = feed_of(settings, data.sources[0], 0)
        torch.manual_seed(settings.seed)
        model = Model(settings.model)
        model.embedding.fit(feed.chunk().features_NF)
        step = TrainingStep(model, settings, CPU)
        worker = dict(model.named_parameters())
        centre = {name: weight.detach().numpy().copy() for name, weight in worker.items()}
        average = {name: weight.copy() for name, weight in centre.items()}
        events = talks = 0
        while events < settings.length.events:
            for _ in range(settings.asynchronous.period):
                batch = feed.next(1000)
                step.gradients([batch])
                step.move(0, settings.optimizer.rate)
                events += batch.num_events
            memory = min(settings.optimizer.average, (1 + talks) / (10 + talks))
            for name, weight in worker.items():
                pull = np.float32(0.3) * (weight.detach().numpy() - centre[name])
                weight.data -= torch.from_numpy(pull)
                centre[name] += pull
                average[name] += np.float32(1 - memory) * (centre[name] - average[name])
            talks += 1
    made = load_model(one_worker / "easgd" / "last.safetensors")
    assert made.card["training"] == {"steps": talks, "events": events}
    expected = {name: torch.from_numpy(weight) for name, weight in average.items()}
    found = {name: weight.detach() for name, weight in made.model.named_parameters()}
    assert_same_weights(found, expected, talks * settings.asynchronous.period, settings.optimizer.rate)


def assert_every_event_once(run: Path, dataset: Path, tmp_path: Path) -> Checkpoint:
    """The events that were counted are those of the batches before the places where all lanes are."""
    checkpoint = read_checkpoint(run)
    assert checkpoint is not None
    settings = TrainSettings.model_validate(checkpoint.settings)
    lanes, state = range(settings.source.lanes), checkpoint.state
    with open_training_data(settings, CPU, tmp_path, lanes) as data:
        events = 0
        for lane in lanes:
            feed = feed_of(settings, data.sources[lane], lane)
            while feed.position != state.positions[lane]:
                assert feed.position < state.positions[lane]
                events += feed.next(1000).num_events
    assert state.events == events
    return checkpoint


@pytest.mark.parametrize("run", ["downpour", "easgd"])
def test_two_workers_share_the_events(run: str, two_workers: Path, dataset: Path, tmp_path: Path):
    folder = two_workers / run
    checkpoint = assert_every_event_once(folder, dataset, tmp_path)
    assert min(checkpoint.state.positions) > (0, 0, 0)
    assert len(checkpoint.state.positions) == {"downpour": 2, "easgd": 4}[run]
    (first, second) = shown(folder)
    assert 80 <= first[1] < 160 <= second[1] == checkpoint.state.events
    record = json.loads((folder / "asynchronous.json").read_text())
    master, *workers = record["ranks"]
    weights = 4 * load_model(folder / "last.safetensors").model.num_parameters
    assert [worker["bytes_sent"] for worker in workers] == [worker["bytes_received"] for worker in workers]
    assert (
        master["bytes_received"] == sum(worker["bytes_sent"] for worker in workers) == checkpoint.state.step * weights
    )
    assert all(worker["seconds"]["backward"] > 0 for worker in workers)
    assert 0 <= record["staleness_mean"] <= record["staleness_largest"] < checkpoint.state.step
    of_workers = {name.split("/")[0] for name in checkpoint.tensors if name.startswith("worker-")}
    assert of_workers == ({"worker-1", "worker-2"} if run == "easgd" else set())


@pytest.mark.heavy
def test_fewer_workers_go_on_with_all_lanes(dataset: Path, tmp_path: Path):
    trained(tmp_path, 3, dataset, {"run": [("sync=downpour", "length.events=80")]})
    before = assert_every_event_once(tmp_path / "run", dataset, tmp_path).state
    trained(tmp_path, 2, dataset, {"run": [("sync=downpour",)]})
    after = assert_every_event_once(tmp_path / "run", dataset, tmp_path).state
    assert 80 <= before.events < 160 <= after.events
    assert all(late >= early for early, late in zip(before.positions, after.positions, strict=True))
    assert min(after.positions) > min(before.positions)  # a lane that was ahead may have had to wait


@pytest.mark.heavy
def test_a_killed_process_ends_all_and_the_command_goes_on(dataset: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *TINY, *ELASTIC, *ENDLESS, "--out", run]
    events = 0
    for victim in (2, 0):  # a worker, and then the master
        before = checkpoints(run)
        with running("launch", "local", "--workers", 3, "--", *words) as process:
            wait_for("new checkpoints", lambda before=before: len(set(checkpoints(run)) - set(before)) > 1, process)
            os.kill(trainings_below(process.pid)[victim], signal.SIGKILL)
            _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        ours = [line for line in spoken(said) if "another process of this training ended" not in line]
        assert [line.split(",")[0] for line in ours] == [f"ringflow: error: process {victim} was ended by SIGKILL"], (
            said
        )
        state = assert_every_event_once(run, dataset, tmp_path).state
        assert state.events > events
        events = state.events


@pytest.mark.heavy
def test_a_signal_is_answered_with_a_checkpoint(dataset: Path, tmp_path: Path):
    run = tmp_path / "run"
    words = ["train", f"data={dataset}", *TINY, "sync=downpour", "length.checkpoint_seconds=1e9", "--out", run]
    endless = ("length.events=100000000", "length.validate_every=100000000")
    with running("launch", "local", "--workers", 3, "--", *words, *endless) as process:
        wait_for("the start", lambda: (run / "history.jsonl").is_file(), process)
        os.kill(max(trainings_below(process.pid)), signal.SIGTERM)  # one is enough
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 75
    (line,) = spoken(said)
    before = assert_every_event_once(run, dataset, tmp_path).state
    assert line.startswith(f"ringflow: error: stopped by SIGTERM after {before.events} events, and all is saved")


@pytest.mark.heavy
def test_a_failing_worker_is_one_line_and_ends_all(dataset: Path, tmp_path: Path):
    words = ["train", f"data={dataset}", *TINY, "sync=downpour", "optimizer.rate=1e30", "--out", tmp_path / "run"]
    done = ringflow("launch", "local", "--workers", 2, "--", *words, code=1)
    (line,) = spoken(done.stderr)
    assert "became NaN or infinite at step" in line
    assert (tmp_path / "run" / "bad_batch.safetensors").is_file()


@pytest.mark.heavy
def test_a_process_alone_is_told_how_to_start_it(dataset: Path, tmp_path: Path):
    done = ringflow("train", f"data={dataset}", *TINY, "sync=easgd", "--out", tmp_path / "run", code=2)
    assert done.stderr == (
        "ringflow: error: sync=easgd needs a master and at least one worker; "
        "start it with `ringflow launch local --workers 3 -- train ...`\n"
    )
    assert not (tmp_path / "run").exists()

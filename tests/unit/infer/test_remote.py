"""Work given to others: what a worker does, results in order, interrupted work goes on, plain words for trouble."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from fixtures.fake_events import fake_block, same, write_fake_dataset
from ringflow.base.errors import DatasetError, FailureError, InputFileError, UsageError
from ringflow.data.candidates import CandidateFile
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.infer import reconstruct as engine
from ringflow.infer.remote import (
    Answer,
    CarriedModel,
    Place,
    ShardSource,
    ShardTask,
    carry,
    reconstruct_on,
    reconstruct_shard,
    shard_tasks,
    worker_session,
)
from ringflow.infer.runtime import ERRORS
from ringflow.models.file import save_model
from ringflow.models.uncertainty import UncertaintyHead, file_beside, save_uncertainty
from ringflow.recipes import reconstruct as recipe

TASKS = [ShardTask(shard, 0, 2) for shard in range(20)]


@dataclass
class HandCluster:
    """Whoever asks for a result gets the last task that was given out done first."""

    workers: int = 3
    at_once: int = 3
    open: list[tuple[ShardTask, Future[Answer]]] = field(default_factory=list)
    most: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, task: ShardTask) -> Future[Answer]:
        future: Future[Answer] = Future()
        self.open.append((task, future))
        self.most = max(self.most, len(self.open))
        if len(self.open) == self.at_once or task == TASKS[-1]:
            threading.Timer(0.001, self.finish_all).start()
        return future

    def finish_all(self) -> None:
        """Backwards, so that the first one comes last."""
        while self.open:
            task, future = self.open.pop()
            future.set_result([fake_block(2 * task.shard, 2)])

    def explain(self, error: Exception) -> FailureError:
        return FailureError(f"explained: {error}")


def test_results_come_in_order():
    cluster = HandCluster()
    made = list(reconstruct_on(cluster, TASKS))
    assert [int(block.event_number[0]) for block in made] == list(range(0, 40, 2))
    assert cluster.most == 3


def test_few_results_are_kept_waiting():
    given: list[ShardTask] = []

    class Slow(HandCluster):
        """The first task is never done."""

        def submit(self, task: ShardTask) -> Future[Answer]:
            given.append(task)
            future: Future[Answer] = Future()
            if task.shard:
                future.set_result([])
            elif len(given) == 1:
                threading.Timer(0.05, lambda: future.set_exception(MemoryError("full"))).start()
            return future

    with pytest.raises(FailureError, match="explained: full"):
        list(reconstruct_on(Slow(), TASKS))
    assert len(given) == 9


def test_an_error_of_a_worker_is_raised():
    class Failing(HandCluster):
        def submit(self, task: ShardTask) -> Future[Answer]:
            future: Future[Answer] = Future()
            future.set_result(DatasetError("shard is broken; make it again") if task.shard == 2 else [fake_block(0, 1)])
            return future

    blocks = reconstruct_on(Failing(), TASKS)
    assert [len(next(blocks)) for _ in range(2)] == [1, 1]
    with pytest.raises(DatasetError, match="shard is broken; make it again"):
        next(blocks)


class ThreadCluster:
    """Workers that are threads of this process; they give up after some tasks."""

    workers = at_once = 2
    lives = 10**6

    def __init__(self, place: Place, source: ShardSource, model: CarriedModel) -> None:
        self._work = (source, model)
        self._threads = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def submit(self, task: ShardTask) -> Future[Answer]:
        return self._threads.submit(self._answer, task)

    def _answer(self, task: ShardTask) -> Answer:
        if task.shard >= self.lives:
            raise MemoryError("dead")
        return reconstruct_shard(*self._work, task)

    def explain(self, error: Exception) -> FailureError:
        return FailureError(f"a worker is {error}; run it again")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_fake_dataset(tmp_path / "dataset", 60)


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Path:
    """A network with uncertainties beside it."""
    path, model = tmp_path / "model.safetensors", small_model().model
    save_model(path, model, card=small_model().card)
    save_uncertainty(file_beside(path), UncertaintyHead(2 * model.settings.width, 4), path, {})
    return path


@pytest.mark.parametrize("lost_in", ["spark", "here"])
def test_work_goes_on_where_it_stopped_wherever_that_was(
    lost_in: str, dataset: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Sixty events in six shards of three blocks; a part is full after eight events."""
    monkeypatch.setattr(engine, "EVENTS_PER_PART", 8)
    monkeypatch.setattr(recipe, "open_cluster", ThreadCluster)
    out, whole = tmp_path / "out.parquet", tmp_path / "whole" / "out.parquet"
    recipe.reconstruct(dataset, whole, model=weights)
    first, then = (Place("spark"), recipe.HERE) if lost_in == "spark" else (recipe.HERE, Place("spark"))
    with monkeypatch.context() as patch:
        patch.setattr(ThreadCluster, "lives", 3)
        patch.setattr(recipe, "made_of", interrupted)
        with pytest.raises((FailureError, KeyboardInterrupt)):
            recipe.reconstruct(dataset, out, model=weights, on=first)
    result = recipe.reconstruct(dataset, out, model=weights, on=then)
    assert 0 < result["new_events"] < 60
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "out.parquet.parts").exists()


def interrupted(session: Any, blocks: Iterator[EventBlock]) -> Iterator[EventBlock]:
    """Made of a few blocks, then the end comes in the middle of a shard."""
    for place, block in enumerate(engine.made_of(session, blocks)):
        if place == 8:
            raise KeyboardInterrupt
        yield block


def test_some_events_of_a_split(dataset: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recipe, "open_cluster", ThreadCluster)
    chosen = {"split": "train", "events": 33}
    recipe.reconstruct(dataset, tmp_path / "a" / "out.parquet", model=weights, **chosen)
    result = recipe.reconstruct(dataset, tmp_path / "b" / "out.parquet", model=weights, on=Place("ray"), **chosen)
    assert (result["events"], result["on"], result["workers"]) == (33, "ray", 2)
    assert (tmp_path / "a" / "out.parquet").read_bytes() == (tmp_path / "b" / "out.parquet").read_bytes()
    [*blocks] = CandidateFile(tmp_path / "b" / "out.parquet").blocks()
    assert all(set(ERRORS) <= set(block["candidate"].columns) for block in blocks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": Place("dask")}, "cannot reconstruct on 'dask'; choose from here, spark, ray"),
        ({"on": Place(workers=2)}, "workers are for --on spark and --on ray; use --threads"),
        ({"on": Place("ray"), "threads": 2}, "--threads 2 is for --on here; with --on ray every worker has one thread"),
        ({"on": Place("spark"), "device": "cuda"}, "--on spark computes on the cpu, not on cuda"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], message: str, dataset: Path, tmp_path: Path):
    with pytest.raises(UsageError, match=message):
        recipe.reconstruct(dataset, tmp_path / "out.parquet", **options)


def test_files_are_for_one_process(weights: Path, tmp_path: Path, command: Callable[..., Any]):
    (tmp_path / "events.root").touch()
    with pytest.raises(
        UsageError, match=r"takes the folder of a dataset, .*ringflow convert .*events\.root --out data/"
    ):
        recipe.reconstruct(tmp_path / "events.root", tmp_path / "out.parquet", on=Place("spark"))
    for words in (("--master", "local"), ("--on", "spark", "--address", "auto"), ("--on", "ray", "--master", "local")):
        done = command("reconstruct", weights, "-o", tmp_path / "out.parquet", *words)
        assert done.code == 2
        assert f"{words[-2]} {words[-1]} is for --on" in done.stderr


@pytest.fixture
def small(tmp_path: Path) -> Dataset:
    """Twenty-five events in shards of ten, in blocks of four."""
    return Dataset(write_fake_dataset(tmp_path / "dataset"))


@pytest.fixture
def model(tmp_path: Path, small_model: Callable[..., Any]) -> CarriedModel:
    save_model(tmp_path / "model.safetensors", small_model().model, card=small_model().card)
    return carry(tmp_path / "model.safetensors")


def test_tasks_cover_the_events_once(small: Dataset):
    assert list(shard_tasks(small, None, 25)) == [ShardTask(0, 0, 10), ShardTask(1, 0, 10), ShardTask(2, 0, 5)]
    assert list(shard_tasks(small, None, 13, done=4)) == [ShardTask(0, 4, 10), ShardTask(1, 0, 3)]
    assert list(shard_tasks(small, None, 25, done=10)) == [ShardTask(1, 0, 10), ShardTask(2, 0, 5)]
    assert list(shard_tasks(small, None, 25, done=25)) == []
    assert list(shard_tasks(small, "test", 2)) == [ShardTask(0, 0, 1), ShardTask(1, 0, 1)]  # 9, 19; none in 20 to 24


@pytest.mark.parametrize("split", [None, "train"])
def test_the_blocks_are_those_of_one_process(small: Dataset, model: CarriedModel, split: str | None):
    session = model.open()
    wanted = list(engine.made_of(session, small.events(split, columns=list(session.kinds))))
    source = pickle.loads(pickle.dumps(ShardSource.of(small, split)))
    made = [made_by(source, model, task) for task in shard_tasks(small, split, 25)]
    assert all(
        same(one, other) for one, other in zip([block for blocks in made for block in blocks], wanted, strict=True)
    )


def made_by(source: ShardSource, model: CarriedModel, task: ShardTask) -> list[Any]:
    answer: Answer = reconstruct_shard(source, model, task)
    assert isinstance(answer, list), answer
    return answer


def test_a_task_begins_and_ends_where_it_says(small: Dataset, model: CarriedModel):
    made = made_by(ShardSource.of(small), model, ShardTask(0, 4, 9))
    assert [block.event_number.tolist() for block in made] == [[4, 5, 6, 7], [8]]


def test_trouble_is_an_answer(small: Dataset, model: CarriedModel, tmp_path: Path):
    source = ShardSource.of(small)
    gone = reconstruct_shard(ShardSource(str(tmp_path / "gone"), source.manifest_sha256), model, ShardTask(0, 0, 1))
    assert isinstance(gone, FailureError)
    assert "cannot see the dataset" in str(gone)
    other = reconstruct_shard(ShardSource(source.path, "0" * 64), model, ShardTask(0, 0, 1))
    assert isinstance(other, FailureError)
    assert "sees another dataset" in str(other)
    short = reconstruct_shard(source, model, ShardTask(2, 0, 9))
    assert isinstance(short, DatasetError)
    assert "has 5 events instead of 9" in str(short)
    shard = small.path / small.manifest.shards[1].file
    shard.write_bytes(b"x" * shard.stat().st_size)
    broken = reconstruct_shard(source, model, ShardTask(1, 0, 10))
    assert isinstance(broken, DatasetError)
    assert "is corrupted" in str(broken)
    assert pickle.loads(pickle.dumps(broken)).args == broken.args


def test_a_model_travels(model: CarriedModel, tmp_path: Path):
    (tmp_path / "model.safetensors").unlink()
    travelled = pickle.loads(pickle.dumps(model))
    assert travelled == model
    assert len(repr(model)) < 300  # the weights are not in it
    session = worker_session(travelled)
    assert session is worker_session(model)
    assert (session.detector, session.kinds) == ("fake", ("track", "cluster"))


def test_a_worker_of_another_version_is_refused(model: CarriedModel, monkeypatch: pytest.MonkeyPatch):
    worker_session.cache_clear()
    monkeypatch.setattr("ringflow.infer.remote.__version__", "0.0.1")
    with pytest.raises(FailureError, match=r"the workers have ringflow 0\.0\.1, and here is .*; install the same"):
        worker_session(model)


def test_an_engine_for_the_way(small_onnx: Callable[..., Path], tmp_path: Path):
    assert carry(small_onnx()).engine == "onnx"
    with pytest.raises(UsageError, match="is an ONNX file, which torch does not run"):
        carry(small_onnx(), "torch")
    with pytest.raises(InputFileError, match=r"no model at .*nothing; give a model file"):
        carry(tmp_path / "nothing")

"""Work given to others: what a worker does, results in order, interrupted work goes on, plain words for trouble."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_events import fake_block, write_fake_dataset
from ringflow.base.errors import DatasetError, FailureError, InputFileError, RingflowError, UsageError
from ringflow.data.candidates import CandidateFile
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.infer import reconstruct as engine
from ringflow.infer.remote import (
    Answer,
    CarriedModel,
    Cluster,
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


def test_results_come_in_order_and_few_are_kept_waiting():
    given: list[int] = []

    def run(task: ShardTask) -> Answer:
        given.append(task.shard)
        time.sleep(0.1 if task.shard % 3 == 0 else 0)
        return [fake_block(2 * task.shard, 2)]

    blocks = reconstruct_on(Cluster(run, lambda: 3), TASKS)
    made = [next(blocks)]
    assert len(given) <= 10
    assert [int(block.event_number[0]) for block in (*made, *blocks)] == list(range(0, 40, 2))


def test_an_error_of_a_worker_is_raised():
    def run(task: ShardTask) -> Answer:
        return DatasetError("shard is broken; make it again") if task.shard == 2 else [fake_block(0, 1)]

    blocks = reconstruct_on(Cluster(run, lambda: 3), TASKS)
    assert [len(next(blocks)) for _ in range(2)] == [1, 1]
    with pytest.raises(DatasetError, match="shard is broken; make it again"):
        next(blocks)


#: Shards from here on are not made any more.
lives = 10**6


@contextmanager
def thread_cluster(place: Place, source: ShardSource, model: CarriedModel) -> Iterator[Cluster]:
    """Workers that are threads of this process."""

    def run(task: ShardTask) -> Answer:
        if task.shard >= lives:
            raise FailureError("a worker is dead; run it again")
        return reconstruct_shard(source, model, task)

    yield Cluster(run, lambda: 2)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_dataset(tmp_path_factory.mktemp("data") / "dataset", 60)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, small_model: Callable[..., Any]) -> Path:
    """A network with uncertainties beside it."""
    path: Path = tmp_path_factory.mktemp("model") / "model.safetensors"
    model = small_model().model
    save_model(path, model, card=small_model().card)
    save_uncertainty(file_beside(path), UncertaintyHead(2 * model.settings.width, 4), path, {})
    return path


@pytest.mark.parametrize("lost_in", ["spark", "here"])
def test_work_goes_on_where_it_stopped_wherever_that_was(
    lost_in: str, dataset: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Sixty events in six shards of three blocks; a part is full after eight events."""
    monkeypatch.setattr(engine, "EVENTS_PER_PART", 8)
    monkeypatch.setattr(recipe, "open_cluster", thread_cluster)
    out, whole = tmp_path / "out.parquet", tmp_path / "whole" / "out.parquet"
    recipe.reconstruct(dataset, whole, model=weights)
    first, then = (Place("spark"), recipe.HERE) if lost_in == "spark" else (recipe.HERE, Place("spark"))
    with monkeypatch.context() as patch:
        patch.setattr(f"{__name__}.lives", 3)
        patch.setattr(recipe, "made_of", interrupted)
        with pytest.raises((FailureError, KeyboardInterrupt)):
            recipe.reconstruct(dataset, out, model=weights, on=first)
    result = recipe.reconstruct(dataset, out, model=weights, on=then)
    assert 0 < result["new_events"] < 60
    assert out.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "out.parquet.parts").exists()


def interrupted(reconstruct: Any, blocks: Iterator[EventBlock]) -> Iterator[EventBlock]:
    """Made of a few blocks, then the end comes in the middle of a shard."""
    for place, block in enumerate(engine.made_of(reconstruct, blocks)):
        if place == 8:
            raise KeyboardInterrupt
        yield block


def test_some_events_of_a_split(dataset: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recipe, "open_cluster", thread_cluster)
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


def test_a_task_begins_and_ends_where_it_says(small: Dataset, model: CarriedModel):
    source = pickle.loads(pickle.dumps(ShardSource.of(small)))
    made = reconstruct_shard(source, model, ShardTask(0, 4, 9))
    assert isinstance(made, list)
    assert [block.event_number.tolist() for block in made] == [[4, 5, 6, 7], [8]]


def test_trouble_is_an_answer(small: Dataset, model: CarriedModel, tmp_path: Path):
    source, shard = ShardSource.of(small), small.path / small.manifest.shards[1].file
    shard.write_bytes(b"x" * shard.stat().st_size)
    gone = ShardSource(str(tmp_path / "gone"), source.manifest_sha256)
    for given, task, kind, message in (
        (gone, (0, 0, 1), FailureError, "cannot see the dataset"),
        (ShardSource(source.path, "0" * 64), (0, 0, 1), FailureError, "sees another dataset"),
        (source, (2, 0, 9), DatasetError, "has 5 events instead of 9"),
        (source, (1, 0, 10), DatasetError, "is corrupted"),
    ):
        answer = reconstruct_shard(given, model, ShardTask(*task))
        assert isinstance(answer, kind)
        assert isinstance(answer, RingflowError)
        assert message in str(answer)
        assert pickle.loads(pickle.dumps(answer)).args == answer.args


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

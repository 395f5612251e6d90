"""What a worker does: exactly the events of its task, with the model it was sent, or an error that says what it lacks."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_events import same, write_fake_dataset
from ringflow.base.errors import DatasetError, FailureError, InputFileError, UsageError
from ringflow.data.read import Dataset
from ringflow.infer import reconstruct as engine
from ringflow.infer import remote as carried
from ringflow.infer.remote import (
    Answer,
    CarriedModel,
    ShardSource,
    ShardTask,
    carry,
    reconstruct_shard,
    shard_tasks,
    worker_session,
)
from ringflow.models.file import save_model


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Twenty-five events in shards of ten, in blocks of four."""
    return Dataset(write_fake_dataset(tmp_path / "dataset"))


@pytest.fixture
def model(tmp_path: Path, small_model: Callable[..., Any]) -> CarriedModel:
    save_model(tmp_path / "model.safetensors", small_model().model, card=small_model().card)
    return carry(tmp_path / "model.safetensors")


def test_tasks_cover_the_events_once(dataset: Dataset):
    assert list(shard_tasks(dataset, None, 25)) == [ShardTask(0, 0, 10), ShardTask(1, 0, 10), ShardTask(2, 0, 5)]
    assert list(shard_tasks(dataset, None, 13, done=4)) == [ShardTask(0, 4, 10), ShardTask(1, 0, 3)]
    assert list(shard_tasks(dataset, None, 25, done=10)) == [ShardTask(1, 0, 10), ShardTask(2, 0, 5)]
    assert list(shard_tasks(dataset, None, 25, done=25)) == []
    assert list(shard_tasks(dataset, "test", 2)) == [ShardTask(0, 0, 1), ShardTask(1, 0, 1)]  # 9, 19; none in 20 to 24


@pytest.mark.parametrize("split", [None, "train"])
def test_the_blocks_are_those_of_one_process(dataset: Dataset, model: CarriedModel, split: str | None):
    session = model.open()
    wanted = list(engine.made_of(session, dataset.events(split, columns=list(session.kinds))))
    source = pickle.loads(pickle.dumps(ShardSource.of(dataset, split)))
    made = [made_by(source, model, task) for task in shard_tasks(dataset, split, 25)]
    assert all(
        same(one, other) for one, other in zip([block for blocks in made for block in blocks], wanted, strict=True)
    )


def made_by(source: ShardSource, model: CarriedModel, task: ShardTask) -> list[Any]:
    answer: Answer = reconstruct_shard(source, model, task)
    assert isinstance(answer, list), answer
    return answer


def test_a_task_begins_and_ends_where_it_says(dataset: Dataset, model: CarriedModel):
    made = made_by(ShardSource.of(dataset), model, ShardTask(0, 4, 9))
    assert [block.event_number.tolist() for block in made] == [[4, 5, 6, 7], [8]]


def test_trouble_is_an_answer(dataset: Dataset, model: CarriedModel, tmp_path: Path):
    source = ShardSource.of(dataset)
    gone = reconstruct_shard(ShardSource(str(tmp_path / "gone"), source.manifest_sha256), model, ShardTask(0, 0, 1))
    assert isinstance(gone, FailureError)
    assert "cannot see the dataset" in str(gone)
    other = reconstruct_shard(ShardSource(source.path, "0" * 64), model, ShardTask(0, 0, 1))
    assert isinstance(other, FailureError)
    assert "sees another dataset" in str(other)
    short = reconstruct_shard(source, model, ShardTask(2, 0, 9))
    assert isinstance(short, DatasetError)
    assert "has 5 events instead of 9" in str(short)
    shard = dataset.path / dataset.manifest.shards[1].file
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
    monkeypatch.setattr(carried, "__version__", "0.0.1")
    with pytest.raises(FailureError, match=r"the workers have ringflow 0\.0\.1, and here is .*; install the same"):
        worker_session(model)


def test_an_engine_for_the_way(small_onnx: Callable[..., Path], tmp_path: Path):
    assert carry(small_onnx()).engine == "onnx"
    with pytest.raises(UsageError, match="is an ONNX file, which torch does not run"):
        carry(small_onnx(), "torch")
    with pytest.raises(InputFileError, match=r"no model at .*nothing; give a model file"):
        carry(tmp_path / "nothing")

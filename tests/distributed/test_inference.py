"""Spark and Ray on two workers: the candidates of one process, in order, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fixtures.process_tree import descendants
from ringflow.base.errors import DatasetError, FailureError
from ringflow.data.candidates import CandidateFile
from ringflow.data.read import Dataset
from ringflow.infer.remote import Place, ShardSource, carry, reconstruct_on, shard_tasks, table_of, worker_session
from ringflow.infer.runtime import ERRORS, ROW
from ringflow.recipes.reconstruct import reconstruct

#: All columns that one process writes.
CANDIDATES = {"candidate": (*ROW, *ERRORS)}
#: What Ray calls a process that has work, and one that waits for some.
RAY_WORKERS = ("ray::reconstruct_shard", "ray::IDLE")


@dataclass(frozen=True)
class Engine:
    """A cluster that is there."""

    name: str
    words: tuple[object, ...]
    open: Callable[..., Any]
    worker: Callable[[], int]  # a process of it that works, or will


@pytest.fixture(scope="module")
def ray(ray_nodes: Any) -> Iterator[Any]:
    """The module `ray`, connected to the cluster."""
    from ringflow.launch.ray import open_ray

    ray, opened = open_ray(ray_nodes.address)
    assert opened
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def spark_engine(spark_daemons: Any) -> Engine:
    from ringflow.infer.spark import spark_cluster

    def executor() -> int:
        return next(pid for pid, words in descendants(spark_daemons.workers[0].pid).items() if "java" in words)

    return Engine("spark", ("--master", spark_daemons.master), spark_cluster, executor)


@pytest.fixture(scope="module")
def ray_engine(ray_nodes: Any) -> Engine:
    from ringflow.infer.ray import ray_cluster

    def worker() -> int:  # between two shards none may be at it
        nodes = [process.process.pid for node in ray_nodes.list_all_nodes() for process in node.all_processes["raylet"]]
        found = {pid: words for node in nodes for pid, words in descendants(node).items()}
        workers = [pid for pid, words in found.items() if words.startswith(RAY_WORKERS)]
        return min(workers, key=lambda pid: not found[pid].startswith(RAY_WORKERS[0]))

    return Engine("ray", ("--address", ray_nodes.address), ray_cluster, worker)


@pytest.fixture(scope="module")
def expected(dataset: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the dataset."""
    path: Path = tmp_path_factory.mktemp("local") / "out.parquet"
    reconstruct(dataset, path, model=weights)
    assert tuple(next(CandidateFile(path).blocks())["candidate"].columns) == CANDIDATES["candidate"]
    return path


@pytest.fixture(scope="module")
def wanted(expected: Path) -> pa.Table:
    return pa.concat_tables([table_of(block, CANDIDATES) for block in CandidateFile(expected).blocks()])


class ClusterContract:
    """What is asked of both."""

    def test_the_command_writes_the_same_file(
        self, engine: Engine, dataset: Path, weights: Path, expected: Path, tmp_path: Path, command: Callable[..., Any]
    ) -> None:
        out = tmp_path / "out.parquet"
        words = ("--on", engine.name, *engine.words, "--workers", 2, "--json")
        done = command("reconstruct", dataset, "-o", out, "--model", weights, *words)
        assert done.code == 0, done.stderr
        assert out.read_bytes() == expected.read_bytes()
        assert not (tmp_path / "out.parquet.parts").exists()
        result = json.loads(done.stdout)
        assert (result["on"], result["workers"], result["new_events"]) == (engine.name, 2, 120)
        assert "reconstructing: 120/120" in done.stderr
        [*blocks] = CandidateFile(out).blocks()
        counts = np.concatenate([block["candidate"].counts for block in blocks])
        assert np.concatenate([block.event_number for block in blocks]).tolist() == list(range(120))
        assert counts[::7].sum() == 0 < counts.sum()

    @pytest.mark.heavy
    def test_a_killed_worker_is_replaced(self, engine: Engine, dataset: Path, weights: Path, wanted: pa.Table) -> None:
        opened = Dataset(dataset)
        with engine.open(Place(workers=2), ShardSource.of(opened), carry(weights)) as cluster:
            blocks = reconstruct_on(cluster, shard_tasks(opened, None, 120))
            made = [next(blocks)]
            os.kill(engine.worker(), signal.SIGKILL)
            made += blocks
        assert pa.concat_tables([table_of(block, CANDIDATES) for block in made]).equals(wanted)

    def test_what_a_worker_finds_is_told_in_one_line(
        self, engine: Engine, dataset: Path, weights: Path, tmp_path: Path
    ) -> None:
        gone = ShardSource(str(tmp_path / "gone"), "0" * 64)
        with (
            engine.open(Place(workers=2), gone, carry(weights)) as cluster,
            pytest.raises(FailureError, match=r"a worker on .* cannot see the dataset .*gone; put it on a file system"),
        ):
            list(reconstruct_on(cluster, shard_tasks(Dataset(dataset), None, 120)))


@pytest.mark.xdist_group("ray")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")  # of settings that Ray Data copies itself
class TestRay(ClusterContract):
    @pytest.fixture
    def engine(self, ray_engine: Engine, ray: Any) -> Engine:
        return ray_engine

    def test_a_dataset_becomes_candidates(self, dataset: Path, weights: Path, wanted: pa.Table, ray: Any) -> None:
        from ringflow.infer.ray import read_events, reconstruct_dataset

        batches = {"batch_size": None, "batch_format": "pyarrow"}
        made = reconstruct_dataset(read_events(dataset), weights, concurrency=2).iter_batches(**batches)
        assert pa.concat_tables(list(made)).cast(wanted.schema).equals(wanted)
        some = read_events(dataset, split="test").iter_batches(**batches)
        assert pa.concat_tables(list(some))["event_number"].to_pylist() == list(range(9, 120, 10))
        with pytest.raises(DatasetError, match="the events have no track columns such as 'track_pt'"):
            reconstruct_dataset(ray.data.from_arrow(wanted.select(["event_number"])), weights)


@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
@pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning"
)  # that the bridge to Java leaves to the collector
class TestSpark(ClusterContract):
    @pytest.fixture
    def engine(self, spark_engine: Engine, session: Any) -> Engine:
        return spark_engine

    def test_a_frame_becomes_candidates(self, dataset: Path, weights: Path, wanted: pa.Table, session: Any) -> None:
        from ringflow.infer.spark import read_events, reconstruct_frame

        events = read_events(session, dataset)
        assert events.rdd.getNumPartitions() == 12
        assert reconstruct_frame(events, weights).toArrow().cast(wanted.schema).equals(wanted)
        some = read_events(session, dataset, split="test").select("event_number").toArrow()
        assert some["event_number"].to_pylist() == list(range(9, 120, 10))
        for column, said in (("track_calo_x", "the track collection has no"), ("event_number", "the events have no")):
            with pytest.raises(DatasetError, match=f"{said} column '{column.removeprefix('track_')}'"):
                reconstruct_frame(events.drop(column), weights)

    @pytest.mark.heavy
    def test_a_worker_opens_the_model_once(self, weights: Path, session: Any) -> None:
        """Twelve tasks, but no more sessions than Python processes."""
        model = carry(weights)

        def opened(_: Any) -> Iterator[tuple[int, int, int]]:
            import torch

            worker_session(model)
            yield os.getpid(), worker_session.cache_info().misses, torch.get_num_threads()

        answers = session.sparkContext.parallelize(range(12), 12).mapPartitions(opened).collect()
        assert len(answers) == 12
        assert len({pid for pid, _, _ in answers}) <= 2
        assert {answer[1:] for answer in answers} <= {(1, 1), (2, 1)}  # an earlier test's model, and this

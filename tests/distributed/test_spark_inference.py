"""Spark on a master and two workers: the candidates of one process, in order, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fixtures.process_tree import descendants
from ringflow.base.errors import DatasetError, FailureError
from ringflow.data.candidates import CandidateFile
from ringflow.data.read import Dataset
from ringflow.infer.frames import table_of
from ringflow.infer.remote import Place, ShardSource, carry, reconstruct_on, shard_tasks
from ringflow.infer.runtime import ERRORS, ROW
from ringflow.recipes.reconstruct import reconstruct

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    # The bridge to Java leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

#: All columns that one process writes.
CANDIDATES = {"candidate": (*ROW, *ERRORS)}


@pytest.fixture(scope="module")
def expected(dataset: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process makes of the dataset."""
    path: Path = tmp_path_factory.mktemp("local") / "out.parquet"
    reconstruct(dataset, path, model=weights)
    assert tuple(next(CandidateFile(path).blocks())["candidate"].columns) == CANDIDATES["candidate"]
    return path


@pytest.fixture(scope="module")
def session(spark_daemons: Any) -> Iterator[Any]:
    """A session of the test's own."""
    from ringflow.launch.spark import open_spark

    session, opened = open_spark(spark_daemons.master)
    assert opened
    yield session
    session.stop()


@pytest.mark.heavy
def test_the_command_writes_the_same_file(
    dataset: Path, weights: Path, expected: Path, spark_daemons: Any, tmp_path: Path, command: Callable[..., Any]
):
    out = tmp_path / "out.parquet"
    words = ("--on", "spark", "--master", spark_daemons.master, "--workers", 2, "--json")
    done = command("reconstruct", dataset, "-o", out, "--model", weights, *words)
    assert done.code == 0, done.stderr
    assert out.read_bytes() == expected.read_bytes()
    assert not (tmp_path / "out.parquet.parts").exists()
    result = json.loads(done.stdout)
    assert (result["on"], result["workers"], result["new_events"]) == ("spark", 2, 120)
    assert "reconstructing: 120/120" in done.stderr
    [*blocks] = CandidateFile(out).blocks()
    numbers = np.concatenate([block.event_number for block in blocks])
    counts = np.concatenate([block["candidate"].counts for block in blocks])
    assert numbers.tolist() == list(range(120))
    assert counts[::7].sum() == 0 < counts.sum()


def test_a_frame_becomes_candidates(dataset: Path, weights: Path, expected: Path, session: Any):
    from ringflow.infer.spark import read_events, reconstruct_frame

    events = read_events(session, dataset)
    assert events.rdd.getNumPartitions() == 12
    made = reconstruct_frame(events, weights).toArrow()
    wanted = pa.concat_tables([table_of(block, CANDIDATES) for block in CandidateFile(expected).blocks()])
    assert made.cast(wanted.schema).equals(wanted)
    some = read_events(session, dataset, split="test").select("event_number").toArrow()
    assert some["event_number"].to_pylist() == list(range(9, 120, 10))
    with pytest.raises(DatasetError, match="the track collection has no column 'calo_x'"):
        reconstruct_frame(events.drop("track_calo_x"), weights)
    with pytest.raises(DatasetError, match="the events have no column 'event_number'"):
        reconstruct_frame(events.drop("event_number"), weights)


def test_a_worker_opens_the_model_once(dataset: Path, weights: Path, session: Any):
    """Twelve tasks, but no more sessions than Python processes."""
    from ringflow.infer.remote import worker_session

    model = carry(weights)

    def opened(_: Any) -> Iterator[tuple[int, int, int]]:
        worker_session(model)
        misses = worker_session.cache_info().misses
        import torch

        yield os.getpid(), misses, torch.get_num_threads()

    answers = session.sparkContext.parallelize(range(12), 12).mapPartitions(opened).collect()
    assert len(answers) == 12
    assert len({pid for pid, _, _ in answers}) <= 2
    assert {(misses, threads) for _, misses, threads in answers} <= {
        (1, 1),
        (2, 1),
    }  # an earlier test's model, and this


def test_a_killed_worker_is_replaced(dataset: Path, weights: Path, expected: Path, session: Any, spark_daemons: Any):
    from ringflow.infer.spark import spark_cluster

    opened = Dataset(dataset)
    with spark_cluster(Place(workers=2), ShardSource.of(opened), carry(weights)) as cluster:
        blocks = reconstruct_on(cluster, shard_tasks(opened, None, 120))
        made = [next(blocks)]
        executors = [pid for pid, words in descendants(spark_daemons.workers[0].pid).items() if "java" in words]
        os.kill(executors[0], signal.SIGKILL)
        made += blocks
    wanted = list(CandidateFile(expected).blocks())
    assert np.concatenate([block.event_number for block in made]).tolist() == list(range(120))
    pairs = zip(made, wanted, strict=True)
    assert all(table_of(one, CANDIDATES).equals(table_of(other, CANDIDATES)) for one, other in pairs)


def test_what_a_worker_finds_is_told_in_one_line(dataset: Path, weights: Path, session: Any, tmp_path: Path):
    from ringflow.infer.spark import spark_cluster

    gone = ShardSource(str(tmp_path / "gone"), "0" * 64)
    with (
        spark_cluster(Place(workers=2), gone, carry(weights)) as cluster,
        pytest.raises(FailureError, match=r"a worker on .* cannot see the dataset .*gone; put it on a file system"),
    ):
        list(reconstruct_on(cluster, shard_tasks(Dataset(dataset), None, 120)))

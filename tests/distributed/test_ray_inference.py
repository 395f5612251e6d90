"""Ray on two nodes: the candidates of one process, in order, whoever dies meanwhile."""

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
    pytest.mark.xdist_group("ray"),
    # Ray Data warns of settings that it copies itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
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
def connected(ray_nodes: Any) -> Iterator[Any]:
    """The module `ray`, connected to the cluster."""
    from ringflow.launch.ray import open_ray

    ray, opened = open_ray(ray_nodes.address)
    assert opened
    yield ray
    ray.shutdown()


def test_the_command_writes_the_same_file(
    dataset: Path, weights: Path, expected: Path, ray_nodes: Any, tmp_path: Path, command: Callable[..., Any]
):
    out = tmp_path / "out.parquet"
    words = ("--on", "ray", "--address", ray_nodes.address, "--workers", 2, "--json")
    done = command("reconstruct", dataset, "-o", out, "--model", weights, *words)
    assert done.code == 0, done.stderr
    assert out.read_bytes() == expected.read_bytes()
    assert not (tmp_path / "out.parquet.parts").exists()
    result = json.loads(done.stdout)
    assert (result["on"], result["workers"], result["new_events"]) == ("ray", 2, 120)
    assert "reconstructing: 120/120" in done.stderr
    [*blocks] = CandidateFile(out).blocks()
    numbers = np.concatenate([block.event_number for block in blocks])
    counts = np.concatenate([block["candidate"].counts for block in blocks])
    assert numbers.tolist() == list(range(120))
    assert counts[::7].sum() == 0 < counts.sum()


def test_a_dataset_becomes_candidates(dataset: Path, weights: Path, expected: Path, connected: Any):
    from ringflow.infer.ray import read_events, reconstruct_dataset

    events = read_events(dataset)
    made = reconstruct_dataset(events, weights, concurrency=2).iter_batches(batch_size=None, batch_format="pyarrow")
    wanted = pa.concat_tables([table_of(block, CANDIDATES) for block in CandidateFile(expected).blocks()])
    assert pa.concat_tables(list(made)).cast(wanted.schema).equals(wanted)
    some = read_events(dataset, split="test").iter_batches(batch_size=None, batch_format="pyarrow")
    assert pa.concat_tables(list(some))["event_number"].to_pylist() == list(range(9, 120, 10))
    lacking = connected.data.from_arrow(wanted.select(["event_number"]))
    with pytest.raises(DatasetError, match="the events have no track columns such as 'track_pt'"):
        reconstruct_dataset(lacking, weights)


@pytest.mark.heavy
def test_a_killed_worker_is_replaced(dataset: Path, weights: Path, expected: Path, connected: Any, ray_nodes: Any):
    from ringflow.infer.ray import ray_cluster

    opened = Dataset(dataset)
    with ray_cluster(Place(workers=2), ShardSource.of(opened), carry(weights)) as cluster:
        blocks = reconstruct_on(cluster, shard_tasks(opened, None, 120))
        made = [next(blocks)]
        os.kill(workers_of(ray_nodes)[0], signal.SIGKILL)
        made += blocks
    wanted = list(CandidateFile(expected).blocks())
    assert np.concatenate([block.event_number for block in made]).tolist() == list(range(120))
    pairs = zip(made, wanted, strict=True)
    assert all(table_of(one, CANDIDATES).equals(table_of(other, CANDIDATES)) for one, other in pairs)


def test_what_a_worker_finds_is_told_in_one_line(dataset: Path, weights: Path, connected: Any, tmp_path: Path):
    from ringflow.infer.ray import ray_cluster

    gone = ShardSource(str(tmp_path / "gone"), "0" * 64)
    with (
        ray_cluster(Place(workers=2), gone, carry(weights)) as cluster,
        pytest.raises(FailureError, match=r"a worker on .* cannot see the dataset .*gone; put it on a file system"),
    ):
        list(reconstruct_on(cluster, shard_tasks(Dataset(dataset), None, 120)))


#: What Ray calls a process that has work, and one that waits for some.
TITLES = ("ray::reconstruct_shard", "ray::IDLE")


def workers_of(cluster: Any) -> list[int]:
    """Processes that work, those first that are at it: between two shards none may be."""
    nodes = [process.process.pid for node in cluster.list_all_nodes() for process in node.all_processes["raylet"]]
    found = {pid: words for node in nodes for pid, words in descendants(node).items() if words.startswith(TITLES)}
    return sorted(found, key=lambda pid: not found[pid].startswith(TITLES[0]))

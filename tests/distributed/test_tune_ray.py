"""Trials on a Ray cluster of two nodes: their processes are actors, whoever dies meanwhile."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.executor_contract import ENDLESS, Bench, ExecutorContract, TwoProcessesContract
from fixtures.process_tree import descendants
from fixtures.tiny_training import checkpoints, make_dataset, wait_for
from ringflow.base.errors import FailureError
from ringflow.tune.executors import Executor, RayExecutor

pytestmark = pytest.mark.xdist_group("ray")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture
def again(ray_nodes: Any, tmp_path: Path) -> Iterator[Callable[[], Executor]]:
    made: list[RayExecutor] = []

    def make() -> Executor:
        made.append(RayExecutor(tmp_path / "study", ray_nodes.address, workers=None, on_gpus=False))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def bench(again: Callable[[], Executor], tmp_path: Path, dataset: Path) -> Bench:
    return Bench(again(), tmp_path / "study", dataset)


def ranks(cluster: Any) -> list[int]:
    """Processes that are actors of trials."""
    nodes = [process.process.pid for node in cluster.list_all_nodes() for process in node.all_processes["raylet"]]
    return sorted(pid for node in nodes for pid, words in descendants(node).items() if "RayWorker" in words)


@pytest.mark.heavy
def test_a_killed_rank_ends_its_trial_and_the_next_one_works(bench: Bench, ray_nodes: Any) -> None:
    order = bench.start(0, 10**8, workers=2, words=ENDLESS)
    bench.next("begun", 0)
    bench.until("there is a checkpoint", lambda: checkpoints(order.run))
    assert not bench.executor.room(1)
    os.kill(max(ranks(ray_nodes)), signal.SIGKILL)
    ended = bench.next("ended", 0)
    assert (ended.trouble, ended.reason.count("\n")) == ("lost", 0)
    assert re.fullmatch(r"process [01] was ended \(Ray says \w+\)", ended.reason)
    bench.play(1, workers=2)


@pytest.mark.heavy
class TestTwoProcesses(TwoProcessesContract):
    """Two nodes of one core each."""


@pytest.mark.heavy
class TestRayExecutor(ExecutorContract):
    """On the same nodes."""

    def test_processes_are_used_again_and_leave_at_the_end(self, bench: Bench, ray_nodes: Any) -> None:
        bench.play(0)
        first = ranks(ray_nodes)
        bench.play(1)
        assert ranks(ray_nodes) == first != []
        bench.executor.close()
        wait_for("their end", lambda: not ranks(ray_nodes))

    def test_a_cluster_on_this_machine_is_started_and_ended(
        self, ray_nodes: Any, tmp_path: Path, dataset: Path
    ) -> None:
        """In a process of its own: this one has a connection already."""
        code = f"""
from pathlib import Path
from fixtures.executor_contract import Bench
from ringflow.tune.executors import RayExecutor
executor = RayExecutor(Path("study"), None, 2, on_gpus=False)
try:
    bench = Bench(executor, Path("study"), Path({str(dataset)!r}))
    bench.play(0, workers=2)
finally:
    executor.close()
"""
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "study" / "trials" / "0000" / "last.safetensors").is_file()


def test_a_trial_that_never_fits_is_refused_at_once(bench: Bench) -> None:
    with pytest.raises(
        FailureError, match="a trial of 3 processes does not fit: 2 cores of the Ray cluster can be used"
    ):
        bench.executor.room(3)

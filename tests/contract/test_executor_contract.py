"""The executor of this machine keeps the contract; those of clusters are tested in tests/distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.executor_contract import Bench, ExecutorContract, TwoProcessesContract
from fixtures.tiny_training import make_dataset
from ringflow.tune.executors import LocalExecutor


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalExecutor]:
    """One for all tests: its workers have loaded torch already."""
    made = LocalExecutor(tmp_path_factory.mktemp("study"), workers=2)
    yield made
    made.close()


@pytest.fixture
def bench(executor: LocalExecutor, dataset: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    yield Bench(executor, executor._study, dataset, request.node.name)
    if any(worker.order for worker in executor._workers.values()):
        executor.close()


@pytest.fixture
def again(executor: LocalExecutor) -> Callable[[], LocalExecutor]:
    return lambda: executor


class TestLocalExecutor(ExecutorContract, TwoProcessesContract):
    """Two processes of this machine."""

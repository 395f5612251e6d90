"""The executor of this machine keeps the contract; those of clusters are tested in tests/distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures.executor_contract import Bench, ExecutorContract, TwoProcessesContract
from fixtures.tiny_training import make_dataset
from ringflow.tune.executors import Executor, LocalExecutor


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture
def again(tmp_path: Path) -> Iterator[Callable[[], Executor]]:
    made: list[LocalExecutor] = []

    def make() -> Executor:
        made.append(LocalExecutor(tmp_path / "study", workers=2))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def bench(again: Callable[[], Executor], tmp_path: Path, dataset: Path) -> Bench:
    return Bench(again(), tmp_path / "study", dataset)


class TestLocalExecutor(ExecutorContract, TwoProcessesContract):
    """Two processes of this machine."""

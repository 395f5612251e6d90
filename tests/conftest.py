"""What every test shares."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import settings

# Tests run side by side: more threads per process than cores would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests that use ONNX Runtime without ringflow look nothing up either.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# Processes that tests start find what tests share, too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

# No test measures time, and the same commit tests the same examples.
settings.register_profile("ringflow", deadline=None, derandomize=True)
settings.load_profile("ringflow")

# A shell that starts tests in the background has them ignore Ctrl-C, and with them all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of a file run in one process, so that what they share is made once. Those that start processes begin,
    so that nobody waits for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))


class Outcome(NamedTuple):
    """What a command left behind."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run `ringflow` with the given words in this process."""
    from ringflow.cli import main

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def small_model() -> Callable[..., Any]:
    """A network with random outputs, the same for the same settings; with a card of the detector `fake`."""
    from fixtures.networks import random_network
    from ringflow.models.file import LoadedModel

    def make(backbone: str = "attention", calorimeter: str = "cluster") -> LoadedModel:
        model = random_network(backbone=backbone, calorimeter=calorimeter, graph={"bin_size": 4})
        return LoadedModel(model, 0.5, {"detector": "fake", "data": "made up"})

    return make


@pytest.fixture(scope="session")
def small_onnx(small_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The exported file of such a network, which all workers of a run share; nobody writes to it."""
    from filelock import FileLock

    from ringflow.infer.export import write_onnx

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    @cache
    def make(backbone: str = "attention", calorimeter: str = "cluster") -> Path:
        path: Path = folder / f"{backbone}-{calorimeter}.onnx"
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                write_onnx(path, small_model(backbone, calorimeter))
        return path

    return make

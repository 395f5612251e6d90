"""What every test shares."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

# Tests run side by side: more threads per process than cores would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Processes that tests start find what tests share, too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])

# No test measures time, and the same commit tests the same examples.
settings.register_profile("ringflow", deadline=None, derandomize=True)
settings.load_profile("ringflow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests of a file run in one process, so that what they share is made once; likewise those that need exported
    networks, which take long to make. Those that start processes begin, so that nobody waits for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            fixtures = getattr(item, "fixturenames", ())
            group = "exported" if "small_onnx" in fixtures else item.path.relative_to(item.config.rootpath).as_posix()
            item.add_marker(pytest.mark.xdist_group(group))


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

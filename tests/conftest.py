"""What every test shares."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import settings

# Tests run side by side: more threads per process than cores would only make them wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test measures time, and the same commit tests the same examples.
settings.register_profile("ringflow", deadline=None, derandomize=True)
settings.load_profile("ringflow")


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

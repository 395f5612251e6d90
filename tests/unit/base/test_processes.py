from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from ringflow.base.processes import keep_freed_memory, usable_cores, wait_without_spinning


def test_keeping_memory_is_a_request_that_may_be_repeated_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: object) -> object:
        raise OSError("no such library")

    keep_freed_memory()
    keep_freed_memory()
    monkeypatch.setattr(ctypes, "CDLL", no_library)
    keep_freed_memory()


def test_a_system_that_does_not_say_which_cores_are_ours_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == 3


@pytest.mark.parametrize(("before", "after"), [("ACTIVE", "ACTIVE"), (None, "PASSIVE")])
def test_a_choice_of_the_user_stays(monkeypatch: pytest.MonkeyPatch, before: str | None, after: str) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", before or "")
    if before is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_without_spinning()
    assert os.environ["OMP_WAIT_POLICY"] == after


def test_the_command_line_asks_for_it_before_torch_is_there() -> None:
    code = (
        "import os, sys; from ringflow.cli import main; assert 'torch' not in sys.modules; main(['config', '--json']); "
        "print(os.environ['OMP_WAIT_POLICY'], file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.splitlines()[-1] == "PASSIVE"

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ringflow.base.threads import usable_cores, wait_without_spinning


def test_a_system_that_does_not_say_which_cores_are_ours_has_all(monkeypatch: pytest.MonkeyPatch):
    from ringflow.tune.run import default_workers

    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert (usable_cores(), default_workers("cpu")) == (3, 3)


def test_a_choice_of_the_user_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_without_spinning()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_without_spinning()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_command_line_asks_for_it_before_torch_is_there():
    code = (
        "import os, sys; from ringflow.cli import main; assert 'torch' not in sys.modules; main(['config', '--json']); "
        "print(os.environ['OMP_WAIT_POLICY'], file=sys.stderr)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.splitlines()[-1] == "PASSIVE"

"""Processes started by mpiexec, on this machine or where its host list says."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ringflow.base.errors import FailureError
from ringflow.launch.environment import free_port


def mpiexec() -> str:
    """Where mpiexec is: beside this Python (PyPI has packages of it), or on the path."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.is_file() else shutil.which("mpiexec")
    if found is None:
        raise FailureError(
            "mpiexec is not installed; pip install 'ringflow[mpi]', or load the MPI module of your cluster"
        )
    return found


def command(words: Sequence[str], workers: int) -> list[str]:
    """What starts a ringflow command in `workers` processes."""
    return [mpiexec(), "-n", str(workers), sys.executable, "-m", "ringflow.cli", *words]


def run(words: Sequence[str], workers: int, hosts: Sequence[str] = ()) -> int:
    """Run a ringflow command in several processes; its exit code. `hosts` are where they run, this machine unless given."""
    start = command(words, workers)
    if hosts:
        start[3:3] = ["-hosts", ",".join(hosts)]
    address = socket.gethostname() if hosts else "127.0.0.1"
    meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return subprocess.run(start, env={**meeting, **os.environ}, check=False).returncode

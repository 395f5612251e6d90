"""Processes started by mpiexec, on this machine or where its host list says.

mpiexec only starts and ends the processes: they meet and add up as those of every other launcher do.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.environment import OURS, QUIET, free_port, killed, loopback_variables, require_free

_HOST = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(:(?P<slots>[1-9]\d*))?", re.ASCII)
#: What MPICH and its relatives say about a process that was killed; Open MPI adds 128 to the number instead.
_SIGNAL = re.compile(r"\(signal (\d+)\)")
#: Signals that ask a training to stop after a checkpoint; whoever sends one to the launch means the processes.
_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1)


def mpiexec() -> str:
    """Where mpiexec is: beside this Python (PyPI has packages of it), or on the path."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.is_file() else shutil.which("mpiexec")
    if found is None:
        raise FailureError(
            "mpiexec is not installed; pip install 'ringflow[mpi]', or load the MPI module of your cluster"
        )
    return found


def command(words: Sequence[str], workers: int, hosts: Sequence[str] = ()) -> list[str]:
    """What starts a ringflow command in `workers` processes; `hosts` are names of machines, or NAME:PROCESSES."""
    where = ",".join(f"{name}:{slots}" for name, slots in _slots(workers, hosts))
    program = mpiexec()
    start = [program, "-n", str(workers)]
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    if any(name in told for name in ("Open MPI", "OpenRTE", "PRRTE")):  # others understand the options of MPICH
        start += ["--oversubscribe", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]
        start += [word for name in ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", *QUIET) for word in ("-x", name)]
        start += ["--host", where] if where else []
    elif where:
        start += ["-hosts", where]
    return [*start, sys.executable, "-m", "ringflow.cli", *words]


def run(words: Sequence[str], workers: int, hosts: Sequence[str] = ()) -> int:
    """Run a ringflow command in several processes; its exit code. `hosts` are where they run, this machine unless given."""
    start = command(words, workers, hosts)
    first = _slots(workers, hosts)[0][0] if hosts else "127.0.0.1"
    left = {name: value for name, value in os.environ.items() if name not in OURS}
    if "MASTER_PORT" in left and not hosts:
        require_free(left["MASTER_PORT"])
    meeting = {"MASTER_ADDR": first, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    with _started(start, {**meeting, **QUIET, **loopback_variables(first), **left}) as process:
        said, _ = process.communicate()
    code = process.returncode
    if code == 0:
        sys.stdout.write(said)
        return 0
    # What MPICH itself says of a process that died is a banner on stdout, where nobody looks for it.
    killed_by = _SIGNAL.search(said)
    number = int(killed_by[1]) if killed_by else code - 128
    if number not in set(signal.Signals):
        return code
    raise killed("a process", number)


@contextmanager
def _started(start: Sequence[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process to which signals are passed on, those that came while it was started, too."""
    came: list[int] = []
    process: subprocess.Popen[str] | None = None

    def pass_on(number: int, _: object) -> None:
        came.append(number)
        if process is not None:
            process.send_signal(number)

    listens = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON} if listens else {}
    try:
        with subprocess.Popen(start, env=environment, stdout=subprocess.PIPE, text=True) as process:
            for number in came:
                process.send_signal(number)
            yield process
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _slots(workers: int, hosts: Sequence[str]) -> list[tuple[str, int]]:
    """Machines and how many processes each may take: as given, or evenly."""
    found = [_HOST.fullmatch(host) for host in hosts]
    if None in found:
        raise UsageError(f"--hosts {hosts[found.index(None)]!r} is no machine; give NAME or NAME:PROCESSES")
    given = [(match["name"], match["slots"]) for match in found if match]
    evenly = str(-(-workers // max(len(hosts), 1)))
    counted = any(slots for _, slots in given)
    slots = [(name, int(slots or ("1" if counted else evenly))) for name, slots in given]
    total = sum(count for _, count in slots)
    if hosts and total < workers:
        raise UsageError(
            f"{workers} workers do not fit on {', '.join(hosts)}, which take {total}; use --workers {total}, or name more"
        )
    return slots

"""What a job of Slurm does for a study: it takes orders of its size, one after the other, and starts their processes.

Nothing is handed to a job: it takes what is there, so one job trains many trials, and one that waits long in the queue holds
nobody up. It ends when there was nothing to take for a while, or when Slurm says that its time is nearly up.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import say
from ringflow.launch.environment import OURS, free_port
from ringflow.tune.executors.slurm_queue import claim, release, slurm_folder
from ringflow.tune.executors.stop_file import ask_to_stop

_SECONDS_BETWEEN_LOOKS = 0.2
#: That processes have to notice that one of them ended.
_SECONDS_TO_FOLLOW = 60


class _Wish:
    """Whether this job shall end, by what Slurm sends: SIGUSR1 when time is nearly up, SIGTERM when it is cancelled."""

    def __init__(self) -> None:
        self.to_end = False
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.to_end = True


def work(study: Path, workers: int, idle: float) -> None:
    """Carry out orders of so many processes until none came for `idle` seconds."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise UsageError("SLURM_JOB_ID is not set; this command is for the jobs of `ringflow tune --executor slurm`")
    if not slurm_folder(study).is_dir():
        raise UsageError(f"{study} hands out no trials; give the folder of a study that runs with --executor slurm")
    wish = _Wish()
    since = time.monotonic()
    while not wish.to_end and time.monotonic() - since < idle:
        ticket = claim(study, workers, job)
        if ticket is None:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            continue
        say(f"{ticket.name}: taken by job {job}")
        code = _run(ticket, workers, wish)
        say(f"{ticket.name}: over, with exit code {code}")
        if ticket.is_dir():  # otherwise a new driver has cleared the desk
            release(ticket, code)
        since = time.monotonic()


def _run(ticket: Path, workers: int, wish: _Wish) -> int:
    """Start the processes of an order, and wait for them; they are asked to stop if this job is."""
    words = [
        "srun",
        f"--ntasks={workers}",
        f"--cpus-per-task={os.environ.get('SLURM_CPUS_PER_TASK', '1')}",
        # One that ends does not kill the others, which are about to end with a checkpoint; but they may not stay for ever.
        "--kill-on-bad-exit=0",
        f"--wait={_SECONDS_TO_FOLLOW}",
        *(sys.executable, "-m", "ringflow.tune.executors.slurm_job", str(ticket)),
    ]
    with subprocess.Popen(words, env=_environment(os.environ, workers)) as processes:
        while processes.poll() is None and not wish.to_end:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        if processes.poll() is None:
            with suppress(FailureError):  # a new driver has cleared the desk, which they notice themselves
                ask_to_stop(ticket)
        return _exit_code(processes.wait())


def _environment(variables: Mapping[str, str], workers: int) -> dict[str, str]:
    """What the processes find: a place to meet if they are several, on this node, where the first of them will be."""
    kept = {name: value for name, value in variables.items() if name not in (*OURS, "MASTER_PORT")}
    if workers > 1:
        return {**kept, "MASTER_PORT": str(free_port())}
    kept.pop("MASTER_ADDR", None)
    return kept


def _exit_code(code: int) -> int:
    """As a shell tells it."""
    return code if code >= 0 else 128 - code

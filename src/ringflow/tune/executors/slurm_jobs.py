"""The jobs of a study, as Slurm knows them: by a name that no other study has.

So a driver finds those of an earlier one that was killed, whatever it had come to write down.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.slurm import ENDED, Job, ask, beginning, submit
from ringflow.tune.executors.slurm_queue import slurm_folder

_TOOLS = ("sbatch", "squeue", "scancel", "srun")
_SECONDS_BETWEEN_LOOKS = 0.5
#: For checkpoints, before jobs are cancelled; and for Slurm to be done with cancelled ones.
_SECONDS_TO_SAVE, _SECONDS_TO_END = 60.0, 60.0


class State(NamedTuple):
    """What Slurm says of a job: its state, and why it has to wait."""

    name: str
    reason: str = ""


class Jobs:
    """Submits, watches and ends the jobs of a study."""

    def __init__(self, study: Path, job: Job, idle: int) -> None:
        if absent := next((tool for tool in _TOOLS if shutil.which(tool) is None), None):
            raise FailureError(
                f"{absent} is not on the path: start the study on a machine of the cluster, or without --executor slurm"
            )
        self._study, self._job, self._idle = study.absolute(), job, idle
        mark = hashlib.sha256(str(self._study.resolve()).encode()).hexdigest()[:8]
        self.name = f"{job.name}-{mark}"
        self._mine = (f"--user={os.getuid()}", f"--name={self.name}")

    def output(self, number: str) -> Path:
        """Where a job writes what it has to say."""
        return slurm_folder(self._study) / f"job-{number}.out"

    def submit(self, workers: int) -> str:
        """Hand in a job that takes orders of so many processes; what Slurm calls it."""
        return submit(self.text(workers), Path.cwd())  # names of files are meant from here

    def text(self, workers: int) -> str:
        """The script of such a job."""
        words = ["tune", "work", str(self._study), "--workers", str(workers), "--idle", str(self._idle)]
        start = f'"$python" -m ringflow.cli {shlex.join(words)}'
        # In the place of the shell: it is the shell of a job that Slurm tells when time is nearly up.
        return "\n".join([*beginning(self._asked(workers)), f"exec {start}", ""])

    def _asked(self, workers: int) -> Job:
        """The job with its size. Another start would not find its order again, so it is not put back into the queue."""
        ours = (
            f"--job-name={self.name}",
            f"--output={self.output('%j')}",
            "--no-requeue",
            f"--signal=B:USR1@{self._job.notice}",
        )
        return replace(shape(self._job, workers), extra=(*self._job.extra, *ours))

    def states(self) -> dict[str, State] | None:
        """What Slurm says of the study's jobs, those too that ended lately; None if it does not answer."""
        told = ask("squeue", *self._mine, "--noheader", "--states=all", "--format=%i %T %r")
        if told.returncode:
            return None  # the controller may be down for a while; jobs go on without it
        rows = [line.split(maxsplit=2) for line in told.stdout.splitlines()]
        return {number: State(*words) for number, *words in rows}

    def alive(self) -> list[str] | None:
        """Those that have not ended."""
        states = self.states()
        return None if states is None else [number for number, state in states.items() if state.name not in ENDED]

    def cancel(self, *numbers: str) -> None:
        """End jobs at once."""
        ask("scancel", "--quiet", *numbers)

    def end_all(self) -> None:
        """End all jobs, those that run after a checkpoint; an error if Slurm does not get them ended."""
        if self.alive() == []:
            return
        ask("scancel", "--quiet", *self._mine, "--state=PENDING")
        ask("scancel", "--quiet", *self._mine, "--state=RUNNING", "--batch", "--signal=USR1")
        if self._gone_within(_SECONDS_TO_SAVE):
            return
        ask("scancel", "--quiet", *self._mine)
        if not self._gone_within(_SECONDS_TO_END):
            raise FailureError(
                f"jobs of the study do not end; look at `squeue --name={self.name}`, then resume the study"
            )

    def _gone_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.alive() != []:
            if time.monotonic() > until:
                return False
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return True


def shape(job: Job, workers: int) -> Job:
    """A job of so many processes: on one node as far as `tasks_per_node` allows, else on several full ones."""
    per_node = min(workers, job.tasks_per_node)
    if workers % per_node:
        raise UsageError(
            f"{workers} processes cannot be spread evenly over nodes of {job.tasks_per_node}; give trials a multiple of that"
        )
    gpus = per_node if job.gpus_per_node else 0
    return replace(job, nodes=workers // per_node, tasks_per_node=per_node, gpus_per_node=gpus)

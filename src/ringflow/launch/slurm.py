"""Jobs of Slurm: the text of one, and its submission.

A job asks Slurm to tell it shortly before its time is up, and then puts itself back into the queue: the next start goes on from
the last checkpoint. After the failure of a node Slurm does so by itself.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringflow.base.errors import FailureError


@dataclass(frozen=True)
class Job:
    """What is asked of Slurm."""

    nodes: int = 1
    tasks_per_node: int = 1  # processes, one per GPU where there are GPUs
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    time: str = "1:00:00"
    partition: str | None = None
    account: str | None = None
    name: str = "ringflow"
    seconds_before_end: int = 120
    extra: tuple[str, ...] = ()  # further lines for sbatch, without #SBATCH

    @property
    def processes(self) -> int:
        """Processes of the job."""
        return self.nodes * self.tasks_per_node


def job_text(words: Sequence[str], job: Job, python: str = sys.executable) -> str:
    """The script of a job that runs a ringflow command in all its processes."""
    asked = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        f"--ntasks-per-node={job.tasks_per_node}",
        f"--cpus-per-task={job.cpus_per_task}",
        f"--time={job.time}",
        *([f"--gpus-per-node={job.gpus_per_node}"] if job.gpus_per_node else []),
        *([f"--partition={job.partition}"] if job.partition else []),
        *([f"--account={job.account}"] if job.account else []),
        "--output=%x-%j.out",
        "--open-mode=append",
        "--requeue",
        f"--signal=B:USR1@{job.seconds_before_end}",
        *job.extra,
    ]
    start = shlex.join([python, "-m", "ringflow.cli", *words])
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in asked),
            "set -eu",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            f"export OMP_NUM_THREADS={job.cpus_per_task}",
            # A shell takes no signal while it waits for what runs in front of it.
            "trap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1",
            f"srun --kill-on-bad-exit=1 {start} &",
            "wait $!",
            "",
        ]
    )


def submit(text: str, folder: Path) -> str:
    """Hand a job in from a folder; what Slurm calls it."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise FailureError("sbatch is not on the path: log in to the cluster, or print the job with --dry-run")
    done = subprocess.run([sbatch, "--parsable"], input=text, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailureError(f"sbatch refused the job: {' '.join(done.stderr.split())[:300]}")
    return done.stdout.strip().split(";")[0]

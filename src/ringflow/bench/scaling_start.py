"""Starting a command in several processes for `ringflow bench scaling`, as `ringflow launch` does, through any engine.

Every start is made from a fresh process, in which sessions, handlers of signals and threads of an engine stay; and what is said
there goes into a file, whose last line tells why a start failed.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from ringflow.base.errors import FailureError

ENGINES = ("local", "ray", "spark", "mpi", "slurm")
_SLURM_TIME = "0:30:00"
#: Where Slurm says how to reach it; without any of them it asks the name service of the network.
_SLURM_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
_SLURM_FILES = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
#: Nothing is reported to anybody while it is timed.
_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0"}
_ERROR = "ringflow: error: "


class Place(NamedTuple):
    """Where processes are started, and how many threads each may use."""

    threads: int = 1
    address: str | None = None  # of a Ray cluster; one is started here unless given
    master: str | None = None  # of a Spark cluster; one is started here unless given


def launch(engine: str, workers: int, words: Sequence[str], place: Place, folder: Path) -> None:
    """Run a ringflow command in several processes; an error if it fails."""
    log = folder / "log.txt"
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of this process
    try:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            code = pool.submit(_start, engine, workers, list(words), place, log).result()
    except BrokenProcessPool:
        raise FailureError(f"{engine} was ended; its last words: {_last_words(log)}") from None
    if code:
        raise FailureError(_last_words(log))


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return (errors or lines or ["nothing"])[-1]


def _start(engine: str, workers: int, words: list[str], place: Place, log: Path) -> int:
    """Start the processes from this one, which is fresh, and send all that is said into a file; the exit code."""
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ |= {"OMP_NUM_THREADS": str(place.threads), **_VARIABLES}
    if engine == "ray":
        from ringflow.launch import ray

        return ray.run(words, workers, place.address)
    if engine == "spark":
        from ringflow.launch import spark

        return spark.run(words, workers, place.master)
    if engine == "mpi":
        from ringflow.launch import mpi

        return mpi.run(words, workers)
    if engine == "slurm":
        return _submit(words, workers, place.threads, log.parent)
    from ringflow.launch import local

    return local.run(words, workers)


def _submit(words: list[str], workers: int, threads: int, folder: Path) -> int:
    """Run a command as a job of Slurm, and follow it to its end; the exit code."""
    from ringflow.launch import slurm

    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise FailureError("sbatch is not on the path: there is no Slurm here")
    files = (*_SLURM_FILES, Path(sbatch).parents[1] / "etc" / "slurm.conf")
    if not any(os.environ.get(name) for name in _SLURM_VARIABLES) and not any(file.is_file() for file in files):
        raise FailureError("Slurm is not set up here: there is no slurm.conf; set SLURM_CONF to it")
    job = slurm.Job(tasks_per_node=workers, cpus_per_task=threads, time=_SLURM_TIME)
    number = slurm.submit(slurm.job_text(words, job), folder)
    return slurm.follow(number, folder / slurm.outputs(job, number))

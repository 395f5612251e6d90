"""`ringflow launch`: the same command in several processes, through what is there to start them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import Count, Flag, Json, Natural, Texts, about
from ringflow.base.output import print_json
from ringflow.base.rundir import LOGS_FOLDER, SETTINGS_FILE, write_errors

launch = App(name="launch", help="Run a command in several processes, on this machine or on a cluster.")

#: Commands whose processes know how to work together.
TOGETHER = ("train", "bench scaling")

Words = Annotated[str, Parameter(allow_leading_hyphen=True, help="The command and its options, after `--`.")]
Workers = Annotated[Count, about("Processes that work together.")]
Restarts = Annotated[Natural, about("How often all are started again, from the last checkpoint, if one dies.")]


@launch.command
def local(*words: Words, workers: Workers = 2, restarts: Restarts = 0, as_json: Json = False) -> int:
    """Run a command in several processes on this machine (torchrun).

    ringflow launch local --workers 2 -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.local import run

    return run(_checked(words, as_json), workers, restarts)


@launch.command
def ray(
    *words: Words,
    workers: Workers = 2,
    address: Annotated[
        str | None, about("Ray cluster: `auto`, or HOST:PORT of its head; one is started here unless given.")
    ] = None,
    restarts: Restarts = 0,
    as_json: Json = False,
) -> int:
    """Run a command in several processes of a Ray cluster (Ray Train).

    ringflow launch ray --workers 2 --address auto -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.ray import run

    return run(_checked(words, as_json), workers, address, restarts)


@launch.command
def spark(
    *words: Words,
    workers: Workers = 2,
    master: Annotated[
        str | None, about("Spark cluster, as spark://HOST:PORT; one is started here unless given.")
    ] = None,
    restarts: Restarts = 0,
    as_json: Json = False,
) -> int:
    """Run a command in several processes of a Spark cluster (barrier mode).

    ringflow launch spark --workers 2 --master spark://head:7077 -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.spark import run

    return run(_checked(words, as_json), workers, master, restarts)


@launch.command
def mpi(
    *words: Words,
    workers: Workers = 2,
    hosts: Annotated[Texts, about("Machines to run on, as NAME or NAME:PROCESSES; this one unless given.")] = (),
    restarts: Restarts = 0,
    as_json: Json = False,
) -> int:
    """Run a command in several processes started by mpiexec (MPICH, Intel MPI or Open MPI).

    ringflow launch mpi --workers 4 --hosts node1:2 node2:2 -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.mpi import run

    return run(_checked(words, as_json), workers, hosts, restarts)


@launch.command
def slurm(
    *words: Words,
    nodes: Annotated[Count, about("Nodes of the job.")] = 1,
    tasks_per_node: Annotated[Count | None, about("Processes per node; one per GPU, or one, unless given.")] = None,
    gpus_per_node: Annotated[Natural, about("GPUs per node.")] = 0,
    cpus_per_task: Annotated[
        Count | None,
        about("Cores per process; unless given, one, and one for each that simulates events for it (source.workers)."),
    ] = None,
    time: Annotated[str, about("Time limit of one start, as Slurm writes it: H:MM:SS, DAYS-HOURS.")] = "1:00:00",
    notice: Annotated[Count, about("Seconds before the limit at which a checkpoint is written.")] = 120,
    partition: Annotated[str | None, about("Partition of the cluster.")] = None,
    account: Annotated[str | None, about("Account to charge.")] = None,
    setup: Annotated[
        Texts, about("Lines for the shell before the start: --setup 'module load cuda' 'source venv/bin/activate'.")
    ] = (),
    python: Annotated[
        str | None,
        about("Python of the processes; the one that --setup puts on the path, or else this one, unless given."),
    ] = None,
    option: Annotated[Texts, about("Further options for sbatch: --option=--qos=fast.")] = (),
    dry_run: Annotated[Flag, about("Print the job and do not submit it.")] = False,
    wait: Annotated[Flag, about("Follow the job to its end and take over its exit code.")] = False,
    as_json: Json = False,
) -> int:
    """Submit a command as a job of Slurm that is put back into the queue until it is done.

    ringflow launch slurm --nodes 4 --gpus-per-node 4 --time 2:00:00 -- train clic_base --out runs/big
    """
    from ringflow.launch.slurm import Job, follow, job_text, outputs, submit

    words = tuple(_checked(words, as_json=False))
    out = _out(words)
    job = Job(
        nodes=nodes,
        tasks_per_node=tasks_per_node or max(gpus_per_node, 1),
        gpus_per_node=gpus_per_node,
        cpus_per_task=cpus_per_task or _cores(words, out),
        threads=None if cpus_per_task else 1,
        time=time,
        notice=notice,
        partition=partition,
        account=account,
        setup=setup,
        extra=option,
        python=python,
        logs=None if out is None else out / LOGS_FOLDER,
    )
    text = job_text(words, job)
    if dry_run:
        if as_json:
            print_json({"job": text, "processes": job.processes})
        else:
            say(text)
        return 0
    if job.logs is not None:
        with write_errors(job.logs):
            job.logs.mkdir(parents=True, exist_ok=True)  # which Slurm would not make
    number = submit(text, Path.cwd())
    output = Path(outputs(job, number))
    say(f"submitted as job {number}; its output is in {output}")
    code = follow(number, output) if wait else 0
    if as_json:
        print_json({"job_id": number, "processes": job.processes, **({"exit_code": code} if wait else {})})
    return code


def _out(words: Sequence[str]) -> Path | None:
    """The folder of the run, if the command names one."""
    for word, following in zip(words, (*words[1:], None), strict=True):
        if word.startswith("--out="):
            return Path(word.removeprefix("--out="))
        if word == "--out" and following is not None:
            return Path(following)
    return None


def _cores(words: Sequence[str], out: Path | None) -> int:
    """One for the training, and one for each process that simulates events for it."""
    from ringflow.base.config import value_of

    if words[0] != "train":
        return 1
    preset: Path | str | None = words[1] if len(words) > 1 and not re.search("^-|=", words[1]) else None
    if preset is None and out is not None and (out / SETTINGS_FILE).is_file():
        preset = out / SETTINGS_FILE
    reads = not str(value_of("data", preset, words) or "sim:").startswith("sim:")
    workers = value_of("source.workers", None if reads else preset, words)
    return 1 + (workers if isinstance(workers, int) else 0 if reads else 1)


def _checked(words: tuple[str, ...], as_json: bool) -> list[str]:
    said = " ".join(words)
    if not any(f"{said} ".startswith(f"{command} ") for command in TOGETHER):
        given = f"not {words[0]!r}" if words else "but nothing was given"
        raise UsageError(f"give a command that processes can share after `--` ({', '.join(TOGETHER)}), {given}")
    return [*words, *(["--json"] if as_json and "--json" not in words else [])]

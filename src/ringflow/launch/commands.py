"""`ringflow launch`: the same command in several processes, through what is there to start them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import Count, Json, Several, Switch
from ringflow.base.output import print_json

launch = App(name="launch", help="Run a command in several processes, on this machine or on a cluster.")

#: Commands whose processes know how to work together.
TOGETHER = ("train",)

Words = Annotated[str, Parameter(allow_leading_hyphen=True, help="The command and its options, after `--`.")]
Workers = Annotated[Count, Parameter(help="Processes that work together.")]


@launch.command
def local(
    *words: Words,
    workers: Workers = 2,
    restarts: Annotated[int, Parameter(help="How often all are started again if one dies.")] = 0,
    as_json: Json = False,
) -> int:
    """Run a command in several processes on this machine (torchrun).

    ringflow launch local --workers 2 -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.local import run

    return run(_checked(words, as_json), workers, restarts)


@launch.command
def mpi(
    *words: Words,
    workers: Workers = 2,
    hosts: Annotated[tuple[str, ...], Several, Parameter(help="Machines to run on; this one unless given.")] = (),
    as_json: Json = False,
) -> int:
    """Run a command in several processes started by mpiexec."""
    from ringflow.launch.mpi import run

    return run(_checked(words, as_json), workers, hosts)


@launch.command
def slurm(
    *words: Words,
    nodes: Annotated[Count, Parameter(help="Nodes of the job.")] = 1,
    tasks_per_node: Annotated[
        Count | None, Parameter(help="Processes per node; one per GPU, or one, unless given.")
    ] = None,
    gpus_per_node: Annotated[int, Parameter(help="GPUs per node.")] = 0,
    cpus_per_task: Annotated[Count, Parameter(help="Cores per process.")] = 1,
    time: Annotated[str, Parameter(help="Time limit, as Slurm writes it.")] = "1:00:00",
    partition: Annotated[str | None, Parameter(help="Partition of the cluster.")] = None,
    account: Annotated[str | None, Parameter(help="Account to charge.")] = None,
    option: Annotated[
        tuple[str, ...], Several, Parameter(help="Further options for sbatch: --option=--qos=fast.")
    ] = (),
    dry_run: Annotated[bool, Switch, Parameter(help="Print the job and do not submit it.")] = False,
    as_json: Json = False,
) -> int:
    """Submit a command as a job of Slurm that is put back into the queue until it is done."""
    from ringflow.launch.slurm import Job, job_text, submit

    job = Job(
        nodes=nodes,
        tasks_per_node=tasks_per_node or max(gpus_per_node, 1),
        gpus_per_node=gpus_per_node,
        cpus_per_task=cpus_per_task,
        time=time,
        partition=partition,
        account=account,
        extra=option,
    )
    text = job_text(_checked(words, as_json=False), job)
    if dry_run:
        if as_json:
            print_json({"job": text, "processes": job.processes})
        else:
            say(text)
        return 0
    name = submit(text, Path.cwd())
    if as_json:
        print_json({"job_id": name, "processes": job.processes})
    say(f"submitted as job {name}; its output is in ringflow-{name}.out")
    return 0


def _checked(words: tuple[str, ...], as_json: bool) -> list[str]:
    if not words or words[0] not in TOGETHER:
        given = f"not {words[0]!r}" if words else "but nothing was given"
        raise UsageError(f"give a command that processes can share after `--` ({', '.join(TOGETHER)}), {given}")
    return [*words, *(["--json"] if as_json and "--json" not in words else [])]

"""The commands that train: train, prune, perceptron, and `launch` for several processes. Imports are late."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base import options
from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import Count, Flag, Json, Natural, Texts, about
from ringflow.base.output import finish, print_json, show_or_print
from ringflow.base.rundir import LOGS_FOLDER, SETTINGS_FILE, write_errors
from ringflow.cli.events import KnownDataset, ModelName
from ringflow.launch.environment import with_restarts

if TYPE_CHECKING:
    from ringflow.train.settings import TrainSettings

RunFolder = Annotated[Path, about("Folder of the run.")]
Overwrite = Annotated[Flag, about("Replace an earlier run.")]


def train(
    preset: Annotated[
        str | None, about("Name of a preset or settings file to start from; `ringflow config` lists the presets.")
    ] = None,
    /,
    *overrides: options.Overrides,
    out: RunFolder,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Train a network, from datasets or from the simulation running beside it.

    An interrupted training goes on where it stopped when the same command is given again; `ringflow train --out RUN` suffices.
    With `profile=true` it measures what the time of every step goes into, and writes a report of it.
    """
    from ringflow.train.runs import settings_of
    from ringflow.train.settings import TrainSettings

    preset, overrides = options.without_start(preset, overrides)
    earlier = None if preset is not None or overwrite else settings_of(out)
    settings = TrainSettings.resolve(earlier or preset, overrides, complete=not earlier)

    from ringflow.train import run as recipe

    result = recipe.train(settings, out, overwrite=overwrite)
    recipe.show(result, as_json=as_json)
    _finish_training(settings, result)


def prune(
    model: ModelName,
    /,
    *overrides: options.Overrides,
    out: RunFolder,
    share: Annotated[
        float, Parameter(validator=Number(gte=0, lt=1), help="Channels to leave out of every layer.")
    ] = 0.5,
    heads: Annotated[Natural, about("Heads to leave out of every layer.")] = 0,
    check: Annotated[KnownDataset | None, about("Dataset to show on what is given up and gained.")] = None,
    events: Annotated[Count, about("Show it on so many events.")] = 500,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make a network smaller: leave out what matters least, and train what remains a little more.

    Settings are those of `ringflow train`; `data=` names the events to train on. An interrupted training goes on where it
    stopped when the same command is given again.
    """
    from ringflow.recipes import prune as recipe
    from ringflow.recipes.cost import show_cost

    settings = recipe.tuning_settings(model, overrides)
    result = recipe.prune_and_tune(
        model, out, settings, share=share, heads=heads, check=check, events=events, overwrite=overwrite
    )
    show_or_print(result, lambda made: show_cost("What pruning gives and takes", made["cost"]), as_json=as_json)
    _finish_training(settings, result)


def _finish_training(settings: TrainSettings, result: dict[str, Any]) -> None:
    """Name the command by which one sees how good the network is, on events that it has not learned from."""
    from ringflow.sim.geometry import split_variation

    kind, _, samples = settings.data.partition(":")
    if kind == "sim":
        sample = samples.split(",")[0].strip()
        detector, _ = split_variation(settings.detector.split(",")[0].strip())
        words = ["simulate", sample, "--detector", detector, "--out", f"data/{sample}"]
    else:
        datasets = [name.strip() for name in settings.data.split(",")]
        words = ["evaluate", *datasets, "--split", "test", "--model", str(result["model"])]
    finish(Path(result["model"]), "ringflow", *words)


def perceptron(
    dataset: options.DatasetFolder,
    /,
    *,
    out: Annotated[Path, about("Folder for the candidates, the model and the figures.")],
    hidden: Annotated[options.Counts, about("Nodes of the hidden layers.")] = (64,),
    iterations: Annotated[Count, about("Steps of L-BFGS, at most.")] = 100,
    events: Annotated[Count | None, about("Only so many events of each split.")] = None,
    seed: Annotated[Natural, about("Of the weights at the start.")] = 1,
    master: Annotated[str | None, about("Spark master; this machine unless given.")] = None,
    workers: Annotated[Count | None, about("Cores to use; all there are unless given.")] = None,
    constants: options.Constants | None = None,
    overwrite: Annotated[Flag, about("Replace an earlier one.")] = False,
    as_json: Json = False,
) -> None:
    """Train Spark ML's multilayer perceptron on single elements, and evaluate it beside the rules.

    It knows an element, not its neighbours: what a network of whole events has to beat. It is trained on the training split
    and evaluated on the test split.
    """
    from ringflow.recipes.perceptron import perceptron_baseline, show

    fit: dict[str, Any] = {"hidden": hidden, "iterations": iterations, "events": events, "seed": seed}
    result = perceptron_baseline(
        dataset, out, **fit, master=master, workers=workers, constants=constants, overwrite=overwrite
    )
    show_or_print(result, show, as_json=as_json)
    finish(Path(result["candidates"]), f"ringflow evaluate {dataset} --candidates {result['candidates']} --split test")


launch = App(name="launch", help="Run a command in several processes, on this machine or on a cluster.")

#: Commands whose processes know how to work together.
TOGETHER = ("train", "bench scaling")

Words = Annotated[str, Parameter(allow_leading_hyphen=True, help="The command and its options, after `--`.")]
Workers = Annotated[Count, about("Processes that work together.")]
Restarts = Annotated[Natural, about("How often all are started again, from the last checkpoint, if one dies.")]
Address = Annotated[
    str | None, about("Ray cluster: `auto`, or HOST:PORT of its head; one is started here unless given.")
]
Master = Annotated[str | None, about("Spark cluster, as spark://HOST:PORT; one is started here unless given.")]


@launch.command
def local(*words: Words, workers: Workers = 2, restarts: Restarts = 0, as_json: Json = False) -> int:
    """Run a command in several processes on this machine (torchrun).

    ringflow launch local --workers 2 -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.local import run

    return with_restarts(partial(run, _checked(words, as_json), workers), restarts)


@launch.command
def ray(
    *words: Words, workers: Workers = 2, address: Address = None, restarts: Restarts = 0, as_json: Json = False
) -> int:
    """Run a command in several processes of a Ray cluster (Ray Train).

    ringflow launch ray --workers 2 --address auto -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.ray import run

    return run(_checked(words, as_json), workers, address, restarts)


@launch.command
def spark(
    *words: Words, workers: Workers = 2, master: Master = None, restarts: Restarts = 0, as_json: Json = False
) -> int:
    """Run a command in several processes of a Spark cluster (barrier mode).

    ringflow launch spark --workers 2 --master spark://head:7077 -- train clic_tiny data=data/ttbar --out runs/first
    """
    from ringflow.launch.spark import run

    return with_restarts(partial(run, _checked(words, as_json), workers, master), restarts)


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

    return with_restarts(partial(run, _checked(words, as_json), workers, hosts), restarts)


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
    command = ArgumentParser(add_help=False, allow_abbrev=False)
    command.add_argument("--out", type=Path)
    out = command.parse_known_args(words)[0].out
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
        show_or_print({"job": text, "processes": job.processes}, lambda made: say(text), as_json=as_json)
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
    if not any(words[: len(command.split())] == tuple(command.split()) for command in TOGETHER):
        given = f"not {words[0]!r}" if words else "but nothing was given"
        raise UsageError(f"give a command that processes can share after `--` ({', '.join(TOGETHER)}), {given}")
    return [*words, *(["--json"] if as_json and "--json" not in words else [])]

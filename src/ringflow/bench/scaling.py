"""`ringflow bench scaling`: how much faster several processes train than one, by what starts them.

Every engine starts the same command in one, two and more processes: this benchmark, which finds that it is one of a team and
times the team's steps (`training.time_team`). Batches per process stay the same (weak scaling). Engines and numbers of
processes take turns in several rounds, and the fastest round counts: what else a machine does comes and goes. Every start is
made from a fresh process, in which sessions, handlers of signals and threads of an engine stay.

The row `apart` is of processes that train networks of their own at the same time and say nothing to each other: what they lose
against one process is the machine's (shared memory, caches, clock), and no engine can do better.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.config import override, write
from ringflow.base.errors import FailureError, RingflowError, UsageError
from ringflow.base.log import say, table
from ringflow.base.output import show_summary
from ringflow.base.rundir import write_errors
from ringflow.bench.measure import in_fresh_process
from ringflow.train.settings import TrainSettings

ENGINES = ("local", "ray", "spark", "mpi", "slurm")
#: What the others are compared with: torchrun.
REFERENCE = "local"
APART = "apart"
#: A step of the ring's check is short: what is sent does not depend on the elements.
_RING_ELEMENTS, _RING_SECONDS = 256, 0.5
_FLOAT_BYTES = 4
_SLURM_TIME = "0:30:00"
#: Where Slurm says how to reach it; without any of them it asks the name service of the network.
_SLURM_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER")
_SLURM_FILES = (Path("/etc/slurm/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
_ERROR = "ringflow: error: "
_RING_COLUMNS = ("workers", "bytes_per_step", "ring_bytes", "bytes_over_ring")
_COLUMNS = (
    "engine",
    "workers",
    "events_per_second",
    "efficiency",
    "seconds_per_step",
    "over_torchrun_percent",
    "start_up_seconds",
    "bytes_over_ring",
)


class Case(NamedTuple):
    """One start: by whom, in how many processes, and whether they leave each other alone."""

    engine: str
    workers: int
    apart: bool = False

    @property
    def name(self) -> str:
        """What its row is called."""
        return APART if self.apart else self.engine

    def __str__(self) -> str:
        return f"{self.name}, {_processes(self.workers)}"


class ScalingPlan(NamedTuple):
    """What is measured."""

    engines: Sequence[str] = ENGINES
    workers: Sequence[int] = (1, 2)
    ring: Sequence[int] = (2, 4, 8)
    num_elements: int = 128
    seconds: float = 10.0
    rounds: int = 3
    threads: int = 1  # of a process
    address: str | None = None  # of a Ray cluster; one is started here unless given
    master: str | None = None  # of a Spark cluster; one is started here unless given

    def checked(self, settings: TrainSettings) -> ScalingPlan:
        """The plan, with the one process that all others are compared with."""
        if unknown := sorted(set(self.engines) - set(ENGINES)):
            raise UsageError(f"no engine named {unknown[0]!r}; choose from {', '.join(ENGINES)}")
        if self.num_elements > settings.compute.batch_elements:
            raise UsageError(
                f"an event of {self.num_elements} elements does not fit into compute.batch_elements="
                f"{settings.compute.batch_elements}; give fewer --elements, or larger batches"
            )
        engines = tuple(dict.fromkeys(self.engines)) or ENGINES
        return self._replace(engines=engines, workers=tuple(sorted({1, *self.workers})))


def is_one_of_a_team() -> bool:
    """Whether this process was started with others, by whatever starts processes."""
    return "RANK" in os.environ


def run_here(settings: TrainSettings, plan: ScalingPlan, *, apart: bool) -> dict[str, Any]:
    """Time the processes of the team that this one belongs to."""
    from ringflow.bench.training import time_team

    plan = plan.checked(settings)
    return time_team(settings, plan.num_elements, plan.seconds, plan.threads, apart=apart)


def run(settings: TrainSettings, plan: ScalingPlan) -> dict[str, Any]:
    """Rows by engine and number of processes, what the machine gives without communication, and bytes against the ring's."""
    from ringflow.train.device import hardware

    plan = plan.checked(settings)
    cases = [Case(engine, workers) for workers in plan.workers for engine in plan.engines]
    if REFERENCE in plan.engines:
        cases += [Case(REFERENCE, workers, apart=True) for workers in plan.workers if workers > 1]
    with write_errors(Path.cwd()):  # where all nodes see it
        folder = tempfile.TemporaryDirectory(prefix=".ringflow-bench-", dir=Path.cwd())
    with folder as name:
        starter = _Starter(Path(name), settings, plan)
        best, errors = _best_rounds(starter, cases, plan.rounds)
        if not best:
            raise FailureError(f"no engine could be timed: {next(iter(errors.values()))}")
        ring = [starter.ring_row(workers) for workers in plan.ring]
    one, together = next(iter(best.values())), best.get(Case(REFERENCE, max(plan.workers)), {})
    return {
        "benchmark": "scaling",
        "scaling": "weak: the batch of a process stays the same",
        "threads": plan.threads,
        "rounds": plan.rounds,
        "num_elements": plan.num_elements,
        "batch_elements": settings.compute.batch_elements,
        "strategy": settings.compute.strategy,
        "parameters": one["parameters"],
        "rows": [_row(case, best, errors) for case in cases],
        "ring": ring,
        "all_reduce": together.get("all_reduce", []),
        "settings": settings.model_dump(mode="json"),
        **hardware(one["device"].split(":")[0]),
    }


def _best_rounds(
    starter: _Starter, cases: Sequence[Case], rounds: int
) -> tuple[dict[Case, dict[str, Any]], dict[Case, str]]:
    """The fastest round of every case, and why there is none; what failed once is not tried again."""
    best: dict[Case, dict[str, Any]] = {}
    errors: dict[Case, str] = {}
    for number in range(1, rounds + 1):
        for case in cases:
            if case in errors:
                continue
            try:
                found = starter.start(case)
            except RingflowError as error:
                errors[case] = str(error)
                best.pop(case, None)
                say(f"round {number}, {case}: {error}")
                continue
            say(f"round {number}, {case}: {found['events_per_second']:.1f} events/s")
            if case not in best or found["events_per_second"] > best[case]["events_per_second"]:
                best[case] = found
    return best, errors


class _Starter:
    """Starts processes, and reads what they found."""

    def __init__(self, folder: Path, settings: TrainSettings, plan: ScalingPlan) -> None:
        self._folder, self._plan = folder, plan
        write(settings, folder / "settings.toml")

    def start(self, case: Case, more: Sequence[str] = (), seconds: float | None = None) -> dict[str, Any]:
        """What the processes of a case measured, and how long they took until their first step."""
        plan, out = self._plan, self._folder / "found.json"
        out.unlink(missing_ok=True)
        numbers = {"elements": plan.num_elements, "seconds": seconds or plan.seconds, "threads": plan.threads}
        words = ["bench", "scaling", str(self._folder / "settings.toml"), *more, "--out", str(out)]
        words += [word for name, value in numbers.items() for word in (f"--{name}", str(value))]
        words += ["--apart"] if case.apart else []
        begun = time.time()
        launch(case, words, plan, self._folder)
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return {**found, "start_up_seconds": found["first_step_at"] - begun}

    def ring_row(self, workers: int) -> dict[str, Any]:
        """Bytes that a process sends in a step against 2(N-1)K/N values."""
        elements = max(_RING_ELEMENTS, self._plan.num_elements)
        more = [override("compute.batch_elements", elements), override("compute.strategy", "replicate")]
        try:
            found = self.start(Case(REFERENCE, workers), more, _RING_SECONDS)
        except RingflowError as error:
            return {"workers": workers, "error": str(error)}
        counted = {"workers": workers, **_bytes(found)}
        say(f"ring of {_processes(workers)}: {counted['bytes_per_step']} bytes per process and step")
        return counted


def launch(case: Case, words: Sequence[str], plan: ScalingPlan, folder: Path) -> None:
    """Run a ringflow command in several processes, as `ringflow launch` does; what it says last is why it failed."""
    log = folder / "log.txt"
    try:
        code = in_fresh_process(_start, case, list(words), plan, log)
    except BrokenProcessPool:
        raise FailureError(f"{case.engine} was ended; its last words: {last_words(log)}") from None
    if code:
        raise FailureError(last_words(log))


def last_words(log: Path) -> str:
    """The last error in a log, or else its last line."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return (errors or lines or ["nothing"])[-1]


def _start(case: Case, words: list[str], plan: ScalingPlan, log: Path) -> int:
    """Start the processes from this one, which is fresh, and send all that is said into a file; the exit code."""
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    # Nothing is reported to anybody while it is timed.
    os.environ |= {"OMP_NUM_THREADS": str(plan.threads), "RAY_USAGE_STATS_ENABLED": "0"}
    if case.engine == "ray":
        from ringflow.launch import ray

        return ray.run(words, case.workers, plan.address)
    if case.engine == "spark":
        from ringflow.launch import spark

        return spark.run(words, case.workers, plan.master)
    if case.engine == "mpi":
        from ringflow.launch import mpi

        return mpi.run(words, case.workers)
    if case.engine == "slurm":
        return submit(words, case.workers, plan.threads, log.parent)
    from ringflow.launch import local

    return local.run(words, case.workers)


def submit(words: list[str], workers: int, threads: int, folder: Path) -> int:
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


def _row(case: Case, best: Mapping[Case, Mapping[str, Any]], errors: Mapping[Case, str]) -> dict[str, Any]:
    if case in errors:
        return {"engine": case.name, "workers": case.workers, "error": errors[case]}
    found, alone = best[case], best.get(case._replace(workers=1, apart=False))
    reference = best.get(Case(REFERENCE, case.workers))
    speed, seconds, spread = found["events_per_second"], found["seconds_per_step"], found["step_spread"]
    return {
        "engine": case.name,
        "workers": case.workers,
        "events_per_second": round(speed, 2),
        "efficiency": alone and round(speed / (case.workers * alone["events_per_second"]), 4),
        "seconds_per_step": round(seconds, 6),
        "over_torchrun_percent": reference and round(100.0 * (seconds / reference["seconds_per_step"] - 1.0), 2),
        "start_up_seconds": round(found["start_up_seconds"], 2),
        "events_per_step": found["events_per_step"],
        "step_spread": None if spread is None else round(spread, 4),
        **_bytes(found),
    }


def _bytes(found: Mapping[str, Any]) -> dict[str, Any]:
    workers, sent = found["workers"], found["bytes_per_step"]
    theory = 2 * (workers - 1) * _FLOAT_BYTES * found["parameters"] / workers
    adds_up = workers > 1 and not found["apart"] and found["strategy"] == "replicate" and sent is not None
    return {
        "bytes_per_step": None if sent is None else round(sent),
        "ring_bytes": round(theory),
        "bytes_over_ring": round(sent / theory, 4) if adds_up else None,
    }


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def show(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Tables for people, or all of it as JSON."""
    if as_json or "rows" not in result:
        show_summary("These processes", result, as_json=as_json)
        return
    for title, rows, columns in (("Engines", result["rows"], _COLUMNS), ("Bytes", result["ring"], _RING_COLUMNS)):
        table(title, columns, [["-" if row.get(name) is None else row[name] for name in columns] for row in rows])
    for row in (*result["rows"], *result["ring"]):
        if "error" in row:
            say(f"{row.get('engine', 'ring')}, {_processes(row['workers'])}: {row['error']}")

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
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.config import write
from ringflow.base.errors import FailureError, RingflowError, UsageError
from ringflow.base.log import say
from ringflow.base.output import show_summary, show_table
from ringflow.base.rundir import write_errors
from ringflow.bench import in_fresh_process
from ringflow.train.settings import TrainSettings

ENGINES = ("local", "ray", "spark", "mpi", "slurm")
#: What the others are compared with: torchrun.
REFERENCE = "local"
#: A step of the ring's check is short: what is sent does not depend on the elements.
_RING_ELEMENTS, _RING_SECONDS = 256, 0.5
_FLOAT_BYTES = 4
_SLURM_TIME = "0:30:00"
_ERROR = "ringflow: error: "
_BYTES = ("bytes_per_step", "ring_bytes", "bytes_over_ring")
_TIMES = ("events_per_second", "efficiency", "seconds_per_step", "over_torchrun_percent", "start_up_seconds")


class Case(NamedTuple):
    """One start: by whom, in how many processes, and whether they leave each other alone."""

    engine: str
    workers: int
    apart: bool = False

    @property
    def name(self) -> str:
        """What its row is called."""
        return "apart" if self.apart else self.engine


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


def run(settings: TrainSettings, plan: ScalingPlan, *, apart: bool = False) -> dict[str, Any]:
    """Rows by engine and number of processes, what the machine gives without communication, and bytes against the ring's.

    In a process that was started with others, by whatever starts processes, what these take; `apart` is for those.
    """
    plan = plan.checked(settings)
    if "RANK" in os.environ:
        from ringflow.bench.training import time_team

        return time_team(settings, plan.num_elements, plan.seconds, plan.threads, apart=apart)
    from ringflow.train.device import hardware

    cases = [Case(engine, workers) for workers in plan.workers for engine in plan.engines]
    if REFERENCE in plan.engines:
        cases += [Case(REFERENCE, workers, apart=True) for workers in plan.workers if workers > 1]
    with write_errors(Path.cwd()):  # where all nodes see it
        folder = tempfile.TemporaryDirectory(prefix=".ringflow-bench-", dir=Path.cwd())
    with folder as name:
        write(settings, Path(name) / "settings.toml")
        best, errors = _best_rounds(cases, plan, Path(name))
        if not best:
            raise FailureError(f"no engine could be timed: {next(iter(errors.values()))}")
        ring = [_ring_row(workers, plan, Path(name)) for workers in plan.ring]
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
    cases: Sequence[Case], plan: ScalingPlan, folder: Path
) -> tuple[dict[Case, dict[str, Any]], dict[Case, str]]:
    """The fastest round of every case, and why there is none; what failed once is not tried again."""
    best: dict[Case, dict[str, Any]] = {}
    errors: dict[Case, str] = {}
    for case in list(cases) * plan.rounds:
        if case in errors:
            continue
        try:
            found = _measure(case, plan, folder)
        except RingflowError as error:
            errors[case] = str(error)
            best.pop(case, None)
            continue
        say(f"{case.name} x {case.workers}: {found['events_per_second']:.1f} events/s")
        if case not in best or found["events_per_second"] > best[case]["events_per_second"]:
            best[case] = found
    return best, errors


def _ring_row(workers: int, plan: ScalingPlan, folder: Path) -> dict[str, Any]:
    """Bytes that a process sends in a step against 2(N-1)K/N values."""
    elements = max(_RING_ELEMENTS, plan.num_elements)
    words = [f"compute.batch_elements={elements}", "compute.strategy=replicate"]
    try:
        found = _measure(Case(REFERENCE, workers), plan._replace(seconds=_RING_SECONDS), folder, words)
    except RingflowError as error:
        return {"workers": workers, "error": str(error)}
    return {"workers": workers, **_bytes(found)}


def _measure(case: Case, plan: ScalingPlan, folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What the processes of a case measured, and how long they took until their first step."""
    out = folder / "found.json"
    out.unlink(missing_ok=True)
    words = ["bench", "scaling", str(folder / "settings.toml"), *overrides, "--out", str(out)]
    words += ["--elements", str(plan.num_elements), "--seconds", str(plan.seconds), "--threads", str(plan.threads)]
    begun = time.time()
    launch(case, [*words, "--apart"] if case.apart else words, plan, folder)
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return {**found, "start_up_seconds": found["first_step_at"] - begun}


def launch(case: Case, words: Sequence[str], plan: ScalingPlan, folder: Path) -> None:
    """Run a ringflow command in several processes, as `ringflow launch` does; what it says last is why it failed."""
    log = folder / "log.txt"
    try:
        failed, ended = in_fresh_process(_start, case, list(words), plan, log), ""
    except BrokenProcessPool:
        failed, ended = 1, f"{case.engine} was ended; its last words: "
    if failed:
        raise FailureError(ended + last_words(log))


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
    if case.engine == "slurm":
        from ringflow.launch import slurm

        job = slurm.Job(tasks_per_node=case.workers, cpus_per_task=plan.threads, time=_SLURM_TIME)
        number = slurm.submit(slurm.job_text(words, job), log.parent)
        return slurm.follow(number, log.parent / slurm.outputs(job, number))
    cluster = {"ray": (plan.address,), "spark": (plan.master,)}.get(case.engine, ())
    code: int = import_module(f"ringflow.launch.{case.engine}").run(words, case.workers, *cluster)
    return code


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
    over = round(sent / theory, 4) if adds_up else None
    return dict(zip(_BYTES, (None if sent is None else round(sent), round(theory), over), strict=True))


def show(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Tables for people, or all of it as JSON."""
    if as_json or "rows" not in result:
        show_summary("These processes", result, as_json=as_json)
        return
    show_table("Engines", result["rows"], ("engine", "workers", *_TIMES, "bytes_over_ring"))
    show_table("Bytes", result["ring"], ("workers", *_BYTES))
    for row in (*result["rows"], *result["ring"]):
        if "error" in row:
            say(f"{row.get('engine', 'ring')} x {row['workers']}: {row['error']}")

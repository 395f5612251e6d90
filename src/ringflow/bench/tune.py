"""`ringflow bench tune`: what schedulers, search and the driver of a study are worth, in figures.

In replay, RASDA over ASHA by number of devices; twice, first where it is hard:

study_speedup_over_asha_<case>          time of the whole study
good_network_speedup_over_asha_<case>   time until there is a network that both find
    4_trials_per_device_batch_penalty   four trials share a device, and an event on n times the devices is worth n**-0.5 events
    1_trial_per_device_free_batches     as many devices as trials, and an event teaches as much in a larger batch
speedup_by_assumption                   the same on one cluster, by length of trials, batch penalty and number of trials

In real studies, for a loss as good as the best of random search:

random_compute_until_its_best_over_asha_tpe   compute of random search until it had it, over that of ASHA with TPE
random_whole_compute_over_asha_tpe            compute of all of random search, which does not know that it has it

driver_overhead             seconds of the driver per trial, over a trial of ten seconds
replay_trials_per_second    of one replay of ten thousand trials
"""

from __future__ import annotations

import io
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from ringflow.base.errors import UsageError
from ringflow.base.log import progress, say
from ringflow.base.output import show_table
from ringflow.train.device import hardware
from ringflow.train.settings import TrainSettings
from ringflow.tune.executors import Executor
from ringflow.tune.folder import StudyFolder, StudySettings, create
from ringflow.tune.options import ExecutorOptions, Plan
from ringflow.tune.record import StudyRecord, load_optuna
from ringflow.tune.replay import Setting, Speedup, recorded_curves, speedup
from ringflow.tune.replay.campaign import HARD, assumptions, plan_campaign, sensitivity, steps_of_sensitivity
from ringflow.tune.schedulers import GROWING
from ringflow.tune.space import space_path
from ringflow.tune.study import Study, drive
from ringflow.tune.study import run as run_study
from ringflow.tune.table import LiveTable
from ringflow.tune.worker import Channel

DEVICES = (64, 256, 1024)
#: What loading a network takes beside a start, in seconds; small networks are read at once.
_SETTING = Setting(reload_seconds=10.0)
#: Trials per device and setting, by name; the hard one first.
CASES: Mapping[str, tuple[int, Setting]] = {
    "4_trials_per_device_batch_penalty": (HARD[0], replace(_SETTING, penalty=HARD[1], lengthen=True)),
    "1_trial_per_device_free_batches": (1, _SETTING),
}
_ORDERS = 5
_MANY_TRIALS = 10_000

#: Of real studies: others than those of the studies whose curves told how to search.
SEEDS = (4, 5, 6)
#: Trials of random search, and of ASHA with TPE, which begins more of them for as much compute.
TRIALS = (24, 54)
#: Simulated once; and shown to a trial that comes to the end, each so often.
_DATA_EVENTS, _EVENTS, _REUSE = 10_000, 16_000, 3
#: One in so many goes on, first after a ninth: where networks are after a sixteenth of so short a training says little.
_ETA = 3
#: One network, so that an event costs about the same in all trials: how it is trained is searched for.
_NETWORK = ("model.layers=1", "model.activation=relu")
_SPACE = """
"optimizer.rate" = { type = "float", low = 1e-4, high = 3e-2, log = true }
"optimizer.weight_decay" = { type = "float", low = 1e-4, high = 1.0, log = true }
"optimizer.warmup" = { type = "float", low = 0.005, high = 0.2, log = true }
"optimizer.clip" = { type = "choice", values = [0.1, 0.3, 1.0, 3.0] }
"optimizer.final" = { type = "choice", values = [0.001, 0.01, 0.1] }
"optimizer.average" = { type = "choice", values = [0.9, 0.98, 0.995, 0.999] }
"compute.batch_elements" = { type = "choice", values = [1024, 2048, 4096, 8192] }
"""

#: Of the driver: seconds of the trial that it is compared with; trials, before the clock starts and after.
_TRIAL_SECONDS, _FIRST_TRIALS, _TIMED_TRIALS, _AT_ONCE = 10.0, 12, 64, 8


def run(
    *,
    study: Path | None = None,
    random: Sequence[Path] = (),
    asha: Sequence[Path] = (),
    real: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Measure all. Without finished studies to compare, or a folder in which to make them (`real`), that figure is None."""
    load_optuna()  # which is needed in the end, after all the replays
    if real is not None:
        random, asha = run_studies(real, workers=workers)
    found = compare_with_random(random, asha) if random or asha else None
    campaign = plan_campaign(recorded_curves(study), trials=max(DEVICES))
    faster: dict[tuple[str, str, int], Speedup] = {}
    steps = _ORDERS * len(CASES) * len(DEVICES) * (1 + len(GROWING)) + steps_of_sensitivity(_ORDERS)
    with progress(steps, "replays") as advance:
        often: dict[str, Any] = {"orders": _ORDERS, "advance": advance}
        for (case, (per_device, setting)), devices in product(CASES.items(), DEVICES):
            trials = per_device * devices
            results = campaign.compare(["asha", *GROWING], [devices], setting=setting, trials=trials, **often)
            faster |= {(case, name, devices): speedup(results, name, "asha", devices) for name in GROWING}
        by_assumption = sensitivity(campaign, DEVICES[len(DEVICES) // 2], setting=_SETTING, **often)

    def by_devices(case: str, figure: Callable[[Speedup], float]) -> dict[str, dict[str, float]]:
        return {name: {str(number): figure(faster[case, name, number]) for number in DEVICES} for name in GROWING}

    driver_seconds, driver_start = driver_cost()
    began = time.perf_counter()
    campaign.compare(["asha"], [max(DEVICES)], setting=_SETTING, trials=_MANY_TRIALS, orders=1)
    replay_seconds = time.perf_counter() - began
    return {
        "benchmark": "tune",
        **{
            f"study_speedup_over_asha_{case}": by_devices(case, lambda found: round(found.makespan, 3))
            for case in CASES
        },
        **{
            f"good_network_speedup_over_asha_{case}": by_devices(case, lambda found: round(found.equal_quality, 3))
            for case in CASES
        },
        "best_over_asha": by_devices(next(iter(CASES)), lambda found: round(found.best / found.other_best, 4)),
        "speedup_by_assumption": by_assumption,
        "random_compute_until_its_best_over_asha_tpe": None if found is None else found["until_its_best"],
        "random_whole_compute_over_asha_tpe": None if found is None else found["whole"],
        "random_against_asha_tpe": found
        or "not measured: give finished studies with --random and --asha-tpe, or --real FOLDER to make them",
        "driver_overhead": driver_seconds / _TRIAL_SECONDS,
        "driver_start_seconds": driver_start,
        "replay_trials_per_second": _MANY_TRIALS / replay_seconds,
        "assumptions": {
            case: assumptions(campaign, setting, None, per_device) for case, (per_device, setting) in CASES.items()
        },
        **hardware("cpu"),
    }


def show(result: Mapping[str, Any]) -> None:
    """Tables for people."""
    for case, (per_device, setting) in CASES.items():
        figures = [
            (f"{what}, {name}", result[f"{what}_speedup_over_asha_{case}"][name])
            for what in ("study", "good_network")
            for name in GROWING
        ]
        rows = [{"devices": number, **{name: told[number] for name, told in figures}} for number in figures[0][1]]
        show_table(f"Times as fast as ASHA, trials per device: {per_device}, batch penalty: {setting.penalty:g}", rows)
    show_table(
        "The same by what is assumed, hours those of a whole trial on one device", result["speedup_by_assumption"]
    )
    ratio = result["random_compute_until_its_best_over_asha_tpe"]
    words = (
        result["random_against_asha_tpe"]
        if ratio is None
        else f"{ratio:.2f} until random search had its best, {result['random_whole_compute_over_asha_tpe']:.2f} for all of it"
    )
    say(f"compute of random search over ASHA with TPE for a loss as good: {words}")
    say(
        f"driver: {100 * result['driver_overhead']:.3f} % of a trial of ten seconds, "
        f"and {result['driver_start_seconds']:.1f} s once"
    )
    say(f"replay: {result['replay_trials_per_second']:,.0f} trials per second")
    for sentence in dict.fromkeys(sentence for told in result["assumptions"].values() for sentence in told):
        say(f"- {sentence}")


class Reached(NamedTuple):
    """A report of a study, and what all its trials had taken until then."""

    value: float
    device_seconds: float
    events: int


def compare_with_random(random: Sequence[Path], asha: Sequence[Path]) -> dict[str, Any]:
    """Studies in pairs, one per seed. What the other study had used when it first had a loss as good as the best of random
    search is compared with what random search had used when it had that one (`until_its_best`), and with what the whole
    random search used (`whole`): it does not know that its best one was the best before it is over. Geometric means of
    device-seconds; 0 if it never had one as good."""
    if len(random) != len(asha) or not random:
        raise UsageError(f"{len(random)} studies with random search and {len(asha)} others are no pairs; give as many")
    pairs = [_pair(StudyFolder(one), StudyFolder(other)) for one, other in zip(random, asha, strict=True)]
    means = {
        name: geometric_mean(pair[name] for pair in pairs) if all(pair[name] for pair in pairs) else 0.0
        for name in ("until_its_best", "whole", "events_until_its_best")
    }
    return {**means, "pairs": pairs}


def _pair(random: StudyFolder, asha: StudyFolder) -> dict[str, Any]:
    records = []
    for folder, schedulers in ((random, ("none",)), (asha, ("asha", "asha-promote"))):
        if folder.settings.scheduler not in schedulers:
            raise UsageError(
                f"{folder.path} has the scheduler {folder.settings.scheduler}, not {schedulers[0]}; swap them?"
            )
        records.append(folder.record())
        if not records[-1].closed or not all(trial.over for trial in records[-1].trials):
            raise UsageError(f"{folder.path} is not finished; go on with `ringflow tune resume {folder.path}`")
    theirs, ours = records
    there = min(timeline(theirs), default=None)
    if there is None:
        raise UsageError(f"no trial of {random.path} reported a value; run it again")
    here = next((reached for reached in timeline(ours) if reached.value <= there.value), None)
    return {
        "random": str(random.path),
        "asha": str(asha.path),
        "scheduler": asha.settings.scheduler,
        "eta": asha.settings.eta,
        "trials": [len(theirs.trials), len(ours.trials)],
        "target": there.value,
        "asha_best": min((reached.value for reached in timeline(ours)), default=math.inf),
        "random_device_seconds_until_its_best": there.device_seconds,
        "random_device_seconds": theirs.device_seconds,
        "asha_device_seconds_until_as_good": here.device_seconds if here else None,
        "until_its_best": there.device_seconds / here.device_seconds if here else 0.0,
        "whole": theirs.device_seconds / here.device_seconds if here else 0.0,
        "events_until_its_best": there.events / here.events if here else 0.0,
    }


def timeline(record: StudyRecord) -> Iterator[Reached]:
    """Finite reports in the order in which they came. Events are those of all trials at their last reports; device-seconds
    those of all until then, of running ones, too."""
    shown: dict[int, int] = {}
    parts = [part for trial in record.trials for part in trial.segments]
    reports = [(said.time, trial.number, said) for trial in record.trials for said in trial.reports]
    for now, number, said in sorted(reports, key=lambda report: report[:2]):
        shown[number] = said.resource
        if math.isfinite(said.value):
            spent = (part.workers * (min(now, part.end or now) - part.start) for part in parts if part.start < now)
            yield Reached(said.value, sum(spent), sum(shown.values()))


def run_studies(
    place: Path,
    *,
    seeds: Sequence[int] = SEEDS,
    trials: tuple[int, int] = TRIALS,
    events: int = _EVENTS,
    workers: int | None = None,
) -> tuple[list[Path], list[Path]]:
    """Train both kinds of studies, one per seed, on the same events; those that were interrupted go on."""
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import SimulateSettings

    place.mkdir(parents=True, exist_ok=True)
    data, space = place / "data", place / "space.toml"
    chosen = ["generator.sample=ttbar", f"production.events={min(_DATA_EVENTS, events)}", "production.keep_hits=false"]
    simulate(SimulateSettings.resolve(None, chosen), data)
    space.write_text(_SPACE, encoding="utf-8")
    length = [f"length.events={events}", f"length.validate_every={events}"]
    source = [f"data={data}", f"source.chunk_events={max(events // _REUSE, 1)}", f"source.reuse={_REUSE}"]
    training = TrainSettings.resolve("clic_tiny", [*_NETWORK, *length, *source])
    where = ExecutorOptions(workers=workers)
    made: dict[str, list[Path]] = {"random": [], "asha": []}
    for seed, name in product(seeds, made):
        # Neither is to know a good point from the beginning.
        plan = Plan(eta=_ETA, seed=seed, skip_default=True, trials=trials[1], search="tpe", scheduler="asha-promote")
        if name == "random":
            plan = replace(plan, trials=trials[0], search="random", scheduler="none")
        made[name].append(place / f"{name}_{seed}")
        run_study(create(training, plan.settings(training, where), space, made[name][-1]), where)
    return made["random"], made["asha"]


def driver_cost(trials: int = _TIMED_TRIALS, rounds: int = 3) -> tuple[float, float]:
    """Seconds of the driver per trial (search, scheduler, journal, orders and table), and once, to load what it needs.

    With TPE and ASHA; good trials report three times. The fastest round counts: what else a machine does comes and goes.
    """
    first = _driver_seconds(_FIRST_TRIALS)
    per_trial = min(_driver_seconds(trials) for _ in range(rounds)) / trials
    return per_trial, max(first - _FIRST_TRIALS * per_trial, 0.0)


def _driver_seconds(trials: int) -> float:
    """The driver is the real one, and so is its study; what its trials take is not counted."""
    with tempfile.TemporaryDirectory(prefix="ringflow-") as place, redirect_stderr(io.StringIO()):
        training = TrainSettings.resolve("clic_tiny", [f"length.events={_EVENTS}", "compute.device=cpu"])
        settings = StudySettings(trials=trials, search="tpe", scheduler="asha", least=_EVENTS // 16)
        folder = create(training, settings, space_path("training"), Path(place) / "study")
        executor = MadeUpTrials(folder.path)
        began = time.perf_counter()
        study = Study(folder)
        with LiveTable(trials, "loss") as live:
            drive(study, executor, lambda study: live.show(study.record))
        return time.perf_counter() - began - executor.seconds


class MadeUpTrials(Executor):
    """Workers whose trials come to their rungs at once."""

    def __init__(self, study: Path) -> None:
        super().__init__(study)
        #: That the trials took.
        self.seconds = 0.0
        self._ends: dict[str, tuple[Channel, dict[str, Any]]] = {}  # the worker's end, and settings of its trial

    def _require(self, size: int) -> None:
        """All fit."""

    def _places(self) -> int:
        return _AT_ONCE

    def _launch(self, size: int) -> str:
        name = str(len(self._ends))
        (self._work / name).mkdir()
        self._ends[name] = Channel(self._work / name, "worker", "driver"), {}
        self._ends[name][0].send(kind="ready")
        return name

    def _gone(self) -> dict[str, str]:
        """Nobody; every trial goes on to its next report, or to its end."""
        began = time.perf_counter()
        for name, (channel, settings) in self._ends.items():
            while (words := channel.receive()) is not None:
                if "settings" in words:
                    settings = words["settings"]
                    self._ends[name] = channel, settings
                    channel.send(kind="begun")
                if words["until"]:
                    share = words["until"] / settings["length"]["events"]
                    loss = 1.0 + abs(math.log10(settings["optimizer"]["rate"]) + 3.0) + 0.2 * share**-0.5
                    channel.send(kind="report", resource=words["until"], figures={"loss": loss})
                else:
                    channel.send(kind="ended")
        self.seconds += time.perf_counter() - began
        return {}

    def _kill(self, name: str) -> None:
        """Nothing runs."""

"""Random search against ASHA with TPE in real studies: how much compute each needs for a loss as good."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from ringflow.base.errors import UsageError
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import StudyRecord

#: Others than those of the studies whose curves told how to search.
SEEDS = (4, 5, 6)
#: Of random search, and of ASHA with TPE, which begins more of them for as much compute.
TRIALS, MORE_TRIALS = 24, 54
#: Simulated once; and shown to a trial that comes to the end, each so often.
_DATA_EVENTS, _EVENTS, _REUSE = 10_000, 16_000, 3
#: One in so many goes on, first after a ninth: where networks are after a sixteenth of so short a training says little.
_ETA = 3
#: One network, so that an event costs about the same in all trials: how it is trained is searched for.
_NETWORK = ("model.layers=1", "model.activation=relu")
_SPACE = """
["optimizer.rate"]
type = "float"
low = 1e-4
high = 3e-2
log = true

["optimizer.weight_decay"]
type = "float"
low = 1e-4
high = 1.0
log = true

["optimizer.warmup"]
type = "float"
low = 0.005
high = 0.2
log = true

["optimizer.clip"]
type = "choice"
values = [0.1, 0.3, 1.0, 3.0]

["optimizer.final"]
type = "choice"
values = [0.001, 0.01, 0.1]

["optimizer.average"]
type = "choice"
values = [0.9, 0.98, 0.995, 0.999]

["compute.batch_elements"]
type = "choice"
values = [1024, 2048, 4096, 8192]
"""


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
    return {
        "until_its_best": _geometric([pair["until_its_best"] for pair in pairs]),
        "whole": _geometric([pair["whole"] for pair in pairs]),
        "events_until_its_best": _geometric([pair["events_until_its_best"] for pair in pairs]),
        "pairs": pairs,
    }


def _pair(random: StudyFolder, asha: StudyFolder) -> dict[str, Any]:
    for folder, scheduler in ((random, ("none",)), (asha, ("asha", "asha-promote"))):
        if folder.settings.scheduler not in scheduler:
            raise UsageError(
                f"{folder.path} has the scheduler {folder.settings.scheduler}, not {scheduler[0]}; swap them?"
            )
    ours, theirs = asha.record(), random.record()
    for folder, record in ((random, theirs), (asha, ours)):
        if not record.closed or not all(trial.over for trial in record.trials):
            raise UsageError(f"{folder.path} is not finished; go on with `ringflow tune resume {folder.path}`")
    there = min(timeline(theirs), key=lambda reached: reached.value, default=None)
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
    """Finite reports in the order in which they came. Events are those of all trials at their last reports."""
    shown = 0
    before: dict[int, int] = {}
    reports = [(said.time, trial.number, said) for trial in record.trials for said in trial.reports]
    for time, number, said in sorted(reports, key=lambda report: report[:2]):
        shown += said.resource - before.get(number, 0)
        before[number] = said.resource
        if math.isfinite(said.value):
            yield Reached(said.value, _device_seconds(record, time), shown)


def _device_seconds(record: StudyRecord, time: float) -> float:
    """Of all trials until then, those that were running counted in."""
    return sum(
        part.workers * (min(time, part.end if part.end is not None else time) - part.start)
        for trial in record.trials
        for part in trial.segments
        if part.start < time
    )


def _geometric(ratios: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, ratios))) if all(ratio > 0.0 for ratio in ratios) else 0.0


def run_studies(
    place: Path,
    *,
    seeds: Sequence[int] = SEEDS,
    trials: tuple[int, int] = (TRIALS, MORE_TRIALS),
    events: int = _EVENTS,
    workers: int | None = None,
) -> tuple[list[Path], list[Path]]:
    """Train both kinds of studies, one per seed, on the same events; those that were interrupted go on."""
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import SimulateSettings

    place.mkdir(parents=True, exist_ok=True)
    data = place / "data"
    chosen = ["generator.sample=ttbar", f"production.events={min(_DATA_EVENTS, events)}", "production.keep_hits=false"]
    simulate(SimulateSettings.resolve(None, chosen), data)
    space = place / "space.toml"
    space.write_text(_SPACE, encoding="utf-8")
    kinds = (("random", "random", "none", trials[0]), ("asha", "tpe", "asha-promote", trials[1]))
    made: dict[str, list[Path]] = {name: [] for name, *_ in kinds}
    for seed in seeds:
        for name, search, scheduler, number in kinds:
            out = place / f"{name}_{seed}"
            _run_study(out, data, space, search, scheduler, seed=seed, trials=number, events=events, workers=workers)
            made[name].append(out)
    return made["random"], made["asha"]


def _run_study(
    out: Path,
    data: Path,
    space: Path,
    search: Any,
    scheduler: Any,
    *,
    seed: int,
    trials: int,
    events: int,
    workers: int | None,
) -> None:
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.create import create
    from ringflow.tune.options import Place, Plan
    from ringflow.tune.run import run

    words = [
        *_NETWORK,
        f"data={data}",
        f"length.events={events}",
        f"length.validate_every={events}",
        f"source.chunk_events={max(events // _REUSE, 1)}",
        f"source.reuse={_REUSE}",
    ]
    training = TrainSettings.resolve("clic_tiny", words)
    # Neither is to know a good point from the beginning.
    plan = Plan(trials=trials, search=search, scheduler=scheduler, eta=_ETA, seed=seed, skip_default=True)
    place = Place(workers=workers)
    run(create(training, plan.settings(training, place), space, out), place)

"""The work of `ringflow tune replay`: a study on clusters that one does not have, with every scheduler.

    result = replay_study(recorded_curves(None), devices=(64, 256), schedulers=["asha", "rasda"])

Which settings come next is not replayed: recorded trials stand for themselves, in a random order, as random search has them.
What search adds is found out by real studies only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.base.log import Advance, progress, say
from ringflow.base.output import show_table
from ringflow.launch.scaling import CostModel, resolve
from ringflow.tune.replay import CurveModel, LearningCurve, Recorded, Replay, Results, Setting, speedup
from ringflow.tune.schedulers import GROWING, SCHEDULERS, Ladder, first_rung, one_bracket

DEVICES = (64, 256, 1024)
COMPARED = ("asha", "rasda", "rasda-idle", "hyperband", "none")
#: Others are compared with it if it is there.
REFERENCE = "asha"
#: What decides between schedulers.
HOURS = (1 / 12, 0.5, 2.0, 8.0)
PENALTIES = (0.0, 0.5, 1.0)
TRIALS_PER_DEVICE = (1, 4)
#: Trials per device and penalty of headlines: where trials wait for devices, and large batches cost something; and where not.
HARD, EASY = (4, 0.5), (1, 0.0)
#: Of a first rung: turns of trials that take turns, an epoch in the published setting of ten epochs.
_TURN_SHARE = 0.1
#: Curves that are drawn however few are asked for, so that clusters of all sizes see the same ones.
_LEAST_DRAWN = 2048
#: Trials of the study that is replayed on clusters of growing size, unless they are given, and at most.
_SCALING_TRIALS, _MOST_SCALING_TRIALS = 256, 1024
#: Orders of the trials: unless they are given, of so many trials in all, and in the tables beside the main one.
_ORDERS, _TRIALS_OF_ALL_ORDERS, _FEW_ORDERS = 5, 10_000, 2

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Campaign:
    """Trials that were recorded, or are like those that were, on a cluster that does not exist."""

    recorded: Recorded
    #: Over one event in all, and whether they were drawn from a model of the recorded ones.
    shares: Sequence[LearningCurve]
    drawn: bool
    #: Of a whole trial on one device.
    hours: float
    costs: CostModel

    @property
    def most(self) -> int:
        """Events of a whole trial."""
        return round(3600.0 * self.hours * self.costs.throughput(1))

    @property
    def ladder(self) -> Ladder:
        """The rungs."""
        if self.most < 1:
            raise UsageError(f"in {self.hours:g} hours a device does not train a single event; give more --hours")
        share, eta = self.recorded.least_share, self.recorded.eta
        least = share * self.most if share else first_rung(self.most, eta)
        # Rounded down, or Hyperband, which counts from the end, loses its first rung.
        return Ladder(max(int(least + 1e-6), 1), self.most, eta)

    @cached_property
    def curves(self) -> list[LearningCurve]:
        """Over the events of a whole trial."""
        return [curve.scaled(float(self.most)) for curve in self.shares]

    def compare(
        self,
        schedulers: Sequence[str],
        devices: Sequence[int],
        *,
        setting: Setting,
        trials: int | None = None,
        orders: int = 5,
        advance: Advance = lambda replays: None,
    ) -> Results:
        """Replay a study with every scheduler on every cluster.

        A training of the study is one of the curves, chosen at random. The same trainings in the same order are given to all
        schedulers, and all is repeated for several orders. Without `trials` a study has as many as can begin at once, as in
        the publication of RASDA; so it grows with the cluster. `advance` is called after every replay.
        """
        results: dict[tuple[str, int], list[Replay]] = {}
        for number, order in product(devices, range(orders)):
            count = trials or max(number // setting.initial_workers, 1)
            chosen = Random(setting.seed + order).choices(self.curves, k=count)
            for name in schedulers:
                done = Replay(chosen, name, devices=number, ladder=self.ladder, costs=self.costs, setting=setting)
                results.setdefault((name, number), []).append(done)
                advance(1)
        return results

    def turn(self, setting: Setting) -> int:
        """Events of a turn, if trials take turns."""
        return setting.turn or max(round(_TURN_SHARE * self.ladder.least), 1)


def plan_campaign(
    recorded: Recorded,
    *,
    trials: int,
    hardware: str = "h200",
    overrides: Sequence[str] = (),
    hours: float | None = None,
    seed: int = 0,
) -> Campaign:
    """So many different trials like those that were recorded, drawn from a model of them if there were fewer.

    Without `hours` trials take as long as those of the study did.
    """
    costs = CostModel(resolve(hardware, overrides))
    if not costs.throughput(1):
        raise UsageError("one node fails before it gets on; give a larger upkeep.node_lifetime_hours")
    drawn = trials > len(recorded.curves)
    shares = CurveModel(recorded.curves).draw(max(trials, _LEAST_DRAWN), seed=seed) if drawn else recorded.curves
    return Campaign(recorded, shares, drawn, recorded.hours if hours is None else hours, costs)


def replay_study(
    recorded: Recorded,
    *,
    devices: Sequence[int] = DEVICES,
    schedulers: Sequence[str] = COMPARED,
    trials: int | None = None,
    hours: float | None = None,
    hardware: str = "h200",
    overrides: Sequence[str] = (),
    setting: Setting = Setting(),  # noqa: B008 (frozen)
    orders: int | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Replay recorded trainings; the result, ready for JSON, and a page in `out` if it is given.

    Without `trials` as many as can begin at once are replayed on every cluster; without `orders` five orders of them, fewer if
    they are many. Schedulers may be named with commas.
    """
    devices = sorted(set(devices))
    schedulers = list(dict.fromkeys(part.strip() for word in schedulers for part in word.split(",") if part.strip()))
    if wrong := [name for name in schedulers or [""] if name not in SCHEDULERS]:
        raise UsageError(f"no scheduler is called {wrong[0]!r}; choose from {', '.join(SCHEDULERS)}")
    if devices[0] < setting.initial_workers:
        raise UsageError(f"{setting.initial_workers} processes per trial do not fit on {devices[0]} devices; give more")
    largest = trials or devices[-1] // setting.initial_workers
    orders = orders or max(min(_ORDERS, _TRIALS_OF_ALL_ORDERS // largest), 1)
    campaign = plan_campaign(
        recorded, trials=largest, hardware=hardware, overrides=overrides, hours=hours, seed=setting.seed
    )
    reference = REFERENCE if REFERENCE in schedulers else schedulers[0]
    decisive = reference == REFERENCE and any(name in schedulers for name in GROWING)
    clusters = [2**power for power in range(devices[-1].bit_length())]
    scaled = min(trials or _SCALING_TRIALS, _MOST_SCALING_TRIALS)
    steps = orders * len(devices) * len(schedulers) + _FEW_ORDERS * len(clusters) * (len(schedulers) + 1)
    steps += steps_of_sensitivity(_FEW_ORDERS) if decisive else 0
    with progress(steps, "replays") as advance:
        began = time.perf_counter()
        results = campaign.compare(schedulers, devices, setting=setting, trials=trials, orders=orders, advance=advance)
        seconds = time.perf_counter() - began
        few: dict[str, Any] = {"setting": setting, "orders": _FEW_ORDERS, "advance": advance}
        grown = scaling(campaign, schedulers, clusters, trials=scaled, **few)
        decides = sensitivity(campaign, devices[len(devices) // 2], **few) if decisive else []
    counts = sorted({found[0].trials for found in results.values()})
    told = (one_bracket(name, campaign.ladder, count) for name in schedulers for count in counts)
    result = {
        "study": recorded.study and str(recorded.study),
        "curves": {"what": recorded.what, "recorded": len(recorded.curves), "drawn": campaign.drawn},
        "hardware": hardware,
        "settings": campaign.costs.settings.model_dump(mode="json"),
        "hours": campaign.hours,
        "rungs": list(campaign.ladder.rungs),
        "eta": recorded.eta,
        "orders": orders,
        "reference": reference,
        "rows": [_row(results, name, reference, number) for number in devices for name in schedulers],
        "scaling_trials": scaled,
        "scaling": grown,
        "sensitivity": decides,
        "replay_trials_per_second": sum(one.trials for found in results.values() for one in found) / seconds,
        "turn_seconds": campaign.turn(setting) / campaign.costs.throughput(setting.initial_workers),
        "load_seconds": campaign.costs.upkeep.restart_seconds + setting.reload_seconds,
        "assumptions": [*assumptions(campaign, setting, trials), *(f"{sentence}." for sentence in told if sentence)],
    }
    if out is not None:
        from ringflow.tune.replay.page import write_page

        result["page"] = str(write_page(result, {key: found[0] for key, found in results.items()}, out))
    return result


def _mean(found: Sequence[Replay], figure: str) -> float:
    return fmean(getattr(one, figure) for one in found)


def _row(results: Results, name: str, reference: str, devices: int) -> dict[str, Any]:
    """Means over all orders of the trials."""
    found, others = results[name, devices], results[reference, devices]
    faster = speedup(results, name, reference, devices)
    # Seconds until it has a value that the other one finds, too.
    as_good = [one.seconds_to(max(one.best, other.best)) for one, other in zip(found, others, strict=True)]
    return {
        "scheduler": name,
        "devices": devices,
        "trials": found[0].trials,
        "complete": _mean(found, "complete"),
        "makespan_seconds": _mean(found, "makespan"),
        "device_hours": _mean(found, "device_hours"),
        "best": _mean(found, "best"),
        "equal_quality_seconds": fmean(as_good),
        "utilisation": _mean(found, "utilisation"),
        "reloads": _mean(found, "reloads"),
        "failures": 0.0,  # none are simulated; a field of records that are there
        "speedup_makespan": faster.makespan,
        "speedup_equal_quality": faster.equal_quality,
    }


def steps_of_sensitivity(orders: int) -> int:
    """Replays that `sensitivity` makes."""
    return len(HOURS) * len(PENALTIES) * len(TRIALS_PER_DEVICE) * (1 + len(GROWING)) * orders


def sensitivity(campaign: Campaign, devices: int, *, setting: Setting, **options: Any) -> Rows:
    """How much faster than ASHA the growing schedulers have a network as good, by what decides it: the length of trials, what
    large batches cost, and how many trials there are.

    Where large batches learn less, trials that grow are shown more events (`lengthen`), so that all end equally well.
    """
    rows = []
    for per_device, penalty, hours in product(TRIALS_PER_DEVICE, PENALTIES, HOURS):
        assumed = replace(setting, penalty=penalty, lengthen=True)
        trials = max(per_device * devices // setting.initial_workers, 1)
        lasting = replace(campaign, hours=hours)
        results = lasting.compare(["asha", *GROWING], [devices], setting=assumed, trials=trials, **options)
        case = {"devices": devices, "trials_per_device": per_device, "penalty": penalty, "hours": hours}
        for name in GROWING:
            faster = speedup(results, name, "asha", devices)
            found = {"makespan": faster.makespan, "equal_quality": faster.equal_quality}
            rows.append({"scheduler": name, **case, **found})
    return rows


def scaling(
    campaign: Campaign, schedulers: Sequence[str], devices: Sequence[int], *, setting: Setting, **options: Any
) -> Rows:
    """The same study on clusters of growing size, with every scheduler; and once with ASHA and trials that take turns."""
    fits = [number for number in devices if number >= setting.initial_workers]
    in_turns = replace(setting, turn=campaign.turn(setting))
    rows: Rows = []
    for label, name, chosen in [*((name, name, setting) for name in schedulers), ("asha-in-turns", "asha", in_turns)]:
        results = campaign.compare([name], fits, setting=chosen, **options)
        alone = results[name, fits[0]]
        for number in fits:
            found = results[name, number]
            makespan, hours = _mean(found, "makespan"), _mean(found, "device_hours")
            rows.append(
                {
                    "scheduler": label,
                    "replayed": name,
                    "devices": number,
                    "makespan_seconds": makespan,
                    "device_hours": hours,
                    "reloads": _mean(found, "reloads"),
                    "speedup": _mean(alone, "makespan") / makespan,
                    #: Above 1: better than linear.
                    "over_linear": _mean(alone, "makespan") * fits[0] / (makespan * number),
                    "device_hours_saved": _mean(alone, "device_hours") / hours,
                }
            )
    return rows


def headline(result: Mapping[str, Any]) -> str | None:
    """What RASDA is worth where it is hard, then where it is easy; None if that was not replayed."""
    if not result["sensitivity"]:
        return None
    hours = min(HOURS, key=lambda hours: abs(math.log(hours / result["hours"])))
    study = {
        (row["trials_per_device"], row["penalty"]): row["makespan"]
        for row in result["sensitivity"]
        if (row["scheduler"], row["hours"]) == ("rasda", hours)
    }
    return (
        f"RASDA ends a study on {result['sensitivity'][0]['devices']:,} devices {study[HARD]:.2f} times as fast as ASHA where "
        f"{HARD[0]} trials share a device and large batches cost, {study[EASY]:.2f} times where neither is so"
    )


def assumptions(campaign: Campaign, setting: Setting, trials: int | None, per_device: int = 1) -> list[str]:
    """All that the numbers stand on, in sentences."""
    costs, ladder, number = campaign.costs, campaign.ladder, len(campaign.recorded.curves)
    drawn = f"Curves drawn from a model of {number} recorded trainings"
    places = ", ".join(f"{100 * rung / campaign.most:.3g}" for rung in ladder.rungs[:-1])
    known = {0.0: "an event teaches as much, whatever the size of the batch", 1.0: "only the number of steps counts"}
    loss = known.get(setting.penalty, f"an event on n times the devices is worth n**-{setting.penalty:g} events")
    longer = ", and trials are shown as many more events as that takes" if setting.lengthen else ""
    first, grown = setting.initial_workers, setting.initial_workers * ladder.eta**2
    many = "As" if per_device == 1 else f"{per_device} times as"
    return [
        f"{drawn if campaign.drawn else f'{number} recorded curves, chosen at random'}: {campaign.recorded.what}. Values go by "
        "the part of the whole training.",
        f"A whole trial takes {campaign.hours:.3g} hours on one device; trials are compared after "
        f"{places or '100'} % of it, and one in {ladder.eta} goes on.",
        f"{many} many trials as can begin at once." if trials is None else f"{trials:,} trials.",
        f"Trials have {first} device{'s' if first > 1 else ''} at first. Devices of a trial keep their batches; with {grown} "
        f"of them it is at {100 * costs.efficiency(grown):.0f} % of ideal.",
        f"Larger batches: {loss}{longer}.",
        f"Every start takes {costs.upkeep.restart_seconds:g} s, loading a network again {setting.reload_seconds:g} s more.",
        f"A trial that is to grow {'waits for all its devices' if setting.growth == 'wait' else 'takes what is free'}.",
        f"Cluster: {costs.hardware.title} ({costs.hardware.source}).",
        "Deciding takes no time; who searches does not matter: trials come in a random order, the same for all schedulers.",
    ]


def show(result: Mapping[str, Any]) -> None:
    """Tables for people."""
    if told := headline(result):
        say(f"{told}.")
    costs = ("makespan_seconds", "device_hours", "best", "utilisation", "reloads")
    columns = ("scheduler", "devices", "trials", "complete", *costs, "speedup_makespan", "speedup_equal_quality")
    show_table(f"Replay (means; speed-ups over {result['reference']})", result["rows"], columns)
    best = {row["scheduler"]: row for row in sorted(result["scaling"], key=lambda row: float(row["over_linear"]))}
    better = [
        f"{name} {row['over_linear']:.2f} on {row['devices']:,} devices"
        for name, row in best.items()
        if row["over_linear"] > 1.005
    ]
    say(
        f"Better than linear in time, with {result['scaling_trials']:,} trials: {', '.join(better) or 'nobody'}. "
        f"Turns are of {result['turn_seconds']:.3g} s, and a network is started again in {result['load_seconds']:g} s."
    )
    for sentence in result["assumptions"]:
        say(f"- {sentence}")

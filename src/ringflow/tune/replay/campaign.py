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
from statistics import fmean
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.base.log import progress, say, table
from ringflow.base.words import time_in_words
from ringflow.launch.scaling import CostModel, ScalingSettings, resolve
from ringflow.tune.replay.curves import LearningCurve, Recorded, model_of
from ringflow.tune.replay.engine import Results, Setting, compare, speedup
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
    hours: float
    settings: ScalingSettings
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

    def compare(self, schedulers: Sequence[str], devices: Sequence[int], **options: Any) -> Results:
        """Replay with every scheduler on every cluster; options are those of `engine.compare`."""
        return compare(self.curves, schedulers, devices, ladder=self.ladder, costs=self.costs, **options)


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
    settings = resolve(hardware, overrides)
    costs = CostModel(settings)
    if not costs.throughput(1):
        raise UsageError("one node fails before it gets on; give a larger upkeep.node_lifetime_hours")
    drawn = trials > len(recorded.curves)
    shares = model_of(recorded.curves).draw(max(trials, _LEAST_DRAWN), seed=seed) if drawn else recorded.curves
    return Campaign(recorded, shares, drawn, recorded.hours if hours is None else hours, settings, costs)


def replay_study(
    recorded: Recorded,
    *,
    devices: Sequence[int] = DEVICES,
    schedulers: Sequence[str] = COMPARED,
    trials: int | None = None,
    hours: float | None = None,
    hardware: str = "h200",
    overrides: Sequence[str] = (),
    setting: Setting | None = None,
    orders: int | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Replay recorded trainings; the result, ready for JSON, and a page in `out` if it is given.

    Without `trials` as many as can begin at once are replayed on every cluster; without `orders` five orders of them, fewer if
    they are many.
    """
    setting = setting or Setting()
    devices, schedulers = tuple(sorted(set(devices))), _known(schedulers)
    if devices[0] < setting.initial_workers:
        raise UsageError(f"{setting.initial_workers} processes per trial do not fit on {devices[0]} devices; give more")
    largest = trials or devices[-1] // setting.initial_workers
    orders = orders or max(min(_ORDERS, _TRIALS_OF_ALL_ORDERS // largest), 1)
    chosen: dict[str, Any] = {"hardware": hardware, "overrides": overrides, "hours": hours, "seed": setting.seed}
    campaign = plan_campaign(recorded, trials=largest, **chosen)
    reference = REFERENCE if REFERENCE in schedulers else schedulers[0]
    decisive = reference == REFERENCE and any(name in schedulers for name in GROWING)
    clusters, scaled = scaling_devices(devices[-1]), min(trials or _SCALING_TRIALS, _MOST_SCALING_TRIALS)
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
        "settings": campaign.settings.model_dump(mode="json"),
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
        "turn_seconds": _turn(campaign, setting) / campaign.costs.throughput(setting.initial_workers),
        "load_seconds": campaign.costs.upkeep.restart_seconds + setting.reload_seconds,
        "assumptions": [*assumptions(campaign, setting, trials), *(f"{sentence}." for sentence in told if sentence)],
    }
    if out is not None:
        from ringflow.tune.replay.page import write_page

        result["page"] = str(write_page(result, {key: found[0] for key, found in results.items()}, out))
    return result


def _known(schedulers: Sequence[str]) -> tuple[str, ...]:
    """Those that were named, also with commas."""
    names = tuple(dict.fromkeys(part.strip() for word in schedulers for part in word.split(",") if part.strip()))
    unknown = [name for name in names if name not in SCHEDULERS]
    if unknown or not names:
        said = f"is called {unknown[0]!r}" if unknown else "was named"
        raise UsageError(f"no scheduler {said}; choose from {', '.join(SCHEDULERS)}")
    return names


def _row(results: Results, name: str, reference: str, devices: int) -> dict[str, Any]:
    """Means over all orders of the trials."""
    found, others = results[name, devices], results[reference, devices]
    faster = speedup(results, name, reference, devices)

    def mean(figure: str) -> float:
        return fmean(getattr(one, figure) for one in found)

    # Seconds until it has a value that the other one finds, too.
    as_good = [one.seconds_to(max(one.best, other.best)) for one, other in zip(found, others, strict=True)]
    return {
        "scheduler": name,
        "devices": devices,
        "trials": found[0].trials,
        "complete": mean("complete"),
        "makespan_seconds": mean("makespan"),
        "device_hours": mean("device_hours"),
        "best": mean("best"),
        "equal_quality_seconds": fmean(as_good),
        "utilisation": mean("utilisation"),
        "reloads": mean("reloads"),
        "failures": mean("failures"),
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


def scaling_devices(most: int) -> list[int]:
    """1, 2, 4 ... up to a number of devices."""
    return [2**power for power in range(most.bit_length())]


def _turn(campaign: Campaign, setting: Setting) -> int:
    """Events of a turn, if trials take turns."""
    return setting.turn or max(round(_TURN_SHARE * campaign.ladder.least), 1)


def scaling(
    campaign: Campaign, schedulers: Sequence[str], devices: Sequence[int], *, setting: Setting, **options: Any
) -> Rows:
    """The same study on clusters of growing size, with every scheduler; and once with ASHA and trials that take turns."""
    fits = [number for number in devices if number >= setting.initial_workers]
    in_turns = replace(setting, turn=_turn(campaign, setting))
    kinds = [*((name, name, setting) for name in schedulers), ("asha-in-turns", "asha", in_turns)]
    rows: Rows = []
    for label, name, chosen in kinds:
        results = campaign.compare([name], fits, setting=chosen, **options)
        makespans, hours, reloads = (
            [fmean(getattr(one, figure) for one in results[name, number]) for number in fits]
            for figure in ("makespan", "device_hours", "reloads")
        )
        rows += [
            {
                "scheduler": label,
                "replayed": name,
                "devices": number,
                "makespan_seconds": makespans[place],
                "device_hours": hours[place],
                "reloads": reloads[place],
                "speedup": makespans[0] / makespans[place],
                #: Above 1: better than linear.
                "over_linear": makespans[0] * fits[0] / (makespans[place] * number),
                "device_hours_saved": hours[0] / hours[place],
            }
            for place, number in enumerate(fits)
        ]
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
    hardware, costs, ladder = campaign.settings.hardware, campaign.costs, campaign.ladder
    number = len(campaign.recorded.curves)
    origin = (
        f"Curves drawn from a model of {number} recorded trainings"
        if campaign.drawn
        else f"{number} recorded curves, chosen at random"
    )
    places = ", ".join(f"{100 * rung / campaign.most:.3g}" for rung in ladder.rungs[:-1])
    known = {0.0: "an event teaches as much, whatever the size of the batch", 1.0: "only the number of steps counts"}
    loss = known.get(setting.penalty, f"an event on n times the devices is worth n**-{setting.penalty:g} events")
    first, grown = setting.initial_workers, setting.initial_workers * ladder.eta**2
    many = "As" if per_device == 1 else f"{per_device} times as"
    return [
        f"{origin}: {campaign.recorded.what}. Values go by the part of the whole training.",
        f"A whole trial takes {campaign.hours:.3g} hours on one device; trials are compared after "
        f"{places or '100'} % of it, and one in {ladder.eta} goes on.",
        f"{many} many trials as can begin at once." if trials is None else f"{trials:,} trials.",
        f"Trials have {first} device{'s' if first > 1 else ''} at first. Devices of a trial keep their batches; with {grown} "
        f"of them it is at {100 * costs.efficiency(grown):.0f} % of ideal.",
        f"Larger batches: {loss}"
        + (", and trials are shown as many more events as that takes." if setting.lengthen else "."),
        f"Every start takes {costs.upkeep.restart_seconds:g} s, loading a network again {setting.reload_seconds:g} s more.",
        "A trial that is to grow waits for all its devices."
        if setting.growth == "wait"
        else "A trial that is to grow takes what is free.",
        f"Cluster: {hardware.title} ({hardware.source}).",
        "Deciding takes no time; who searches does not matter: trials come in a random order, the same for all schedulers.",
    ]


def show(result: Mapping[str, Any]) -> None:
    """Tables for people."""
    columns = ("scheduler", "devices", "trials", "complete", "study", "device-hours", "best", "used", "reloads")
    faster = (f"faster than {result['reference']}", "at equal quality")
    if told := headline(result):
        say(f"{told}.")
    cells = [
        [
            row["scheduler"],
            f"{row['devices']:,}",
            f"{row['trials']:,}",
            f"{row['complete']:.1f}",
            time_in_words(row["makespan_seconds"]),
            f"{row['device_hours']:,.1f}",
            f"{row['best']:.4g}",
            f"{100 * row['utilisation']:.0f} %",
            f"{row['reloads']:,.0f}",
            f"{row['speedup_makespan']:.2f}",
            f"{row['speedup_equal_quality']:.2f}",
        ]
        for row in result["rows"]
    ]
    table("Replay (means)", (*columns, *faster), cells)
    most: dict[str, tuple[float, int]] = {}
    for row in result["scaling"]:
        most[row["scheduler"]] = max(most.get(row["scheduler"], (0.0, 0)), (row["over_linear"], row["devices"]))
    better = [f"{name} {factor:.2f} on {count:,} devices" for name, (factor, count) in most.items() if factor > 1.005]
    say(
        f"Better than linear in time, with {result['scaling_trials']:,} trials: {', '.join(better) or 'nobody'}. "
        f"Turns are of {result['turn_seconds']:.3g} s, and a network is started again in {result['load_seconds']:g} s."
    )
    for sentence in result["assumptions"]:
        say(f"- {sentence}")

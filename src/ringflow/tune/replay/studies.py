"""The work of `ringflow tune replay`: a study on clusters that one does not have, with every scheduler.

Which settings come next is not replayed: recorded trials stand for themselves, in a random order, as random search has them.
What search adds is found out by real studies only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.base.log import progress, say, table
from ringflow.base.words import time_in_words
from ringflow.tune.replay.campaign import Campaign, plan_campaign
from ringflow.tune.replay.comparison import Comparison
from ringflow.tune.replay.result import ReplayResult, Setting
from ringflow.tune.replay.sensitivity import (
    EASY,
    HARD,
    HOURS,
    scaling,
    scaling_devices,
    sensitivity,
    steps_of_sensitivity,
    turn_of,
)
from ringflow.tune.schedulers import GROWING, SCHEDULERS, one_bracket

DEVICES = (64, 256, 1024)
COMPARED = ("asha", "rasda", "rasda-idle", "hyperband", "none")
#: Others are compared with it if it is there.
REFERENCE = "asha"
#: Trials of the study that is replayed on clusters of growing size, unless they are given, and at most.
_SCALING_TRIALS, _MOST_SCALING_TRIALS = 256, 1024
#: Orders of the trials: unless they are given, of so many trials in all, and in the tables beside the main one.
_ORDERS, _TRIALS_OF_ALL_ORDERS, _FEW_ORDERS = 5, 10_000, 2


def replay_study(
    study: Path | None,
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
    """Replay a study, or recorded trainings without one; the result, ready for JSON, and a page in `out` if it is given.

    Without `trials` as many as can begin at once are replayed on every cluster; without `orders` five orders of them, fewer if
    they are many.
    """
    setting = setting or Setting()
    devices, schedulers = tuple(sorted(set(devices))), _known(schedulers)
    if devices[0] < setting.initial_workers:
        raise UsageError(f"{setting.initial_workers} processes per trial do not fit on {devices[0]} devices; give more")
    largest = trials or devices[-1] // setting.initial_workers
    orders = orders or max(min(_ORDERS, _TRIALS_OF_ALL_ORDERS // largest), 1)
    campaign = plan_campaign(
        study, trials=largest, hardware=hardware, overrides=overrides, hours=hours, seed=setting.seed
    )
    compared, tables = _replays(campaign, schedulers, devices, trials, setting, orders)
    result = {
        "study": None if study is None else str(study),
        "curves": {"what": campaign.what, "recorded": campaign.recorded, "drawn": campaign.drawn},
        "hardware": hardware,
        "settings": campaign.settings.model_dump(mode="json"),
        "hours": campaign.hours,
        "rungs": list(campaign.ladder.rungs),
        "eta": campaign.eta,
        "orders": orders,
        "reference": REFERENCE if REFERENCE in schedulers else schedulers[0],
        "rows": _rows(compared, schedulers, devices),
        **tables,
        "turn_seconds": turn_of(campaign, setting) / campaign.costs.throughput(setting.initial_workers),
        "load_seconds": campaign.costs.restart_seconds + setting.reload_seconds,
        "assumptions": [*assumptions(campaign, setting, trials), *_few_trials(campaign, schedulers, compared)],
    }
    if out is not None:
        from ringflow.tune.replay.page import write_page

        result["page"] = str(write_page(result, {key: found[0] for key, found in compared.results.items()}, out))
    return result


def _replays(
    campaign: Campaign,
    schedulers: Sequence[str],
    devices: Sequence[int],
    trials: int | None,
    setting: Setting,
    orders: int,
) -> tuple[Comparison, dict[str, Any]]:
    """The main replays, and the tables beside them: scaling, and what decides between ASHA and those that grow."""
    clusters, scaled = scaling_devices(devices[-1]), min(trials or _SCALING_TRIALS, _MOST_SCALING_TRIALS)
    decisive = REFERENCE in schedulers and any(name in schedulers for name in GROWING)
    steps = orders * len(devices) * len(schedulers) + _FEW_ORDERS * len(clusters) * (len(schedulers) + 1)
    steps += steps_of_sensitivity(_FEW_ORDERS) if decisive else 0
    with progress(steps, "replays") as advance:
        began = time.perf_counter()
        compared = campaign.compare(schedulers, devices, setting=setting, trials=trials, orders=orders, advance=advance)
        seconds = time.perf_counter() - began
        few: dict[str, Any] = {"setting": setting, "orders": _FEW_ORDERS, "advance": advance}
        tables = {
            "scaling_trials": scaled,
            "scaling": scaling(campaign, schedulers, devices=clusters, trials=scaled, **few),
            "sensitivity": sensitivity(campaign, devices[len(devices) // 2], **few) if decisive else [],
            "replay_trials_per_second": sum(r.trials for found in compared.results.values() for r in found) / seconds,
        }
    return compared, tables


def _known(schedulers: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for word in schedulers for part in word.split(",") if part.strip()))
    for name in names:
        if name not in SCHEDULERS:
            raise UsageError(f"no scheduler is called {name!r}; choose from {', '.join(SCHEDULERS)}")
    if not names:
        raise UsageError(f"no scheduler was named; choose from {', '.join(SCHEDULERS)}")
    return names


def _rows(compared: Comparison, schedulers: Sequence[str], devices: Sequence[int]) -> list[dict[str, Any]]:
    """Means over all orders of the trials."""
    reference = REFERENCE if REFERENCE in schedulers else schedulers[0]
    rows = []
    for number in devices:
        others = compared.results[reference, number]
        for name in schedulers:
            results = compared.results[name, number]
            faster = compared.speedup(name, reference)[number]
            rows.append(
                {
                    "scheduler": name,
                    "devices": number,
                    "trials": results[0].trials,
                    "complete": fmean(result.complete for result in results),
                    "makespan_seconds": fmean(result.makespan for result in results),
                    "device_hours": fmean(result.device_hours for result in results),
                    "best": fmean(result.best for result in results),
                    "equal_quality_seconds": fmean(map(_equal_quality, results, others)),
                    "utilisation": fmean(result.utilisation for result in results),
                    "reloads": fmean(result.reloads for result in results),
                    "failures": fmean(result.failures for result in results),
                    "speedup_makespan": faster.makespan,
                    "speedup_equal_quality": faster.equal_quality,
                }
            )
    return rows


def _equal_quality(result: ReplayResult, other: ReplayResult) -> float:
    """Seconds until it has a value that the other one finds, too."""
    return result.seconds_to(max(result.best, other.best))


def _few_trials(campaign: Campaign, schedulers: Sequence[str], compared: Comparison) -> list[str]:
    """Sentences about schedulers that are not what their names say."""
    counts = sorted({found[0].trials for found in compared.results.values()})
    told = (one_bracket(name, campaign.ladder, count) for name in schedulers for count in counts)
    return [f"{sentence}." for sentence in told if sentence]


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
    origin = (
        f"Curves drawn from a model of {campaign.recorded} recorded trainings"
        if campaign.drawn
        else f"{campaign.recorded} recorded curves, chosen at random"
    )
    places = ", ".join(f"{100 * rung / campaign.most:.3g}" for rung in ladder.rungs[:-1])
    known = {0.0: "an event teaches as much, whatever the size of the batch", 1.0: "only the number of steps counts"}
    loss = known.get(setting.penalty, f"an event on n times the devices is worth n**-{setting.penalty:g} events")
    first, grown = setting.initial_workers, setting.initial_workers * ladder.eta**2
    return [
        f"{origin}: {campaign.what}. Values go by the part of the whole training.",
        f"A whole trial takes {campaign.hours:.3g} hours on one device; trials are compared after "
        f"{places or '100'} % of it, and one in {ladder.eta} goes on.",
        f"{'As' if per_device == 1 else f'{per_device} times as'} many trials as can begin at once."
        if trials is None
        else f"{trials:,} trials.",
        f"Trials have {first} device{'s' if first > 1 else ''} at first. Devices of a trial keep their batches; with {grown} "
        f"of them it is at {100 * costs.efficiency(grown):.0f} % of ideal.",
        f"Larger batches: {loss}"
        + (", and trials are shown as many more events as that takes." if setting.lengthen else "."),
        f"Every start takes {costs.restart_seconds:g} s, loading a network again {setting.reload_seconds:g} s more.",
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
    table("Replay (means)", (*columns, *faster), [_cells(row) for row in result["rows"]])
    say(
        f"Better than linear in time, with {result['scaling_trials']:,} trials: {_superlinear(result['scaling'])}. "
        f"Turns are of {result['turn_seconds']:.3g} s, and a network is started again in {result['load_seconds']:g} s."
    )
    for sentence in result["assumptions"]:
        say(f"- {sentence}")


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
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


def _superlinear(rows: Sequence[Mapping[str, Any]]) -> str:
    best = {
        name: max((row["over_linear"], row["devices"]) for row in rows if row["scheduler"] == name)
        for name in dict.fromkeys(row["scheduler"] for row in rows)
    }
    found = [
        f"{name} {factor:.2f} on {devices:,} devices" for name, (factor, devices) in best.items() if factor > 1.005
    ]
    return ", ".join(found) or "nobody"

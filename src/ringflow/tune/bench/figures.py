"""The work of `ringflow bench tune`: what schedulers, search and the driver are worth, in figures.

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

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringflow.base.log import progress, say, table
from ringflow.base.rundir import write_atomic
from ringflow.launch.frameworks import framework
from ringflow.train.device import hardware
from ringflow.tune.bench.driver import driver_cost
from ringflow.tune.bench.random import compare_with_random, run_studies
from ringflow.tune.replay.campaign import (
    HARD,
    HOURS,
    Campaign,
    assumptions,
    plan_campaign,
    sensitivity,
    steps_of_sensitivity,
)
from ringflow.tune.replay.curves import recorded_curves
from ringflow.tune.replay.engine import Advance, Setting, Speedup, speedup
from ringflow.tune.schedulers import GROWING

DEVICES = (64, 256, 1024)
#: What loading a network takes beside a start, in seconds; small networks are read at once.
SETTING = Setting(reload_seconds=10.0)
#: Trials per device and setting, by name; the hard one first.
CASES: Mapping[str, tuple[int, Setting]] = {
    "4_trials_per_device_batch_penalty": (HARD[0], replace(SETTING, penalty=HARD[1], lengthen=True)),
    "1_trial_per_device_free_batches": (1, SETTING),
}
_ORDERS = 5
_MANY_TRIALS = 10_000


def run(
    *,
    study: Path | None = None,
    random: Sequence[Path] = (),
    asha: Sequence[Path] = (),
    real: Path | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """Measure all. Without finished studies to compare, or a folder in which to make them (`real`), that figure is None."""
    framework("optuna", "tune")  # which is needed in the end, after all the replays
    if real is not None:
        random, asha = run_studies(real, workers=workers)
    found = compare_with_random(random, asha) if random or asha else None
    campaign = plan_campaign(recorded_curves(study), trials=max(DEVICES))
    middle = DEVICES[len(DEVICES) // 2]
    steps = _ORDERS * len(CASES) * len(DEVICES) * (1 + len(GROWING)) + steps_of_sensitivity(_ORDERS)
    with progress(steps, "replays") as advance:
        faster = {case: _faster(campaign, case, advance) for case in CASES}
        by_assumption = sensitivity(campaign, middle, setting=SETTING, orders=_ORDERS, advance=advance)
    driver = driver_cost()
    return {
        "benchmark": "tune",
        **{f"study_speedup_over_asha_{case}": _by_devices(faster[case], "makespan") for case in CASES},
        **{f"good_network_speedup_over_asha_{case}": _by_devices(faster[case], "equal_quality") for case in CASES},
        "best_over_asha": {
            name: {str(devices): round(found.best / found.other_best, 4) for devices, found in by_devices.items()}
            for name, by_devices in faster[next(iter(CASES))].items()
        },
        "speedup_by_assumption": by_assumption,
        "random_compute_until_its_best_over_asha_tpe": None if found is None else found["until_its_best"],
        "random_whole_compute_over_asha_tpe": None if found is None else found["whole"],
        "random_against_asha_tpe": found
        or "not measured: give finished studies with --random and --asha-tpe, or --real FOLDER to make them",
        "driver_overhead": driver.overhead,
        "driver_start_seconds": driver.start_seconds,
        "replay_trials_per_second": replay_speed(campaign),
        "assumptions": {
            case: assumptions(campaign, setting, None, per_device) for case, (per_device, setting) in CASES.items()
        },
        **hardware("cpu"),
    }


def _faster(campaign: Campaign, case: str, advance: Advance) -> dict[str, dict[int, Speedup]]:
    """Than ASHA, by scheduler and number of devices."""
    per_device, setting = CASES[case]
    found: dict[str, dict[int, Speedup]] = {name: {} for name in GROWING}
    for devices in DEVICES:
        compared = campaign.compare(
            ["asha", *GROWING],
            [devices],
            setting=setting,
            trials=per_device * devices,
            orders=_ORDERS,
            advance=advance,
        )
        for name in GROWING:
            found[name][devices] = speedup(compared, name, "asha", devices)
    return found


def _by_devices(faster: Mapping[str, Mapping[int, Speedup]], figure: str) -> dict[str, dict[str, float]]:
    return {
        name: {str(devices): round(getattr(found, figure), 3) for devices, found in by_devices.items()}
        for name, by_devices in faster.items()
    }


def replay_speed(campaign: Campaign, trials: int = _MANY_TRIALS) -> float:
    """Trials per second of one replay."""
    began = time.perf_counter()
    campaign.compare(["asha"], [max(DEVICES)], setting=SETTING, trials=trials, orders=1)
    return trials / (time.perf_counter() - began)


def keep(result: Mapping[str, Any], path: Path) -> None:
    """Write the record into a file."""
    write_atomic(path, json.dumps(result, indent=2) + "\n")


def show(result: Mapping[str, Any]) -> None:
    """Tables for people."""
    for case, (per_device, setting) in CASES.items():
        figures = {
            f"{what}, {name}": result[f"{key}_speedup_over_asha_{case}"][name]
            for what, key in (("study", "study"), ("good network", "good_network"))
            for name in GROWING
        }
        devices = list(next(iter(figures.values())))
        rows = [(number, *(figure[number] for figure in figures.values())) for number in devices]
        where = f"{per_device} trial{'s' * (per_device > 1)} per device, batch penalty {setting.penalty:g}"
        table(f"Times as fast as ASHA, {where}", ("devices", *figures), rows)
    if result["speedup_by_assumption"]:
        devices = result["speedup_by_assumption"][0]["devices"]
        header, lines = pivot(result["speedup_by_assumption"])
        table(f"The same on {devices} devices (study / good network), by hours of a whole trial on one", header, lines)
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


def pivot(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line per scheduler, number of trials and penalty; a column per length of trials: whole study / network as good."""
    header = ["scheduler", "trials per device", "penalty", *(hours_in_words(hours) for hours in HOURS)]
    lines: dict[tuple[str, int, float], dict[float, str]] = {}
    for row in rows:
        key = (row["scheduler"], row["trials_per_device"], row["penalty"])
        lines.setdefault(key, {})[row["hours"]] = f"{row['makespan']:.2f} / {row['equal_quality']:.2f}"
    return header, [
        [name, str(per_device), f"{penalty:g}", *(found[hours] for hours in HOURS)]
        for (name, per_device, penalty), found in sorted(lines.items())
    ]


def hours_in_words(hours: float) -> str:
    """As people say it."""
    return f"{60 * hours:.0f} min" if hours < 1.0 else f"{hours:g} h"

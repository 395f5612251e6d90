"""The work of `ringflow bench tune`: what schedulers, search and the driver are worth, in figures.

rasda_speedup_over_asha        replay: how much sooner RASDA has a network as good as ASHA's, by number of devices
rasda_idle_speedup_over_asha   the same for RASDA that grows on idle devices only
rasda_by_assumption            the same on one cluster, by length of trials, cost of large batches and number of trials
random_compute_over_asha_tpe   real studies: compute of random search over that of ASHA with TPE, for a loss as good
driver_overhead                seconds of the driver per trial, over a trial of ten seconds
replay_trials_per_second       of one replay of ten thousand trials
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.log import progress, say, table
from ringflow.base.rundir import write_atomic
from ringflow.recipes.hardware import hardware
from ringflow.tune.bench.driver import driver_cost
from ringflow.tune.bench.random import compare_with_random, run_studies
from ringflow.tune.replay.campaign import Campaign, plan_campaign
from ringflow.tune.replay.result import Setting
from ringflow.tune.replay.sensitivity import HOURS, sensitivity, steps_of_sensitivity
from ringflow.tune.replay.studies import assumptions
from ringflow.tune.schedulers import GROWING

DEVICES = (64, 256, 1024)
#: What loading a network takes beside a start, in seconds; small networks are read at once.
SETTING = Setting(reload_seconds=10.0)
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
    if real is not None:
        random, asha = run_studies(real, workers=workers)
    found = compare_with_random(random, asha) if random or asha else None
    campaign = plan_campaign(study, trials=max(DEVICES))
    middle = DEVICES[len(DEVICES) // 2]
    with progress(_ORDERS * len(DEVICES) * 3 + steps_of_sensitivity(_ORDERS), "replays") as advance:
        compared = campaign.compare(["asha", *GROWING], DEVICES, setting=SETTING, orders=_ORDERS, advance=advance)
        by_assumption = sensitivity(campaign, middle, setting=SETTING, orders=_ORDERS, advance=advance)
    faster = {name: compared.speedup(name, "asha") for name in GROWING}
    driver = driver_cost()
    return {
        "benchmark": "tune",
        **{
            f"{name.replace('-', '_')}_speedup_over_asha": {
                str(devices): round(speedup.equal_quality, 3) for devices, speedup in faster[name].items()
            }
            for name in GROWING
        },
        "makespan_over_asha": {
            name: {str(devices): round(speedup.makespan, 3) for devices, speedup in faster[name].items()}
            for name in GROWING
        },
        "best_over_asha": {
            name: {str(devices): round(found.best / found.other_best, 4) for devices, found in faster[name].items()}
            for name in GROWING
        },
        "rasda_by_assumption": by_assumption,
        "random_compute_over_asha_tpe": None if found is None else found["whole_compute_ratio"],
        "random_against_asha_tpe": found
        or "not measured: give finished studies with --random and --asha-tpe, or --real FOLDER to make them",
        "driver_overhead": driver.overhead,
        "driver_start_seconds": driver.start_seconds,
        "replay_trials_per_second": replay_speed(campaign),
        "assumptions": {"replay": assumptions(campaign, SETTING, None), "hours_of_a_trial": campaign.hours},
        **hardware("cpu"),
    }


def replay_speed(campaign: Campaign, trials: int = _MANY_TRIALS) -> float:
    """Trials per second of one replay."""
    began = time.perf_counter()
    campaign.compare(["asha"], [max(DEVICES)], setting=SETTING, trials=trials, orders=1)
    return trials / (time.perf_counter() - began)


def keep(result: Mapping[str, Any], path: Path) -> None:
    """Write the record into a file."""
    write_atomic(path, json.dumps(result, indent=2, sort_keys=True) + "\n")


def show(result: Mapping[str, Any]) -> None:
    """Tables for people."""
    columns = ("devices", *GROWING)
    rows = [
        (devices, *(result[f"{name.replace('-', '_')}_speedup_over_asha"][devices] for name in GROWING))
        for devices in result["rasda_speedup_over_asha"]
    ]
    table("Faster than ASHA to a network as good", columns, rows)
    devices = result["rasda_by_assumption"][0]["devices"]
    header, lines = pivot(result["rasda_by_assumption"])
    table(f"The same on {devices} devices, by hours of a whole trial on one device", header, lines)
    ratio = result["random_compute_over_asha_tpe"]
    words = result["random_against_asha_tpe"] if ratio is None else f"{ratio:.2f}"
    say(f"compute of random search over ASHA with TPE: {words}")
    say(
        f"driver: {100 * result['driver_overhead']:.3f} % of a trial of ten seconds, "
        f"and {result['driver_start_seconds']:.1f} s once"
    )
    say(f"replay: {result['replay_trials_per_second']:,.0f} trials per second")
    for sentence in result["assumptions"]["replay"]:
        say(f"- {sentence}")


def pivot(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A line per scheduler, number of trials and penalty; a column per length of trials."""
    header = ["scheduler", "trials per device", "penalty", *(hours_in_words(hours) for hours in HOURS)]
    lines: dict[tuple[str, int, float], dict[float, float]] = {}
    for row in rows:
        key = (row["scheduler"], row["trials_per_device"], row["penalty"])
        lines.setdefault(key, {})[row["hours"]] = row["equal_quality"]
    return header, [
        [name, str(per_device), f"{penalty:g}", *(f"{found[hours]:.2f}" for hours in HOURS)]
        for (name, per_device, penalty), found in sorted(lines.items())
    ]


def hours_in_words(hours: float) -> str:
    """As people say it."""
    return f"{60 * hours:.0f} min" if hours < 1.0 else f"{hours:g} h"

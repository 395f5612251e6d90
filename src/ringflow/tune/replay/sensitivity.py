"""What decides between schedulers: the length of trials, what large batches cost, how many trials there are, and reloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from ringflow.tune.replay.campaign import Campaign
from ringflow.tune.replay.comparison import Comparison
from ringflow.tune.replay.result import Setting
from ringflow.tune.schedulers import GROWING

HOURS = (1 / 12, 0.5, 2.0, 8.0)
PENALTIES = (0.0, 0.5, 1.0)
TRIALS_PER_DEVICE = (1, 4)
#: Trials per device and penalty of headlines: where trials wait for devices, and large batches cost something; and where not.
HARD, EASY = (4, 0.5), (1, 0.0)
#: Of a first rung: turns of trials that take turns, an epoch in the published setting of ten epochs.
TURN_SHARE = 0.1

Advance = Callable[[int], None]


def steps_of_sensitivity(orders: int) -> int:
    """Replays that `sensitivity` makes."""
    return len(HOURS) * len(PENALTIES) * len(TRIALS_PER_DEVICE) * (1 + len(GROWING)) * orders


def sensitivity(
    campaign: Campaign, devices: int, *, setting: Setting, orders: int, advance: Advance = lambda replays: None
) -> list[dict[str, Any]]:
    """How much faster than ASHA the growing schedulers have a network as good, by what decides it.

    Where large batches learn less, trials that grow are shown more events (`lengthen`), so that all end equally well.
    """
    rows = []
    for per_device in TRIALS_PER_DEVICE:
        for penalty in PENALTIES:
            for hours in HOURS:
                compared = campaign.lasting(hours).compare(
                    ["asha", *GROWING],
                    [devices],
                    setting=replace(setting, penalty=penalty, lengthen=True),
                    trials=max(per_device * devices // setting.initial_workers, 1),
                    orders=orders,
                    advance=advance,
                )
                for name in GROWING:
                    found = compared.speedup(name, "asha")[devices]
                    rows.append(
                        {
                            "scheduler": name,
                            "devices": devices,
                            "trials_per_device": per_device,
                            "penalty": penalty,
                            "hours": hours,
                            "makespan": found.makespan,
                            "equal_quality": found.equal_quality,
                        }
                    )
    return rows


def scaling_devices(most: int) -> list[int]:
    """1, 2, 4 ... up to a number of devices."""
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def turn_of(campaign: Campaign, setting: Setting) -> int:
    """Events of a turn, if trials take turns."""
    return setting.turn or max(round(TURN_SHARE * campaign.ladder.least), 1)


def scaling(
    campaign: Campaign,
    schedulers: Sequence[str],
    *,
    devices: Sequence[int],
    trials: int,
    setting: Setting,
    orders: int,
    advance: Advance = lambda replays: None,
) -> list[dict[str, Any]]:
    """The same study on clusters of growing size, with every scheduler; and once with ASHA and trials that take turns."""
    fits = [number for number in devices if number >= setting.initial_workers]
    kinds = [(name, name, setting) for name in schedulers]
    kinds.append(("asha-in-turns", "asha", replace(setting, turn=turn_of(campaign, setting))))
    rows = []
    for label, name, chosen in kinds:
        compared = campaign.compare([name], fits, setting=chosen, trials=trials, orders=orders, advance=advance)
        rows += _scaling_rows(compared, label, name)
    return rows


def _scaling_rows(compared: Comparison, label: str, name: str) -> list[dict[str, Any]]:
    means = {
        devices: (
            fmean(result.makespan for result in results),
            fmean(result.device_hours for result in results),
            fmean(result.reloads for result in results),
        )
        for (_, devices), results in compared.results.items()
    }
    first = min(means)
    return [
        {
            "scheduler": label,
            "replayed": name,
            "devices": devices,
            "makespan_seconds": makespan,
            "device_hours": device_hours,
            "reloads": reloads,
            "speedup": means[first][0] / makespan,
            #: Above 1: better than linear.
            "over_linear": means[first][0] * first / (makespan * devices),
            "device_hours_saved": means[first][1] / device_hours,
        }
        for devices, (makespan, device_hours, reloads) in means.items()
    ]

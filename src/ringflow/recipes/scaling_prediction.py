"""The prediction of a training on many devices: rows by number of devices and way of adding up, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.base.log import say, table
from ringflow.recipes import scaling_inputs as inputs
from ringflow.recipes.scaling_model import ALGORITHMS, CostModel, StepTimes, fit_compute
from ringflow.recipes.scaling_settings import ScalingSettings

DEVICES = tuple(2**power for power in range(13))
_COLUMNS = ("devices", "events_per_second", "efficiency", "step_ms", *StepTimes._fields)


def predict(
    hardware: str,
    overrides: Sequence[str] = (),
    *,
    measured: Sequence[Path] = (),
    devices: Sequence[int] = (),
    check: Path | None = None,
) -> dict[str, Any]:
    """Rows of all algorithms, ready for JSON; the one that was asked for comes first."""
    settings = inputs.resolve(hardware, overrides)
    found = inputs.read_measured(measured) if measured else inputs.default_measured()
    if measured and "hardware.speed" not in {word.partition("=")[0] for word in overrides}:
        # What was measured is what is meant: the speed of ours is relative to the measurement of ours.
        settings = settings.model_copy(update={"hardware": settings.hardware.model_copy(update={"speed": 1.0})})
    model = inputs.build(settings, found)
    if not model.throughput(1):
        raise UsageError(
            f"one node fails every {settings.upkeep.node_lifetime_hours:g} hours, before it gets on; give a larger "
            "upkeep.node_lifetime_hours, or a smaller upkeep.restart_seconds"
        )
    numbers = sorted(set(devices or DEVICES))
    order = [model.algorithm, *(name for name in ALGORITHMS if name != model.algorithm)]
    return {
        "hardware": hardware,
        "settings": settings.model_dump(mode="json"),
        "measured": {**found._asdict(), "steps": [list(step) for step in found.steps]},
        "algorithm": model.algorithm,
        "rows": [_row(replace(model, algorithm=name), number) for name in order for number in numbers],
        "best_checkpoint_interval": model.best_checkpoint_interval(numbers[-1]),
        "assumptions": assumptions(settings, found, model),
        "check": inputs.check(check) if check else [],
    }


def _row(model: CostModel, devices: int) -> dict[str, Any]:
    step = model.step(devices)
    return {
        "algorithm": model.algorithm,
        "devices": devices,
        "events_per_second": model.throughput(devices),
        "efficiency": model.efficiency(devices),
        "events_per_step": model.events_per_step(devices),
        "step_seconds": step.total,
        **step._asdict(),
    }


def assumptions(settings: ScalingSettings, found: inputs.Measured, model: CostModel) -> list[str]:
    """All that the numbers stand on, in sentences."""
    work, hardware, upkeep = model.work, settings.hardware, settings.upkeep
    inside, between = model.cluster.inside, model.cluster.between
    sizes = sorted({round(events) for events, _ in found.steps})
    per_event, per_step = fit_compute(found.steps)
    split = (
        f"a step costs {1e3 * per_step:.2f} ms and {1e6 * per_event:.2f} µs per event"
        if len(sizes) > 1
        else f"an event costs {1e6 * per_event:.2f} µs, however many are in a step: one size was measured"
    )
    batch = (
        f"All devices share {work.events:,.0f} events per step (strong scaling)."
        if work.fixed_global_batch
        else f"Every device has {work.events:,.0f} events per step, however many devices there are (weak scaling)."
    )
    return [
        f"Measured on one {found.device} ({found.source}): {split}; events of {found.num_elements} elements.",
        f"A device of the cluster has {hardware.speed:g} times the speed of the measured one.",
        batch,
        f"The gradient of {work.parameters:,} parameters has {work.gradient_bytes / 1e6:.1f} MB and is added up in every step.",
        f"Cluster: {hardware.title} ({hardware.source}).",
        f"{100 * hardware.usable:.0f} % of the nominal bandwidth is reached: {inside.bandwidth / 1e9:.0f} GB/s inside a node, "
        f"{between.bandwidth / 1e9:.0f} GB/s between nodes. A message takes {1e6 * inside.latency:g} µs inside and "
        f"{1e6 * between.latency:g} µs between.",
        f"{100 * work.overlap:.0f} % of the communication can hide behind the making of gradients, which is "
        f"{100 * work.backward:.0f} % of the computation.",
        f"Steps of devices vary independently, by {100 * work.spread:.1f} % ({_origin(settings, found)}), and all wait for the "
        "slowest.",
        "Data are there in time."
        if upkeep.loading is None
        else f"The file system gives {upkeep.loading:,.0f} events/s to all devices together.",
        f"A checkpoint takes {upkeep.checkpoint_seconds:g} s, every {upkeep.checkpoint_interval:g} s; a node fails every "
        f"{upkeep.node_lifetime_hours:,.0f} hours, and it takes {upkeep.restart_seconds:g} s to start again.",
    ]


def _origin(settings: ScalingSettings, found: inputs.Measured) -> str:
    if settings.work.spread is not None:
        return "given"
    return "assumed" if found.spread is None else "measured"


def show(result: Mapping[str, Any]) -> None:
    """Tables for people."""
    rows = [row for row in result["rows"] if row["algorithm"] == result["algorithm"]]
    cells = [[_cell(name, row) for name in _COLUMNS] for row in rows]
    table(f"{result['settings']['hardware']['title']}, {result['algorithm']} (parts of a step in ms)", _COLUMNS, cells)
    for sentence in result["assumptions"]:
        say(f"- {sentence}")
    for row in result["check"]:
        say(
            f"{row['workers']} processes: predicted {row['predicted_events_per_second']} events/s, measured "
            f"{row['measured_events_per_second']}: {row['error_percent']:+.1f} %"
        )


def _cell(name: str, row: Mapping[str, Any]) -> str:
    if name == "devices":
        return f"{row[name]:,}"
    if name == "events_per_second":
        return f"{row[name]:,.0f}"
    if name == "efficiency":
        return f"{row[name]:.3f}"
    return f"{1e3 * row['step_seconds' if name == 'step_ms' else name]:.3f}"


def write_page(result: Mapping[str, Any], out: Path) -> Path:
    """The page with figures, `result.json` beside it; the path of the page."""
    from ringflow.recipes.scaling_page import write_page as write

    return write(result, out)

"""The first thing to run: a small production, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringflow.data.check import check
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings

SETTINGS = (
    "generator.sample=ttbar",
    "production.events=200",
    "production.events_per_shard=100",
    "production.workers=2",
)


def demo(out: Path, *, overwrite: bool = False) -> dict[str, Any]:
    """Simulate 200 ttbar events into `out/ttbar` and check them; what is already there is kept unless `overwrite`."""
    dataset = out / "ttbar"
    summary = simulate(SimulateSettings.resolve(None, SETTINGS), dataset, overwrite=overwrite)
    gates = check(dataset)
    return {"dataset": str(dataset), "summary": summary, "gates": gates, "ok": all(gate["ok"] for gate in gates)}

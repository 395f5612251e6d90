"""Events to be shown, simulated once per process; nobody changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

EVENTS = 3


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of jets with hits and truth."""
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import SimulateSettings

    out: Path = tmp_path_factory.mktemp("shown") / "jets"
    sizes = [f"production.events={EVENTS}", "production.events_per_shard=2", "production.block_events=1"]
    simulate(SimulateSettings.resolve(None, ["generator.sample=zuds_91", "generator.seed=3", *sizes]), out)
    return out

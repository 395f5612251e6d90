"""Files that came from each other: a dataset, a run that learned from it, and what its network made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

SMALL = (
    "detector=fake",
    "model.width=16",
    "model.layers=1",
    "model.heads=2",
    "model.hidden=16",
    "length.events=60",
    "length.validate_every=30",
    "length.validation_events=4",
    "compute.batch_elements=100",
    "compute.device=cpu",
)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `data`, `run`, `gun` (a simulated dataset), `out.parquet` and `out.root`; nobody changes anything in it."""
    from fixtures.fake_events import write_fake_dataset
    from ringflow.recipes.reconstruct import reconstruct
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import SimulateSettings
    from ringflow.train.run import train
    from ringflow.train.settings import TrainSettings

    root: Path = tmp_path_factory.mktemp("made")
    write_fake_dataset(root / "data", events=40)
    train(TrainSettings.resolve(None, [f"data={root / 'data'}", *SMALL]), root / "run")
    reconstruct(root / "data", root / "out.parquet", model=root / "run", device="cpu")
    # An EDM4hep file has the field of a detector that is known: the events of a gun in one.
    sizes = ["production.events=12", "production.events_per_shard=5", "production.block_events=3"]
    simulate(SimulateSettings.resolve(None, ["generator.sample=gun_photon", "generator.seed=7", *sizes]), root / "gun")
    reconstruct(root / "gun", root / "out.root", model=root / "run", device="cpu", force=True)  # it knows `fake` alone
    return root


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder is looked through too: an empty one."""
    monkeypatch.chdir(tmp_path)

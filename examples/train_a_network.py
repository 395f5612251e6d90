"""Simulate a few events, train a very small network on them and reconstruct others.

Run it with `python examples/train_a_network.py`; it writes into a temporary folder and cleans up. A minute on two cores.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ringflow.data.read import Dataset
from ringflow.infer.session import open_session
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings

NUM_EVENTS = 60


def main() -> None:
    """From collisions to candidates."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = ["generator.sample=ww", f"production.events={NUM_EVENTS}", "production.keep_hits=false"]
        simulate(SimulateSettings.resolve(None, asked), folder / "ww")

        small = ["model.width=32", "model.layers=1", "length.events=480", "length.validate_every=240"]
        settings = TrainSettings.resolve("clic_tiny", [f"data={folder / 'ww'}", "compute.device=cpu", *small])
        result = train(settings, folder / "run")

        session = open_session(Path(result["model"]))
        for block in Dataset(folder / "ww").events(split="test", columns=["track", "cluster"]):
            candidates = session.reconstruct(block)
            for number, count in zip(block.event_number, candidates.counts, strict=True):
                print(f"event {number}: {count} candidates")


if __name__ == "__main__":
    main()

"""Write a dataset from arrays of one's own, check it and read it back.

Run it with `python examples/outside_data.py`; it writes into a temporary folder and cleans up.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import awkward as ak
import numpy as np

from ringflow.data.check import check
from ringflow.data.outside import write_dataset

NUM_EVENTS = 100


def main() -> None:
    """Somebody's own detector, here a random number generator."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(5, NUM_EVENTS)
    total = int(counts.sum())
    pt, eta, phi = rng.exponential(5, total) + 0.1, rng.normal(0, 1, total), rng.uniform(-np.pi, np.pi, total)
    tracks = ak.zip(
        {
            "pt": ak.unflatten(pt, counts),
            "eta": ak.unflatten(eta, counts),
            "phi": ak.unflatten(phi, counts),
            "charge": ak.unflatten(rng.choice([-1, 1], total), counts),
        }
    )
    # Every track hits the calorimeter, a barrel of 1.5 m, and leaves most of its energy there.
    clusters = ak.zip(
        {
            "energy": tracks.pt * np.cosh(tracks.eta) * 0.9,
            "x": 1500 * np.cos(tracks.phi),
            "y": 1500 * np.sin(tracks.phi),
            "z": 1500 * np.sinh(tracks.eta),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "mine"
        dataset = write_dataset(
            out,
            detector="mine",
            sample="random",
            tracks=tracks,
            clusters=clusters,
            provenance={"source": "a random number generator"},
        )
        verdicts = [row["ok"] for row in check(out)]
        train = dataset.to_awkward(split="train", columns=["track_pt", "cluster_energy"])
        print(f"{len(dataset)} events written, {sum(verdicts)} of {len(verdicts)} gates passed")
        print(f"{len(train)} training events, mean track pt {ak.mean(train.track.pt):.2f} GeV")


if __name__ == "__main__":
    main()

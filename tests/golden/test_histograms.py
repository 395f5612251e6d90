"""A small production against stored histograms: a change of physics shows here, wanted or not.

Regenerate after a wanted change, look at the difference, and commit it with the change:

    python tests/golden/test_histograms.py
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ringflow.event.block import EventBlock
from ringflow.sim.detector import Detector
from ringflow.sim.generator import make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings

STORED = Path(__file__).with_name("histograms.json")
SAMPLES = {"ttbar": 30, "zuds_91": 60, "ttbar_pu10": 6}
EDGES = {
    "track_pt": np.geomspace(0.1, 100, 13),
    "track_num_hits": np.arange(3.5, 20, 2),
    "cluster_energy": np.geomspace(0.1, 100, 13),
    "cluster_num_hits": np.geomspace(3, 3000, 9),
    "cluster_width_across": np.linspace(0, 120, 9),
    "hit_energy": np.geomspace(0.002, 1.0, 10),
    "hit_subsystem": np.arange(-0.5, 6),
    "hit_layer": np.linspace(0, 60, 13),
    "target_label": np.arange(0.5, 6),
    "target_energy": np.geomspace(0.1, 100, 13),
    "hit_target_label": np.arange(0.5, 6),
}


def simulate(sample: str, events: int) -> EventBlock:
    torch.set_num_threads(1)
    geometry = load_detector("clic")
    generator = make_generator(GeneratorSettings(sample=sample, seed=1), *geometry.tracker_cylinder)
    return Detector(geometry).simulate_block(generator.generate(0, events), seed=1)


def histograms(sample: str) -> dict[str, list[int]]:
    block = simulate(sample, SAMPLES[sample])
    made = {}
    for name, edges in EDGES.items():
        collection, column = next(
            (part, name.removeprefix(part + "_"))
            for part in ("hit_target", "track", "cluster", "hit", "target")
            if name.startswith(part)
        )
        made[name] = np.histogram(block[collection][column], edges)[0].tolist()
    return made


@pytest.mark.parametrize("sample", SAMPLES)
def test_histograms_are_the_stored_ones(sample: str):
    stored = json.loads(STORED.read_text(encoding="utf-8"))[sample]
    assert set(stored) == set(EDGES)
    for name, found in histograms(sample).items():
        expected = np.array(stored[name])
        # Another processor may round a few entries into the next bin; statistics would allow a hundred times as much.
        allowed = 2 + 0.002 * expected.sum()
        assert np.abs(np.array(found) - expected).max() <= allowed, (
            f"{sample} {name}: {found} instead of {stored[name]}"
        )


if __name__ == "__main__":
    STORED.write_text(json.dumps({sample: histograms(sample) for sample in SAMPLES}, indent=1) + "\n", encoding="utf-8")

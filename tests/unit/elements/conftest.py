"""A few simulated events with hits, tracks, clusters and truth."""

from __future__ import annotations

import pytest

from ringflow.event.block import EventBlock
from ringflow.sim.detector import Detector
from ringflow.sim.generator import make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings


@pytest.fixture(scope="session")
def block() -> EventBlock:
    """Five ttbar events in the clic detector."""
    geometry = load_detector("clic")
    generator = make_generator(GeneratorSettings(sample="ttbar", seed=5), *geometry.tracker_cylinder)
    return Detector(geometry).simulate_block(generator.generate(0, 5), seed=2)

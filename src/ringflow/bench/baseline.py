"""`ringflow bench baseline`: how fast the rules are, and how their time grows with the number of particles.

The exponent is fitted to events of 25, 50, 100 and 200 charged pions, as published for Pandora (1.4 to 1.8, arXiv:2309.06782).
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from ringflow.baseline.constants import load_constants
from ringflow.baseline.rules import reconstruct_block
from ringflow.bench.record import hardware
from ringflow.event.block import EventBlock
from ringflow.sim.generator import GeneratedEvents
from ringflow.sim.settings import GeneratorSettings

PIONS = (25, 50, 100, 200)
_PION = 211
_PION_MASS = 0.13957
_SEED = 20_263
_REPEATS = 3


def run(events: int, detector: str) -> dict[str, Any]:
    """Events per second on ttbar and milliseconds per event of pions, on one core, simulation not counted."""
    import torch

    from ringflow.sim.detector import Detector
    from ringflow.sim.generator import make_generator
    from ringflow.sim.geometry import load_detector

    torch.set_num_threads(1)
    geometry = load_detector(detector)
    simulator = Detector(geometry)
    generator = make_generator(GeneratorSettings(sample="ttbar", seed=_SEED), *geometry.tracker_cylinder)
    ttbar = simulator.simulate_block(generator.generate(0, events), _SEED)
    _seconds(ttbar.take(0, 1), detector)  # compiles the loops
    rows = []
    for pions in PIONS:
        block = simulator.simulate_block(many_pions(pions, max(events // pions, 4)), _SEED)
        seconds = _seconds(block, detector) / len(block)
        rows.append({"pions": pions, "milliseconds_per_event": round(1000.0 * seconds, 3)})
    slope = np.polyfit(np.log(PIONS), np.log([row["milliseconds_per_event"] for row in rows]), 1)[0]
    return {
        "benchmark": "baseline",
        "detector": detector,
        "events": events,
        "events_per_second_per_core": round(events / _seconds(ttbar, detector), 1),
        "pions": rows,
        "exponent": round(float(slope), 3),
        "published_exponent": [1.4, 1.8],
        **hardware("cpu"),
    }


def _seconds(block: EventBlock, detector: str) -> float:
    """Time to reconstruct a block: the median of a few runs."""
    constants = load_constants(detector)
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        reconstruct_block(block, constants)
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def many_pions(pions: int, events: int) -> GeneratedEvents:
    """Events of charged pions of 1 to 20 GeV, uniform over the barrel."""
    rng = np.random.default_rng(pions)
    count = pions * events
    energy = rng.uniform(1.0, 20.0, count)
    momentum = np.sqrt(energy**2 - _PION_MASS**2)
    cosine, azimuth = rng.uniform(-0.7, 0.7, count), rng.uniform(-np.pi, np.pi, count)
    transverse = momentum * np.sqrt(1.0 - cosine**2)
    direction = (transverse * np.cos(azimuth), transverse * np.sin(azimuth), momentum * cosine)
    charges = rng.choice([_PION, -_PION], count).astype(np.int32)
    return GeneratedEvents.at_origin(np.arange(events), np.full(events, pions), charges, direction, energy)

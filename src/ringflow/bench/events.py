"""`ringflow bench simulate` and `ringflow bench baseline`: how fast events are made, and reconstructed by rules.

On a CPU the whole production of ttbar events at 380 GeV is timed: generator, detector, hits, clusters, truth and writing,
start-up included. On a GPU the generator events are given and nothing is written: this is the rate at which a GPU can simulate
its own training data. How the time of the rules grows is fitted to events of 25, 50, 100 and 200 charged pions, as
published for Pandora (1.4 to 1.8, arXiv:2309.06782).
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ringflow.baseline.rules import load_constants, reconstruct_block
from ringflow.bench import growth, median_milliseconds
from ringflow.event.block import EventBlock
from ringflow.recipes.simulate import simulate as produce
from ringflow.sim.blocks import SimulatedBlocks
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, at_origin, make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings
from ringflow.train.device import choose_device, hardware, peak_memory, synchronize

#: Events per tensor batch on a GPU, which needs more of them to be busy than a CPU.
GPU_BLOCK_EVENTS = 4000
PIONS = (25, 50, 100, 200)
_PION, _PION_MASS = 211, 0.13957
_SIMULATE_SEED, _BASELINE_SEED = 20_261, 20_263
_BLOCKS = 4


def ttbar(seed: int, *, detector: str = "clic", **production: Any) -> SimulateSettings:
    """A production of ttbar events."""
    return SimulateSettings(
        detector=detector,
        generator=GeneratorSettings(sample="ttbar", seed=seed),
        production=ProductionSettings(**production),
    )


def simulate(events: int, workers: int, detector: str, device: str) -> dict[str, Any]:
    """Time a production and describe the machine it ran on."""
    measured = _production(events, workers, detector) if device == "cpu" else _on_device(events, detector, device)
    about = {"benchmark": "simulate", "sample": "ttbar", "detector": detector, "device": device}
    return {**about, **measured, **hardware(device)}


def _production(events: int, workers: int, detector: str) -> dict[str, Any]:
    settings = ttbar(_SIMULATE_SEED, detector=detector, events=events, workers=workers)
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as folder:
        summary = produce(settings, Path(folder) / "dataset")
    who = resource.RUSAGE_SELF if workers == 1 else resource.RUSAGE_CHILDREN
    peak = resource.getrusage(who).ru_maxrss / 1024
    # After the production, which pays for the imports itself as every worker does: block by block, the first to warm up.
    source, moments = SimulatedBlocks(settings), []
    for index in range(_BLOCKS + 1):
        start = time.perf_counter()
        generated = source.generate(index)
        middle = time.perf_counter()
        source.measure(generated, index)
        moments.append((middle - start, time.perf_counter() - middle))
    source.close()
    stages = 1000.0 * np.sum(moments[1:], axis=0) / (_BLOCKS * settings.production.block_events)
    return {
        "events": events,
        "workers": workers,
        "events_per_second": summary["events_per_second"],
        "events_per_second_per_core": round(summary["events_per_second"] / workers, 2),
        "peak_mb_per_worker": round(peak, 1),
        "kilobytes_per_event": round(summary["bytes"] / summary["events"] / 1000, 1),
        "milliseconds_per_event": dict(zip(("generate", "detector"), stages.round(3).tolist(), strict=True)),
    }


def _on_device(events: int, detector: str, device: str) -> dict[str, Any]:
    place = choose_device(device)
    geometry = load_detector(detector)
    generator = make_generator(ttbar(_SIMULATE_SEED).generator, *geometry.tracker_cylinder)
    count = max(1, events // GPU_BLOCK_EVENTS)
    blocks = [generator.generate(index * GPU_BLOCK_EVENTS, GPU_BLOCK_EVENTS) for index in range(count)]
    simulator = Detector(geometry, device)
    simulator.simulate(blocks[0], 0)  # allocations and kernel loading stay out of the number
    synchronize(place)
    start = time.perf_counter()
    hits = sum(len(simulator.simulate(block, seed)["hit"].event) for seed, block in enumerate(blocks))
    synchronize(place)
    seconds = time.perf_counter() - start
    total = count * GPU_BLOCK_EVENTS
    return {
        "events": total,
        "block_events": GPU_BLOCK_EVENTS,
        "events_per_second": round(total / seconds, 1),
        "mean_hits": round(hits / total, 1),
        "peak_gpu_mb": round(peak_memory(place) / 2**20, 1),
    }


def baseline(events: int, detector: str) -> dict[str, Any]:
    """Events per second on ttbar and milliseconds per event of pions, on one core, simulation not counted."""
    torch.set_num_threads(1)
    geometry, constants = load_detector(detector), load_constants(detector)
    simulator = Detector(geometry)
    generator = make_generator(ttbar(_BASELINE_SEED).generator, *geometry.tracker_cylinder)

    def milliseconds(block: EventBlock) -> float:
        return median_milliseconds(lambda: reconstruct_block(block, constants), least_seconds=0.0)[1] / len(block)

    tops = simulator.simulate_block(generator.generate(0, events), _BASELINE_SEED)
    reconstruct_block(tops.take(0, 1), constants)  # compiles the loops
    rows = []
    for pions in PIONS:
        block = simulator.simulate_block(many_pions(pions, max(events // pions, 4)), _BASELINE_SEED)
        rows.append({"pions": pions, "milliseconds_per_event": round(milliseconds(block), 3)})
    return {
        "benchmark": "baseline",
        "detector": detector,
        "events": events,
        "events_per_second_per_core": round(1000.0 / milliseconds(tops), 1),
        "pions": rows,
        "exponent": growth(rows, "pions", "milliseconds_per_event"),
        "published_exponent": [1.4, 1.8],
        **hardware("cpu"),
    }


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
    return at_origin(np.arange(events), np.full(events, pions), charges, *direction, energy)

"""`ringflow bench simulate`: how fast ttbar events at 380 GeV are made.

On a CPU the whole production is timed: generator, detector, hits, clusters, truth and writing, start-up included. On a GPU the
generator events are given and nothing is written: this is the rate at which a GPU can simulate its own training data.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from ringflow.bench.record import hardware
from ringflow.recipes.simulate import simulate
from ringflow.sim.blocks import SimulatedBlocks
from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings

SAMPLE = "ttbar"
#: Events per tensor batch on a GPU, which needs more of them to be busy than a CPU.
GPU_BLOCK_EVENTS = 4000
_SEED = 20_261


def run(events: int, workers: int, detector: str, device: str) -> dict[str, Any]:
    """Time a production and describe the machine it ran on."""
    measured = _production(events, workers, detector) if device == "cpu" else _on_device(events, detector, device)
    return {
        "benchmark": "simulate",
        "sample": SAMPLE,
        "detector": detector,
        "device": device,
        **measured,
        **hardware(device),
    }


def _production(events: int, workers: int, detector: str) -> dict[str, Any]:
    settings = SimulateSettings(
        detector=detector,
        generator=GeneratorSettings(sample=SAMPLE, seed=_SEED),
        production=ProductionSettings(events=events, workers=workers),
    )
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as folder:
        summary = simulate(settings, Path(folder) / "dataset")
    who = resource.RUSAGE_SELF if workers == 1 else resource.RUSAGE_CHILDREN
    return {
        "events": events,
        "workers": workers,
        "events_per_second": summary["events_per_second"],
        "events_per_second_per_core": round(summary["events_per_second"] / workers, 2),
        "peak_mb_per_worker": round(resource.getrusage(who).ru_maxrss / 1024, 1),
        "kilobytes_per_event": round(summary["bytes"] / summary["events"] / 1000, 1),
        # After the production, which pays for the imports itself as every worker does.
        "milliseconds_per_event": _stages(settings),
    }


def _stages(settings: SimulateSettings, blocks: int = 4) -> dict[str, float]:
    """Where the time goes, block by block in this process after a warm-up."""
    source = SimulatedBlocks(settings)
    size = settings.production.block_events
    spent = {"generate": 0.0, "detector": 0.0}
    for index in range(blocks + 1):
        start = time.perf_counter()
        generated = source.generate(index)
        middle = time.perf_counter()
        source.measure(generated, index)
        if index:
            spent["generate"] += middle - start
            spent["detector"] += time.perf_counter() - middle
    source.close()
    return {name: round(1000.0 * seconds / (blocks * size), 3) for name, seconds in spent.items()}


def _on_device(events: int, detector: str, device: str) -> dict[str, Any]:
    from ringflow.sim.detector import Detector
    from ringflow.sim.generator import make_generator
    from ringflow.sim.geometry import load_detector
    from ringflow.train.device import choose_device, peak_memory, synchronize

    place = choose_device(device)
    geometry = load_detector(detector)
    generator = make_generator(GeneratorSettings(sample=SAMPLE, seed=_SEED), *geometry.tracker_cylinder)
    count = max(1, events // GPU_BLOCK_EVENTS)
    blocks = [generator.generate(index * GPU_BLOCK_EVENTS, GPU_BLOCK_EVENTS) for index in range(count)]
    simulator = Detector(geometry, device)
    simulator.simulate(blocks[0], 0)  # allocations and kernel loading stay out of the number
    synchronize(place)
    start = time.perf_counter()
    hits = 0
    for seed, block in enumerate(blocks):
        hits += len(simulator.simulate(block, seed).collections["hit"].event)
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

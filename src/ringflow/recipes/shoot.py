"""Measurements with particle guns: what `ringflow validate` and `ringflow calibrate` are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ringflow.base.log import progress
from ringflow.event.block import EventBlock

Floats = npt.NDArray[np.float64]
Task = TypeVar("Task")
Result = TypeVar("Result")

_EVENTS_PER_BLOCK = 200
#: How near in relative pt and in eta a track must be to be the track of the particle.
_SAME_PT, _SAME_ETA = 0.5, 0.1
#: cos theta of particles well inside the barrel.
BARREL = (-0.7, 0.7)


@dataclass(frozen=True)
class Shot:
    """A gun in a detector: particles, total energy in GeV, range of cos theta, events."""

    detector: str
    pdg: tuple[int, ...]
    energy: float
    cos_theta: tuple[float, float]
    events: int
    seed: int


@dataclass(frozen=True)
class Observation:
    """What a gun left, event by event."""

    calorimeter: Floats  # sum of all hits at the electromagnetic scale, GeV
    found: npt.NDArray[np.bool_]  # whether the particle itself was found, not only something it turned into
    pt_ratio: Floats  # measured over true pt of the tracks found


def observe(shot: Shot) -> Observation:
    """Simulate a gun and reduce it to its observables; deterministic in the seed."""
    parts = [_observables(block) for block in simulate_shot(shot)]
    return Observation(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def simulate_shot(shot: Shot) -> Iterator[EventBlock]:
    """The events of a gun, block by block."""
    # Late imports: a worker pays for torch, the command that only prints a table does not.
    import torch

    from ringflow.sim.detector import Detector
    from ringflow.sim.generator import Gun, GunGenerator
    from ringflow.sim.geometry import load_detector

    torch.set_num_threads(1)
    gun = Gun(description="fixed energy", pdg=shot.pdg, energy=(shot.energy, shot.energy), cos_theta=shot.cos_theta)
    generator = GunGenerator(f"gun {shot.pdg} {shot.energy}", gun, shot.seed)
    detector = Detector(load_detector(shot.detector))
    for start in range(0, shot.events, _EVENTS_PER_BLOCK):
        generated = generator.generate(start, min(_EVENTS_PER_BLOCK, shot.events - start))
        yield detector.simulate_block(generated, shot.seed * 1_000_003 + start)


def _observables(block: EventBlock) -> tuple[Floats, npt.NDArray[np.bool_], Floats]:
    hits, tracks, particles = block["hit"], block["track"], block["particle"]
    event = np.repeat(np.arange(len(block)), hits.counts)
    energy = np.bincount(event, weights=hits["energy"], minlength=len(block)).astype(np.float64)
    of = np.repeat(np.arange(len(block)), tracks.counts)  # one particle per event
    true_pt = np.hypot(particles["px"], particles["py"]).astype(np.float64)
    true_eta = np.arcsinh(particles["pz"] / true_pt)
    ratio = tracks["pt"] / true_pt[of]
    same = (np.abs(ratio - 1.0) < _SAME_PT) & (np.abs(tracks["eta"] - true_eta[of]) < _SAME_ETA)
    found = np.bincount(of[same], minlength=len(block)) > 0
    return energy, found, ratio[same].astype(np.float64)


def run_all(measure: Callable[[Task], Result], tasks: Sequence[Task], workers: int, what: str) -> list[Result]:
    """Measure every task, on several processes if asked to, with progress."""
    with progress(len(tasks), what) as advance:
        if workers == 1:
            results = []
            for task in tasks:
                results.append(measure(task))
                advance(1)
            return results
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            results = []
            for result in pool.map(measure, tasks):
                results.append(result)
                advance(1)
            return results


def core_resolution(values: Floats) -> float:
    """Half the width of the central 68 % over the median: the sigma of a Gaussian, untouched by tails."""
    low, middle, high = np.quantile(values, [0.15865, 0.5, 0.84135])
    return float((high - low) / (2.0 * middle))

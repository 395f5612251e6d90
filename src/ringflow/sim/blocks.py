"""Simulated events, block by block: those of a production, and those of the guns that validate and calibrate a detector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ringflow.base.log import progress
from ringflow.base.processes import keep_freed_memory
from ringflow.event.block import Collection, EventBlock
from ringflow.sim.generator import GeneratedEvents, Generator, Gun, GunGenerator, block_seed, make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import SimulateSettings

Floats = npt.NDArray[np.float64]
Task = TypeVar("Task")
Result = TypeVar("Result")

_HIT_COLLECTIONS = ("hit", "hit_link", "hit_target")
_EVENTS_PER_BLOCK = 200
#: How near in relative pt and in eta a track must be to be the track of the particle.
_SAME_PT, _SAME_ETA = 0.5, 0.1
#: cos theta of particles well inside the barrel.
BARREL = (-0.7, 0.7)


def open_generator(settings: SimulateSettings) -> Generator:
    """The generator of a production."""
    return make_generator(settings.generator, *load_detector(settings.detector).tracker_cylinder)


class SimulatedBlocks:
    """Blocks of simulated events: generator and detector, opened once per process.

    A block is always made whole, with random numbers of its own, so that its events do not depend on what is asked for.
    """

    def __init__(self, settings: SimulateSettings) -> None:
        import torch

        from ringflow.sim.detector import Detector  # late: who reads settings or a table does not pay for torch

        # One thread per worker: sums in another order would be other events, and the cores belong to the workers.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        keep_freed_memory()
        self._settings = settings
        self._detector = Detector(load_detector(settings.detector), settings.production.device)
        self._generator = open_generator(settings)

    def block(self, index: int) -> EventBlock:
        """Events number `index * block_events` and following (fewer at the end of a file)."""
        events = self.measure(self.generate(index), index)
        return events if self._settings.production.keep_hits else without_hits(events)

    def generate(self, index: int) -> GeneratedEvents:
        """The collisions of a block."""
        size = self._settings.production.block_events
        return self._generator.generate(index * size, size)

    def measure(self, generated: GeneratedEvents, index: int) -> EventBlock:
        """What the detector makes of them."""
        return self._detector.simulate_block(generated, block_seed(self._settings.generator.seed, index))

    def close(self) -> None:
        """Give the process its threads back."""
        import torch

        torch.set_num_threads(self._threads_before)


def without_hits(events: EventBlock) -> EventBlock:
    """Drop the hits and what points to them."""
    particles = events["particle"]
    columns = {name: values for name, values in particles.columns.items() if name != "hit_target"}
    kept = {name: part for name, part in events.collections.items() if name not in _HIT_COLLECTIONS}
    return EventBlock(events.event_number, {**kept, "particle": Collection(particles.counts, columns)})


class Shot(NamedTuple):
    """A gun in a detector: particles, total energy in GeV, range of cos theta, events."""

    detector: str
    pdg: tuple[int, ...]
    energy: float
    cos_theta: tuple[float, float]
    events: int
    seed: int


class Observation(NamedTuple):
    """What a gun left, event by event."""

    calorimeter: Floats  # sum of all clusters, before any hadronic scale, GeV
    found: npt.NDArray[np.bool_]  # whether the particle itself was found, not only something it turned into
    pt_ratio: Floats  # measured over true pt of the tracks found


def observe(shot: Shot) -> Observation:
    """Simulate a gun and reduce it to its observables; deterministic in the seed."""
    parts = []
    for block in simulate_shot(shot):
        clusters, tracks, particles = block["cluster"], block["track"], block["particle"]
        event = np.repeat(np.arange(len(block)), clusters.counts)
        energy = np.bincount(event, weights=clusters["energy"], minlength=len(block)).astype(np.float64)
        of = np.repeat(np.arange(len(block)), tracks.counts)  # one particle per event
        true_pt = np.hypot(particles["px"], particles["py"]).astype(np.float64)
        true_eta = np.arcsinh(particles["pz"] / true_pt)
        ratio = tracks["pt"] / true_pt[of]
        same = (np.abs(ratio - 1.0) < _SAME_PT) & (np.abs(tracks["eta"] - true_eta[of]) < _SAME_ETA)
        parts.append((energy, np.bincount(of[same], minlength=len(block)) > 0, ratio[same].astype(np.float64)))
    return Observation(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def simulate_shot(shot: Shot) -> Iterator[EventBlock]:
    """The events of a gun, block by block."""
    import torch

    from ringflow.sim.detector import Detector

    torch.set_num_threads(1)
    gun = Gun(description="fixed energy", pdg=shot.pdg, energy=(shot.energy, shot.energy), cos_theta=shot.cos_theta)
    generator = GunGenerator(f"gun {shot.pdg} {shot.energy}", gun, shot.seed)
    detector = Detector(load_detector(shot.detector))
    for start in range(0, shot.events, _EVENTS_PER_BLOCK):
        generated = generator.generate(start, min(_EVENTS_PER_BLOCK, shot.events - start))
        yield detector.simulate_block(generated, shot.seed * 1_000_003 + start)


def run_all(measure: Callable[[Task], Result], tasks: Sequence[Task], workers: int, what: str) -> list[Result]:
    """Measure every task, on several processes if asked to, with progress."""
    # A pool starts no process before it is given work.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    with progress(len(tasks), what) as advance, pool:
        results = []
        for result in map(measure, tasks) if workers == 1 else pool.map(measure, tasks):
            results.append(result)
            advance(1)
        return results

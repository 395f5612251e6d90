"""What one of several processes does for `ringflow bench scaling`: train with the others on random elements, and time it.

A step is that of the trainer, with its loss, its optimiser, its average and all that the processes say to each other. Every
process has one batch per step, so that the work of a process does not depend on how many there are (weak scaling).
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from typing import Any, NamedTuple

import torch

from ringflow import __version__
from ringflow.bench.train import KeptChunk, random_chunk
from ringflow.models.model import Model
from ringflow.train.batches import Feed
from ringflow.train.device import choose_device, is_accelerator, synchronize
from ringflow.train.parallel.places import Places
from ringflow.train.profile.traffic import Traffic
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep
from ringflow.train.team import ALONE, Team, joined

#: Steps before the clock starts: memory is taken, buckets of gradients are arranged; an accelerator compiles.
_WARM_UP, _WARM_UP_COMPILED = 3, 10
_LEAST_STEPS = 3
_RATE = 1e-4
#: Batches that a process has; it goes through them again and again.
_BATCHES = 4
#: Bytes of the sums that are timed alone, beside one as long as the gradient, and how often.
_SUMS, _SUMS_TIMED = (4_096, 65_536, 1_048_576), 11
FLOAT_BYTES = 4


class Workload(NamedTuple):
    """What is computed, for how long, and how."""

    settings: TrainSettings
    num_elements: int
    seconds: float
    threads: int
    apart: bool = False  # every process trains a network of its own, at the same time as the others


def measure(work: Workload) -> dict[str, Any]:
    """Time the processes of this team; what was found is the same in all of them."""
    device = choose_device(work.settings.compute.device)
    if not is_accelerator(device):
        torch.set_num_threads(work.threads)
    with joined(device, work.settings.compute.timeout) as team:
        team.agree("version of ringflow", __version__)
        found = _measured(work, device, team)
        # The network holds the group of processes, and goes in circles. One that outlives the end of the group can abort this
        # process when it ends, because threads of torch want Python when there is none any more.
        gc.collect()
        return found


def _measured(work: Workload, device: torch.device, team: Team) -> dict[str, Any]:
    trainee = _Trainee(work, device, ALONE if work.apart else team)
    ready = time.time()
    warm = [trainee.timed_step() for _ in range(_WARM_UP_COMPILED if is_accelerator(device) else _WARM_UP)]
    steps = team.tell(max(_LEAST_STEPS, math.ceil(work.seconds / max(min(warm), 1e-6))))
    traffic = Traffic()
    team.add([0.0])
    start = time.perf_counter()
    seconds = [trainee.timed_step() for _ in range(steps)]
    synchronize(device)
    team.add([0.0])
    elapsed = time.perf_counter() - start
    told = team.gather((ready, trainee.events, traffic.sent or 0))
    events = sum(found for _, found, _ in told[:: trainee.places.parts]) // (len(warm) + steps)
    return {
        "workers": team.size,
        "apart": work.apart,
        "strategy": work.settings.compute.strategy,
        "device": str(device),
        "parameters": trainee.parameters,
        "events_per_step": events,
        "steps": steps,
        "seconds_per_step": elapsed / steps,
        "events_per_second": events * steps / elapsed,
        # An accelerator is behind: the host sees only when it asks.
        "step_spread": None if is_accelerator(device) else _spread(seconds),
        "first_step_at": max(when for when, _, _ in told),
        "bytes_per_step": None if traffic.reason else statistics.mean(sent for *_, sent in told) / steps,
        "all_reduce": [] if work.apart or team.size == 1 else _sums(team, device, trainee.parameters),
    }


class _Trainee:
    """The training of one process."""

    def __init__(self, work: Workload, device: torch.device, team: Team) -> None:
        settings = work.settings
        compute, budget = settings.compute, settings.compute.batch_elements
        self.places = Places.of(team.rank, team.size, compute.strategy, compute.parts)
        self._team, self.events, self._steps = team, 0, 0
        torch.manual_seed(settings.seed)
        chunk = random_chunk(work.num_elements, _BATCHES * (budget // work.num_elements)).to(device)
        model = Model(settings.model).to(device)
        model.embedding.fit(chunk.features_NF)
        self.parameters = model.num_parameters
        self._step = TrainingStep(model, settings, device, team)
        # The parts of a copy share its batches: as many as they are.
        self._feeds = [
            Feed(KeptChunk(chunk), budget=budget, reuse=1_000_000, seed=settings.seed, device=device, lane=lane)
            for lane in self.places.lanes(team.size)
        ]

    def timed_step(self) -> float:
        """Take a step as the trainer does, with what processes tell each other in it; its seconds."""
        start = time.perf_counter()
        batches = [feed.next(0) for feed in self._feeds]
        computed = sum(batch.elements.num_elements for batch in batches)
        real = sum(batch.num_elements for batch in batches)
        own = sum(batch.num_events for batch in batches)
        self._team.add([own, computed, real, 0.0, 0.0])
        self._step.take(batches, self._steps, _RATE)
        if self._step.records.full:
            self._step.records.read()
        self._steps += 1
        self.events += own
        return time.perf_counter() - start


def _spread(seconds: list[float]) -> float:
    """Standard deviation of the logarithm of a step's time; by its quartiles, so that one interruption does not count."""
    logarithms = [math.log(value) for value in seconds]
    low, _, high = statistics.quantiles(logarithms, n=4)
    return (high - low) / 1.349


def _sums(team: Team, device: torch.device, parameters: int) -> list[dict[str, float]]:
    """What it takes to add up so many bytes over all processes, without anything else going on."""
    found = []
    for size in sorted({*_SUMS, FLOAT_BYTES * parameters}):
        tensor = torch.zeros(size // FLOAT_BYTES, device=device)
        seconds = []
        for _ in range(_SUMS_TIMED):
            team.add([0.0])
            start = time.perf_counter()
            team.add_(tensor)
            synchronize(device)
            seconds.append(time.perf_counter() - start)
        found.append({"bytes": size, "seconds": statistics.median(seconds[1:])})
    return found

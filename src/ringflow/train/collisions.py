"""Events that are made while they are learned from: what the worker processes of a training do.

A stream is the endless row of events of one sample, cut into blocks; block `index` is a pure function of the stream and the
index, whoever makes it. The seed of a stream is mixed from the seed of the training, the purpose of the stream and the name of
the sample, and is at least 2^62: no seed that `ringflow simulate` is given by hand makes the same events, so that what is
simulated to test a model was never learned from.
"""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ringflow.base.processes import die_with_parent, interrupts_held_back, keep_freed_memory
from ringflow.event.block import EventBlock
from ringflow.sim.generator import GeneratedEvents, Generator, block_seed, make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings

if TYPE_CHECKING:
    from ringflow.sim.detector import Detector

#: What a stream is for; the streams of one seed share no events.
TRAINING, VALIDATION = 1, 2


class Stream(NamedTuple):
    """Events of one sample in a detector, in blocks of `block_events`."""

    sample: str
    detector: str
    seed: int
    block_events: int


def stream_seed(seed: int, purpose: int, sample: str) -> int:
    """Seed of a stream, between 2^62 and 2^63."""
    mixed = np.random.SeedSequence([seed, purpose, *sample.encode()]).generate_state(1, np.uint64)[0]
    return (int(mixed) >> 2) | (1 << 62)


def start_workers(size: int) -> ProcessPoolExecutor:
    """Processes that make blocks: deaf to Ctrl-C, which their parent answers, and gone when it is."""
    with interrupts_held_back():
        pool = ProcessPoolExecutor(size, mp_context=get_context("spawn"), initializer=_begin_work)
        for _ in range(size):
            pool.submit(int)  # nothing: a process is started when work is handed in, and all shall be started in here
    return pool


def generate(stream: Stream, index: int) -> GeneratedEvents:
    """The collisions of a block."""
    return _generator(stream).generate(index * stream.block_events, stream.block_events)


def simulate(stream: Stream, index: int) -> EventBlock:
    """A block through the detector, on one core."""
    return _detector(stream.detector).simulate_block(generate(stream, index), block_seed(stream.seed, index))


def elements(stream: Stream, index: int, calorimeter: str) -> dict[str, Any]:
    """The elements of a block with their targets, as numpy columns that travel well between processes."""
    from ringflow.data.chunks import to_tensors
    from ringflow.elements.batch import from_block

    batch = from_block(simulate(stream, index), calorimeter, with_targets=True)
    return {name: column.numpy() for name, column in to_tensors(batch).items()}


def _begin_work() -> None:
    # Those that ask a training to end may be sent to all its processes; it ends its workers itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=die_with_parent, daemon=True).start()
    keep_freed_memory()


@cache
def _generator(stream: Stream) -> Generator:
    cylinder = load_detector(stream.detector).tracker_cylinder
    return make_generator(GeneratorSettings(sample=stream.sample, seed=stream.seed), *cylinder)


@cache
def _detector(name: str) -> Detector:
    import torch

    from ringflow.sim.detector import Detector

    # Sums in another order would be other events, and the cores belong to the workers.
    torch.set_num_threads(1)
    return Detector(load_detector(name))

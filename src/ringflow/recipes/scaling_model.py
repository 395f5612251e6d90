"""What a training costs on many devices: a model of one step, from few numbers that can be measured.

    model = CostModel(cluster, work, upkeep)
    model.throughput(1024), model.efficiency(1024), model.step(1024)

A step computes, adds up its gradients, waits for the slowest device and for data; now and then a checkpoint is written, and a
node fails. Data-parallel training is meant: every device has the whole network and its own events. Times are in seconds, sizes
in bytes, rates per second. Nothing here is slow: a replay of a search calls it ten thousand times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal, NamedTuple, get_args

Algorithm = Literal["ring", "hierarchical", "tree", "server"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

_NORMAL = NormalDist()


@dataclass(frozen=True)
class Link:
    """A way between two places: what it carries in one direction, and how long the first byte takes."""

    bandwidth: float
    latency: float

    def seconds(self, size: float, messages: int) -> float:
        """To send so many bytes in so many messages one after the other."""
        return size / self.bandwidth + messages * self.latency


@dataclass(frozen=True)
class Cluster:
    """Devices in nodes. `inside` is the link of a device to the others of its node, `between` that of a node to the others."""

    devices_per_node: int
    inside: Link
    between: Link
    #: How much longer a device computes when all others of its node do, too: they may share memory.
    contention: float = 1.0

    def slowdown(self, devices: int) -> float:
        """How much longer a device computes when so many do."""
        busy, most = min(devices, self.devices_per_node), self.devices_per_node
        return 1.0 + (self.contention - 1.0) * (busy - 1) / (most - 1) if most > 1 else 1.0


@dataclass(frozen=True)
class Work:
    """What is computed in a step."""

    parameters: int
    seconds_per_event: float
    #: Of a device in a step; of all devices together if the global batch is fixed.
    events: float
    #: What a step costs however small it is: starting kernels, moving the weights.
    seconds_per_step: float = 0.0
    #: The global batch stays as it is, however many devices share it (strong scaling); else it grows with them (weak).
    fixed_global_batch: bool = False
    #: Standard deviation of the logarithm of a step's time.
    spread: float = 0.0
    #: Part of the communication that can go on while gradients are computed.
    overlap: float = 0.0
    #: Part of the computation in which gradients are computed.
    backward: float = 2.0 / 3.0
    bytes_per_parameter: int = 4

    @property
    def gradient_bytes(self) -> int:
        """What every device has to add up with the others."""
        return self.bytes_per_parameter * self.parameters

    def events_per_device(self, devices: int) -> float:
        """In a step."""
        return self.events / devices if self.fixed_global_batch else self.events


@dataclass(frozen=True)
class Upkeep:
    """What a training needs beside its steps."""

    #: Events that the file system gives to all devices together.
    loading: float = math.inf
    checkpoint_seconds: float = 0.0
    checkpoint_interval: float = 600.0
    #: Mean time between failures of one node.
    node_lifetime: float = math.inf
    #: From a failure to the next step, with what was lost since the last checkpoint counted apart.
    restart_seconds: float = 0.0


class StepTimes(NamedTuple):
    """Where the seconds of a step go; those of checkpoints and failures are shared out evenly over all steps."""

    compute: float
    communication: float  # that is not hidden behind the computation
    waiting: float  # for the slowest device
    data: float
    checkpoint: float
    lost: float  # done again after failures, and starting again
    hidden: float  # communication behind the computation; not part of the sum

    @property
    def total(self) -> float:
        """Seconds of a step, all in all."""
        return self.compute + self.communication + self.waiting + self.data + self.checkpoint + self.lost


@dataclass(frozen=True)
class CostModel:
    """A training on a cluster."""

    cluster: Cluster
    work: Work
    upkeep: Upkeep = Upkeep()
    algorithm: Algorithm = "tree"

    def step(self, devices: int) -> StepTimes:
        """Where the time of a step on so many devices goes."""
        if devices not in self._known:
            self._known[devices] = self._step(devices)
        return self._known[devices]

    @cached_property
    def _known(self) -> dict[int, StepTimes]:
        return {}

    def _step(self, devices: int) -> StepTimes:
        work = self.work
        own = work.events_per_device(devices)
        compute = (work.seconds_per_step + own * work.seconds_per_event) * self.cluster.slowdown(devices)
        added_up = sum_seconds(self.algorithm, devices, work.gradient_bytes, self.cluster)
        hidden = min(work.overlap * added_up, work.backward * compute)
        waiting = compute * (math.exp(work.spread * slowest_of(devices)) - 1.0)
        busy = compute + added_up - hidden + waiting
        data = max(own * devices / self.upkeep.loading - busy, 0.0)
        checkpoint, lost = self._shares(devices, busy + data)
        return StepTimes(compute, added_up - hidden, waiting, data, checkpoint, lost, hidden)

    def _shares(self, devices: int, useful: float) -> tuple[float, float]:
        """Seconds of checkpoints and of failures that belong to a step (to first order, as J. W. Young, CACM 17 (1974) 530)."""
        upkeep = self.upkeep
        checkpoint = useful * upkeep.checkpoint_seconds / upkeep.checkpoint_interval
        per_failure = upkeep.restart_seconds + (upkeep.checkpoint_interval + upkeep.checkpoint_seconds) / 2.0
        lost_share = per_failure * self.failures_per_second(devices)
        if lost_share >= 1.0:
            return checkpoint, math.inf  # it fails faster than it gets on
        return checkpoint, (useful + checkpoint) * lost_share / (1.0 - lost_share)

    def failures_per_second(self, devices: int) -> float:
        """Of all nodes."""
        return nodes(devices, self.cluster) / self.upkeep.node_lifetime

    def best_checkpoint_interval(self, devices: int) -> float:
        """The time between checkpoints that costs least (Young)."""
        rate = self.failures_per_second(devices)
        return math.sqrt(2.0 * self.upkeep.checkpoint_seconds / rate) if rate else math.inf

    def step_seconds(self, devices: int) -> float:
        """Seconds of a step, with its share of everything."""
        return self.step(devices).total

    def events_per_step(self, devices: int) -> float:
        """Of all devices."""
        return devices * self.work.events_per_device(devices)

    def throughput(self, devices: int) -> float:
        """Events per second of all devices."""
        return self.events_per_step(devices) / self.step_seconds(devices)

    def efficiency(self, devices: int) -> float:
        """Throughput against that of one device times their number."""
        return self.throughput(devices) / (devices * self.throughput(1))

    @property
    def restart_seconds(self) -> float:
        """From the end of a training to its next step, on other devices or after a failure."""
        return self.upkeep.restart_seconds


def nodes(devices: int, cluster: Cluster) -> int:
    """Nodes that so many devices take."""
    return -(-devices // cluster.devices_per_node)


def sum_seconds(algorithm: Algorithm, devices: int, size: float, cluster: Cluster) -> float:
    """To add up `size` bytes over all devices so that each has the sum, when nothing else goes on.

    - ring: scatter-reduce and all-gather through all devices: 2(n-1)/n of the bytes and 2(n-1) messages; it is as fast as its
      slowest link
    - hierarchical: scatter-reduce in the node, a ring of nodes in which every device has its slice, all-gather in the node
    - tree: the same, between nodes by halving and doubling: as many bytes as a ring, in 2 log2(nodes) messages
      (R. Rabenseifner, ICCS 2004)
    - server: every device sends all to one place and gets all back: 2n times the bytes through its link
    """
    if devices == 1:
        return 0.0
    inside, between, several = cluster.inside, cluster.between, devices > cluster.devices_per_node
    if algorithm == "server":
        return (between if several else inside).seconds(2 * devices * size, 2)
    rounds = 2 * (devices - 1)
    if not several:
        return inside.seconds(rounds / devices * size, rounds)
    if algorithm == "ring":
        narrow = Link(min(inside.bandwidth, between.bandwidth), max(inside.latency, between.latency))
        return narrow.seconds(rounds / devices * size, rounds)
    members, houses = cluster.devices_per_node, nodes(devices, cluster)
    messages = 2 * (houses - 1) if algorithm == "hierarchical" else 2 * math.ceil(math.log2(houses))
    within = inside.seconds(2 * (members - 1) / members * size, 2 * (members - 1))
    return within + between.seconds(2 * (houses - 1) / houses * size, messages)


def slowest_of(devices: int) -> float:
    """How many standard deviations the largest of so many normal numbers is above their mean (G. Blom, 1958)."""
    return _NORMAL.inv_cdf((devices - 0.375) / (devices + 0.25)) if devices > 1 else 0.0


def fit_compute(steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds per event and seconds per step out of steps of several sizes, given as (events, seconds).

    Relative errors are the same for all sizes. With a single size everything is counted per event.
    """
    per_event, per_step = _line([(events, seconds) for events, seconds in steps])
    if per_step < 0.0 or per_event <= 0.0:
        return sum(seconds / events for events, seconds in steps) / len(steps), 0.0
    return per_event, per_step


def fit_link(devices: int, sums: Sequence[tuple[float, float]]) -> Link:
    """The link that makes rings of so many devices take these times, given as (bytes, seconds)."""
    rounds = 2 * (devices - 1)
    per_byte, offset = _line([(rounds / devices * size, seconds) for size, seconds in sums])
    return Link(1.0 / max(per_byte, 1e-15), max(offset, 0.0) / rounds)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and offset of the line whose relative distances to the points are least."""
    weights = [1.0 / y**2 for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    if spread <= 1e-12 * total * mean_x**2:
        return mean_y / mean_x, 0.0
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    return slope, mean_y - slope * mean_x

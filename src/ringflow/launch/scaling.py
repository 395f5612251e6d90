"""What a training costs on many devices, and `ringflow scaling-model`, which predicts it.

    model = CostModel(resolve("h200", ["work.algorithm=ring"]))
    model.throughput(1024), model.efficiency(1024), model.step(1024)
    predict("h200", ["work.global_batch=fixed"])["rows"]

A step computes, adds up its gradients, waits for the slowest device and for data; now and then a checkpoint is written, and a
node fails. Data-parallel training is meant: every device has the whole network and its own events. Times are in seconds, sizes
in bytes, rates per second. Nothing here is slow: a replay of a search asks ten thousand times.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any, Literal, NamedTuple, get_args
from warnings import catch_warnings, simplefilter

import numpy as np
from pydantic import Field

from ringflow.base.config import Settings, override
from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.output import show_table
from ringflow.base.words import did_you_mean

Algorithm = Literal["ring", "hierarchical", "tree", "server"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
DEVICES = tuple(2**power for power in range(13))

#: Clusters by name, and under `measured` the steps of one device.
_KNOWN: dict[str, Any] = tomllib.loads(Path(__file__).with_name("clusters.toml").read_text(encoding="utf-8"))
_MEASURED = "measured"
CLUSTERS: Mapping[str, Mapping[str, Any]] = {name: found for name, found in _KNOWN.items() if name != _MEASURED}
#: What a record of a benchmark must have.
_FIELDS = {
    "train": ("parameters", "num_elements", "batch_elements", "train_events_per_second"),
    "scaling": ("parameters", "num_elements", "rows", "all_reduce"),
}
#: Of the time of a step, where it was not measured.
_ASSUMED_SPREAD = 0.02
#: The batch of so many devices is shared by all of them if it is fixed and not given.
_SHARED_BATCHES = 64


class HardwareSettings(Settings):
    """Devices, nodes and the links between them."""

    #: What the page calls it.
    title: str = "a cluster"
    #: Where these figures come from.
    source: str = "given on the command line"
    #: Devices that share a node.
    devices_per_node: int = Field(default=8, ge=1)
    #: Bytes per second in one direction, nominal, of a device in its node.
    inside_bandwidth: float = Field(default=450e9, gt=0.0, allow_inf_nan=False)
    #: Bytes per second in one direction, nominal, of all ports of a node together.
    between_bandwidth: float = Field(default=400e9, gt=0.0, allow_inf_nan=False)
    #: Seconds per message in a node.
    inside_latency: float = Field(default=2e-6, ge=0.0, allow_inf_nan=False)
    #: Seconds per message between nodes.
    between_latency: float = Field(default=5e-6, ge=0.0, allow_inf_nan=False)
    #: Share of the nominal bandwidth that is reached.
    usable: float = Field(default=0.8, gt=0.0, le=1.0)
    #: How much longer a device computes when all others of its node do, too.
    contention: float = Field(default=1.0, ge=1.0, allow_inf_nan=False)
    #: Speed of a device relative to the measured one.
    speed: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)


class WorkSettings(Settings):
    """A step. What is not given is taken from the measurement."""

    #: How gradients are added up.
    algorithm: Algorithm = "tree"
    #: Whether the batch of all devices grows with their number (weak scaling) or stays (strong scaling).
    global_batch: Literal["grows", "fixed"] = "grows"
    #: Events of a step: of every device if the global batch grows, of all of them if it is fixed.
    events: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    #: Parameters of the network.
    parameters: int | None = Field(default=None, ge=1)
    #: Computing time of an event on one device.
    seconds_per_event: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    #: Computing time of a step beside its events.
    seconds_per_step: float | None = Field(default=None, ge=0.0, allow_inf_nan=False)
    #: Standard deviation of the logarithm of a step's time.
    spread: float | None = Field(default=None, ge=0.0, le=1.0)
    #: Part of the communication that can go on while gradients are computed.
    overlap: float = Field(default=0.8, ge=0.0, le=1.0)
    #: Part of the computation in which gradients are computed.
    backward: float = Field(default=0.6667, ge=0.0, le=1.0)
    #: Bytes that travel per parameter; 4: gradients as float32.
    bytes_per_parameter: int = Field(default=4, ge=1)


class UpkeepSettings(Settings):
    """Data, checkpoints and failures."""

    #: Events per second that the file system gives to all devices together; none: it does not limit.
    loading: float | None = Field(default=None, gt=0.0, allow_inf_nan=False)
    #: Seconds that a checkpoint takes.
    checkpoint_seconds: float = Field(default=2.0, ge=0.0, allow_inf_nan=False)
    #: Seconds between checkpoints.
    checkpoint_interval: float = Field(default=600.0, gt=0.0, allow_inf_nan=False)
    #: Mean time between failures of a node; 419 in 54 days on 2,048 nodes (Llama 3, arXiv:2407.21783).
    node_lifetime_hours: float = Field(default=6300.0, gt=0.0, allow_inf_nan=False)
    #: From a failure to the next step.
    restart_seconds: float = Field(default=120.0, ge=0.0, allow_inf_nan=False)


class ScalingSettings(Settings):
    """Everything that a prediction needs beside a measurement."""

    hardware: HardwareSettings = HardwareSettings()
    work: WorkSettings = WorkSettings()
    upkeep: UpkeepSettings = UpkeepSettings()


class Link(NamedTuple):
    """A way between two places: bytes per second in one direction, and how long the first byte takes."""

    bandwidth: float
    latency: float

    def seconds(self, size: float, messages: int) -> float:
        """To send so many bytes in so many messages one after the other."""
        return size / self.bandwidth + messages * self.latency


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
        return sum(self[:-1])


class Measured(NamedTuple):
    """Steps of one device, of one or several sizes."""

    source: str
    device: str
    parameters: int
    num_elements: int
    steps: Sequence[tuple[float, float]]  # events and seconds
    spread: float | None = None


#: What comes with the package.
SHIPPED = Measured(**_KNOWN[_MEASURED])


class CostModel:
    """A training on a cluster: one like the measured one, but for what the settings say."""

    def __init__(self, settings: ScalingSettings, measured: Measured = SHIPPED) -> None:
        hardware, work = self.hardware, self.work = settings.hardware, settings.work
        self.settings, self.upkeep = settings, settings.upkeep
        per_event, per_step = fit_compute(measured.steps)
        largest = max(events for events, _ in measured.steps)
        spread = _ASSUMED_SPREAD if measured.spread is None else measured.spread
        self.events = work.events or largest * (_SHARED_BATCHES if work.global_batch == "fixed" else 1)
        self.seconds_per_event = work.seconds_per_event or per_event / hardware.speed
        self.seconds_per_step = per_step / hardware.speed if work.seconds_per_step is None else work.seconds_per_step
        self.spread = spread if work.spread is None else work.spread
        self.parameters = work.parameters or measured.parameters
        self.gradient_bytes = work.bytes_per_parameter * self.parameters
        self.inside = Link(hardware.usable * hardware.inside_bandwidth, hardware.inside_latency)
        self.between = Link(hardware.usable * hardware.between_bandwidth, hardware.between_latency)
        #: Where the time of a step on so many devices goes.
        self.step: Callable[[int], StepTimes] = cache(self._step)

    def _step(self, devices: int) -> StepTimes:
        """Checkpoints and failures cost to first order what J. W. Young says, CACM 17 (1974) 530."""
        work, upkeep = self.work, self.upkeep
        events = self.events_per_step(devices)
        compute = (self.seconds_per_step + events / devices * self.seconds_per_event) * self.slowdown(devices)
        added_up = self.sum_seconds(devices, self.gradient_bytes)
        hidden = min(work.overlap * added_up, work.backward * compute)
        waiting = compute * (math.exp(self.spread * slowest_of(devices)) - 1.0)
        busy = compute + added_up - hidden + waiting
        data = max(events / (upkeep.loading or math.inf) - busy, 0.0)
        checkpoint = (busy + data) * upkeep.checkpoint_seconds / upkeep.checkpoint_interval
        per_failure = upkeep.restart_seconds + (upkeep.checkpoint_interval + upkeep.checkpoint_seconds) / 2.0
        share = per_failure * self.failures_per_second(devices)
        # With a share of 1 and more it fails faster than it gets on.
        lost = (busy + data + checkpoint) * share / (1.0 - share) if share < 1.0 else math.inf
        return StepTimes(compute, added_up - hidden, waiting, data, checkpoint, lost, hidden)

    def slowdown(self, devices: int) -> float:
        """How much longer a device computes when so many do."""
        most, contention = self.hardware.devices_per_node, self.hardware.contention
        return 1.0 + (contention - 1.0) * (min(devices, most) - 1) / (most - 1) if most > 1 else 1.0

    def sum_seconds(self, devices: int, size: float) -> float:
        """To add up `size` bytes over all devices so that each has the sum, when nothing else goes on.

        - ring: scatter-reduce and all-gather through all devices: 2(n-1)/n of the bytes and 2(n-1) messages; it is as fast as
          its slowest link
        - hierarchical: scatter-reduce in the node, a ring of nodes in which every device has its slice, all-gather in the node
        - tree: the same, between nodes by halving and doubling: as many bytes as a ring, in 2 log2(nodes) messages
          (R. Rabenseifner, ICCS 2004)
        - server: every device sends all to one place and gets all back: 2n times the bytes through its link
        """
        algorithm, members, nodes = self.work.algorithm, self.hardware.devices_per_node, self._nodes(devices)
        inside, between = self.inside, self.between
        rounds = 2 * (devices - 1)
        if devices == 1:
            return 0.0
        if algorithm == "server":
            return (between if nodes > 1 else inside).seconds(2 * devices * size, 2)
        if nodes == 1:
            return inside.seconds(rounds / devices * size, rounds)
        if algorithm == "ring":
            narrow = Link(min(inside.bandwidth, between.bandwidth), max(inside.latency, between.latency))
            return narrow.seconds(rounds / devices * size, rounds)
        messages = 2 * (nodes - 1) if algorithm == "hierarchical" else 2 * math.ceil(math.log2(nodes))
        within = inside.seconds(2 * (members - 1) / members * size, 2 * (members - 1))
        return within + between.seconds(2 * (nodes - 1) / nodes * size, messages)

    def _nodes(self, devices: int) -> int:
        return -(-devices // self.hardware.devices_per_node)

    def failures_per_second(self, devices: int) -> float:
        """Of all nodes."""
        return self._nodes(devices) / (3600.0 * self.upkeep.node_lifetime_hours)

    def best_checkpoint_interval(self, devices: int) -> float:
        """The time between checkpoints that costs least (Young)."""
        return math.sqrt(2.0 * self.upkeep.checkpoint_seconds / self.failures_per_second(devices))

    def events_per_step(self, devices: int) -> float:
        """Of all devices."""
        return self.events if self.work.global_batch == "fixed" else devices * self.events

    def throughput(self, devices: int) -> float:
        """Events per second of all devices."""
        return self.events_per_step(devices) / self.step(devices).total

    def efficiency(self, devices: int) -> float:
        """Throughput against that of one device times their number."""
        return self.throughput(devices) / (devices * self.throughput(1))

    def row(self, devices: int) -> dict[str, Any]:
        """All of it, ready for JSON."""
        step = self.step(devices)
        return {
            "algorithm": self.work.algorithm,
            "devices": devices,
            "events_per_second": self.throughput(devices),
            "efficiency": self.efficiency(devices),
            "events_per_step": self.events_per_step(devices),
            "step_seconds": step.total,
            **step._asdict(),
        }


def slowest_of(devices: int) -> float:
    """How many standard deviations the largest of so many normal numbers is above their mean (G. Blom, 1958)."""
    return NormalDist().inv_cdf((devices - 0.375) / (devices + 0.25)) if devices > 1 else 0.0


def fit_compute(steps: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds per event and seconds per step out of steps of several sizes, given as (events, seconds).

    Relative errors are the same for all sizes. With a single size everything is counted per event.
    """
    per_event, per_step = _line(steps)
    if per_step < 0.0 or per_event <= 0.0:
        return fmean(seconds / events for events, seconds in steps), 0.0
    return per_event, per_step


def fit_link(devices: int, sums: Sequence[tuple[float, float]]) -> Link:
    """The link that makes rings of so many devices take these times, given as (bytes, seconds)."""
    rounds = 2 * (devices - 1)
    per_byte, offset = _line([(rounds / devices * size, seconds) for size, seconds in sums])
    return Link(1.0 / max(per_byte, 1e-15), max(offset, 0.0) / rounds)


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Slope and offset of the line whose relative distances to the points are least."""
    x, y = np.array(points, dtype=np.float64).T
    if not (np.isfinite([x, y]).all() and min(*x, *y) > 0):
        raise ValueError("a size or time is not positive")
    if np.ptp(x) <= 1e-6 * x.mean():
        return float(y.mean() / x.mean()), 0.0
    with catch_warnings(), np.errstate(all="ignore"):
        simplefilter("ignore", np.exceptions.RankWarning)  # of points that nearly coincide
        slope, offset = np.polyfit(x, y, 1, w=1.0 / y)
    if not np.isfinite([slope, offset]).all():
        raise ValueError("sizes and times that no line goes through")
    return float(slope), float(offset)


def read_measured(paths: Sequence[Path]) -> Measured:
    """The steps of records of `ringflow bench train` or `ringflow bench scaling`, all of one network on one kind of device."""
    records = [(path, _read_record(path)) for path in paths]
    first = records[0][1]
    steps, spreads = [], []
    for path, record in records:
        for name in ("parameters", "num_elements"):
            if record[name] != first[name]:
                raise UsageError(
                    f"{path} has {name}={record[name]} and {paths[0]} has {first[name]}; give records of one network"
                )
        with _record_errors(path):
            if record["benchmark"] == "train":
                events = record["batch_elements"] // record["num_elements"]
                steps.append((float(events), float(events / record["train_events_per_second"])))
            else:
                row = _row_of(record, "local", 1, path)
                steps.append((float(row["events_per_step"]), float(row["seconds_per_step"])))
                spreads += [float(row["step_spread"])] * (row["step_spread"] is not None)
    with _record_errors(paths[0]):
        return Measured(
            source=", ".join(map(str, paths)),
            device=str(first.get("accelerator") or first.get("processor")),
            parameters=int(first["parameters"]),
            num_elements=int(first["num_elements"]),
            steps=steps,
            spread=fmean(spreads) if spreads else None,
        )


@contextmanager
def _record_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputFileError(f"{path} is not as `ringflow bench` writes it ({reason}); measure again") from None


def _read_record(path: Path) -> dict[str, Any]:
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(f"{path} cannot be read ({(error.strerror or 'unknown reason').lower()})") from None
    except (ValueError, RecursionError):
        raise InputFileError(f"{path} is no JSON; give what `ringflow bench scaling --out FILE` wrote") from None
    found: dict[str, Any] = record if isinstance(record, dict) else {}
    wanted = _FIELDS.get(str(found.get("benchmark")))
    if wanted is None or any(name not in found for name in wanted):
        raise InputFileError(f"{path} is no record of `ringflow bench train` or `ringflow bench scaling`")
    return found


def _row_of(record: Mapping[str, Any], engine: str, workers: int, path: Path) -> Mapping[str, Any]:
    for row in record["rows"]:
        if (row["engine"], row["workers"]) == (engine, workers) and "error" not in row:
            found: Mapping[str, Any] = row
            return found
    raise InputFileError(f"{path} has no row {engine!r} of {workers} processes; measure again with --engines local")


def resolve(hardware: str, overrides: Sequence[str]) -> ScalingSettings:
    """The settings for a cluster: one of ours by name, or a TOML file with the fields of `hardware`."""
    if hardware in CLUSTERS:
        fields = CLUSTERS[hardware]
    elif Path(hardware).is_file():
        fields = HardwareSettings.resolve(Path(hardware), complete=False).model_dump(exclude_unset=True)
    else:
        hint = did_you_mean(hardware, CLUSTERS)
        raise UsageError(f"no cluster or TOML file {hardware!r}; {hint}there are {', '.join(CLUSTERS)}")
    given = [override(f"hardware.{name}", value) for name, value in fields.items()]
    return ScalingSettings.resolve(None, [*given, *overrides])


def check_against(path: Path) -> list[dict[str, Any]]:
    """What the model says of the processes of a record of `ringflow bench scaling`, against what they did.

    It is told the step of one process, how much processes that train apart slow each other down, and the link that sums of
    several sizes show; communication is not hidden on a CPU, where it needs the same cores.
    """
    record = _read_record(path)
    if record["benchmark"] != "scaling":
        raise InputFileError(
            f"{path} is a record of `ringflow bench {record['benchmark']}`; give one of `bench scaling`"
        )
    with _record_errors(path):
        return _compared(record, path)


def _compared(record: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    alone = _row_of(record, "local", 1, path)
    together = {
        row["workers"]: row["events_per_second"]
        for row in record["rows"]
        if row["engine"] == "local" and row["workers"] > 1 and "error" not in row
    }
    if not together or not record["all_reduce"]:
        raise InputFileError(f"{path} has one process only; measure with --workers 1 2")
    largest = max(together)
    link = fit_link(largest, [(found["bytes"], found["seconds"]) for found in record["all_reduce"]])
    apart = _row_of(record, "apart", largest, path)
    contention = max(float(apart["seconds_per_step"] / alone["seconds_per_step"]), 1.0)
    hardware = {"devices_per_node": largest, "inside_bandwidth": link.bandwidth, "inside_latency": link.latency}
    settings = ScalingSettings.model_validate(
        {
            "hardware": {**hardware, "usable": 1.0, "contention": contention},
            "work": {"algorithm": "ring", "overlap": 0.0, "spread": alone["step_spread"] or 0.0},
            "upkeep": {"checkpoint_seconds": 0.0, "restart_seconds": 0.0, "node_lifetime_hours": 1e30},
        }
    )
    model = CostModel(settings, read_measured([path]))
    return [
        {
            "workers": workers,
            "predicted_events_per_second": round(model.throughput(workers), 2),
            "measured_events_per_second": measured,
            "error_percent": round(100.0 * (model.throughput(workers) / measured - 1.0), 2),
            "bandwidth": round(link.bandwidth),
            "latency": link.latency,
            "contention": round(contention, 4),
        }
        for workers, measured in sorted(together.items())
    ]


def predict(
    hardware: str,
    overrides: Sequence[str] = (),
    *,
    measured: Sequence[Path] = (),
    devices: Sequence[int] = (),
    check: Path | None = None,
) -> dict[str, Any]:
    """Rows by number of devices and way of adding up, ready for JSON; the way that was asked for comes first."""
    settings = resolve(hardware, overrides)
    if measured and "hardware.speed" not in {word.partition("=")[0] for word in overrides}:
        # What was measured is what is meant: the speed of ours is relative to the measurement of ours.
        settings = settings.model_copy(update={"hardware": settings.hardware.model_copy(update={"speed": 1.0})})
    found = read_measured(measured) if measured else SHIPPED
    chosen = settings.work.algorithm
    models = [
        CostModel(settings.model_copy(update={"work": settings.work.model_copy(update={"algorithm": name})}), found)
        for name in (chosen, *(name for name in ALGORITHMS if name != chosen))
    ]
    if not models[0].throughput(1):
        raise UsageError(
            f"one node fails every {settings.upkeep.node_lifetime_hours:g} hours, before it gets on; give a larger "
            "upkeep.node_lifetime_hours, or a smaller upkeep.restart_seconds"
        )
    numbers = sorted(set(devices or DEVICES))
    return {
        "hardware": hardware,
        "settings": settings.model_dump(mode="json"),
        "measured": {**found._asdict(), "steps": [list(step) for step in found.steps]},
        "algorithm": chosen,
        "rows": [model.row(number) for model in models for number in numbers],
        "best_checkpoint_interval": models[0].best_checkpoint_interval(numbers[-1]),
        "assumptions": _assumptions(models[0], found),
        "check": check_against(check) if check else [],
    }


def _assumptions(model: CostModel, found: Measured) -> list[str]:
    """All that the numbers stand on, in sentences."""
    work, hardware, upkeep, inside, between = model.work, model.hardware, model.upkeep, model.inside, model.between
    per_event, per_step = fit_compute(found.steps)
    origin = "given" if work.spread is not None else "assumed" if found.spread is None else "measured"
    split = (
        f"a step costs {1e3 * per_step:.2f} ms and {1e6 * per_event:.2f} µs per event"
        if len({round(events) for events, _ in found.steps}) > 1
        else f"an event costs {1e6 * per_event:.2f} µs, however many are in a step: one size was measured"
    )
    return [
        f"Measured on one {found.device} ({found.source}): {split}; events of {found.num_elements} elements.",
        f"A device of the cluster has {hardware.speed:g} times the speed of the measured one.",
        f"All devices share {model.events:,.0f} events per step (strong scaling)."
        if work.global_batch == "fixed"
        else f"Every device has {model.events:,.0f} events per step, however many devices there are (weak scaling).",
        f"The gradient of {model.parameters:,} parameters has {model.gradient_bytes / 1e6:.1f} MB and is added up in every "
        "step.",
        f"Cluster: {hardware.title} ({hardware.source}).",
        f"{100 * hardware.usable:.0f} % of the nominal bandwidth is reached: {inside.bandwidth / 1e9:.0f} GB/s inside a node, "
        f"{between.bandwidth / 1e9:.0f} GB/s between nodes. A message takes {1e6 * inside.latency:g} µs inside and "
        f"{1e6 * between.latency:g} µs between.",
        f"{100 * work.overlap:.0f} % of the communication can hide behind the making of gradients, which is "
        f"{100 * work.backward:.0f} % of the computation.",
        f"Steps of devices vary independently, by {100 * model.spread:.1f} % ({origin}), and all wait for the slowest.",
        "Data are there in time."
        if upkeep.loading is None
        else f"The file system gives {upkeep.loading:,.0f} events/s to all devices together.",
        f"A checkpoint takes {upkeep.checkpoint_seconds:g} s, every {upkeep.checkpoint_interval:g} s; a node fails every "
        f"{upkeep.node_lifetime_hours:,.0f} hours, and it takes {upkeep.restart_seconds:g} s to start again.",
    ]


def show(result: Mapping[str, Any]) -> None:
    """Tables for people."""
    title = f"{result['settings']['hardware']['title']}, {result['algorithm']} (parts of a step in seconds)"
    columns = ("devices", "events_per_second", "efficiency", "step_seconds", *StepTimes._fields)
    show_table(title, [row for row in result["rows"] if row["algorithm"] == result["algorithm"]], columns)
    for sentence in result["assumptions"]:
        say(f"- {sentence}")
    show_table("The model against a measurement", result["check"])

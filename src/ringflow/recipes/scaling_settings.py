"""Settings of `ringflow scaling-model`: the cluster, the work of a step, and what a training needs beside its steps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ringflow.base.config import Settings


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
    algorithm: Literal["ring", "hierarchical", "tree", "server"] = "tree"
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

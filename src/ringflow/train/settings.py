"""Settings of a training. Free of torch, so that a login node reads them fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from ringflow.base.config import Settings
from ringflow.models.settings import ModelSettings


class _Section(Settings):
    """A part of the settings; no number in it may be infinite."""

    model_config: ClassVar[ConfigDict] = ConfigDict(allow_inf_nan=False)


class LossSettings(_Section):
    """Weights of the terms of the loss; each term is normalised per particle (the jet term per cone)."""

    #: Whether an element is a particle.
    particle: float = Field(default=1.0, ge=0.0)
    #: Which class of particle.
    label: float = Field(default=0.5, ge=0.0)
    #: Which charge.
    charge: float = Field(default=0.2, ge=0.0)
    #: Energy, transverse momentum and direction.
    momentum: float = Field(default=1.0, ge=0.0)
    #: Momentum of all particles in a cone.
    jet: float = Field(default=0.5, ge=0.0)
    #: Focusing parameter of the classification terms; 0 is cross-entropy.
    focal: float = Field(default=0.0, ge=0.0)
    #: Cones per event in the jet term.
    cones: int = Field(default=4, ge=1)


class SourceSettings(_Section):
    """How events reach the training, whether read or simulated."""

    #: Events held in memory at a time; they are shuffled within, and the next ones are prepared meanwhile.
    chunk_events: int = Field(default=20_000, ge=1)
    #: Times a simulated chunk is gone through before it is let go; 1: every event is new.
    reuse: int = Field(default=1, ge=1)
    #: Processes that generate collisions for a simulated source.
    workers: int = Field(default=1, ge=1)
    #: Events simulated as one tensor batch.
    block_events: int = Field(default=50, ge=1, le=4000)
    #: Parts into which the events are dealt; a step takes a batch of each. Processes share them out evenly, in any number that
    #: divides them, and the result is the same; 0: as before, one per process of the first start. Another number than before
    #: makes steps larger or smaller from there on.
    lanes: int = Field(default=0, ge=0)
    #: Probability that a group of features is hidden in an event, so that the network can do without it.
    hide: float = Field(default=0.05, ge=0.0, lt=1.0)
    #: Groups of features that some of the data lack that the network is for, such as `cluster_shape`; hidden all together.
    lacking: tuple[str, ...] = ()
    #: Share of the events in which they are hidden; validation shows them.
    lacking_share: float = Field(default=0.5, ge=0.0, lt=1.0)


class OptimizerSettings(_Section):
    """How the weights move."""

    #: LAMB is for very large steps.
    name: Literal["adamw", "lamb"] = "adamw"
    #: Highest rate, for steps of `rule_elements` elements.
    rate: float = Field(default=1e-3, gt=0.0)
    #: How the rate grows with the elements of a step: not, in proportion, or with the square root.
    rule: Literal["none", "linear", "sqrt"] = "none"
    #: Elements of a step for which `rate` is meant.
    rule_elements: int = Field(default=16_384, ge=1)
    #: How strongly weights are drawn towards zero.
    weight_decay: float = Field(default=0.01, ge=0.0)
    #: Memory of the averages of the gradient and of its square.
    betas: tuple[float, float] = (0.9, 0.98)
    #: Share of the training in which the rate rises.
    warmup: float = Field(default=0.02, ge=0.0, lt=1.0)
    #: Rate at the end, relative to the highest.
    final: float = Field(default=0.01, ge=0.0, le=1.0)
    #: Share of the training in which the rate rises again, from its half, after a change of the number of lanes.
    rewarmup: float = Field(default=0.02, ge=0.0)
    #: Longest gradient that is taken as it is; 0: any.
    clip: float = Field(default=1.0, ge=0.0)
    #: Memory of the moving average of the weights; 0: none.
    average: float = Field(default=0.999, ge=0.0, lt=1.0)


class LengthSettings(_Section):
    """How long a training lasts, and how often it is looked at; counted in events shown to the network."""

    #: Events shown to the network in all; an event that is seen again counts again.
    events: int = Field(default=1_000_000, ge=1)
    #: Events between two validations.
    validate_every: int = Field(default=100_000, ge=1)
    #: Events of a validation.
    validation_events: int = Field(default=1_000, ge=1)
    #: Validations without a better one after which the training stops; 0: never.
    patience: int = Field(default=0, ge=0)
    #: Seconds between checkpoints; one is also written after every validation.
    checkpoint_seconds: float = Field(default=60.0, gt=0.0)


class ComputeSettings(Settings):
    """Where and how it is computed."""

    #: Name of a torch device, or `auto` for the accelerator torch finds, else the CPU.
    device: str = "auto"
    #: `auto` is bfloat16 on an accelerator and float32 on a CPU.
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    #: Compile the step; `auto` does so on an accelerator.
    compile: Literal["auto", "yes", "no"] = "auto"
    #: Elements per batch: events are packed until they are full. A step takes a batch of every lane.
    batch_elements: int = Field(default=16_384, ge=1)
    #: How processes share the network: a whole one in each, slices of every tensor, some heads and channels of every layer, or
    #: some layers.
    strategy: Literal["replicate", "shard", "tensor", "pipeline"] = "replicate"
    #: Processes that share one copy of the network with the strategies `tensor` and `pipeline`; 0: all.
    parts: int = Field(default=0, ge=0)
    #: Seconds after which a process that does not answer is given up.
    timeout: float = Field(default=600.0, gt=0.0)


class AsynchronousSettings(_Section):
    """How workers and a master move the weights without waiting for each other."""

    #: Batches that a worker computes between two talks with the master.
    period: int = Field(default=1, ge=1)
    #: How far the centre and the workers move towards each other when all workers have talked once (`easgd`).
    elastic: float = Field(default=0.9, gt=0.0, le=1.0)


#: Processes are no setting of a training: something starts them.
_PROCESSES = "ringflow launch local --workers N -- train ..."


class TrainSettings(Settings):
    """Everything `ringflow train` needs."""

    also_called: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("lr", "learning_rate"), "optimizer.rate"),
        **dict.fromkeys(
            ("epochs", "num_epochs", "steps", "max_steps", "iterations"), "length.events=EVENTS, over all epochs"
        ),
        **dict.fromkeys(("batch", "batch_size"), "compute.batch_elements=ELEMENTS, of all its events"),
        **dict.fromkeys(("dataset", "datasets", "input"), "data"),
        **dict.fromkeys(("weights", "checkpoint", "pretrained", "init"), "start"),
        **dict.fromkeys(("model", "arch", "network"), "model.backbone"),
        **dict.fromkeys(("gpus", "num_gpus", "devices", "nodes", "workers", "nproc_per_node"), _PROCESSES),
        "resume": "the same command again: it goes on where it stopped",
        "num_workers": "source.workers",
        "optimizer": "optimizer.name",
        "decay": "optimizer.weight_decay",
        "early_stopping": "length.patience",
        "amp": "compute.precision",
        "depth": "model.layers",
    }

    #: Datasets, separated by commas, or `sim:` and names of samples to simulate while training.
    data: str = "sim:ttbar,qq"
    #: Detector of the datasets, or the one to simulate; several are separated by commas.
    detector: str = "clic"
    #: Decides the weights at the start, the order of events and those that are simulated.
    seed: int = Field(default=1, ge=0, lt=2**63)
    #: Model file to go on from, whose `model` settings are taken; none: from random weights.
    start: str | None = None
    #: Scaling of the features with a start file: as it is there, or fitted anew to the data, with what the first layer computes
    #: kept for features that are as before; auto: anew if the file is of another detector.
    scaling: Literal["auto", "kept", "new"] = "auto"
    #: Constants of the rules that it is compared with: TOML file of `calibrate --baseline`; none: those of the detector.
    constants: str | None = None
    #: Whether processes add up their gradients in every step, or talk to a master when they are ready.
    sync: Literal["allreduce", "downpour", "easgd"] = "allreduce"
    #: Measure what the time of every step goes into, and write a trace.
    profile: bool = False
    model: ModelSettings = ModelSettings()
    loss: LossSettings = LossSettings()
    source: SourceSettings = SourceSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    length: LengthSettings = LengthSettings()
    compute: ComputeSettings = ComputeSettings()
    asynchronous: AsynchronousSettings = AsynchronousSettings()

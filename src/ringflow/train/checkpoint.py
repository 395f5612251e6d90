"""Checkpoints: everything a training needs to go on as if it had never stopped.

    RUN/checkpoints/step-00001200/tensors.safetensors    weights, average, optimiser
    RUN/checkpoints/step-00001200/state.json             counters, position in the data, settings, sha256 of everything

A checkpoint is written under another name and renamed, so it is whole or not there. The last two are kept. Nothing in a
checkpoint is ever executed: no pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.rundir import sync, write_errors
from ringflow.base.words import flat
from ringflow.train.batches import BEGINNING, DataPosition, FixedShape
from ringflow.train.runs import NAMED, RUN_FILE, is_same, read_places
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

FORMAT_VERSION = 2
_KEPT = 2
_TENSORS, _STATE = "tensors.safetensors", "state.json"
#: What an optimiser counts per weight; everything else it keeps has the shape of the weight.
_COUNT = "step"


class TrainingState(BaseModel):
    """Where a training is."""

    step: int = 0
    events: int = 0
    #: The next batch of every lane.
    positions: list[DataPosition] = [BEGINNING]
    shape: FixedShape | None = None
    #: Elements that went through the network, and those of them that only filled up a batch.
    computed: int = 0
    padding: int = 0
    #: Seconds of the training, all starts together, and those of them spent on steps.
    seconds: float = 0.0
    step_seconds: float = 0.0
    #: The best validation: its step, its events and its figures.
    best: dict[str, Any] = {}
    #: Validations since the best one.
    since_best: int = 0
    #: The last validation: its events and its figures.
    last: dict[str, Any] = {}
    #: Events at the last change of the number of lanes; 0: there was none.
    resized_at: int = 0

    @property
    def padding_share(self) -> float:
        """Share of the computed elements that are padding."""
        return self.padding / max(self.computed, 1)

    def count(self, events: int, computed: int, real: int) -> None:
        """One more step, on so many events; of the elements that it computed so many were real."""
        self.step += 1
        self.events += events
        self.computed += computed
        self.padding += computed - real

    def resize(self, lanes: int) -> bool:
        """Go on with another number of lanes, all at the first chunk that none of those before has begun.

        Whether something of a chunk is left out by that.
        """
        before = self.positions
        chunk = max(position.chunk + (position[1:] != BEGINNING[1:]) for position in before)
        following = BEGINNING._replace(chunk=chunk)
        self.positions, self.resized_at = [following] * lanes, self.events
        return any(position != following for position in before)


class Checkpoint(NamedTuple):
    """What is written and read; `settings` are those of the training as JSON has them."""

    state: TrainingState
    settings: dict[str, Any]
    tensors: dict[str, Tensor]


def _checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def write_checkpoint(run: Path, checkpoint: Checkpoint) -> None:
    """Add a checkpoint to a run, and let go of the old ones."""
    path = run / "checkpoints" / f"step-{checkpoint.state.step:010d}"
    temporary = path.with_name(f".{path.name}.part")
    tensors = save(checkpoint.tensors)
    content = {"state": checkpoint.state.model_dump(mode="json"), "settings": checkpoint.settings}
    record = {"format_version": FORMAT_VERSION, "sha256": _sha256(tensors, content), **content}
    with write_errors(path):
        # What a killed training was writing, at a step that may never come again.
        for leftover in path.parent.glob(".step-*.part"):
            shutil.rmtree(leftover)
        temporary.mkdir(parents=True)
        try:
            for name, data in ((_TENSORS, tensors), (_STATE, json.dumps(record, indent=1, allow_nan=False).encode())):
                with (temporary / name).open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())  # a rename may reach the disk before the data it names
            # One of this step or later is left from a start whose last checkpoint was broken.
            for later in _checkpoints(run):
                if later.name >= path.name:
                    shutil.rmtree(later)
            sync(temporary)
            temporary.rename(path)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # on a full disk it would be in the way
        for old in _checkpoints(run)[:-_KEPT]:
            shutil.rmtree(old)


def read_checkpoint(run: Path) -> Checkpoint | None:
    """The last checkpoint of a run that is whole; None if there never was one."""
    broken = ""
    for path in reversed(_checkpoints(run)):
        try:
            checkpoint = _read(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:160]
            broken = broken or f"checkpoint {path} is broken ({reason})"
            continue
        if broken:
            say(f"{broken}; going on from the one before, at step {checkpoint.state.step}")
        return checkpoint
    if broken:
        raise InputFileError(f"{broken}, and there is none before it; train again in another folder")
    return None


def _read(path: Path) -> Checkpoint:
    record = json.loads((path / _STATE).read_bytes())
    if record["format_version"] != FORMAT_VERSION:
        raise InputFileError(
            f"checkpoint {path} is of format {record['format_version']}, this version reads {FORMAT_VERSION}; "
            "use the version of ringflow that wrote it"
        )
    tensors = (path / _TENSORS).read_bytes()
    if _sha256(tensors, {name: record[name] for name in ("state", "settings")}) != record["sha256"]:
        raise ValueError("it is not what was written")
    return Checkpoint(TrainingState.model_validate(record["state"]), record["settings"], load(tensors))


def _sha256(tensors: bytes, content: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(tensors)
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def snapshot(step: TrainingStep) -> dict[str, Tensor]:
    """Weights, average and optimiser, whole and copied to the host; all processes have to ask.

    No random states: everything drawn in a step comes from the seeds of its batches.
    """
    spread = step.spread
    whole = {f"weights/{name}": spread.whole(name, value) for name, value in step.model.state_dict().items()}
    whole |= {f"average/{name}": spread.whole(name, value) for name, value in step.average.weights.items()}
    states = {name: step.optimizer.state[weight] for name, weight in spread.held()}
    some = next(iter(states.values()))
    for name, weight in step.model.named_parameters():
        # A weight that is held elsewhere stands for what belongs to it there.
        state = states.get(name) or {kind: value if kind == _COUNT else weight for kind, value in some.items()}
        for kind, value in state.items():
            whole[f"optimizer/{kind}/{name}"] = value if kind == _COUNT else spread.whole(name, value)
    # Copies, so that no two of them share memory (safetensors refuses that).
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in whole.items()}


@torch.no_grad()
def restore(tensors: Mapping[str, Tensor], step: TrainingStep, path: Path) -> None:
    """Put everything back; `path` is for an error about weights of another architecture."""
    sections: dict[str, dict[str, Tensor]] = {"weights": {}, "average": {}, "optimizer": {}}
    for key, value in tensors.items():
        section, _, name = key.partition("/")
        if section in sections:
            sections[section][name] = value
    shapes = {name: value.shape for name, value in step.average.plain.state_dict().items()}
    for section, targets in (("weights", step.model.state_dict()), ("average", step.average.weights)):
        values = sections[section]
        for name in sorted(targets.keys() | values.keys()):
            if name not in targets or name not in values or values[name].shape != shapes[name]:
                raise InputFileError(
                    f"the checkpoint in {path} is of another network ({name} differs); choose another folder"
                )
            step.spread.put(name, targets[name], values[name])
    held = dict(step.spread.held())
    # A fused kernel counts where the weights are, others on the host.
    on_device = any(group.get("fused") for group in step.optimizer.param_groups)
    for key, value in sections["optimizer"].items():
        kind, name = key.split("/")
        if name not in held:
            continue
        state = step.optimizer.state[held[name]]
        if kind == _COUNT:
            state[kind] = value.to(held[name].device if on_device else value.device, copy=True)
        else:
            state[kind] = torch.zeros_like(held[name])
            step.spread.put(name, state[kind], value)


def refuse_other_settings(before: TrainSettings, now: TrainSettings, folder: Path) -> None:
    """An error if a training cannot go on with these settings: where and how long it computes is free, and the number of lanes
    if processes wait for each other. Data may have got another name."""
    places = read_places(folder / RUN_FILE)
    was, wanted = (dict(flat(settings.model_dump(mode="json"))) for settings in (before, now))
    free = ("source.workers", "constants", *(("source.lanes",) if before.sync == "allreduce" else ()))
    for name, value in wanted.items():
        if was[name] == value or name in free or (name in NAMED and is_same(was[name], value, places)):
            continue
        if name.split(".")[0] not in ("length", "compute", "profile"):
            raise UsageError(
                f"the training in {folder} has {name}={was[name]}, not {value}; "
                "give that to go on, or choose another folder"
            )

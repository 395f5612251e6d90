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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.rundir import write_errors
from ringflow.base.words import flat
from ringflow.train.batches import BEGINNING, DataPosition, FixedShape

FORMAT_VERSION = 2
_KEPT = 2
_TENSORS, _STATE = "tensors.safetensors", "state.json"
#: Sections of the settings that may be different when a training goes on, and what else may if processes wait for each other.
_FREE = ("length", "compute", "profile")
_FREE_TOGETHER = ("source.lanes",)


@dataclass
class TrainingState:
    """Where a training is; all of it goes into JSON."""

    step: int = 0
    events: int = 0
    #: The next batch of every lane.
    positions: list[DataPosition] = field(default_factory=lambda: [BEGINNING])
    shape: FixedShape | None = None
    #: Elements that went through the network, and those of them that only filled up a batch.
    computed: int = 0
    padding: int = 0
    #: Seconds of the training, all starts together, and those of them spent on steps.
    seconds: float = 0.0
    step_seconds: float = 0.0
    #: The best validation: its step, its events and its figures.
    best: dict[str, float | None] = field(default_factory=dict)
    #: Validations since the best one.
    since_best: int = 0
    #: The last validation: its events and its figures.
    last: dict[str, float | None] = field(default_factory=dict)
    #: Events at the last change of the number of lanes; 0: there was none.
    resized_at: int = 0

    @property
    def padding_share(self) -> float:
        """Share of the computed elements that are padding."""
        return self.padding / max(self.computed, 1)

    def resize(self, lanes: int) -> bool:
        """Go on with another number of lanes, all at the first chunk that none of those before has begun.

        Whether something of a chunk is left out by that.
        """
        before = self.positions
        chunk = max(position.chunk + (position[1:] != BEGINNING[1:]) for position in before)
        following = BEGINNING._replace(chunk=chunk)
        self.positions, self.resized_at = [following] * lanes, self.events
        return any(position != following for position in before)

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> TrainingState:
        """The state that `asdict` made a record of."""
        shape = record["shape"]
        positions = [DataPosition(*position) for position in record["positions"]]
        return cls(**{**record, "positions": positions, "shape": FixedShape(*shape) if shape else None})


@dataclass(frozen=True)
class Checkpoint:
    """What is written and read."""

    state: TrainingState
    settings: dict[str, Any]
    tensors: dict[str, Tensor]


class Checkpoints:
    """The checkpoints of a run."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "checkpoints"

    def write(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint, and let go of the old ones."""
        path = self._folder / f"step-{checkpoint.state.step:010d}"
        temporary = self._folder / f".{path.name}.part"
        with write_errors(path):
            self._remove_unfinished()
            temporary.mkdir(parents=True)
            try:
                _write(temporary, checkpoint)
                # One of this step or later is left from a start whose last checkpoint was broken.
                for later in self._paths():
                    if later.name >= path.name:
                        shutil.rmtree(later)
                temporary.rename(path)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)  # on a full disk it would be in the way
            for old in self._paths()[:-_KEPT]:
                shutil.rmtree(old)

    def read(self) -> Checkpoint | None:
        """The last checkpoint that is whole; None if there never was one."""
        broken = ""
        for path in reversed(self._paths()):
            try:
                checkpoint = _read(path)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                reason = " ".join(str(error).split())[:160]
                broken = broken or f"checkpoint {path} is broken ({reason})"
                continue
            if broken:
                say(f"{broken}; going on from the one before, at step {checkpoint.state.step}")
            return checkpoint
        if broken:
            raise InputFileError(f"{broken}, and there is none before it; train again in another folder")
        return None

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"))

    def _remove_unfinished(self) -> None:
        """What a killed training was writing, at a step that may never come again."""
        for leftover in self._folder.glob(".step-*.part"):
            shutil.rmtree(leftover)


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    tensors = save(checkpoint.tensors)
    content = {"state": asdict(checkpoint.state), "settings": checkpoint.settings}
    record = {"format_version": FORMAT_VERSION, "sha256": _sha256(tensors, content), **content}
    for name, data in ((_TENSORS, tensors), (_STATE, json.dumps(record, indent=1, allow_nan=False).encode())):
        with (folder / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a rename may reach the disk before the data it names


def _read(path: Path) -> Checkpoint:
    record = json.loads((path / _STATE).read_text(encoding="utf-8"))
    if record["format_version"] != FORMAT_VERSION:
        raise InputFileError(
            f"checkpoint {path} is of format {record['format_version']}, this version reads {FORMAT_VERSION}; "
            "use the version of ringflow that wrote it"
        )
    tensors = (path / _TENSORS).read_bytes()
    if _sha256(tensors, {name: record[name] for name in ("state", "settings")}) != record["sha256"]:
        raise ValueError("it is not what was written")
    return Checkpoint(TrainingState.of(record["state"]), record["settings"], load(tensors))


def _sha256(tensors: bytes, content: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(tensors)
    digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def refuse_other_settings(before: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """An error if a training cannot go on with these settings."""
    was, wanted = (dict(flat(settings)) for settings in (before, now))
    free = _FREE_TOGETHER if was.get("sync") == "allreduce" else ()
    for name in sorted(was.keys() | wanted.keys()):
        if name.split(".")[0] not in _FREE and name not in free and was.get(name) != wanted.get(name):
            raise UsageError(
                f"the training in {folder} has {name}={was.get(name)}, not {wanted.get(name)}; "
                "give that to go on, or choose another folder"
            )

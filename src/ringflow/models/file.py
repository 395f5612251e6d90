"""Model files: weights as safetensors, everything else as JSON in its header. Nothing in a file is ever executed.

A file carries the sha256 of itself, with zeros where that stands, so that no bit of it changes unseen; files of earlier
versions have none. Names, types and shapes are compared with those of the network before memory is taken for either.

save_model(path, model, threshold=0.5, card={"data": ..., "metrics": ...})
loaded = load_model(path)
loaded.model.predict(batch)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from ringflow.base.errors import InputFileError
from ringflow.base.rundir import write_atomic
from ringflow.elements.features import feature_names
from ringflow.elements.frame import FrameSettings
from ringflow.models.model import Model
from ringflow.models.settings import MODEL_KEY, ModelSettings

FORMAT_VERSION = 1
_VERSION, _HASH, _FRAME = "format_version", "sha256", "frame"
_NO_HASH = b"0" * 64
#: What safetensors calls the types that networks have.
_TYPES = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.bool: "BOOL"}

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class LoadedModel:
    """A network ready to be used, in evaluation mode on the CPU."""

    model: Model
    #: Probability from which on an element is a candidate.
    threshold: float
    #: Where it came from: data, settings, commit, metrics.
    card: dict[str, Any] = field(default_factory=dict)


def save_model(
    path: Path,
    model: Model,
    *,
    threshold: float = 0.5,
    card: Mapping[str, Any] | None = None,
    frame: FrameSettings | None = None,
) -> None:
    """Write a model file; it appears whole or not at all. It sees elements relative to the detector that it does now, or the
    one of a `frame`."""
    record = {
        "settings": model.settings.model_dump(mode="json"),
        "features": feature_names(model.kinds),
        "threshold": threshold,
        "card": dict(card or {}),
    }
    if frame is None and model.frame is not None:
        frame = model.frame.settings
    if frame is not None:
        record[_FRAME] = frame.model_dump(mode="json")
    write_described(path, model, MODEL_KEY, record)


def load_model(path: Path) -> LoadedModel:
    """Read a model file; an error in one line if it is broken, of another format or made for other features."""
    fields = ("settings", "features", "threshold", "card")
    with read_described(path, MODEL_KEY, "model file", "train", fields) as (record, weights):
        try:
            settings = ModelSettings.model_validate(record["settings"])
            frame = FrameSettings.model_validate(record[_FRAME]) if _FRAME in record else None
        except pydantic.ValidationError as error:
            what = error.errors()[0]
            place = ".".join(map(str, what["loc"]))[:100] or _FRAME
            raise InputFileError(
                f"{path} has settings this version does not know ({place}: {what['msg']}); "
                "use the version of ringflow that trained it"
            ) from None
        expected = feature_names(("track", settings.calorimeter))
        if tuple(record["features"]) != expected:
            different = sorted(set(record["features"]) ^ set(expected))
            raise InputFileError(
                f"{path} was trained on other features ({', '.join(different[:3])[:200] or 'in another order'}); "
                "use the version of ringflow that trained it"
            )
        threshold = float(record["threshold"])
        if not math.isfinite(threshold):
            raise ValueError(f"threshold is {threshold}")
        if settings.layers > len(weights.shapes):  # that many would take a while even without memory
            raise InputFileError(f"{path} is of another architecture: {settings.layers} layers have no weights there")
        model = weights.into(lambda: Model(settings)).eval()
        model.bind(frame)
        return LoadedModel(model, threshold, dict(record["card"]))


def write_described(path: Path, module: nn.Module, key: str, record: Mapping[str, Any]) -> None:
    """Weights and, under one key of the header, what is to be known of them; the file appears whole or not at all."""
    weights = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    # The hash comes first, so that the first zeros in the file are its own.
    header = json.dumps({_VERSION: FORMAT_VERSION, _HASH: _NO_HASH.decode(), **record}, allow_nan=False)
    content = save(weights, metadata={key: header})
    write_atomic(path, content.replace(_NO_HASH, hashlib.sha256(content).hexdigest().encode(), 1))


class StoredWeights:
    """The tensors of an open file, of which nothing but names, types and shapes is read until a network wants them."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
        self.shapes = {name: (one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}

    def into(self, build: Callable[[], Network]) -> Network:
        """A network with these weights; an error if they are of another architecture or not finite."""
        with torch.device("meta"):
            empty = build().state_dict()
        expected = {name: (_TYPES[value.dtype], tuple(value.shape)) for name, value in empty.items()}
        for name in sorted(expected.keys() | self.shapes.keys()):
            if expected.get(name) != self.shapes.get(name):
                there, here = (_shown(*shapes.get(name, ())) for shapes in (self.shapes, expected))
                raise InputFileError(
                    f"{self._path} is of another architecture: {name} is {there} there, {here} here; "
                    "give the settings it was trained with"
                )
        weights = {name: self._file.get_tensor(name) for name in expected}
        for name, value in weights.items():
            if not value.isfinite().all():
                raise InputFileError(
                    f"{self._path} has weights that are not finite ({name}); train again, or take an earlier checkpoint"
                )
        network = build()
        network.load_state_dict(weights)
        return network


@contextmanager
def read_described(
    path: Path, key: str, kind: str, command: str, fields: tuple[str, ...]
) -> Iterator[tuple[dict[str, Any], StoredWeights]]:
    """What the header says under a key, and the weights; what is wrong with either, here or in the body, is one line."""
    if not path.is_file():
        raise InputFileError(f"no {kind} at {path}; give one that `ringflow {command}` wrote")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = (file.metadata() or {}).get(key)
            if metadata is None:
                raise InputFileError(
                    f"{path} holds weights without a description; give a file that `ringflow {command}` wrote"
                )
            with _description_errors(path):
                record = json.loads(metadata)
                if record[_VERSION] != FORMAT_VERSION:
                    raise InputFileError(
                        f"{path} is a {kind} of format {record[_VERSION]}, this version reads {FORMAT_VERSION}; "
                        "use the version of ringflow that wrote it"
                    )
                # A hash whose name is not what it was would else be no hash.
                if wrong := record.keys() ^ {_VERSION, *fields} ^ (record.keys() & {_HASH, _FRAME}):
                    raise ValueError(f"{min(wrong)!r} is {'unknown' if min(wrong) in record else 'missing'}")
                if _HASH in record and _hash(path, str(record[_HASH])) != record[_HASH]:
                    raise InputFileError(
                        f"{path} is not what was written (its sha256 differs); copy it again or make it again"
                    )
                yield record, StoredWeights(path, file)
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputFileError(f"{path} cannot be read as a {kind} ({reason}); copy or make it again") from None


@contextmanager
def _description_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputFileError(f"{path} has a broken description ({reason}); copy or make it again") from None


def _hash(path: Path, said: str) -> str:
    """The sha256 of a file with zeros in the place of the one it says; not more than its header is held in memory."""
    with path.open("rb") as file:
        size = file.read(8)
        header = file.read(int.from_bytes(size, "little"))
        digest = hashlib.sha256(size + header.replace(said.encode(), _NO_HASH, 1))
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _shown(datatype: str | None = None, shape: tuple[int, ...] = ()) -> str:
    return "absent" if datatype is None else f"{datatype} {shape}"

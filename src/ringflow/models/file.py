"""Model files: weights as safetensors, everything else as JSON in its header. Nothing in a file is ever executed.

save_model(path, model, threshold=0.5, card={"data": ..., "metrics": ...})
loaded = load_model(path)
loaded.model.predict(batch)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from ringflow.base.errors import InputFileError
from ringflow.base.rundir import write_atomic
from ringflow.elements.features import feature_names
from ringflow.models.model import Model
from ringflow.models.settings import MODEL_KEY, ModelSettings

FORMAT_VERSION = 1


@dataclass(frozen=True)
class LoadedModel:
    """A network ready to be used, in evaluation mode on the CPU."""

    model: Model
    #: Probability from which on an element is a candidate.
    threshold: float
    #: Where it came from: data, settings, commit, metrics.
    card: dict[str, Any] = field(default_factory=dict)


def save_model(path: Path, model: Model, *, threshold: float = 0.5, card: Mapping[str, Any] | None = None) -> None:
    """Write a model file; it appears whole or not at all."""
    record = {
        "settings": model.settings.model_dump(mode="json"),
        "features": feature_names(model.kinds),
        "threshold": threshold,
        "card": dict(card or {}),
    }
    write_described(path, model, MODEL_KEY, record)


def load_model(path: Path) -> LoadedModel:
    """Read a model file; an error in one line if it is broken, of another format or made for other features."""
    with read_described(path, MODEL_KEY, "model file", "train") as (record, weights):
        try:
            model = Model(ModelSettings.model_validate(record["settings"]))
        except pydantic.ValidationError as error:
            what = error.errors()[0]
            place = ".".join(map(str, what["loc"]))
            raise InputFileError(
                f"{path} has settings this version does not know ({place}: {what['msg']}); "
                "use the version of ringflow that trained it"
            ) from None
        if tuple(record["features"]) != feature_names(model.kinds):
            different = sorted(set(record["features"]) ^ set(feature_names(model.kinds)))
            raise InputFileError(
                f"{path} was trained on other features ({', '.join(different[:3]) or 'in another order'}); "
                "use the version of ringflow that trained it"
            )
        load_weights(model, weights, path)
        return LoadedModel(model.eval(), float(record["threshold"]), dict(record["card"]))


def write_described(path: Path, module: nn.Module, key: str, record: Mapping[str, Any]) -> None:
    """Weights and, under one key of the header, what is to be known of them; the file appears whole or not at all."""
    weights = {name: value.detach().cpu().contiguous() for name, value in module.state_dict().items()}
    header = json.dumps({"format_version": FORMAT_VERSION, **record}, allow_nan=False)
    write_atomic(path, save(weights, metadata={key: header}))


@contextmanager
def read_described(path: Path, key: str, kind: str, command: str) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """What the header says under a key, and the weights; what is wrong with either, here or in the body, is one line."""
    if not path.is_file():
        raise InputFileError(f"no {kind} at {path}; give one that `ringflow {command}` wrote")
    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no mapping)
            metadata = (file.metadata() or {}).get(key)
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputFileError(f"{path} cannot be read as a {kind} ({reason}); copy or make it again") from None
    if metadata is None:
        raise InputFileError(f"{path} holds weights without a description; give a file that `ringflow {command}` wrote")
    try:
        record = json.loads(metadata)
        if record["format_version"] != FORMAT_VERSION:
            raise InputFileError(
                f"{path} is a {kind} of format {record['format_version']}, this version reads {FORMAT_VERSION}; "
                "use the version of ringflow that wrote it"
            )
        yield record, weights
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise InputFileError(f"{path} has a broken description ({reason}); copy or make it again") from None


def load_weights(model: Model, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a network; an error if they are of another architecture."""
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise InputFileError(
                f"{path} is of another architecture: {name} is {found.get(name, 'absent')} there, "
                f"{expected.get(name, 'absent')} here; give the settings it was trained with"
            )
    model.load_state_dict(dict(weights))

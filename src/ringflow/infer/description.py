"""What an exported file says of itself, in the metadata properties of ONNX: enough to feed it and to read its answer.

Free of torch, so that a file can be used where torch is not installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError

FORMAT_VERSION = 1
_FORMAT = "ringflow_format"


@dataclass(frozen=True)
class InputColumn:
    """One column of an input; without a required one no element can be made, the others may be NaN."""

    name: str
    unit: str
    meaning: str
    required: bool


@dataclass(frozen=True)
class Description:
    """The properties of a file."""

    inputs: dict[str, tuple[InputColumn, ...]]  # by name of the input, which is that of the collection
    class_names: tuple[str, ...]
    threshold: float
    detector: str | None
    weights_sha256: str
    ringflow: str
    precision: str = "float32"
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[str, str]:
        """Collections it takes."""
        track, calorimeter = self.inputs
        return track, calorimeter

    def properties(self) -> dict[str, str]:
        """As texts; what is more than a word is JSON."""
        columns = {kind: [vars(column) for column in given] for kind, given in self.inputs.items()}
        return {
            _FORMAT: str(FORMAT_VERSION),
            "ringflow_version": self.ringflow,
            "detector": self.detector or "",
            "class_names": json.dumps(self.class_names),
            "inputs": json.dumps(columns),
            "threshold": repr(self.threshold),
            "weights_sha256": self.weights_sha256,
            "precision": self.precision,
            "card": json.dumps(self.card, allow_nan=False),
        }

    @classmethod
    def read(cls, properties: Mapping[str, str], path: Path) -> Description:
        """The description in the properties of a file; an error in one line if it is not one of ours."""
        version = properties.get(_FORMAT)
        if version is None:
            raise InputFileError(f"{path} is an ONNX file, but not one that `ringflow export` wrote; export the model")
        if version != str(FORMAT_VERSION):
            raise InputFileError(f"{path} is of format {version}, this version reads {FORMAT_VERSION}; export it again")
        try:
            inputs = json.loads(properties["inputs"])
            return cls(
                {kind: tuple(InputColumn(**column) for column in columns) for kind, columns in inputs.items()},
                tuple(json.loads(properties["class_names"])),
                float(properties["threshold"]),
                properties["detector"] or None,
                properties["weights_sha256"],
                properties["ringflow_version"],
                properties["precision"],
                json.loads(properties["card"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise InputFileError(f"{path} has a broken description ({reason}); export it again") from None

"""The network that is served: what it says of itself, which events it takes, and several of them at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.event.block import Collection, EventBlock
from ringflow.infer.runtime import Description, InputColumn, Reconstructor
from ringflow.infer.serve.protocol import VERSION, RequestError, TensorSpec, Values

#: No detector measures more, in whatever unit; up to here nothing inside a network overflows, so that an event cannot
#: spoil those it is computed with.
LARGEST = 1e9
_MOMENTUM = ("px", "py", "pz", "energy")
_PLATFORMS = {"onnx": "onnxruntime_onnx", "torch": "pytorch"}
_WARM_UP_ROWS = 4


class ServedModel:
    """A session under a name."""

    def __init__(self, name: str, session: Reconstructor, description: Description, engine: str) -> None:
        self.name, self.engine, self.description = name, engine, description
        self._session = session
        self._columns = description.inputs
        self._optional = {
            kind: np.array([not column.required for column in columns]) for kind, columns in self._columns.items()
        }
        self.inputs = tuple(TensorSpec(kind, "FP32", (-1, len(columns))) for kind, columns in self._columns.items())
        whole_number = ("candidate_label", "candidate_charge", "candidate_track", f"candidate_{description.kinds[1]}")
        self.outputs = (
            *(TensorSpec(name, "INT64", (-1,)) for name in whole_number[:2]),
            TensorSpec("candidate_momentum", "FP32", (-1, 4)),
            *(TensorSpec(name, "INT64", (-1,)) for name in whole_number[2:]),
        )

    def metadata(self) -> dict[str, Any]:
        """What a client needs to know."""
        said = self.description
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": _PLATFORMS[self.engine],
            "inputs": [spec.as_dict() for spec in self.inputs],
            "outputs": [spec.as_dict() for spec in self.outputs],
            "parameters": {
                "columns": {kind: [vars(column) for column in columns] for kind, columns in self._columns.items()},
                "class_names": list(said.class_names),
                "threshold": said.threshold,
                "detector": said.detector,
                "weights_sha256": said.weights_sha256,
                "precision": said.precision,
                "ringflow_version": said.ringflow,
            },
        }

    def config(self) -> dict[str, Any]:
        """The same in the words of a Triton model configuration; a request is one event, so tensors have no batch axis."""
        parameters = self.metadata()["parameters"]
        return {
            "name": self.name,
            "platform": _PLATFORMS[self.engine],
            "max_batch_size": 0,
            "input": [_configured(spec) for spec in self.inputs],
            "output": [_configured(spec) for spec in self.outputs],
            "parameters": {
                key: {"string_value": value if isinstance(value, str) else json.dumps(value)}
                for key, value in parameters.items()
            },
        }

    def check(self, event: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Refuse values from which no element can be made."""
        for kind, table in event.items():
            with np.errstate(invalid="ignore"):
                bad = ~(np.abs(table) <= LARGEST)
            if bad.any():
                bad &= ~(np.isnan(table) & self._optional[kind])
            if bad.any():
                row, column = np.argwhere(bad)[0]
                raise RequestError(_refusal(kind, int(row), self._columns[kind][column], float(table[row, column])))

    def compute(self, events: Sequence[Mapping[str, npt.NDArray[np.float32]]]) -> list[Values]:
        """The answers to events that were checked, in their order."""
        made = self._session.reconstruct(self._block(events))
        assert len(made.counts) == len(events), "an answer per event"
        offsets = made.offsets.tolist()
        values = self._values(made)
        return [{name: value[first:last] for name, value in values.items()} for first, last in pairwise(offsets)]

    def warm_up(self) -> None:
        """Compute an event of made-up values: the first one is slow, and what does not work is known before it is asked."""
        self.compute([{spec.name: np.ones((_WARM_UP_ROWS, spec.shape[1]), np.float32) for spec in self.inputs}])

    def _block(self, events: Sequence[Mapping[str, npt.NDArray[np.float32]]]) -> EventBlock:
        """Events side by side. All columns stay float32, in which a missing value can be said."""
        collections = {}
        for kind, columns in self._columns.items():
            counts = np.array([len(event[kind]) for event in events], np.int64)
            by_column = np.ascontiguousarray(np.concatenate([event[kind] for event in events]).T)
            values: dict[str, npt.NDArray[Any]] = {
                column.name: own for column, own in zip(columns, by_column, strict=True)
            }
            if kind == "hit":
                # Candidates of hits name the cluster of the hit; when every hit is its own, that is the hit.
                values["cluster"] = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
            collections[kind] = Collection(counts, values)
        return EventBlock(np.arange(len(events)), collections)

    def _values(self, made: Collection) -> Values:
        momentum = np.stack([made[axis] for axis in _MOMENTUM], axis=1)
        columns = (made["label"], made["charge"], momentum, made["track"], made["cluster"])
        return {
            spec.name: column if spec.datatype == "FP32" else column.astype(np.int64)
            for spec, column in zip(self.outputs, columns, strict=True)
        }


def _refusal(kind: str, row: int, column: InputColumn, value: float) -> str:
    where = f"{kind}: row {row} has {value:.6g} in column {column.name}"
    if np.isnan(value):
        return f"{where}, without which no element can be made"
    return f"{where}; values are finite and below {LARGEST:g}" + ("" if column.required else ", or NaN for missing")


def _configured(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{spec.datatype}", "dims": list(spec.shape)}

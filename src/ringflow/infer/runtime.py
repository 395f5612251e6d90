"""Run exported files with ONNX Runtime, event by event.

runtime = EventRuntime(Path("model.onnx"), threads=2)
for event in runtime.events(block):
    answer = runtime.run(event)
    answer["candidate_label"], answer["candidate_momentum"]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import DatasetError, InputFileError
from ringflow.event.block import EventBlock, require_finite
from ringflow.infer.description import Description, InputColumn
from ringflow.launch.frameworks import framework

Values = dict[str, npt.NDArray[Any]]

_FATAL_ONLY = 4


class EventRuntime:
    """An open file. `threads` are those of one operation; 0 leaves the choice to the runtime."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        runtime = framework("onnxruntime", "onnx")
        if not path.is_file():
            raise InputFileError(f"no ONNX file at {path}; give the file that `ringflow export` wrote")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _FATAL_ONLY
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has a tree of exceptions of its own
            reason = " ".join(str(error).split())[:200]
            raise InputFileError(f"{path} cannot be read as an ONNX file ({reason}); export it again") from None
        self.description = Description.read(self._session.get_modelmeta().custom_metadata_map, path)
        self._outputs = [output.name for output in self._session.get_outputs()]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what it can answer."""
        return tuple(self._outputs)

    def run(self, event: Mapping[str, npt.NDArray[np.float32]], outputs: Sequence[str] | None = None) -> Values:
        """The answer for one event, given as a table per input."""
        names = list(outputs or self._outputs)
        return dict(zip(names, self._session.run(names, dict(event)), strict=True))

    def events(self, block: EventBlock) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
        """The events of a block as the file takes them."""
        return event_values(block, self.description.inputs)


def event_values(
    block: EventBlock, inputs: Mapping[str, Sequence[InputColumn]]
) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
    """A table per input for every event of a block, NaN in columns that are not there."""
    required = {kind: [column.name for column in columns if column.required] for kind, columns in inputs.items()}
    require_finite(block, required)
    tables = {kind: _table(block, kind, columns) for kind, columns in inputs.items()}
    offsets = {kind: block[kind].offsets for kind in inputs}
    for event in range(len(block)):
        yield {kind: tables[kind][offsets[kind][event] : offsets[kind][event + 1]] for kind in inputs}


def _table(block: EventBlock, kind: str, columns: Sequence[InputColumn]) -> npt.NDArray[np.float32]:
    present = block[kind].columns if kind in block else {}
    if lacking := sorted(column.name for column in columns if column.required and column.name not in present):
        raise DatasetError(
            f"missing features: the {kind} collection has no column {', '.join(map(repr, lacking))}; "
            "a network cannot do without"
        )
    table = np.full((len(block[kind]), len(columns)), np.nan, np.float32)
    for place, column in enumerate(columns):
        if column.name in present:
            table[:, place] = present[column.name]
    return table

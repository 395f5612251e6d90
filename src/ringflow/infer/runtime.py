"""Exported networks and what every session gives, free of torch: it starts fast and runs where torch is not installed.

runtime = EventRuntime(Path("model.onnx"), threads=2)
for event in runtime.events(block):
    answer = runtime.run(event)
    answer["candidate_label"], answer["candidate_momentum"]
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import DatasetError, InputFileError
from ringflow.event.block import Collection, EventBlock, cast, require_finite
from ringflow.event.schema import CANDIDATE_ERRORS
from ringflow.launch.frameworks import framework, one_line

Values = dict[str, npt.NDArray[Any]]
Event = Mapping[str, npt.NDArray[np.float32]]

FORMAT_VERSION = 1
_FORMAT = "ringflow_format"
_HASH = "ringflow_sha256"
_NO_HASH = "0" * 64
_DIGITS = re.compile("[0-9a-f]{64}")
#: The property as it stands in a file: a name, the tag and the length of its value, the value.
_IN_FILE = re.compile(_HASH.encode() + rb"\x12@([0-9a-f]{64})")
_FATAL_ONLY = 4

#: Columns of the rows that become candidates; `cluster` counts calorimeter elements, clusters or hits.
ROW = ("label", "charge", "px", "py", "pz", "energy", "track", "cluster")
#: Those that follow where uncertainties are known.
ERRORS = tuple(column.name for column in CANDIDATE_ERRORS)


class Reconstructor(ABC):
    """A network ready to be used, whatever computes it."""

    def __init__(
        self, kinds: tuple[str, str], threshold: float, card: dict[str, Any], *, has_errors: bool = False
    ) -> None:
        self.kinds = kinds  # collections it needs
        self.threshold = threshold
        self.card = card
        self.detector = (
            str(card["detector"]) if card.get("detector") else None
        )  # it was trained for, as far as is known
        self.has_errors = has_errors  # whether its candidates have the columns `ERRORS`

    @property
    @abstractmethod
    def description(self) -> Description:
        """What an exported file of it says of itself."""

    def reconstruct(self, block: EventBlock) -> Collection:
        """The candidates of a block, in the order of their elements."""
        made = self.candidates(block)
        if self.kinds[1] == "hit" and len(made):
            made.columns["cluster"] = _clusters_of_hits(block["hit"], made)
        return made

    @abstractmethod
    def candidates(self, block: EventBlock) -> Collection:
        """The same, where `cluster` counts calorimeter elements, clusters or hits."""


def collection(
    counts: npt.NDArray[np.int64], rows: list[npt.NDArray[np.float64]], names: Sequence[str] = ROW
) -> Collection:
    """Candidates from rows of the columns `ROW`, or of others that begin with them."""
    return cast("candidate", counts, dict(zip(names, np.concatenate(rows).T, strict=True)))


def _clusters_of_hits(hits: Collection, made: Collection) -> npt.NDArray[np.int32]:
    """The cluster each candidate's hit belongs to; -1 for a candidate on a track, or where hits know no clusters."""
    if "cluster" not in hits.columns:
        return np.full(len(made), -1, np.int32)
    hit = made["cluster"]
    first = np.repeat(hits.offsets[:-1], made.counts)
    cluster: npt.NDArray[np.int32] = np.where(hit >= 0, hits["cluster"][(first + hit).clip(0)], -1).astype(np.int32)
    return cluster


@dataclass(frozen=True)
class InputColumn:
    """One column of an input; without a required one no element can be made, the others may be NaN."""

    name: str
    unit: str
    meaning: str
    required: bool


@dataclass(frozen=True)
class Description:
    """What an exported file says of itself, in the metadata properties of ONNX: enough to feed it and to read its answer."""

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

    @property
    def columns(self) -> dict[str, list[str]]:
        """Names of the columns of every input."""
        return {kind: [column.name for column in given] for kind, given in self.inputs.items()}

    def properties(self) -> dict[str, str]:
        """As texts; what is more than a word is JSON."""
        said = {**asdict(self), "detector": self.detector or "", "ringflow_version": self.ringflow}
        del said["ringflow"]
        texts = {
            name: value if isinstance(value, str) else json.dumps(value, allow_nan=False)
            for name, value in said.items()
        }
        return {_FORMAT: str(FORMAT_VERSION), _HASH: _NO_HASH, **texts}

    @classmethod
    def read(cls, properties: Mapping[str, str], path: Path) -> Description:
        """The description in the properties of a file; an error in one line if it is not one of ours."""
        version = properties.get(_FORMAT)
        if version is None:
            raise InputFileError(f"{path} is an ONNX file, but not one that `ringflow export` wrote; export the model")
        if version != str(FORMAT_VERSION):
            raise InputFileError(f"{path} is of format {version}, this version reads {FORMAT_VERSION}; export it again")
        try:
            inputs, threshold = json.loads(properties["inputs"]), float(properties["threshold"])
            if list(inputs) not in (["track", "cluster"], ["track", "hit"]):
                raise ValueError(f"inputs are {', '.join(inputs)}")
            if not math.isfinite(threshold):
                raise ValueError(f"threshold is {threshold}")
            return cls(
                {kind: tuple(InputColumn(**column) for column in columns) for kind, columns in inputs.items()},
                tuple(json.loads(properties["class_names"])),
                threshold,
                properties["detector"] or None,
                properties["weights_sha256"],
                properties["ringflow_version"],
                properties["precision"],
                dict(json.loads(properties["card"])),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = one_line(f"{type(error).__name__}: {error}")
            raise InputFileError(f"{path} has a broken description ({reason}); export it again") from None


def with_hash(content: bytes) -> bytes:
    """An ONNX file with the sha256 of itself in the place of the zeros that it was computed with."""
    digest = hashlib.sha256(content).hexdigest().encode()
    return _IN_FILE.sub(lambda place: place[0].replace(place[1], digest), content, count=1)


def _has_hash(path: Path) -> bool:
    """Whether a file says its sha256, which then is the right one; looked up in its bytes, before anything reads them."""
    content = path.read_bytes()
    if not (place := _IN_FILE.search(content)):
        return False
    digest = hashlib.sha256(content[: place.start(1)] + _NO_HASH.encode())
    digest.update(memoryview(content)[place.end(1) :])
    if digest.hexdigest().encode() != place[1]:
        raise _changed(path)
    return True


def _changed(path: Path) -> InputFileError:
    return InputFileError(f"{path} is not what `ringflow export` wrote (its sha256 differs); copy or export it again")


class EventRuntime:
    """An open file, run event by event. `threads` are those of one operation; 0 leaves the choice to ONNX Runtime."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        runtime = framework("onnxruntime", "onnx")
        if not path.is_file():
            raise InputFileError(f"no ONNX file at {path}; give the file that `ringflow export` wrote")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = _FATAL_ONLY
        has_hash = _has_hash(path)
        try:
            self._session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            properties = self._session.get_modelmeta().custom_metadata_map  # an error if one of them is no UTF-8
        except Exception as error:  # the runtime has a tree of exceptions of its own
            raise InputFileError(
                f"{path} cannot be read as an ONNX file ({one_line(str(error))}); export it again"
            ) from None
        # A hash whose name or place is not what it was would else be no hash.
        hashes = {name for name, value in properties.items() if _DIGITS.fullmatch(value)} - {"weights_sha256"}
        if not has_hash and (hashes or _HASH in properties):
            raise _changed(path)
        self.description = Description.read(properties, path)
        self.outputs = tuple(output.name for output in self._session.get_outputs())
        self._require_fitting(path)

    def _require_fitting(self, path: Path) -> None:
        """What the graph takes and gives is what the description says."""
        takes = {one.name: one.shape[1:] for one in self._session.get_inputs()}
        said = {kind: [len(columns)] for kind, columns in self.description.inputs.items()}
        lacking = [name for name in candidate_outputs(self.description.kinds) if name not in self.outputs]
        if takes != said or lacking:
            what = f"no output {lacking[0]}" if lacking else f"inputs {takes} instead of {said}"
            raise InputFileError(f"{path} has a graph that does not fit its description ({what}); export it again")

    def run(self, event: Event, outputs: Sequence[str] | None = None) -> Values:
        """The answer for one event, given as a table per input."""
        names = list(outputs or self.outputs)
        return dict(zip(names, self._session.run(names, dict(event)), strict=True))

    def events(self, block: EventBlock) -> Iterator[dict[str, npt.NDArray[np.float32]]]:
        """The events of a block as the file takes them."""
        return event_values(block, self.description.inputs)


def candidate_outputs(kinds: tuple[str, str]) -> list[str]:
    """The outputs of which candidates are made, in the order of their columns."""
    return [f"candidate_{name}" for name in ("label", "charge", "momentum", "track", kinds[1])]


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


class OnnxSession(Reconstructor):
    """An exported file as a session. `threads` take whole events, which is faster than sharing one, with the same result."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._runtime = EventRuntime(path)
        self._workers = ThreadPoolExecutor(threads) if threads > 1 else None
        said = self.description
        super().__init__(said.kinds, said.threshold, said.card)
        self._asked = candidate_outputs(said.kinds)

    @property
    def description(self) -> Description:
        """What the file says of itself."""
        return self._runtime.description

    def candidates(self, block: EventBlock) -> Collection:
        """Event by event."""
        run = partial(self._runtime.run, outputs=self._asked)
        apply = map if self._workers is None else self._workers.map
        answers = list(apply(run, self._runtime.events(block)))
        rows = [np.column_stack([answer[name] for name in self._asked]).astype(np.float64) for answer in answers]
        return collection(np.array([len(part) for part in rows], np.int64), [np.zeros((0, len(ROW))), *rows])

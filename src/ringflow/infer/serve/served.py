"""The network that is served: what it says of itself, which events it takes, and several of them at a time.

Requests that wait are computed together: a bounded queue, and workers that take from its head what fits. While the workers
compute, requests gather by themselves; a worker that is free takes them at once, or after a delay in which more may come. The
work is done in threads, everything else in the event loop, so that nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ringflow.base.log import say
from ringflow.event.block import Collection, EventBlock
from ringflow.infer.runtime import Description, InputColumn, Reconstructor
from ringflow.infer.serve.protocol import VERSION, RequestError, TensorSpec, Values

E = TypeVar("E")
A = TypeVar("A")

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


class QueueFullError(Exception):
    """As many wait as may."""


@dataclass(frozen=True)
class BatchSettings:
    """How events are put together."""

    workers: int = 1  # batches computed at a time
    max_elements: int = 8192  # of a batch; a larger event is computed alone
    max_delay: float = 0.0  # seconds that a free worker waits for more
    max_waiting: int = 256  # requests


@dataclass(frozen=True)
class _Waiting(Generic[E]):
    event: E
    elements: int
    since: float


class Batcher(Generic[E, A]):
    """Gives every event a future of its answer. To be used from one event loop."""

    def __init__(
        self,
        compute: Callable[[Sequence[E]], Sequence[A]],
        settings: BatchSettings,
        computed: Callable[[int, int, float], None] = lambda events, elements, seconds: None,
    ) -> None:
        self._compute, self._settings, self._computed = compute, settings, computed
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="ringflow-compute")
        self._idle = settings.workers
        self._waiting: dict[asyncio.Future[A], _Waiting[E]] = {}  # in the order they came
        self._running: set[asyncio.Task[None]] = set()
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.Handle | None = None

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def submit(self, event: E, elements: int) -> asyncio.Future[A]:
        """A future of the answer. Whoever does not want it any more cancels it, and it leaves the queue."""
        if len(self._waiting) >= self._settings.max_waiting:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        answer.add_done_callback(lambda done: self._waiting.pop(done, None))
        self._waiting[answer] = _Waiting(event, elements, time.monotonic())
        if self._idle and self._soon is None:
            self._soon = loop.call_soon(self._dispatch)  # after all that came in the same breath
        return answer

    def close(self) -> None:
        """Take no more work; what is being computed ends in its thread."""
        for planned in (self._soon, self._later):
            if planned is not None:
                planned.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._later is not None:
            self._later.cancel()
        self._soon = self._later = None
        while self._idle and self._waiting:
            chosen, full = self._head()
            rest = self._waiting[chosen[0]].since + self._settings.max_delay - time.monotonic()
            if rest > 0 and not full:
                self._later = loop.call_later(rest, self._dispatch)
                return
            self._idle -= 1
            batch = [(answer, self._waiting.pop(answer)) for answer in chosen]
            task = loop.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _head(self) -> tuple[list[asyncio.Future[A]], bool]:
        """The first that fit together, and whether no more would."""
        chosen: list[asyncio.Future[A]] = []
        total = 0
        for answer, waiting in self._waiting.items():
            total += waiting.elements
            if chosen and total > self._settings.max_elements:
                return chosen, True
            chosen.append(answer)
        return chosen, total >= self._settings.max_elements

    async def _run(self, batch: list[tuple[asyncio.Future[A], _Waiting[E]]]) -> None:
        events = [waiting.event for _, waiting in batch]
        started = time.perf_counter()
        outcomes = await asyncio.get_running_loop().run_in_executor(self._threads, self._outcomes, events)
        self._computed(len(batch), sum(waiting.elements for _, waiting in batch), time.perf_counter() - started)
        self._idle += 1
        for (answer, _), outcome in zip(batch, outcomes, strict=True):
            if answer.done():  # nobody wants it any more
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)
        self._dispatch()

    def _outcomes(self, events: list[E]) -> list[A | Exception]:
        """Answers, or what went wrong; where a batch fails, its members are tried one by one, so that none harms another."""
        try:
            answers = self._compute(events)
            if len(answers) != len(events):
                raise RuntimeError(f"{len(answers)} answers to {len(events)} events")
            return list(answers)
        except Exception as error:
            if len(events) == 1:
                say(f"an event could not be computed: {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}")
                return [error]
        return [outcome for event in events for outcome in self._outcomes([event])]

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
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ringflow.base.log import say
from ringflow.event.block import Collection, EventBlock
from ringflow.infer.runtime import Description, Reconstructor
from ringflow.infer.serve.protocol import DATATYPES, VERSION, RequestError, TensorSpec, Values
from ringflow.launch.frameworks import one_line

#: No detector measures more, in whatever unit; up to here nothing inside a network overflows, so that an event cannot
#: spoil those it is computed with.
LARGEST = 1e9
_PLATFORMS = {"onnx": "onnxruntime_onnx", "torch": "pytorch"}
_WARM_UP_ROWS = 4

ServedEvent = Mapping[str, npt.NDArray[np.float32]]


class ServedModel:
    """A session under a name."""

    def __init__(self, name: str, session: Reconstructor, description: Description, engine: str) -> None:
        self.name, self.engine, self.description = name, engine, description
        self._session = session
        self.inputs = [TensorSpec(kind, "FP32", [-1, len(columns)]) for kind, columns in description.inputs.items()]
        self.outputs = [
            TensorSpec("candidate_label", "INT64", [-1]),
            TensorSpec("candidate_charge", "INT64", [-1]),
            TensorSpec("candidate_momentum", "FP32", [-1, 4]),
            TensorSpec("candidate_track", "INT64", [-1]),
            TensorSpec(f"candidate_{description.kinds[1]}", "INT64", [-1]),
        ]

    def metadata(self) -> dict[str, Any]:
        """What a client needs to know."""
        said = self.description
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": _PLATFORMS[self.engine],
            "inputs": [spec._asdict() for spec in self.inputs],
            "outputs": [spec._asdict() for spec in self.outputs],
            "parameters": {
                "columns": {kind: [vars(column) for column in columns] for kind, columns in said.inputs.items()},
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
        tensors = {
            side: [{"name": name, "data_type": f"TYPE_{kind}", "dims": shape} for name, kind, shape in specs]
            for side, specs in (("input", self.inputs), ("output", self.outputs))
        }
        parameters = {
            key: {"string_value": value if isinstance(value, str) else json.dumps(value)}
            for key, value in self.metadata()["parameters"].items()
        }
        about = {"name": self.name, "platform": _PLATFORMS[self.engine], "max_batch_size": 0}
        return {**about, **tensors, "parameters": parameters}

    def check(self, event: ServedEvent) -> None:
        """Refuse values from which no element can be made."""
        for kind, table in event.items():
            columns = self.description.inputs[kind]
            with np.errstate(invalid="ignore"):
                bad = ~(np.abs(table) <= LARGEST)
            if bad.any():
                bad &= ~(np.isnan(table) & ~np.array([column.required for column in columns]))
            if bad.any():
                row, place = np.argwhere(bad)[0]
                allowed = f"finite and below {LARGEST:g}" + ("" if columns[place].required else ", or NaN for missing")
                found = f"{table[row, place]:.6g} in column {columns[place].name}"
                raise RequestError(f"{kind}: row {row} has {found}; values are {allowed}")

    def compute(self, events: Sequence[ServedEvent]) -> list[Values]:
        """The answers to events that were checked, in their order."""
        made = self._session.reconstruct(self._block(events))
        assert len(made.counts) == len(events), "an answer per event"
        momentum = np.stack([made[axis] for axis in ("px", "py", "pz", "energy")], axis=1)
        columns = (made["label"], made["charge"], momentum, made["track"], made["cluster"])
        values = {
            spec.name: column.astype(DATATYPES[spec.datatype], copy=False)
            for spec, column in zip(self.outputs, columns, strict=True)
        }
        offsets = made.offsets.tolist()
        return [{name: value[first:last] for name, value in values.items()} for first, last in pairwise(offsets)]

    def warm_up(self) -> None:
        """Compute an event of made-up values: the first one is slow, and what does not work is known before it is asked."""
        self.compute([{spec.name: np.ones((_WARM_UP_ROWS, spec.shape[1]), np.float32) for spec in self.inputs}])

    def _block(self, events: Sequence[ServedEvent]) -> EventBlock:
        """Events side by side. All columns stay float32, in which a missing value can be said."""
        collections = {}
        for kind, columns in self.description.inputs.items():
            counts = np.array([len(event[kind]) for event in events], np.int64)
            by_column = np.ascontiguousarray(np.concatenate([event[kind] for event in events]).T)
            values: Values = {column.name: own for column, own in zip(columns, by_column, strict=True)}
            if kind == "hit":
                # Candidates of hits name the cluster of the hit; when every hit is its own, that is the hit.
                values["cluster"] = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
            collections[kind] = Collection(counts, values)
        return EventBlock(np.arange(len(events)), collections)


@dataclass(frozen=True)
class BatchSettings:
    """How events are put together."""

    workers: int = 1  # batches computed at a time
    max_elements: int = 8192  # of a batch; a larger event is computed alone
    max_delay: float = 0.0  # seconds that a free worker waits for more
    max_waiting: int = 256  # requests


class _Waiting(NamedTuple):
    event: Any
    elements: int
    since: float


class Batcher:
    """Gives every event a future of its answer. To be used from one event loop."""

    def __init__(
        self,
        compute: Callable[[list[Any]], Sequence[Any]],
        settings: BatchSettings,
        computed: Callable[[int, int, float], None] = lambda events, elements, seconds: None,
    ) -> None:
        self._compute, self._settings, self._computed = compute, settings, computed
        self._threads = ThreadPoolExecutor(settings.workers, thread_name_prefix="ringflow-compute")
        self._waiting: dict[asyncio.Future[Any], _Waiting] = {}  # in the order they came
        self._arrived = asyncio.Event()
        self._workers: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def submit(self, event: Any, elements: int) -> asyncio.Future[Any]:
        """A future of the answer. Whoever does not want it any more cancels it, and it leaves the queue."""
        if len(self._waiting) >= self._settings.max_waiting:
            raise RequestError("as many requests wait as may; try again", 503)
        loop = asyncio.get_running_loop()
        if not self._workers:
            self._workers = [loop.create_task(self._work()) for _ in range(self._settings.workers)]
        answer: asyncio.Future[Any] = loop.create_future()
        answer.add_done_callback(lambda done: self._waiting.pop(done, None))
        self._waiting[answer] = _Waiting(event, elements, time.monotonic())
        self._arrived.set()
        return answer

    def close(self) -> None:
        """Take no more work; what is being computed ends in its thread."""
        for worker in self._workers:
            worker.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        """Compute what waits, batch after batch: the first that fit together, once they are enough or have waited for long."""
        most = self._settings.max_elements
        while True:
            fitting, elements, rest = list[asyncio.Future[Any]](), 0, None
            for answer, one in self._waiting.items():
                elements += one.elements
                if fitting and elements > most:
                    break
                fitting.append(answer)
            if fitting:
                rest = self._waiting[fitting[0]].since + self._settings.max_delay - time.monotonic()
                if rest <= 0 or elements >= most:
                    await self._run({answer: self._waiting.pop(answer) for answer in fitting})
                    continue
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), rest)

    async def _run(self, batch: dict[asyncio.Future[Any], _Waiting]) -> None:
        events = [one.event for one in batch.values()]
        started = time.perf_counter()
        outcomes = await asyncio.get_running_loop().run_in_executor(self._threads, self._outcomes, events)
        self._computed(len(batch), sum(one.elements for one in batch.values()), time.perf_counter() - started)
        for answer, outcome in zip(batch, outcomes, strict=True):
            if answer.done():  # nobody wants it any more
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)

    def _outcomes(self, events: list[Any]) -> list[Any]:
        """Answers, or what went wrong; where a batch fails, its members are tried one by one, so that none harms another."""
        try:
            answers = self._compute(events)
            if len(answers) != len(events):
                raise RuntimeError(f"{len(answers)} answers to {len(events)} events")
            return list(answers)
        except Exception as error:
            if len(events) == 1:
                say(f"an event could not be computed: {one_line(f'{type(error).__name__}: {error}')}")
                return [RequestError("the event could not be computed", 500)]
        return [outcome for event in events for outcome in self._outcomes([event])]

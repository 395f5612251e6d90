"""The routes of the server, the limits of a request, and what is counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    generate_latest,
)
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive

from ringflow import __version__
from ringflow.infer.serve.protocol import VERSION, InferRequest, RequestError, Values, decompress, parse, shown, write
from ringflow.infer.serve.served import Batcher, BatchSettings, QueueFullError, ServedModel

EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository")
#: Bodies above this many bytes, and compressed ones, are taken apart in a thread: others need not wait for it.
_PARSED_AT_ONCE = 64 << 10
#: So many bodies of the largest size are held at a time.
_LARGEST_BODIES = 16
#: Bytes of a refused body that are read and thrown away, so that the client gets to reading why.
_DISCARDED = 64 << 20
_CLIENT_GONE = 499
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_EVENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ELEMENTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)

Take = Callable[[int], None]


@dataclass(frozen=True)
class Limits:
    """What a client may ask for."""

    max_request_bytes: int = 16 << 20
    max_event_elements: int = 20_000
    timeout: float = 30.0  # seconds for a body to arrive, and again for an answer


class ClientGoneError(Exception):
    """Nobody is there to be answered."""


class Application:
    """One model behind the protocol; `asgi` is what a web server runs."""

    def __init__(self, model: ServedModel, batches: BatchSettings, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._output_names = [spec.name for spec in model.outputs]
        self._batcher: Batcher[Values, Values] = Batcher(
            model.compute, batches, lambda *batch: self._metrics.computed(*batch)
        )
        self._metrics = Metrics(model, lambda: len(self._batcher))
        self._memory = MemoryGate(_LARGEST_BODIES * limits.max_request_bytes)
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="ringflow-parse")
        self._is_ready = True
        self.asgi = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
            lifespan=self._lifespan,
        )

    def stop_being_ready(self) -> None:
        """Say from now on that no more requests should be sent; those that come are answered."""
        self._is_ready = False

    def _routes(self) -> list[Route]:
        models = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        return [
            *(Route(f"{model}/infer", self._infer, methods=["POST"]) for model in models),  # first: the most asked for
            *(Route(model, self._model_metadata) for model in models),
            *(Route(f"{model}/ready", self._model_ready) for model in models),
            *(Route(f"{model}/config", self._model_config) for model in models),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/health/live", _empty),
            Route("/v2/health/ready", self._ready),
            Route("/v2", self._server_metadata),
            Route("/metrics", self._metrics_text),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self._batcher.close()
        self._parser.shutdown(wait=False, cancel_futures=True)

    async def _server_metadata(self, request: Request) -> Response:
        return JSONResponse({"name": "ringflow", "version": __version__, "extensions": list(EXTENSIONS)})

    async def _ready(self, request: Request) -> Response:
        return Response(status_code=200 if self._is_ready else 503)

    async def _model_ready(self, request: Request) -> Response:
        self._require_model(request)
        return await self._ready(request)

    async def _model_metadata(self, request: Request) -> Response:
        self._require_model(request)
        return JSONResponse(self._model.metadata())

    async def _model_config(self, request: Request) -> Response:
        self._require_model(request)
        return JSONResponse(self._model.config())

    async def _index(self, request: Request) -> Response:
        state = "READY" if self._is_ready else "UNAVAILABLE"
        return JSONResponse([{"name": self._model.name, "version": VERSION, "state": state, "reason": ""}])

    async def _metrics_text(self, request: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    async def _infer(self, request: Request) -> Response:
        """Answer one event, whatever comes of it, and count it."""
        started, status = time.perf_counter(), 500
        try:
            response = await self._answered(request)
            status = response.status_code
            return response
        finally:
            self._metrics.answered(status, time.perf_counter() - started)

    async def _answered(self, request: Request) -> Response:
        try:
            self._require_model(request)
            with self._memory.held_by_one() as take:
                return await self._answer(request, take)
        except HTTPException as error:
            return await _http_error(request, error)
        except RequestError as error:
            # Of 408 and 413 the body may not have been read to its end.
            return error_response(str(error), error.status, close=error.status in (408, 413))
        except ClientGoneError:
            return Response(status_code=_CLIENT_GONE)

    async def _answer(self, request: Request, take: Take) -> Response:
        body = await read_body(request, self._limits.max_request_bytes, self._limits.timeout, take)
        asked = await self._parsed(body, request, take)
        values = await self._computed(asked, request.receive)
        if not np.isfinite(values["candidate_momentum"]).all():
            raise RequestError("the values of this event make particles of infinite momentum")
        parts, json_size = write(self._model.name, asked, values)
        if json_size is None:
            return Response(parts[0], media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(json_size)}
        return Response(b"".join(parts), headers=headers, media_type="application/octet-stream")

    async def _parsed(self, body: bytes, request: Request, take: Take) -> InferRequest:
        encoding = request.headers.get("content-encoding", "")
        work = partial(self._parse, body, encoding, request.headers.get("inference-header-content-length"))
        if not encoding and len(body) <= _PARSED_AT_ONCE:
            return work()
        if encoding:
            take(self._limits.max_request_bytes)
        return await asyncio.get_running_loop().run_in_executor(self._parser, work)

    def _parse(self, body: bytes, encoding: str, header_length: str | None) -> InferRequest:
        plain = decompress(body, encoding, self._limits.max_request_bytes)
        most = self._limits.max_event_elements
        asked = parse(plain, header_length, self._model.inputs, self._output_names, most)
        self._model.check(asked.inputs)
        return asked

    async def _computed(self, asked: InferRequest, receive: Receive) -> Values:
        """The answer of the batcher, if it comes in time and the client waits for it."""
        try:
            answer = self._batcher.submit(asked.inputs, asked.rows)
        except QueueFullError:
            raise RequestError("as many requests wait as may; try again", 503) from None
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((answer, gone), timeout=self._limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                if answer.exception() is not None:  # the batcher has said what it was
                    raise RequestError("the event could not be computed", 500)
                return answer.result()
            if gone.done():
                raise ClientGoneError
            raise RequestError(f"no answer within {self._limits.timeout:g} s; the server has too much to do", 504)
        finally:
            answer.cancel()
            gone.cancel()

    def _require_model(self, request: Request) -> None:
        name, version = request.path_params["model"], request.path_params.get("version", VERSION)
        if name != self._model.name:
            raise HTTPException(404, f"no model {shown(name)}; this server has {self._model.name}")
        if version != VERSION:
            raise HTTPException(404, f"no version {shown(version)} of {self._model.name}; there is {VERSION}")


def error_response(message: str, status: int, *, close: bool = False) -> Response:
    """Every error is an object of JSON."""
    headers = {"Retry-After": "1"} if status == 503 else {}
    return JSONResponse({"error": message}, status, headers=headers | ({"Connection": "close"} if close else {}))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _empty(request: Request) -> Response:
    return Response()


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return error_response(error.detail, error.status_code)


async def _internal_error(request: Request, error: Exception) -> Response:
    return error_response("internal error", 500)


class MemoryGate:
    """Bytes of requests that are held at a time; what does not fit is refused until others are done."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    @contextmanager
    def held_by_one(self) -> Iterator[Take]:
        """What takes bytes for one request; they are given back at the end."""
        own = 0

        def take(amount: int) -> None:
            nonlocal own
            if self.held + amount > self._most:
                raise RequestError("the server holds as many requests as fit into its memory; try again", 503)
            self.held += amount
            own += amount

        try:
            yield take
        finally:
            self.held -= own


async def read_body(request: Request, most: int, seconds: float, take: Take) -> bytes:
    """A body of `most` bytes at most, that arrives within `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            body = await _read(request, most, take)
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {seconds:g} s", 408) from None
    if body is None:
        raise RequestError(f"the body is larger than the {most} bytes that this server takes", 413)
    return body


async def _read(request: Request, most: int, take: Take) -> bytes | None:
    """The body, or None if it is too large; nothing of it is kept then."""
    announced = request.headers.get("content-length", "0")
    fits = announced.isdecimal() and len(announced) < 20 and int(announced) <= most
    chunks: list[bytes] = []
    size, more = 0, fits or "expect" not in request.headers  # who asked before sending is told at once
    while more and size < most + _DISCARDED:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        fits = fits and size <= most
        if fits:
            take(len(chunk))
            chunks.append(chunk)
        else:
            chunks.clear()
    return b"".join(chunks) if fits else None


class Metrics:
    """What one server counts, for Prometheus, apart from any other in the process."""

    def __init__(self, model: ServedModel, waiting: Callable[[], int]) -> None:
        self._registry = own = CollectorRegistry()
        requests = "Inference requests by HTTP status; 499 is a client that left"
        self._requests = Counter("ringflow_requests", requests, ["status"], registry=own)
        latency = "From the head of a request to its answer"
        self._latency = Histogram("ringflow_request_seconds", latency, buckets=_SECONDS, registry=own)
        self._computing = Histogram("ringflow_batch_seconds", "Computing of a batch", buckets=_SECONDS, registry=own)
        self._events = Histogram("ringflow_batch_events", "Events computed at a time", buckets=_EVENTS, registry=own)
        elements = "Elements computed at a time"
        self._elements = Histogram("ringflow_batch_elements", elements, buckets=_ELEMENTS, registry=own)
        self._total_events = Counter("ringflow_computed_events", "Events computed", registry=own)
        self._total_elements = Counter("ringflow_computed_elements", "Elements computed", registry=own)
        Gauge("ringflow_queue_requests", "Requests that wait to be computed", registry=own).set_function(waiting)
        said = model.description
        Info("ringflow_model", "The model", registry=own).info(
            {
                "name": model.name,
                "engine": model.engine,
                "detector": said.detector or "",
                "weights_sha256": said.weights_sha256,
                "ringflow_version": said.ringflow,
            }
        )
        ProcessCollector(registry=own)

    def answered(self, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(str(status)).inc()
        self._latency.observe(seconds)

    def computed(self, events: int, elements: int, seconds: float) -> None:
        """Count a batch."""
        self._events.observe(events)
        self._elements.observe(elements)
        self._computing.observe(seconds)
        self._total_events.inc(events)
        self._total_elements.inc(elements)

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)

"""The routes of the server, the limits of a request, and what is counted."""

from __future__ import annotations

import asyncio
import gzip
import hmac
import ipaddress
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from reprlib import repr as shown
from typing import Any, TypeVar

import numpy as np
import prometheus_client as prometheus
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ringflow import __version__
from ringflow.infer.serve.protocol import VERSION, InferRequest, RequestError, Values, decompress, parse, write
from ringflow.infer.serve.served import Batcher, BatchSettings, ServedModel

EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository")
#: Bodies above this many bytes, and compressed ones, are taken apart in a thread, so that others need not wait for it;
#: up to here they always fit into memory.
_SMALL = 64 << 10
#: So many bodies of the largest size are held at a time.
_LARGEST_BODIES = 16
#: Bytes of a refused body that are read and thrown away, so that the client gets to reading why.
_DISCARDED = 64 << 20
_CLIENT_GONE = 499
#: Answers below this many bytes fit into a packet, and are sent as they are.
_COMPRESSED_FROM = 1400
#: What an orchestrator asks, which has no token.
_OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")
_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_EVENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ELEMENTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)

Answer = Callable[[Request], Response]
T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What a client may ask for."""

    max_request_bytes: int = 16 << 20
    max_event_elements: int = 20_000
    timeout: float = 30.0  # seconds for a body to arrive, and again for an answer


@dataclass(frozen=True)
class Access:
    """Who may ask. A page of another site can make a browser ask, under a name of that site which leads here."""

    hosts: frozenset[str] = frozenset("*")  # names of this server as `host_name` makes them; addresses are always taken
    token: str | None = None

    def refusal(self, method: str, path: str, headers: Headers) -> RequestError | None:
        """Why a request is not answered, as far as its head tells. What has no Host is of no browser."""
        host = headers.get("host", "").lower()
        if "*" not in self.hosts and host and (name := host_name(host)) not in self.hosts and not _is_address(name):
            return RequestError(f"host {shown(name)} is no name of this server; see --allow-host", 421)
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        foreign = origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")
        if method != "GET" and (foreign or site not in ("none", "same-origin")):
            return RequestError("requests from pages of other sites are not answered", 403)
        if self.token is not None and path not in _OPEN_PATHS:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                return RequestError("a token is needed; send it as `Authorization: Bearer TOKEN`", 401)
        return None


def host_name(host: str) -> str:
    """The name in a Host without port, brackets, and the dot at the end of a name that is complete."""
    return re.sub(r":\d*$", "", host).strip("[]").removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Application:
    """One model behind the protocol; `asgi` is what a web server runs."""

    def __init__(
        self, model: ServedModel, batches: BatchSettings, limits: Limits, access: Access | None = None
    ) -> None:
        self._model, self._limits, self._access = model, limits, access or Access()
        self._metrics = Metrics(model, lambda: len(self._batcher))
        self._batcher = Batcher(model.compute, batches, self._metrics.computed)
        self._held: dict[Request, int] = {}  # bytes
        # One for what is parsed, which is one at a time, and one for what is compressed.
        self._parsing, self._threads = asyncio.Lock(), ThreadPoolExecutor(2, thread_name_prefix="ringflow-bodies")
        self._is_ready = True
        errors: dict[Any, Any] = {HTTPException: _http_error, Exception: _internal_error}
        self._routed = Starlette(routes=self._routes(), exception_handlers=errors, lifespan=self._lifespan)
        self._routed.router.redirect_slashes = False  # an address is what it is, and Host is nothing to send others to

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer whoever may ask; others at once, after which their bodies are thrown away."""
        app: Any = self._routed
        if scope["type"] == "http":
            refusal = self._access.refusal(scope["method"], scope["path"], Headers(scope=scope))
            if refusal is not None:
                headers = {"WWW-Authenticate": "Bearer"} if refusal.status_code == 401 else None
                app = JSONResponse({"error": refusal.detail}, refusal.status_code, headers)
        await app(scope, receive, send)

    def stop_being_ready(self) -> None:
        """Say from now on that no more requests should be sent; those that come are answered."""
        self._is_ready = False

    def _routes(self) -> list[Route]:
        def ready(request: Request) -> Response:
            return Response(status_code=200 if self._is_ready else 503)

        def index(request: Request) -> Response:
            state = "READY" if self._is_ready else "UNAVAILABLE"
            return JSONResponse([{"name": self._model.name, "version": VERSION, "state": state, "reason": ""}])

        def metrics(request: Request) -> Response:
            counted = prometheus.generate_latest(self._metrics.registry)
            return Response(counted, headers={"content-type": prometheus.CONTENT_TYPE_LATEST})

        server = {"name": "ringflow", "version": __version__, "extensions": list(EXTENSIONS)}
        of_model: dict[str, Answer] = {
            "": lambda request: JSONResponse(self._model.metadata()),
            "/ready": ready,
            "/config": lambda request: JSONResponse(self._model.config()),
        }
        of_server: dict[str, Answer] = {
            "/v2/health/live": lambda request: Response(),
            "/v2/health/ready": ready,
            "/v2": lambda request: JSONResponse(server),
            "/metrics": metrics,
        }
        models = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        return [
            *(Route(f"{model}/infer", self._infer, methods=["POST"]) for model in models),  # first: the most asked for
            *(Route(model + path, self._endpoint(of_model[path])) for model in models for path in of_model),
            *(Route(path, self._endpoint(answer)) for path, answer in of_server.items()),
            Route("/v2/repository/index", self._endpoint(index), methods=["POST"]),
        ]

    def _endpoint(self, answer: Answer) -> Callable[[Request], Awaitable[Response]]:
        """In the event loop: what is quick needs no thread, which Starlette gives to plain functions."""

        async def endpoint(request: Request) -> Response:
            self._require_model(request)
            return answer(request)

        return endpoint

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self._batcher.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _infer(self, request: Request) -> Response:
        """Answer one event, whatever comes of it, and count it."""
        started, status = time.perf_counter(), 500
        try:
            response = await self._answered(request)
            status = response.status_code
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        except ClientDisconnect:
            status = _CLIENT_GONE
            return Response(status_code=status)
        finally:
            self._held.pop(request, None)
            self._metrics.answered(status, time.perf_counter() - started)

    async def _answered(self, request: Request) -> Response:
        self._require_model(request)
        asked = await self._parsed(await self._body(request), request)
        values = await self._computed(asked, request.receive)
        if not np.isfinite(values["candidate_momentum"]).all():
            raise RequestError("the values of this event make particles of infinite momentum")
        parts, json_size = write(self._model.name, asked, values)
        body, headers = b"".join(parts), {"Vary": "Accept-Encoding"}
        if json_size is not None:
            headers["Inference-Header-Content-Length"] = str(json_size)
        if len(body) >= _COMPRESSED_FROM and _takes_gzip(",".join(request.headers.getlist("accept-encoding"))):
            headers["Content-Encoding"] = "gzip"
            body = await self._in_thread(partial(gzip.compress, body, 1, mtime=0))
        media_type = "application/json" if json_size is None else "application/octet-stream"
        return Response(body, headers=headers, media_type=media_type)

    def _hold(self, request: Request, amount: int) -> None:
        """Count bytes that are held for a request; a large one that does not fit is refused until others are done."""
        own = self._held.get(request, 0) + amount
        if own > _SMALL and sum(self._held.values()) + amount > _LARGEST_BODIES * self._limits.max_request_bytes:
            raise RequestError("the server holds as many requests as fit into its memory; try again", 503)
        self._held[request] = own

    async def _body(self, request: Request) -> bytearray:
        """A body that is not too large and arrives in time; nothing is kept of one that is too large."""
        most, body, size = self._limits.max_request_bytes, bytearray(), 0
        too_large = RequestError(f"the body is larger than the {most} bytes that this server takes", 413)
        announced = request.headers.get("content-length", "0")
        fits = announced.isdecimal() and len(announced) < 20 and int(announced) <= most
        if not fits and "expect" in request.headers:  # who asked before sending is told at once
            raise too_large
        try:
            async with asyncio.timeout(self._limits.timeout):
                async for chunk in request.stream():
                    size += len(chunk)
                    fits = fits and size <= most
                    if fits:
                        self._hold(request, len(chunk))
                        body += chunk
                        continue
                    body.clear()
                    self._held.pop(request, None)
                    if size >= most + _DISCARDED:
                        break
        except TimeoutError:
            raise RequestError(f"the body did not arrive within {self._limits.timeout:g} s", 408) from None
        if not fits:
            raise too_large
        return body

    async def _parsed(self, body: bytearray, request: Request) -> InferRequest:
        encoding = request.headers.get("content-encoding", "")
        work = partial(self._parse, body, encoding, request.headers.get("inference-header-content-length"))
        if not encoding and len(body) <= _SMALL:
            return work()
        try:
            async with asyncio.timeout(self._limits.timeout), self._parsing:
                asked = await self._in_thread(work)
        except TimeoutError:
            raise self._too_late() from None
        if encoding:  # what arrived is not needed any more
            self._held.pop(request, None)
            self._hold(request, sum(table.nbytes for table in asked.inputs.values()))
        return asked

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _parse(self, body: bytearray, encoding: str, header_length: str | None) -> InferRequest:
        plain = decompress(body, encoding, self._limits.max_request_bytes)
        outputs = [spec.name for spec in self._model.outputs]
        asked = parse(plain, header_length, self._model.inputs, outputs, self._limits.max_event_elements)
        self._model.check(asked.inputs)
        return asked

    async def _computed(self, asked: InferRequest, receive: Receive) -> Values:
        """The answer of the batcher, if it comes in time and the client waits for it."""
        answer = self._batcher.submit(asked.inputs, asked.rows)
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait((answer, gone), timeout=self._limits.timeout, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                values: Values = answer.result()
                return values
            if gone.done():
                raise ClientDisconnect
            raise self._too_late()
        finally:
            answer.cancel()
            gone.cancel()

    def _too_late(self) -> RequestError:
        return RequestError(f"no answer within {self._limits.timeout:g} s; the server has too much to do", 504)

    def _require_model(self, request: Request) -> None:
        own, asked = self._model.name, request.path_params
        if (name := asked.get("model", own)) != own:
            raise RequestError(f"no model {shown(name)}; this server has {own}", 404)
        if (version := asked.get("version", VERSION)) != VERSION:
            raise RequestError(f"no version {shown(version)} of {own}; there is {VERSION}", 404)


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding names gzip, and not with the weight zero."""
    for one in accepted.lower().split(","):
        name, *weights = (part.strip() for part in one.split(";"))
        if name == "gzip":
            return not any(re.fullmatch(r"q=0(\.0*)?", weight) for weight in weights)
    return False


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Every error is an object of JSON."""
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "internal error"}, 500)


class Metrics:
    """What one server counts, for Prometheus, apart from any other in the process."""

    def __init__(self, model: ServedModel, waiting: Callable[[], int]) -> None:
        self.registry = own = prometheus.CollectorRegistry()
        histogram = partial(prometheus.Histogram, registry=own)
        counter = partial(prometheus.Counter, registry=own)
        statuses = "Inference requests by HTTP status; 499 is a client that left"
        self._requests = counter("ringflow_requests", statuses, ["status"])
        latency = "From the head of a request to its answer"
        self._latency = histogram("ringflow_request_seconds", latency, buckets=_SECONDS)
        self._computing = histogram("ringflow_batch_seconds", "Computing of a batch", buckets=_SECONDS)
        self._events = histogram("ringflow_batch_events", "Events computed at a time", buckets=_EVENTS)
        self._elements = histogram("ringflow_batch_elements", "Elements computed at a time", buckets=_ELEMENTS)
        self._total_events = counter("ringflow_computed_events", "Events computed")
        self._total_elements = counter("ringflow_computed_elements", "Elements computed")
        queue = prometheus.Gauge("ringflow_queue_requests", "Requests that wait to be computed", registry=own)
        queue.set_function(waiting)
        said = model.description
        facts = {"name": model.name, "engine": model.engine, "detector": said.detector or ""}
        facts |= {"weights_sha256": said.weights_sha256, "ringflow_version": said.ringflow}
        prometheus.Info("ringflow_model", "The model", registry=own).info(facts)
        prometheus.ProcessCollector(registry=own)

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

"""Serve: a network behind the Open Inference Protocol, until a signal comes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.options import Count, NotNegative, Port, Positive, Texts, TorchDevice, about
from ringflow.infer.shipped import model_file
from ringflow.launch.frameworks import framework

if TYPE_CHECKING:
    import torch

    from ringflow.infer.serve.served import ServedModel

Engine = Literal["torch", "onnx"]

_TOKEN = "RINGFLOW_SERVE_TOKEN"
_SHORTEST_TOKEN = 16
_PACKAGES = ("h11", "prometheus_client", "starlette", "uvicorn")
#: Elements computed at a time. torch gains from many; ONNX computes event by event, and answers sooner in small portions.
_BATCH_ELEMENTS = {"torch": 8192, "onnx": 512}
_NAME_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


@Parameter(name="*")
@dataclass(frozen=True)
class ServeOptions:
    """How a network is served."""

    engine: Annotated[Engine | None, about("What computes; onnx if it is installed, unless given.")] = None
    device: TorchDevice = "auto"
    threads: Annotated[Count, about("Batches that onnx computes at a time, or threads of torch.")] = 1
    host: Annotated[str, about("Address to listen on.")] = "127.0.0.1"
    port: Port = 8000
    name: Annotated[str, about("Name of the model in requests.")] = "ringflow"
    max_batch_elements: Annotated[
        Count | None, about("Elements computed together; 512 with onnx, 8192 with torch.")
    ] = None
    max_delay_ms: Annotated[NotNegative, about("How long a request waits for others to be computed with.")] = 0
    queue: Annotated[Count, about("Requests that may wait; more are told to come again (503).")] = 256
    max_request_mb: Annotated[Positive, about("Largest body of a request.")] = 16
    max_event_elements: Annotated[Count, about("Largest event.")] = 20_000
    allow_host: Annotated[
        Texts, about("Further names under which it may be asked, as in the header Host; * for any.")
    ] = ()
    token_file: Annotated[
        Path | None, about("File with a token that requests must bear; RINGFLOW_SERVE_TOKEN unless given.")
    ] = None
    timeout_s: Annotated[Positive, about("Time for a request to arrive, and for its answer to be there.")] = 30


def serve(model: Path | None, how: ServeOptions, ready: Callable[[dict[str, Any]], None]) -> None:
    """Serve a model; `ready` is told once where it is and what it takes."""
    require_packages()
    if not how.name or not set(how.name) <= _NAME_LETTERS:
        raise UsageError(f"{how.name!r} is no name for a model; use letters, digits, dots, dashes and underscores")
    path, token = model_file(model), _token(how.token_file)
    from ringflow.infer.serve.app import Access, Application, Limits, host_name
    from ringflow.infer.serve.served import BatchSettings
    from ringflow.infer.serve.server import ModelServer, address, bind

    with bind(how.host, how.port) as taken:
        served = open_served(path, how.name, how.engine, how.device, how.threads)
        batches = BatchSettings(
            workers=how.threads if served.engine == "onnx" else 1,
            max_elements=how.max_batch_elements or _BATCH_ELEMENTS[served.engine],
            max_delay=how.max_delay_ms / 1000.0,
            max_waiting=how.queue,
        )
        limits = Limits(int(how.max_request_mb * 1e6), how.max_event_elements, how.timeout_s)
        url = address(taken)
        names = frozenset(map(host_name, ("localhost", socket.gethostname(), how.host, *how.allow_host)))
        application = Application(served, batches, limits, Access(names, token))
        ModelServer(application, how.timeout_s, lambda: ready(_introduction(url, served))).run([taken])


def open_served(path: Path, name: str, engine: str | None, device: str, threads: int) -> ServedModel:
    """A model that has computed its first event."""
    import torch

    from ringflow.infer.runtime import OnnxSession
    from ringflow.infer.serve.served import ServedModel
    from ringflow.infer.session import Session, open_session
    from ringflow.train.device import choose_device

    on_processors = engine == "onnx" or path.suffix == ".onnx"
    place = choose_device("cpu" if device == "auto" and on_processors else device)
    engine = engine or _engine(path, place)
    if engine == "torch" and place.type == "cpu":
        torch.set_num_threads(threads)
    # Workers of the batcher are the threads of ONNX: one session serves them all.
    session = open_session(path, place, engine)
    assert isinstance(session, Session | OnnxSession)
    served = ServedModel(name, session, session.description, engine)
    say("computing a first event")
    served.warm_up()
    return served


def _token(file: Path | None) -> str | None:
    """What requests must bear, if anything."""
    if file is None:
        token, where = os.environ.get(_TOKEN), _TOKEN
        if token is None:
            return None
    else:
        where = str(file)
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputFileError(f"no token can be read from {file} ({error}); give a file of one line") from None
    if not (token.isascii() and token.isprintable()) or " " in token or len(token) < _SHORTEST_TOKEN:
        raise UsageError(f"{where} holds no token; use {_SHORTEST_TOKEN} or more letters and digits in one line")
    return token


def require_packages() -> None:
    """One line where a part of the extra is missing."""
    for package in _PACKAGES:
        framework(package, "serve")


def _engine(path: Path, place: torch.device) -> str:
    """ONNX on processors, if the file is of it or can be exported here."""
    if path.suffix == ".onnx":
        return "onnx"
    exportable = all(find_spec(package) for package in ("onnx", "onnxruntime", "onnxscript"))
    return "onnx" if exportable and place.type == "cpu" else "torch"


def _introduction(url: str, served: ServedModel) -> dict[str, Any]:
    said = served.metadata()
    return {
        "url": url,
        "model": said["name"],
        "engine": served.engine,
        "detector": served.description.detector,
        "inputs": said["inputs"],
        "outputs": said["outputs"],
    }

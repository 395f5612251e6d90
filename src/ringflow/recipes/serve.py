"""Serve: a network behind the Open Inference Protocol, until a signal comes."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.infer.shipped import model_file
from ringflow.launch.frameworks import framework

if TYPE_CHECKING:
    import torch

    from ringflow.infer.serve.served import ServedModel

_PACKAGES = ("h11", "prometheus_client", "starlette", "uvicorn")
#: Elements computed at a time. torch gains from many; ONNX computes event by event, and answers sooner in small portions.
_BATCH_ELEMENTS = {"torch": 8192, "onnx": 512}
_NAME_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def serve(
    model: Path | None,
    *,
    ready: Callable[[dict[str, Any]], None],
    engine: str | None = None,
    device: str = "auto",
    threads: int = 1,
    host: str = "127.0.0.1",
    port: int = 8000,
    name: str = "ringflow",
    max_batch_elements: int | None = None,
    max_delay_ms: float = 0.0,
    queue: int = 256,
    max_request_mb: float = 16.0,
    max_event_elements: int = 20_000,
    timeout_s: float = 30.0,
) -> None:
    """Serve a model; `ready` is told once where it is and what it takes."""
    require_packages()
    if not name or not set(name) <= _NAME_LETTERS:
        raise UsageError(f"{name!r} is no name for a model; use letters, digits, dots, dashes and underscores")
    path = model_file(model)
    from ringflow.infer.serve.app import Application, Limits
    from ringflow.infer.serve.served import BatchSettings
    from ringflow.infer.serve.server import ModelServer, address, bind

    with bind(host, port) as taken:
        served = open_served(path, name, engine, device, threads)
        batches = BatchSettings(
            workers=threads if served.engine == "onnx" else 1,
            max_elements=max_batch_elements or _BATCH_ELEMENTS[served.engine],
            max_delay=max_delay_ms / 1000.0,
            max_waiting=queue,
        )
        application = Application(served, batches, Limits(int(max_request_mb * 1e6), max_event_elements, timeout_s))
        url = address(taken)
        ModelServer(application, timeout_s, lambda: ready(_introduction(url, served))).run([taken])


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

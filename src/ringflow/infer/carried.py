"""A model that travels with the work: workers need ringflow, but no path to the model's file.

carried = carry(Path("runs/first/model.safetensors"))
carried.open()  # a session
worker_session(carried)  # in a worker: the same session every time, on one thread
"""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ringflow import __version__
from ringflow.base.errors import FailureError, InputFileError
from ringflow.infer.made import Reconstructor
from ringflow.infer.onnx_session import OnnxSession


@dataclass(frozen=True)
class CarriedModel:
    """The content of a model file and of its uncertainties, if there are any, and what computes it."""

    file: str
    engine: str
    sha256: str
    content: bytes = field(compare=False, repr=False)
    uncertainty: bytes | None = field(default=None, repr=False)
    ringflow: str = __version__

    def open(self) -> Reconstructor:
        """A new session of it."""
        with tempfile.TemporaryDirectory(prefix="ringflow-model-") as folder:
            path = Path(folder) / self.file
            path.write_bytes(self.content)
            if self.engine == "onnx":
                return OnnxSession(path)  # without torch, which takes seconds to load in every worker
            from ringflow.infer.session import open_session

            if self.uncertainty is None:
                return open_session(path)
            (errors := path.with_name("uncertainty")).write_bytes(self.uncertainty)
            return open_session(path, uncertainty=errors)


def carry(model: Path | None = None, engine: str | None = None, uncertainty: Path | None = None) -> CarriedModel:
    """A model file, or the model that comes with the package; for the engine `onnx` it is exported once, here.

    The file of uncertainties is the one beside the model unless given; `onnx` computes none.
    """
    from ringflow.infer.session import as_onnx, choose_engine
    from ringflow.models.uncertainty import found_beside, head_for

    path, engine = choose_engine(model, engine)
    if not path.is_file():
        raise InputFileError(f"no model at {path}; give a model file")
    if engine == "onnx":
        with as_onnx(path) as exported:
            return _carried(exported, engine)
    if uncertainty is not None:
        head_for(uncertainty, path)  # one of another model is told here, not by every worker
    errors = uncertainty or found_beside(path)
    return _carried(path, engine, errors.read_bytes() if errors else None)


def _carried(path: Path, engine: str, uncertainty: bytes | None = None) -> CarriedModel:
    content = path.read_bytes()
    return CarriedModel(path.name, engine, hashlib.sha256(content).hexdigest(), content, uncertainty)


@lru_cache(maxsize=2)
def worker_session(model: CarriedModel) -> Reconstructor:
    """The session of this process, opened once for all that it is asked to do.

    It computes on one thread: there are as many workers as cores.
    """
    if model.ringflow != __version__:
        raise FailureError(
            f"the workers have ringflow {__version__}, and here is {model.ringflow}; install the same version on both"
        )
    if model.engine == "torch":
        import torch

        torch.set_num_threads(1)
    return model.open()

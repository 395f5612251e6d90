"""Which model is meant: a file, a run, or the one that comes with the package. Free of torch: looking for it costs nothing."""

from __future__ import annotations

from pathlib import Path

from ringflow.base.errors import InputFileError

MODEL = Path(__file__).parent.parent / "weights" / "clic.safetensors"
#: The network of a run.
MODEL_FILE = "model.safetensors"
SHIPPED = "shipped"


def is_there() -> bool:
    """Whether this installation comes with a model."""
    return MODEL.is_file()


def model_file(given: Path | None) -> Path:
    """The file of a model that is given by name; `shipped`, or nothing, is the one that comes with the package."""
    if given is None or (str(given) == SHIPPED and not given.exists()):
        if not is_there():
            raise InputFileError("this installation comes without a model; give a model file or a run")
        return MODEL
    if given.is_dir():
        if not (given / MODEL_FILE).is_file():
            raise InputFileError(f"{given} has no {MODEL_FILE}; give the folder of a run that has trained a while")
        return given / MODEL_FILE
    if not given.is_file():
        raise InputFileError(f"no model at {given}; give a model file, the folder of a run, or `{SHIPPED}`")
    return given

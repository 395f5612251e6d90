"""Which model is meant: a file, a run, or one that comes with the package, and what those are. Free of torch: looking for it
costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError
from ringflow.base.words import did_you_mean

WEIGHTS = Path(__file__).parent.parent / "weights"
MODEL = WEIGHTS / "clic.safetensors"
#: The network of a run.
MODEL_FILE = "model.safetensors"
SHIPPED = "shipped"


def is_there() -> bool:
    """Whether this installation comes with a model."""
    return MODEL.is_file()


def model_names() -> list[str]:
    """Names of the models that come with this installation; files of their uncertainties lie beside them."""
    return sorted(path.stem for path in WEIGHTS.glob("*.safetensors") if "." not in path.stem)


def model_file(given: Path | None) -> Path:
    """The file of a model that is given by its file, its run or its name; `shipped`, or nothing, is `clic`."""
    if given is None or (str(given) == SHIPPED and not given.exists()):
        if not is_there():
            raise InputFileError("this installation comes without a model; give a model file or a run")
        return MODEL
    if given.is_dir():
        if not (given / MODEL_FILE).is_file():
            raise InputFileError(f"{given} has no {MODEL_FILE}; give the folder of a run that has trained a while")
        return given / MODEL_FILE
    if not given.is_file():
        if (name := str(given)) in (names := model_names()):
            return WEIGHTS / f"{name}.safetensors"
        hint = did_you_mean(name, names)
        one_of = f", or one of {', '.join(names)}" if names else ""
        raise InputFileError(f"no model at {given}; {hint}give a model file, the folder of a run{one_of}")
    return given


def described(name: str) -> dict[str, Any]:
    """What a model that comes with the package was made for, and how good it is there, as its card says."""
    from safetensors import safe_open

    from ringflow.models.settings import MODEL_KEY

    path = WEIGHTS / f"{name}.safetensors"
    with safe_open(path, framework="numpy") as file:
        record = json.loads(file.metadata()[MODEL_KEY])
    card, settings = record["card"], record["settings"]
    test = {sample: entry["model"]["jet_iqr_over_median"] for sample, entry in card.get("test", {}).items()}
    return {
        "name": name,
        "detector": card["detector"],
        "elements": f"tracks and {settings['calorimeter']}s",
        "backbone": settings["backbone"],
        "parameters": card["parameters"],
        "trained_on": list(dict.fromkeys(entry.get("simulated") or entry.get("path") for entry in card["data"])),
        "jet_width": test,
        "uncertainties": path.with_name(f"{name}.uncertainty.safetensors").is_file(),
        "path": str(path),
    }

"""What files say of themselves, read without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError
from ringflow.infer.runtime import Description

_MODEL_KEY = "ringflow_model"


def model_header(path: Path) -> dict[str, Any]:
    """Settings, threshold and card of a model file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_MODEL_KEY)
        found = json.loads(text) if text is not None else None
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputFileError(f"{path} cannot be read as a model file ({reason}); copy or train it again") from None
    if not isinstance(found, dict) or not isinstance(found.get("card"), dict):
        raise InputFileError(f"{path} holds weights without a description; give a file that `ringflow train` wrote")
    return found


def weights(path: Path) -> dict[str, Any]:
    """The tensors of a model file by name, as numpy arrays."""
    from safetensors.numpy import load_file

    return dict(sorted(load_file(path).items()))


def weights_hash(path: Path) -> str:
    """Fingerprint of the weights of a model file, as exported files have it."""
    digest = hashlib.sha256()
    for name, value in weights(path).items():
        digest.update(name.encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def onnx_header(path: Path) -> Description:
    """What an exported file says of itself."""
    from ringflow.launch.frameworks import framework

    onnx = framework("onnx", "onnx")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own, and whatever a broken file makes onnx raise
        reason = " ".join(str(error).split())[:200]
        raise InputFileError(f"{path} cannot be read as an ONNX file ({reason}); export it again") from None
    return Description.read({entry.key: entry.value for entry in proto.metadata_props}, path)


def json_file(path: Path) -> dict[str, Any]:
    """A JSON object in a file."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        raise InputFileError(f"{path} is missing or is not readable JSON; put a copy of it back") from None
    if not isinstance(found, dict):
        raise InputFileError(f"{path} holds no JSON object; put a copy of it back")
    return found

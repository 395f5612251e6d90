"""Files, found again by what they are, and what they say of themselves, read without torch.

Files record names and hashes of what they were made of, not folders, which are different on every machine. So some folders
are looked through, to a depth and a number of files that keep it to a second or two.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError
from ringflow.base.provenance import describe_input
from ringflow.data.manifest import MANIFEST_FILE
from ringflow.infer.runtime import Description
from ringflow.models.settings import MODEL_KEY

DEEPEST, MOST_FILES = 5, 50_000
#: Folders in which nothing lies that something was made of.
_SKIPPED = frozenset({"packed", "checkpoints", "tensorboard", "cache", "node_modules", "__pycache__"})


class SearchedFolders:
    """Folders to look through, once, when something is looked for."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(dict.fromkeys(folder.absolute() for folder in folders if folder.is_dir()))

    def dataset(self, sha256: str) -> Path | None:
        """The dataset with this manifest."""
        manifests = sorted(path for path in self._sizes if path.name == MANIFEST_FILE)
        return next((path.parent for path in manifests if sha256_of(path) == sha256), None)

    def file(self, sha256: str, *, size: int | None, name: str) -> Path | None:
        """The file with this hash; only files of the right size are read, or of the right name where it is not known."""
        sizes = self._sizes.items()
        possible = (path for path, found in sizes if (path.name == name if size is None else found == size))
        return next((path for path in possible if sha256_of(path) == sha256), None)

    def ending(self, suffix: str) -> list[Path]:
        """All files with this ending."""
        return sorted(path for path in self._sizes if path.suffix == suffix)

    @cached_property
    def _sizes(self) -> dict[Path, int]:
        """Files and their sizes, those near the top first; hidden ones and links are left out."""
        found: dict[Path, int] = {}
        waiting = [(folder, 0) for folder in self._folders]
        for folder, depth in waiting:  # grows meanwhile
            with suppress(OSError):  # gone, or not ours to read
                for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                    if entry.name.startswith(".") or entry.is_symlink():
                        continue
                    if entry.is_file():
                        found[Path(entry.path)] = entry.stat().st_size
                    elif depth < DEEPEST and entry.is_dir() and entry.name not in _SKIPPED:
                        waiting.append((Path(entry.path), depth + 1))
            if len(found) >= MOST_FILES:
                break
        return found


def sha256_of(path: Path) -> str | None:
    """The hash of a file; None if it cannot be read."""
    try:
        return str(describe_input(path)["sha256"])
    except InputFileError:
        return None


def model_header(path: Path) -> dict[str, Any]:
    """Settings, threshold and card of a model file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            found = json.loads((file.metadata() or {}).get(MODEL_KEY, "null"))
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
        digest.update(name.encode() + value.tobytes())
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
    except (OSError, ValueError, RecursionError):
        raise InputFileError(f"{path} is missing or is not readable JSON; put a copy of it back") from None
    if not isinstance(found, dict):
        raise InputFileError(f"{path} holds no JSON object; put a copy of it back")
    return found

"""Where a result came from: code, versions, settings, seeds and inputs.

Two runs of the same request give the same record, byte for byte: there is no time of day and no host name in it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ringflow import __version__
from ringflow.base.config import Settings
from ringflow.base.errors import InputFileError

#: Packages whose version can change a number we write.
KEY_DEPENDENCIES = (
    "awkward",
    "fastjet",
    "numba",
    "numpy",
    "particle",
    "pyarrow",
    "pyhepmc",
    "pythia8mc",
    "torch",
    "uproot",
    "vector",
)


def collect(
    settings: Settings | Mapping[str, Any], seeds: Mapping[str, int], inputs: Sequence[Path] = ()
) -> dict[str, Any]:
    """The record to write beside a result, ready for JSON."""
    return {
        "ringflow": __version__,
        "code": code_version(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": {name: version for name in KEY_DEPENDENCIES if (version := package_version(name))},
        "settings": settings.model_dump(mode="json") if isinstance(settings, Settings) else dict(settings),
        "seeds": dict(sorted(seeds.items())),
        "inputs": [describe_input(path) for path in inputs],
    }


def package_version(name: str) -> str | None:
    """Version of an installed package, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def describe_input(path: Path) -> dict[str, Any]:
    """Name, size and sha256 of an input file, but not its folder, which is different on every machine."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}
    except OSError as error:
        raise InputFileError(f"cannot read {path}: {error.strerror}; give an existing file") from None


@cache
def code_version() -> dict[str, Any] | None:
    """Commit of the checkout the package runs from and whether its source was changed since; None when installed."""
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return None
    commit = _git(checkout, "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_git(checkout, "status", "--porcelain", "--", "src"))}


def _git(checkout: Path, *arguments: str) -> str | None:
    """Output of a git command, None without git or without a commit."""
    try:
        # A status that takes a lock, and is killed with its training, leaves the checkout locked.
        words = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

"""Find a file again by what it is: its sha256, wherever it was moved to and whatever it is called now.

Files record names and hashes of what they were made of, not folders, which are different on every machine. So some folders
are looked through, to a depth and a number of files that keep it to a second or two.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from ringflow.base.errors import InputFileError
from ringflow.base.provenance import describe_input
from ringflow.data.manifest import MANIFEST_FILE, manifest_hash

DEEPEST, MOST_FILES = 5, 50_000
#: Folders in which nothing lies that something was made of.
_SKIPPED = frozenset({"packed", "checkpoints", "tensorboard", "cache", "node_modules", "__pycache__"})


class Places:
    """Folders to look through, once, when something is looked for."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(dict.fromkeys(folder.absolute() for folder in folders if folder.is_dir()))

    def dataset(self, sha256: str) -> Path | None:
        """The dataset with this manifest."""
        return next((path for path, found in self._manifests.items() if found == sha256), None)

    def file(self, sha256: str, *, size: int | None, name: str) -> Path | None:
        """The file with this hash; only files of the right size are read, or of the right name where it is not known."""
        if size is not None:
            possible = self._by_size.get(size, [])
        else:
            possible = [path for paths in self._by_size.values() for path in paths if path.name == name]
        return next((path for path in possible if sha256_of(path) == sha256), None)

    def ending(self, suffix: str) -> list[Path]:
        """All files with this ending."""
        return sorted(path for paths in self._by_size.values() for path in paths if path.suffix == suffix)

    @cached_property
    def _by_size(self) -> dict[int, list[Path]]:
        found: dict[int, list[Path]] = defaultdict(list)
        for path, size in _files(self._folders):
            found[size].append(path)
        return found

    @cached_property
    def _manifests(self) -> dict[Path, str]:
        paths = [path for paths in self._by_size.values() for path in paths if path.name == MANIFEST_FILE]
        found = {}
        for path in sorted(paths):
            try:
                found[path.parent] = manifest_hash(path.parent)
            except OSError:  # gone, or not ours to read
                continue
        return found


def sha256_of(path: Path) -> str | None:
    """The hash of a file; None if it cannot be read."""
    try:
        return str(describe_input(path)["sha256"])
    except InputFileError:
        return None


def _files(folders: list[Path]) -> Iterator[tuple[Path, int]]:
    """Files and their sizes, those near the top first."""
    waiting, seen, left = [(folder, 0) for folder in folders], set[Path](), MOST_FILES
    while waiting:
        folder, depth = waiting.pop(0)
        if folder in seen:
            continue
        seen.add(folder)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir():
                if depth < DEEPEST and entry.name not in _SKIPPED:
                    waiting.append((Path(entry.path), depth + 1))
            elif entry.is_file():
                left -= 1
                yield Path(entry.path), entry.stat().st_size
        if left <= 0:
            return

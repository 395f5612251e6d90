"""Output folders and files that are either whole or absent."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ringflow.base.errors import DiskFullError, FailureError, UsageError

#: Every folder the software makes holds its resolved settings; this is how it knows its own.
SETTINGS_FILE = "settings.toml"
#: The figures of a report of `ringflow evaluate`; a folder that holds them is one.
METRICS_FILE = "metrics.json"
#: A folder that holds the first is a study; the second says where it came from, the third has a run per trial.
STUDY_FILE, ORIGIN_FILE, TRIALS_FOLDER = "study.toml", "origin.json", "trials"
#: What a job of a cluster says goes there; it is opened before the command starts, and stays when the rest is replaced.
LOGS_FOLDER = "logs"

_TEMPORARY_SUFFIX = ".part"

_REASONS = {
    errno.ENOSPC: "the disk is full; free some space and run it again",
    errno.EDQUOT: "the disk quota is used up; free some space and run it again",
    errno.EACCES: "no permission to write; choose another folder",
    errno.EPERM: "no permission to write; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "part of the path is a file; choose another folder",
    errno.EEXIST: "part of the path is a file; choose another folder",
    errno.ENOENT: "the place does not exist and cannot be made; choose another folder",
}


def prepare(folder: Path, *, marks: Sequence[str] = (SETTINGS_FILE,), overwrite: bool = False) -> Path:
    """Make an output folder, or take up one of ours (it holds one of `marks`); `overwrite` empties it first.

    What an interrupted writer left half-written is removed.
    """
    with write_errors(folder):
        if folder.exists():
            if not folder.is_dir():
                raise UsageError(f"{folder} is a file, not a folder; choose another output folder")
            found = [path for path in folder.iterdir() if path.name != LOGS_FOLDER]
            if found and not any((folder / mark).exists() for mark in marks):
                raise UsageError(f"{folder} holds files that ringflow did not make; choose another output folder")
            for path in found if overwrite else ():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".*{_TEMPORARY_SUFFIX}"):
            leftover.unlink()
        # Find out that a folder takes no files before hours of work, not after.
        probe = folder / f".probe.{os.getpid()}{_TEMPORARY_SUFFIX}"
        probe.touch()
        probe.unlink()
    return folder


def require_suffix(path: Path, *suffixes: str) -> None:
    """Refuse the name of an output file that does not tell its format."""
    if path.suffix not in suffixes:
        raise UsageError(f"cannot tell the format of {path}; let its name end in {' or '.join(suffixes)}")


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader finds the old content, the new content or no file, never a part."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path in the same folder for a writer that wants a name; becomes `path` if the body succeeds."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_TEMPORARY_SUFFIX}")
    with write_errors(path):
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())  # a rename may reach the disk before the data it names
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a write into one line for the user."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0)
        if reason is None:
            raise
        kind = DiskFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else FailureError
        raise kind(f"cannot write {path}: {reason}") from error

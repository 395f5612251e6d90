"""Output folders and files that are either whole or absent."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
#: The first file in a folder and the last to go: what is killed before it writes anything else finds its folder again, by the
#: marks that it holds. It is locked while a command writes there.
MARK_FILE = ".ringflow"

_TEMPORARY_SUFFIX = ".part"
#: Tells the writers of one process apart.
_WRITTEN = itertools.count()

#: What a disk says of itself, and what to do about it.
DISK_TROUBLES = {
    errno.ENOSPC: "the disk is full; free some space and run it again",
    errno.EDQUOT: "the disk quota is used up; free some space and run it again",
    errno.EIO: "the disk reports an error; look after it, or choose another folder",
}
_REASONS = {
    **DISK_TROUBLES,
    errno.EACCES: "no permission to write; choose another folder",
    errno.EPERM: "no permission to write; choose another folder",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOTDIR: "part of the path is a file; choose another folder",
    errno.EEXIST: "part of the path is a file; choose another folder",
    errno.ENOTEMPTY: "another command was there first; choose another folder",
    errno.ENOENT: "the place does not exist and cannot be made; choose another folder",
}


def prepare(folder: Path, *, marks: Sequence[str] = (SETTINGS_FILE,), overwrite: bool = False) -> Path:
    """Make an output folder, or take up one of ours, as `prepared` does, for who keeps others out by other means."""
    with prepared(folder, marks=marks, overwrite=overwrite):
        return folder


@contextmanager
def prepared(folder: Path, *, marks: Sequence[str] = (SETTINGS_FILE,), overwrite: bool = False) -> Iterator[Path]:
    """Make an output folder, or take up one of ours (it holds one of `marks`); no other command writes there meanwhile.

    What an interrupted writer left half-written is removed; `overwrite` empties the folder first.
    """
    kind, marked = " ".join(marks), folder / MARK_FILE
    with write_errors(folder):
        if folder.exists():
            if not folder.is_dir():
                raise UsageError(f"{folder} is a file, not a folder; choose another output folder")
            others = [path.name for path in folder.iterdir() if path.name not in (LOGS_FOLDER, MARK_FILE, *marks)]
            ours = any((folder / mark).exists() for mark in marks) or (
                marked.is_file() and marked.read_text(encoding="utf-8", errors="replace") == kind
            )
            if others and not ours:
                raise UsageError(f"{folder} holds files that ringflow did not make; choose another output folder")
            refuse_ways_out(folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(marked, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when its holder dies
        except BlockingIOError:
            raise UsageError(f"another command is writing to {folder}; wait for it, or choose another folder") from None
        except OSError:
            pass  # a file system without locks: whoever uses it takes care
        with write_errors(folder):
            os.pwrite(lock, kind.encode(), 0)
            os.ftruncate(lock, len(kind.encode()))
            if overwrite:  # the marks first: what is left is not taken for what it was
                kept = (LOGS_FOLDER, MARK_FILE)
                for path in (*(folder / mark for mark in marks), *folder.iterdir()):
                    if path.name not in kept:
                        _remove(path)
            for leftover in folder.glob(f".*{_TEMPORARY_SUFFIX}"):
                _remove(leftover)
            # Find out that a folder takes no files before hours of work, not after.
            probe = temporary_beside(folder / "probe")
            probe.touch()
            probe.unlink()
        yield folder
    finally:
        os.close(lock)


def refuse_ways_out(folder: Path) -> None:
    """An error for a link in a folder that leads out of it, and for what is neither file nor folder.

    A folder may be somebody else's, taken up to go on with: a command would write to, or remove, what is behind such a link,
    and wait for ever for a pipe.
    """
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):  # others may be at work there
                kind = path.lstat().st_mode
                if stat.S_ISLNK(kind) and not leads_inside(path, folder):
                    raise FailureError(f"{path} is a link out of its folder; put a copy in its place, or remove it")
                if not (stat.S_ISLNK(kind) or stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                    raise FailureError(f"{path} is neither a file nor a folder; remove it")


def leads_inside(link: Path, folder: Path) -> bool:
    """Whether a link ends at something in a folder; one that leads back to itself ends nowhere."""
    end = os.path.realpath(link)  # which, unlike `Path.resolve`, takes a loop
    return Path(end).is_relative_to(os.path.realpath(folder)) and not os.path.islink(end)


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
    with write_errors(path):
        temporary = temporary_beside(path)
        try:
            yield temporary
            sync(temporary)  # a rename may reach the disk before the data it names
            temporary.replace(path)
            sync(path.parent)
        finally:
            with suppress(OSError):  # the first failure is the one to tell
                temporary.unlink(missing_ok=True)


@contextmanager
def temporary_folder(place: Path | str) -> Iterator[Path]:
    """A folder for what is on its way to a path, on the same disk, or for the work of this name, where the system has its
    temporary files; it is removed at the end, or by the next one."""
    path = place if isinstance(place, Path) else Path(tempfile.gettempdir(), f"ringflow-{place}")
    with write_errors(path):
        folder = temporary_beside(path)
        folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def temporary_beside(path: Path) -> Path:
    """A hidden name in the same folder that says who writes it; what dead processes left of theirs is removed."""
    start, end = f".{path.name}.", f"@{socket.gethostname()}{_TEMPORARY_SUFFIX}"
    for name in os.listdir(path.parent) if path.parent.is_dir() else ():
        if name.startswith(start) and name.endswith(end):
            owner = name.removeprefix(start).partition(".")[0]
            if owner.isdecimal() and not _is_alive(int(owner)):
                with suppress(OSError):  # whoever may remove it will
                    _remove(path.with_name(name))
    return path.with_name(f"{start}{os.getpid()}.{next(_WRITTEN)}{end}")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's
    return True


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, outlive a power cut."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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

"""Produce a dataset from a source of blocks: start it, go on with it, extend it, or find it already made.

The events are cut into blocks that are always made whole, and into shards that are cut out of the blocks; so an event is the
same whatever number of events, shards or workers is asked for. A worker opens its source of blocks once, takes one shard
after the other and writes it itself: only summaries travel between the processes.

While it is made, a dataset folder holds `.production/` with the record of what was asked for (`production.json`), one small
file per finished shard (`shard-00000.json`: its hash and counts) and everything temporary. A shard counts only once its small
file is there and its hash is right. The last steps are the card, the manifest and the removal of `.production/`, so that a
kill at any moment leaves either a dataset or something the same command finishes, with the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import pydantic

from ringflow.base.errors import DatasetError, FailureError, RingflowError, UsageError
from ringflow.base.log import progress, say
from ringflow.base.processes import die_with_parent, interrupts_held_back
from ringflow.base.rundir import SETTINGS_FILE, write_atomic, write_errors
from ringflow.base.words import flat, size_in_words
from ringflow.data.manifest import (
    CARD_FILE,
    CRATE_FILE,
    CROISSANT_FILE,
    KNOWN_FILES,
    MANIFEST_FILE,
    PACKED_FOLDER,
    PRODUCTION_FOLDER,
    Manifest,
    Shard,
    inside,
    make_manifest,
    read_json,
    read_manifest,
    to_json,
    write_manifest,
)
from ringflow.data.write import ShardWriter, columns_in, file_hash, shard_file
from ringflow.event.block import EventBlock

_RECORD_FILE, _LOCK_FILE, _SHARDS = "production.json", "lock", "shard-*.parquet"
_WHAT_EVENTS_ARE_MADE_FROM = ("settings", "inputs", "generator", "geometry_sha256")
_EVENTS_KEY = "settings.production.events"
#: What describes a finished dataset, the manifest first: without it there is none.
_DESCRIPTIONS = (MANIFEST_FILE, CARD_FILE, SETTINGS_FILE, CRATE_FILE, CROISSANT_FILE)

Advance = Callable[[int], None]


class BlockSource(Protocol):
    """Where the events come from: block `index` is a pure function of the source's settings and the index."""

    def block(self, index: int) -> EventBlock:
        """The events of a block."""

    def close(self) -> None:
        """Give back what it took."""


#: Opens a source in the process that will use it; can be pickled if there are several.
OpenSource = Callable[[], BlockSource]


@dataclass(frozen=True)
class PlannedShard:
    """A shard to make, and the pieces it is cut from: block index, and which events of the block (from, to)."""

    file: str
    pieces: tuple[tuple[int, int, int], ...]

    @property
    def num_events(self) -> int:
        """Events in the shard."""
        return sum(last - first for _, first, last in self.pieces)


def plan_shards(events: int, events_per_shard: int, block_events: int) -> list[PlannedShard]:
    """The shards of events that are made in blocks of one size, in the order of the events."""
    tasks = []
    for number, start in enumerate(range(0, events, events_per_shard)):
        stop = min(start + events_per_shard, events)
        blocks = {index: index * block_events for index in range(start // block_events, -(-stop // block_events))}
        pieces = ((index, max(start - at, 0), min(stop - at, block_events)) for index, at in blocks.items())
        tasks.append(PlannedShard(shard_file(number), tuple(pieces)))
    return tasks


@dataclass(frozen=True)
class Request:
    """What is asked for. Requests with equal records make equal bytes, on any number of workers."""

    tasks: Sequence[PlannedShard]
    record: Mapping[str, Any]
    detector: str
    sample: str
    doing: str  # what people are told meanwhile
    settings: str | None = None  # TOML, to be kept beside the shards
    event_bytes: int = 0  # rather less than what an event takes on disk

    @property
    def events(self) -> int:
        """Events in all shards."""
        return sum(task.num_events for task in self.tasks)


def produce(
    out: Path, request: Request, open_source: OpenSource, *, workers: int = 1, overwrite: bool = False
) -> tuple[Manifest, int]:
    """The manifest of the finished dataset, and the number of events that were made now."""
    if not overwrite and (manifest := _already_made(out, request.record)):
        _tidy(out / PRODUCTION_FOLDER)
        say(f"{out} is already there, made of the same settings and files")
        return manifest, 0
    require_space(out, request.events, request.event_bytes)
    with _begin(out, request.record, overwrite=overwrite) as production:
        shards = production.finished(request.tasks)
        missing = [task for task in request.tasks if task.file not in shards]
        with progress(request.events, request.doing) as advance:
            if shards:
                advance(sum(shard.num_events for shard in shards.values()))
            if len(missing) > 1 and workers > 1:
                made = _in_parallel(production, missing, open_source, min(workers, len(missing)), advance)
            elif missing:
                with closing(open_source()) as source:
                    made = [production.write(source, task, advance) for task in missing]
            else:
                made = []
        shards |= {shard.file: shard for shard in made}
        manifest = production.complete(request, [shards[task.file] for task in request.tasks])
    return manifest, sum(shard.num_events for shard in made)


class Production:
    """A dataset folder we may write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Where temporary files go, on the same file system as the shards.
        self.workshop = folder / PRODUCTION_FOLDER

    def _note(self, file: str) -> Path:
        return self.workshop / f"{Path(file).stem}.json"

    def keep(self, shard: Shard) -> None:
        """Count a shard as finished."""
        write_atomic(self._note(shard.file), to_json(shard))

    def finished(self, tasks: Sequence[PlannedShard]) -> dict[str, Shard]:
        """Finished shards by file name, as planned and with the right hash; whatever else looks like a shard is removed.

        The last one of a shorter production is not as planned.
        """
        planned, kept = {task.file: task.num_events for task in tasks}, {}
        for path in sorted(self.folder.glob(_SHARDS)):
            with suppress(OSError, pydantic.ValidationError):
                shard = Shard.model_validate_json(self._note(path.name).read_bytes())
                as_planned = (planned.get(path.name), path.stat().st_size) == (shard.num_events, shard.bytes)
                if as_planned and file_hash(path) == shard.sha256:
                    kept[path.name] = shard
            if path.name not in kept:
                self._note(path.name).unlink(missing_ok=True)
                path.unlink()
        return kept

    def write(self, source: BlockSource, task: PlannedShard, advance: Advance) -> Shard:
        """Make one shard and count it as finished; `advance` is called with numbers of events as they are done."""
        with ShardWriter(self.folder / task.file, temporary_folder=self.workshop) as writer:
            for index, first, last in task.pieces:
                block = source.block(index)
                if len(block) < last:
                    raise FailureError(
                        f"block {index} has {len(block)} events instead of {last}; the input ended early"
                    )
                writer.append(block.take(first, last))
                advance(last - first)
            shard = writer.finish()
        self.keep(shard)
        return shard

    def complete(self, request: Request, shards: Sequence[Shard]) -> Manifest:
        """Write settings, card and, last, the manifest; the folder is a dataset now."""
        manifest = make_manifest(
            detector=request.detector,
            sample=request.sample,
            columns=columns_in(self.folder / shards[0].file),
            shards=shards,
            provenance=request.record,
        )
        if request.settings is not None:
            write_atomic(self.folder / SETTINGS_FILE, request.settings)
        write_manifest(self.folder, manifest)
        shutil.rmtree(self.workshop)
        return manifest

    def take_up(self, record: Mapping[str, Any], overwrite: bool) -> None:
        """Make the folder one of an unfinished production with this record."""
        if overwrite:  # the manifest first: without it there is no dataset
            notes = [path for path in self.workshop.iterdir() if path.name != _LOCK_FILE]
            for path in (self.folder / MANIFEST_FILE, *self.folder.glob(_SHARDS), *notes):
                path.unlink(missing_ok=True)
        elif not (self.workshop / _RECORD_FILE).is_file() and (self.folder / MANIFEST_FILE).is_file():
            for shard in read_manifest(self.folder).shards:
                self.keep(shard)
        write_atomic(self.workshop / _RECORD_FILE, json.dumps(record, indent=1) + "\n")
        for name in _DESCRIPTIONS:
            (self.folder / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder / PACKED_FOLDER, ignore_errors=True)
        self.remove_temporaries()

    def remove_temporaries(self) -> None:
        """Remove what interrupted writers left."""
        for leftover in [*self.folder.glob(".*.part"), *self.workshop.glob(".*.part")]:
            leftover.unlink(missing_ok=True)

    def leave(self, folder_is_new: bool) -> None:
        """After a failure keep finished shards for the next attempt; without any, leave the folder as it was found."""
        with suppress(OSError):
            self.remove_temporaries()
            if any(self.workshop.glob("shard-*.json")):
                say(f"finished shards are kept in {self.folder}; the same command goes on from there")
                return
            shutil.rmtree(self.workshop, ignore_errors=True)
            for path in [] if (self.folder / MANIFEST_FILE).is_file() else self.folder.glob(_SHARDS):
                path.unlink()
            if folder_is_new:
                self.folder.rmdir()


@contextmanager
def _begin(folder: Path, record: Mapping[str, Any], *, overwrite: bool) -> Iterator[Production]:
    """Start, resume or extend the production of a record (what `provenance.collect` returns, plus anything).

    If it fails before the first shard is finished, nothing of it is left behind.
    """
    _refuse_foreign(folder)
    if not overwrite:
        _refuse_other(folder, record)
    production, folder_is_new = Production(folder), not folder.exists()
    with write_errors(folder):
        production.workshop.mkdir(parents=True, exist_ok=True)
        lock = (production.workshop / _LOCK_FILE).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of it when its holder dies
        except BlockingIOError:
            raise FailureError(
                f"another production is writing to {folder}; wait for it or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks: whoever uses it takes care
        try:
            with write_errors(folder):
                production.take_up(record, overwrite)
            yield production
        except BaseException:
            production.leave(folder_is_new)
            raise


def _already_made(folder: Path, record: Mapping[str, Any]) -> Manifest | None:
    """The manifest, if the folder holds exactly what the record asks for; other software versions do not matter."""
    if not (folder / MANIFEST_FILE).is_file():
        return None
    manifest = read_manifest(folder)
    if any(manifest.provenance.get(key) != record.get(key) for key in _WHAT_EVENTS_ARE_MADE_FROM):
        return None
    for shard in manifest.shards:
        path = folder / shard.file
        size = path.stat().st_size if path.is_file() else 0
        if size != shard.bytes:
            raise DatasetError(
                f"{path} is damaged: {size} bytes instead of {shard.bytes}; make it anew with --overwrite"
            )
    return manifest


def _tidy(workshop: Path) -> None:
    """Remove what a process left that was killed when its dataset was complete."""
    with suppress(OSError), (workshop / _LOCK_FILE).open("a") as lock:  # not if it is gone, or somebody works there
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(workshop)


def require_space(out: Path, events: int, event_bytes: int) -> None:
    """Refuse what cannot fit, counting what is already there."""
    needed = events * event_bytes - sum(path.stat().st_size for path in out.glob(_SHARDS))
    disk = shutil.disk_usage(next(path for path in (out, *out.absolute().parents) if path.exists()))
    if disk.total and needed > disk.free:
        raise FailureError(
            f"{out} needs about {size_in_words(needed)} but only {size_in_words(disk.free)} are free; "
            "ask for fewer events or choose another disk"
        )


def _refuse_foreign(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder; choose another output folder")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    ours = bool(names & {MANIFEST_FILE, PRODUCTION_FOLDER})
    for name in sorted(names):
        shard = name.startswith("shard-") and name.endswith(".parquet")
        if not ours or not (name in KNOWN_FILES or shard or name.endswith(".part")):
            raise UsageError(f"{folder} holds {name!r}, which is no part of a dataset; choose another output folder")
        inside(folder, name)


def _refuse_other(folder: Path, record: Mapping[str, Any]) -> None:
    """Only more events are a reason to go on with another record: they leave the earlier events as they are.

    The user's settings come first in the complaint, what follows from them after.
    """
    unfinished = folder / PRODUCTION_FOLDER / _RECORD_FILE
    if unfinished.is_file():
        old = read_json(unfinished, UsageError, "choose another folder, or replace it with --overwrite")
    elif (folder / MANIFEST_FILE).is_file():
        old = read_manifest(folder).provenance
    else:
        return
    if "settings" not in old:
        raise UsageError(f"{folder} holds a dataset of another origin; choose another folder or overwrite it")
    before, now = dict(flat(old)), dict(flat(json.loads(json.dumps(record))))
    for key in sorted(before.keys() | now.keys(), key=lambda key: (not key.startswith("settings."), key)):
        was, asked = before.get(key), now.get(key)
        if was == asked or (key == _EVENTS_KEY and isinstance(was, int) and isinstance(asked, int) and asked > was):
            continue
        name = key.removeprefix("settings.")
        raise UsageError(
            f"{folder} was made with {name}={was}, now {name}={asked} is asked for; "
            "choose another folder, or replace it with --overwrite"
        )


def _in_parallel(
    production: Production, tasks: Sequence[PlannedShard], open_source: OpenSource, workers: int, advance: Advance
) -> list[Shard]:
    """Hand out the tasks one by one to worker processes, each at the other end of a pipe, and gather the shards."""
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of torch and Arrow half
    team: dict[Connection, BaseProcess] = {}
    waiting = list(reversed(tasks))
    shards: list[Shard] = []
    try:
        with interrupts_held_back():
            for _ in range(workers):
                ours, theirs = context.Pipe()
                team[ours] = context.Process(target=_work, args=(theirs, production, open_source), daemon=True)
                team[ours].start()
                theirs.close()
        for connection in team:
            connection.send(waiting.pop())
        while len(shards) < len(tasks):
            ready = wait(list(team))  # somebody has something to say, or is dead
            for connection in (member for member in team if member in ready):
                message = _receive(connection, team[connection])
                if isinstance(message, int):
                    advance(message)
                    continue
                shards.append(message)
                if waiting:
                    connection.send(waiting.pop())
        return shards
    finally:
        for connection, process in team.items():
            if process.pid is not None:
                process.kill()
                process.join()
            connection.close()


def _receive(connection: Connection, process: BaseProcess) -> int | Shard:
    try:
        message: int | Shard | tuple[RingflowError, str] = connection.recv()
    except (EOFError, ConnectionError):
        process.join()
        code = process.exitcode
        if code is not None and code < 0:
            raise FailureError(
                f"a worker was killed by {signal.Signals(-code).name}, perhaps for want of memory; use fewer workers or "
                "production.block_events"
            ) from None
        raise FailureError(f"a worker ended with exit code {code}; run with production.workers=1 to see why") from None
    if isinstance(message, tuple):
        raise message[0] from RuntimeError(message[1])
    return message


def _work(connection: Connection, production: Production, open_source: OpenSource) -> None:
    """Life of a worker process: one shard after the other until it is killed; what goes wrong is sent, with its trace."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    try:
        with closing(open_source()) as source:
            while True:
                connection.send(production.write(source, connection.recv(), connection.send))
    except (EOFError, BrokenPipeError):
        return
    except BaseException as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        told = error if isinstance(error, RingflowError) else FailureError(f"a worker failed: {line}")
        connection.send((told, traceback.format_exc()))

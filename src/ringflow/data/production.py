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
from typing import IO, Any, Protocol

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
    dataset_card,
    make_manifest,
    read_manifest,
    to_json,
    write_manifest,
)
from ringflow.data.write import ShardWriter, columns_in, file_hash, shard_file
from ringflow.event.block import EventBlock

_RECORD_FILE = "production.json"
_LOCK_FILE = "lock"
_WHAT_EVENTS_ARE_MADE_FROM = ("settings", "inputs", "generator", "geometry_sha256")
_EVENTS_KEY = "settings.production.events"
#: What describes a finished dataset, the manifest first: without it there is none.
_DESCRIPTIONS = (MANIFEST_FILE, CARD_FILE, SETTINGS_FILE, CRATE_FILE, CROISSANT_FILE)


class Production:
    """A dataset folder we may write to; made by `begin`, ended by `complete`."""

    def __init__(self, folder: Path, record: Mapping[str, Any]) -> None:
        self.folder = folder
        self.record = record

    @property
    def workshop(self) -> Path:
        """Where temporary files go, on the same file system as the shards."""
        return self.folder / PRODUCTION_FOLDER

    def keep(self, shard: Shard) -> None:
        """Count a shard as finished."""
        write_atomic(self._note(shard.file), to_json(shard))

    def finished(self) -> dict[str, Shard]:
        """Finished shards by file name, their hashes verified; whatever else looks like a shard is removed."""
        kept = {}
        for path in sorted(self.folder.glob("shard-*.parquet")):
            shard = _read_note(self._note(path.name))
            if shard is not None and path.stat().st_size == shard.bytes and file_hash(path) == shard.sha256:
                kept[path.name] = shard
            else:
                self.discard(path.name)
        return kept

    def discard(self, file: str) -> None:
        """Remove a shard."""
        self._note(file).unlink(missing_ok=True)
        (self.folder / file).unlink(missing_ok=True)

    def complete(self, *, detector: str, sample: str, shards: list[Shard], settings: str | None = None) -> Manifest:
        """Write settings (TOML, of a simulated one), card and, last, the manifest; the folder is a dataset now."""
        columns = columns_in(self.folder / shards[0].file)
        manifest = make_manifest(
            detector=detector, sample=sample, columns=columns, shards=shards, provenance=self.record
        )
        if settings is not None:
            write_atomic(self.folder / SETTINGS_FILE, settings)
        write_atomic(self.folder / CARD_FILE, dataset_card(manifest))
        write_manifest(self.folder, manifest)
        shutil.rmtree(self.workshop)
        return manifest

    def remove_temporaries(self) -> None:
        """Remove what interrupted writers left."""
        for leftover in [*self.folder.glob(".*.part"), *self.workshop.glob(".*.part")]:
            leftover.unlink(missing_ok=True)

    def _note(self, shard_file: str) -> Path:
        return self.workshop / f"{Path(shard_file).stem}.json"


def already_made(folder: Path, record: Mapping[str, Any]) -> Manifest | None:
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


@contextmanager
def begin(folder: Path, record: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[Production]:
    """Start, resume or extend the production of a record (what `provenance.collect` returns, plus anything).

    If it fails before the first shard is finished, nothing of it is left behind.
    """
    _refuse_foreign(folder)
    folder_is_new = not folder.exists()
    production = Production(folder, record)
    workshop_is_new = not production.workshop.exists()
    with write_errors(folder):
        production.workshop.mkdir(parents=True, exist_ok=True)
        lock = (production.workshop / _LOCK_FILE).open("w")
    with lock:
        _claim(lock, folder)
        try:
            with write_errors(folder):
                if overwrite:
                    _clear(production)
                _take_up(production)
        except BaseException:
            if workshop_is_new:
                shutil.rmtree(production.workshop, ignore_errors=True)
            if folder_is_new:
                folder.rmdir()
            raise
        try:
            yield production
        except BaseException:
            _leave_nothing_half_written(production, folder_is_new)
            raise


def _claim(lock: IO[str], folder: Path) -> None:
    """The kernel lets go of the lock when its holder dies."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FailureError(f"another production is writing to {folder}; wait for it or choose another folder") from None


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder; choose another output folder")
    names = {path.name for path in folder.iterdir()}
    ours = bool(names & {MANIFEST_FILE, PRODUCTION_FOLDER})
    for name in sorted(names):
        shard = name.startswith("shard-") and name.endswith(".parquet")
        if not ours or not (name in KNOWN_FILES or shard or name.endswith(".part")):
            raise UsageError(f"{folder} holds {name!r}, which is no part of a dataset; choose another output folder")


def _clear(production: Production) -> None:
    """Remove all that is ours, the manifest first: without it there is no dataset."""
    for name in _DESCRIPTIONS:
        (production.folder / name).unlink(missing_ok=True)
    for path in production.folder.glob("shard-*.parquet"):
        path.unlink()
    shutil.rmtree(production.folder / PACKED_FOLDER, ignore_errors=True)
    for path in production.workshop.iterdir():
        if path.name != _LOCK_FILE:
            path.unlink()


def _take_up(production: Production) -> None:
    """Compare with what the folder already holds; write the record if it is new or asks for more events."""
    folder, record_file = production.folder, production.workshop / _RECORD_FILE
    if record_file.is_file():
        _compare(folder, json.loads(record_file.read_bytes()), production.record)
    elif (folder / MANIFEST_FILE).is_file():
        manifest = read_manifest(folder)
        _compare(folder, manifest.provenance, production.record)
        for shard in manifest.shards:
            production.keep(shard)
    write_atomic(record_file, json.dumps(production.record, indent=1) + "\n")
    for name in _DESCRIPTIONS:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PACKED_FOLDER, ignore_errors=True)
    production.remove_temporaries()


def _compare(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Only more events are a reason to go on with another record: they leave the earlier events as they are.

    The user's settings come first in the complaint, what follows from them after.
    """
    if "settings" not in old:
        raise UsageError(f"{folder} holds a dataset of another origin; choose another folder or overwrite it")
    before, now = dict(flat(old)), dict(flat(json.loads(json.dumps(new))))
    keys = sorted(before.keys() | now.keys(), key=lambda key: (not key.startswith("settings."), key))
    for key in keys:
        was, asked = before.get(key), now.get(key)
        if was == asked or (key == _EVENTS_KEY and isinstance(was, int) and isinstance(asked, int) and asked > was):
            continue
        name = key.removeprefix("settings.")
        raise UsageError(
            f"{folder} was made with {name}={was}, now {name}={asked} is asked for; "
            "choose another folder, or replace it with --overwrite"
        )


def _read_note(path: Path) -> Shard | None:
    try:
        return Shard.model_validate_json(path.read_bytes())
    except (OSError, pydantic.ValidationError):
        return None


def _leave_nothing_half_written(production: Production, folder_is_new: bool) -> None:
    """Keep finished shards for the next attempt; without any, leave the folder as it was found."""
    with suppress(OSError):
        production.remove_temporaries()
        if any(production.workshop.glob("shard-*.json")):
            say(f"finished shards are kept in {production.folder}; the same command goes on from there")
            return
        shutil.rmtree(production.workshop, ignore_errors=True)
        for path in production.folder.glob("shard-*.parquet"):
            path.unlink()
        if folder_is_new:
            production.folder.rmdir()


class BlockSource(Protocol):
    """Where the events come from: block `index` is a pure function of the source's settings and the index."""

    def block(self, index: int) -> EventBlock:
        """Events number `index * block_events` and following."""

    def close(self) -> None:
        """Give back what it took."""


#: Opens a source in the process that will use it; can be pickled.
OpenSource = Callable[[], BlockSource]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class ShardPlan:
    """How events are cut into shards and blocks."""

    events: int
    events_per_shard: int
    block_events: int

    def shards(self) -> list[PlannedShard]:
        """All shards, in order of their events."""
        starts = range(0, self.events, self.events_per_shard)
        return [
            PlannedShard(shard_file(index), start, min(start + self.events_per_shard, self.events), self.block_events)
            for index, start in enumerate(starts)
        ]


@dataclass(frozen=True)
class PlannedShard:
    """Events `start` to `stop` of a production, which go into one file."""

    file: str
    start: int
    stop: int
    block_events: int

    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """The blocks it is cut from: block index, and which events of the block (from, to) belong to the shard."""
        for index in range(self.start // self.block_events, -(-self.stop // self.block_events)):
            first = index * self.block_events
            yield index, max(self.start - first, 0), min(self.stop - first, self.block_events)


def make_shards(
    production: Production, tasks: Sequence[PlannedShard], open_source: OpenSource, workers: int, advance: Advance
) -> list[Shard]:
    """Make the shards of the tasks; `advance` is called with numbers of events as they are done."""
    if workers == 1 or len(tasks) <= 1:
        if not tasks:
            return []
        with closing(open_source()) as source:
            return [write_shard(production, source, task, advance) for task in tasks]
    with _Team(production, open_source, min(workers, len(tasks))) as team:
        return team.work(tasks, advance)


def write_shard(production: Production, source: BlockSource, task: PlannedShard, advance: Advance) -> Shard:
    """Make one shard and count it as finished."""
    with ShardWriter(production.folder / task.file, temporary_folder=production.workshop) as writer:
        for index, first, last in task.blocks():
            block = source.block(index)
            if len(block) < last:
                raise FailureError(f"block {index} has {len(block)} events instead of {last}; the input ended early")
            writer.append(block.take(first, last))
            advance(last - first)
        shard = writer.finish()
    production.keep(shard)
    return shard


@dataclass(frozen=True)
class _Failed:
    """What a worker says before it gives up: an error to raise, and where it came from."""

    error: RingflowError
    trace: str


class _Team:
    """Worker processes, each at the other end of a pipe; leaving the context ends them all."""

    def __init__(self, production: Production, open_source: OpenSource, size: int) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads of torch and Arrow half
        self._members: dict[Connection, BaseProcess] = {}
        with interrupts_held_back():
            for _ in range(size):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs, production, open_source), daemon=True)
                process.start()
                theirs.close()
                self._members[ours] = process

    def __enter__(self) -> _Team:
        return self

    def __exit__(self, *_: object) -> None:
        for connection, process in self._members.items():
            process.kill()
            process.join()
            connection.close()

    def work(self, tasks: Sequence[PlannedShard], advance: Advance) -> list[Shard]:
        """Hand out the tasks one by one and gather the shards."""
        waiting = list(reversed(tasks))
        for connection in self._members:
            connection.send(waiting.pop())
        shards: list[Shard] = []
        while len(shards) < len(tasks):
            ready = wait(list(self._members))  # somebody has something to say, or is dead
            for connection in (member for member in self._members if member in ready):
                message = self._receive(connection)
                if isinstance(message, int):
                    advance(message)
                    continue
                shards.append(message)
                if waiting:
                    connection.send(waiting.pop())
        return shards

    def _receive(self, connection: Connection) -> int | Shard:
        try:
            message: int | Shard | _Failed = connection.recv()
        except (EOFError, ConnectionError):
            process = self._members[connection]
            process.join()
            raise FailureError(_obituary(process.exitcode)) from None
        if isinstance(message, _Failed):
            raise message.error from RuntimeError(message.trace)
        return message


def _obituary(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        name = signal.Signals(-exitcode).name
        return (
            f"a worker was killed by {name}, perhaps for want of memory; use fewer workers or production.block_events"
        )
    return f"a worker ended with exit code {exitcode}; run with production.workers=1 to see why"


def _work(connection: Connection, production: Production, open_source: OpenSource) -> None:
    """Life of a worker process: one shard after the other until the team is dissolved."""
    threading.Thread(target=die_with_parent, daemon=True).start()
    try:
        with closing(open_source()) as source:
            while True:
                connection.send(write_shard(production, source, connection.recv(), connection.send))
    except (EOFError, BrokenPipeError):
        return
    except RingflowError as error:
        connection.send(_Failed(error, traceback.format_exc()))
    except BaseException as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        connection.send(_Failed(FailureError(f"a worker failed: {line}"), traceback.format_exc()))


@dataclass(frozen=True)
class Request:
    """What is asked for. Requests with equal records make equal bytes, on any number of workers."""

    plan: ShardPlan
    record: Mapping[str, Any]
    detector: str
    sample: str
    settings: str  # TOML, to be kept beside the shards
    event_bytes: int  # rather less than what an event takes on disk


def produce(
    out: Path, request: Request, open_source: OpenSource, *, workers: int, overwrite: bool = False
) -> tuple[Manifest, int]:
    """The manifest of the finished dataset, and the number of events that were made now."""
    if not overwrite and (manifest := already_made(out, request.record)):
        say(f"{out} is already there, made with the same settings")
        return manifest, 0
    _require_space(out, request)
    with begin(out, request.record, overwrite=overwrite) as production:
        kept = _keep_finished(production, request.plan)
        missing = [task for task in request.plan.shards() if task.file not in kept]
        with progress(request.plan.events, f"simulating {request.sample}") as advance:
            if kept:
                advance(sum(shard.num_events for shard in kept.values()))
            made = make_shards(production, missing, open_source, workers, advance)
        manifest = production.complete(
            detector=request.detector,
            sample=request.sample,
            shards=sorted([*kept.values(), *made], key=lambda shard: shard.first_event),
            settings=request.settings,
        )
    return manifest, sum(shard.num_events for shard in made)


def _keep_finished(production: Production, plan: ShardPlan) -> dict[str, Shard]:
    """Shards of an earlier attempt that are what the plan asks for; the last one of a shorter production is not."""
    planned = {task.file: task for task in plan.shards()}
    kept = {}
    for file, shard in production.finished().items():
        task = planned.get(file)
        if task and (shard.first_event, shard.num_events) == (task.start, task.stop - task.start):
            kept[file] = shard
        else:
            production.discard(file)
    return kept


def _require_space(out: Path, request: Request) -> None:
    """Refuse what cannot fit, counting what is already there."""
    needed = request.plan.events * request.event_bytes - sum(
        path.stat().st_size for path in out.glob("shard-*.parquet")
    )
    place = next(path for path in (out, *out.absolute().parents) if path.exists())
    disk = shutil.disk_usage(place)
    if disk.total and needed > disk.free:
        raise FailureError(
            f"{out} needs about {size_in_words(needed)} but only {size_in_words(disk.free)} are free; "
            "ask for fewer events or choose another disk"
        )

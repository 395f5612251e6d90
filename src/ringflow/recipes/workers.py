"""Make the shards of a production, in this process or in several.

The events are cut into blocks that are always made whole, and into shards that are cut out of the blocks; so an event is the
same whatever number of events, shards or workers is asked for. A worker opens its source of blocks once, takes one shard
after the other and writes it itself: only summaries travel between the processes.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from ringflow.base.errors import FailureError, RingflowError
from ringflow.base.processes import die_with_parent, interrupts_held_back
from ringflow.data.manifest import Shard
from ringflow.data.production import Production
from ringflow.data.write import ShardWriter, shard_file
from ringflow.event.block import EventBlock


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
class Plan:
    """How events are cut into shards and blocks."""

    events: int
    events_per_shard: int
    block_events: int

    def shards(self) -> list[ShardTask]:
        """All shards, in order of their events."""
        starts = range(0, self.events, self.events_per_shard)
        return [
            ShardTask(shard_file(index), start, min(start + self.events_per_shard, self.events), self.block_events)
            for index, start in enumerate(starts)
        ]


@dataclass(frozen=True)
class ShardTask:
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
    production: Production, tasks: Sequence[ShardTask], open_source: OpenSource, workers: int, advance: Advance
) -> list[Shard]:
    """Make the shards of the tasks; `advance` is called with numbers of events as they are done."""
    if workers == 1 or len(tasks) <= 1:
        if not tasks:
            return []
        with closing(open_source()) as source:
            return [write_shard(production, source, task, advance) for task in tasks]
    with _Team(production, open_source, min(workers, len(tasks))) as team:
        return team.work(tasks, advance)


def write_shard(production: Production, source: BlockSource, task: ShardTask, advance: Advance) -> Shard:
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

    def work(self, tasks: Sequence[ShardTask], advance: Advance) -> list[Shard]:
        """Hand out the tasks one by one and gather the shards."""
        waiting = list(reversed(tasks))
        for connection in self._members:
            connection.send(waiting.pop())
        shards: list[Shard] = []
        while len(shards) < len(tasks):
            for connection in self._speaking():
                message = self._receive(connection)
                if isinstance(message, int):
                    advance(message)
                    continue
                shards.append(message)
                if waiting:
                    connection.send(waiting.pop())
        return shards

    def _speaking(self) -> list[Connection]:
        """Wait until somebody has something to say, or is dead."""
        ready = wait(list(self._members))
        return [connection for connection in self._members if connection in ready]

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

"""A worker: takes batches of its lanes, works, tells the master, and goes on with what the master answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ringflow.base.errors import DivergenceError
from ringflow.elements.batch import join
from ringflow.train.asynchronous.account import Account, Stopwatch
from ringflow.train.asynchronous.messages import MASTER, Answer, Post, Report, row_for
from ringflow.train.bad_batch import save_bad_batch
from ringflow.train.batches import BEGINNING, ChunkSource, DataPosition, Feed, FixedShape, TrainingBatch
from ringflow.train.settings import TrainSettings
from ringflow.train.signals import Wish
from ringflow.train.snapshot import snapshot
from ringflow.train.step import Record, TrainingStep
from ringflow.train.trainer import BAD_BATCH_FILE


class Start(NamedTuple):
    """Where a training goes on, or begins."""

    goes_on: bool
    finished: bool
    version: int
    events: int
    positions: list[DataPosition]
    shape: FixedShape | None
    #: Whether batches have the size that they had before.
    same_batches: bool


def make_feeds(
    sources: Mapping[int, ChunkSource], settings: TrainSettings, start: Start, device: torch.device
) -> dict[int, Feed]:
    """The batches of lanes, from where the training is."""
    feeds = {}
    for lane, source in sources.items():
        position = start.positions[lane] if start.goes_on else BEGINNING
        feeds[lane] = feed = Feed(
            source,
            budget=settings.compute.batch_elements,
            reuse=settings.source.reuse,
            seed=settings.seed,
            device=device,
            lane=lane,
            position=position,
            shape=start.shape if start.same_batches else None,
        )
        if not start.same_batches and position.batch > 0:
            feed.skip_turn()
    return feeds


class Method(Protocol):
    """What a worker does with its batches and with an answer."""

    def work(self, batches: Sequence[TrainingBatch], row: Tensor, version: int, events: int) -> list[Record]:
        """Work on some batches, with weights of this version, fetched when so many events had been shown; fill the row."""

    def arrive(self, row: Tensor) -> None:
        """Let the row of an answer have its effect."""


class Worker:
    """Works until the master tells it to end."""

    def __init__(
        self,
        settings: TrainSettings,
        folder: Path,
        feeds: Mapping[int, Feed],
        step: TrainingStep,
        method: Method,
        wish: Wish,
    ) -> None:
        self._settings, self._folder, self._feeds = settings, folder, feeds
        self._step, self._method, self._wish = step, method, wish
        self._row = row_for(step.model)

    def go(self, post: Post, start: Start, phases: Stopwatch) -> None:
        """Train to the end, and tell the master what the time went into."""
        post.phases = phases
        version, events = start.version, start.events
        self._step.redraw(version)
        go_on = True
        while go_on:
            with phases("data"):
                drawn = [self._draw(events) for _ in range(self._settings.asynchronous.period)]
            batches = [batch for _, batch in drawn]
            records = self._method.work(batches, self._row, version, events)
            self._refuse_bad(records, drawn)
            post.send(MASTER, self._report(batches, records, version), self._row)
            answer: Answer = post.receive(self._row, by=MASTER)[1]
            self._method.arrive(self._row)
            for number in range(version + 1, answer.version + 1):
                self._step.redraw(number)
            if answer.wants_state:
                post.send(MASTER, snapshot(self._step))
            version, events, go_on = answer.version, answer.events, answer.go_on
        post.send(MASTER, Account(phases.seconds, post.bytes_sent, post.bytes_received))

    def _draw(self, events: int) -> tuple[Feed, TrainingBatch]:
        """A batch of the lane that is furthest behind."""
        feed = min(self._feeds.values(), key=lambda feed: feed.position)
        left = (self._settings.length.events - events) // self._settings.source.lanes
        return feed, feed.next(left)

    def _report(self, batches: Sequence[TrainingBatch], records: Sequence[Record], version: int) -> Report:
        names = records[0].values
        return Report(
            version=version,
            events=sum(batch.num_events for batch in batches),
            computed=sum(batch.elements.num_elements for batch in batches),
            real=sum(batch.num_elements for batch in batches),
            positions={lane: feed.position for lane, feed in self._feeds.items()},
            shape=next(iter(self._feeds.values())).shape,
            values={name: sum(record.values[name] for record in records) / len(records) for name in names},
            signal=self._wish.signal_name,
        )

    def _refuse_bad(self, records: Sequence[Record], drawn: Sequence[tuple[Feed, TrainingBatch]]) -> None:
        """An error if something is not finite: the master shall not get it."""
        bad = next((record for record in records if record.not_finite), None)
        if bad is None:
            return
        guilty = drawn if len(records) == 1 else [drawn[records.index(bad)]]
        path = self._folder / BAD_BATCH_FILE
        save_bad_batch(path, join([feed.again(batch.position) for feed, batch in guilty]), bad)
        raise DivergenceError(
            f"{', '.join(bad.not_finite)} became NaN or infinite at step {bad.step}; the batch is in {path}: "
            "look at it, or start again in another folder with a smaller optimizer.rate"
        )

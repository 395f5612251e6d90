"""Training with a master and workers that do not wait for each other.

The first process is the master: it has the weights that are validated and saved, and no events. The others are workers, and
share the lanes. A worker takes batches of its lanes, works, sends a report and a row (all weights or gradients one after the
other in float32), and goes on with what the master answers. `sync=downpour` and `sync=easgd` differ in what rows hold and in
who moves which weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ringflow.base.errors import LostPeerError, RingflowError, UsageError
from ringflow.base.log import say
from ringflow.base.rundir import write_atomic
from ringflow.train.batches import DataPosition, Feed, FixedShape, TrainingBatch
from ringflow.train.checkpoint import TrainingState, restore, snapshot
from ringflow.train.data import TrainingData
from ringflow.train.device import Phases, choose_device
from ringflow.train.parallel import MeshPlace
from ringflow.train.settings import TrainSettings
from ringflow.train.step import Record, TrainingStep, rate_at
from ringflow.train.trainer import Trainer, batch_memory_advice, diverged, make_feeds, make_model
from ringflow.train.world import (
    ALONE,
    StopRequest,
    Tensors,
    World,
    catching_signals,
    collective,
    pack,
    room,
    stopped,
    unpack,
)

ACCOUNT_FILE = "asynchronous.json"
MASTER, FIRST_WORKER = 0, 1


def require_workers(settings: TrainSettings, size: int) -> None:
    """An error if so many processes cannot be a master and workers."""
    if size == 1:
        raise UsageError(
            f"sync={settings.sync} needs a master and at least one worker; "
            "start it with `ringflow launch local --workers 3 -- train ...`"
        )
    if settings.compute.strategy != "replicate":
        raise UsageError(
            f"sync={settings.sync} has a whole network in every process; use compute.strategy=replicate, "
            f"not {settings.compute.strategy}, or sync=allreduce"
        )


def own_lanes(world: World, lanes: int) -> Sequence[int]:
    """The lanes that a process takes; the master takes none."""
    return () if world.is_first else MeshPlace(world.rank - 1, world.size - 1).lanes(lanes)


class WorkerReport(NamedTuple):
    """What a worker sends with its row: the version of the weights it had fetched before, what it did since, the next batch of
    each of its lanes, means of what its batches gave, and the signal that asked it to end."""

    version: int
    events: int
    computed: int
    real: int
    positions: dict[int, DataPosition]
    shape: FixedShape | None
    values: dict[str, float]
    signal: str | None = None


class Answer(NamedTuple):
    """What the master sends with its row: times that its weights have moved, events shown to all workers, and whether it wants
    to have all that the worker would need to go on."""

    version: int
    events: int
    go_on: bool = True
    wants_state: bool = False


class Stopwatch(Phases):
    """Adds up the seconds of every phase; those of an accelerator are counted where the host waits for it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begun


class Messages:
    """Sends small objects, and rows of floats with them, from process to process; counts the time, and the bytes of rows."""

    def __init__(self, world: World) -> None:
        self._group, self.phases = world.host_group, Stopwatch()
        self._sent = self._received = 0

    @collective()
    def send(self, to: int, message: object, row: Tensor | None = None, kind: Any = Any) -> None:
        """Send a message, and a row with it."""
        packed = pack(message, kind)
        with self.phases("communication"):
            dist.send(torch.tensor([packed.numel(), row is not None]), to, group=self._group)
            dist.send(packed, to, group=self._group)
            if row is not None:
                dist.send(row, to, group=self._group)
                self._sent += row.nbytes

    @collective()
    def receive(self, row: Tensor, source: int | None = None, kind: Any = Any) -> tuple[int, Any]:
        """Wait for a message, of anybody unless given, and put its row into `row`; the sender and the message."""
        announced = torch.tensor([0, 0])
        with self.phases("idle"):
            sender = dist.recv(announced, source, group=self._group)
            length, has_row = announced.tolist()
            dist.recv(packed := room(length, kind), sender, group=self._group)
        if has_row:
            with self.phases("communication"):
                dist.recv(row, sender, group=self._group)
                self._received += row.nbytes
        return sender, unpack(packed, kind)

    def account(self) -> dict[str, Any]:
        """What this process spent its time on, and what it sent, since its start."""
        return {"seconds": self.phases.seconds, "bytes_sent": self._sent, "bytes_received": self._received}


def train(
    settings: TrainSettings,
    data: TrainingData,
    folder: Path,
    world: World,
    rules: Callable[[], Mapping[str, float | None]] = dict,
) -> dict[str, Any]:
    """Train in a folder, or go on with what is there. The master has no sources of events.

    What is in the folder afterwards is as after any other training, and `asynchronous.json` beside it.
    """
    trainers: list[Trainer] = []  # the master's, and nobody else's

    def begin() -> TrainingState | None:
        trainers.append(Trainer(settings, data, folder, rules=rules))
        return None if trainers[0].finished else trainers[0].state

    with batch_memory_advice(settings), catching_signals() as stop:
        error, state = None, world.on_first(begin, TrainingState | None)
        if state is None:
            for trainer in trainers:
                trainer.say_finished()
        elif trainers:
            error = _lead(trainers[0], world, stop)
        else:
            _follow(settings, data, folder, state, world, stop)
        outcome = world.broadcast((error or trainers[0].result()) if trainers else None)
    if isinstance(outcome, RingflowError):
        outcome.told = not world.is_first
        raise outcome
    assert outcome is not None, "the master sends it"
    return outcome


def _lead(trainer: Trainer, world: World, stop: StopRequest) -> RingflowError | None:
    """The training as the master sees it; what ended it before its time."""
    settings, device, tensors, messages = trainer.settings, trainer.device, trainer.tensors, Messages(world)
    step = TrainingStep(make_model(settings, device, None, new=tensors is None), settings, device)
    if tensors is not None:
        restore(tensors, step, trainer.folder)
    _share_weights(step, world, new=tensors is None)
    for worker in range(FIRST_WORKER, world.size):
        # One that was not there before has nothing, and begins with the weights that all have now.
        prefix = _prefix(worker)
        own = {name.removeprefix(prefix): value for name, value in (tensors or {}).items() if name.startswith(prefix)}
        messages.send(worker, own, kind=Tensors)
    method = METHODS[settings.sync](step, settings, world.size - 1)
    return Master(trainer, step, method, stop, messages, world.size - 1).run()


def _follow(
    settings: TrainSettings, data: TrainingData, folder: Path, state: TrainingState, world: World, stop: StopRequest
) -> None:
    """The training as a worker sees it; what goes wrong the master tells."""
    messages, device, new = Messages(world), choose_device(settings.compute.device), state.step == 0
    feeds = make_feeds(data.sources, settings, state, device)
    first = feeds[0] if world.rank == FIRST_WORKER else None
    step = TrainingStep(make_model(settings, device, first, new=new), settings, device, ALONE, messages.phases)
    _share_weights(step, world, new=new)
    if own := messages.receive(torch.empty(0), MASTER, Tensors)[1]:
        restore(own, step, folder)
    method = METHODS[settings.sync](step, settings, world.size - 1)
    try:
        with batch_memory_advice(settings):
            work(settings, folder, feeds, step, method, stop, messages, state)
        messages.send(MASTER, messages.account())
    except LostPeerError:
        raise
    except RingflowError as error:
        messages.send(MASTER, error)


def _share_weights(step: TrainingStep, world: World, *, new: bool) -> None:
    """Everybody has the weights of one process, who knows them, and averages that begin with them."""
    source = FIRST_WORKER if new else MASTER
    for value in step.model.state_dict().values():
        world.broadcast_(value, source)
    if world.rank != source:
        with torch.no_grad():
            for name, weight in step.model.named_parameters():
                step.average.weights[name].copy_(weight)


def _prefix(worker: int) -> str:
    """What the names of a worker's tensors begin with in a checkpoint."""
    return f"worker-{worker}/"


def rate_after(settings: TrainSettings, events: int) -> float:
    """The rate of a move after which so many events have been shown to all workers."""
    batches = settings.asynchronous.period if settings.sync == "downpour" else 1
    elements = batches * settings.compute.batch_elements
    return rate_at(settings.optimizer, events, settings.length.events, elements)


class Downpour:
    """Downpour SGD: workers compute gradients, the master moves the weights (J. Dean et al., NeurIPS 2012).

    A worker works with the weights that it fetched last. When its gradients arrive, those of other workers may have moved the
    weights of the master meanwhile: how often is their staleness.
    """

    #: Whether a checkpoint needs what the workers have: here all is at the master.
    needs_states = False

    def __init__(self, step: TrainingStep, settings: TrainSettings, workers: int) -> None:
        self._step, self._settings, self._weights = step, settings, list(step.model.parameters())
        self._share = settings.asynchronous.elastic / workers

    def _pieces(self, row: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What of a row belongs to each weight, in its shape and as the same memory, with the weight."""
        pieces = torch.split(row, [weight.numel() for weight in self._weights])
        for piece, weight in zip(pieces, self._weights, strict=True):
            yield piece.view_as(weight), weight

    @torch.no_grad()
    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        """The master moves along the gradient in a row, as step number `number`, and puts the weights in its place.

        Returns the length of the gradient."""
        for piece, weight in self._pieces(row):
            weight.grad = piece.to(weight.device)
        length = self._step.move(number, rate)
        for piece, weight in self._pieces(row):
            piece.copy_(weight)
        return float(length)

    def work(self, batches: Sequence[TrainingBatch], row: Tensor, version: int, events: int) -> list[Record]:
        """A worker puts the gradient of some batches, taken as one, into a row; its weights are of this version, fetched when
        so many events had been shown."""
        terms = self._step.gradients(batches)
        with torch.no_grad():
            for piece, weight in self._pieces(row):
                piece.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        return [_record(version + 1, batches, {**terms, "gradient": row.norm()})]

    @torch.no_grad()
    def arrive(self, row: Tensor) -> None:
        """A worker takes the weights in a row."""
        for piece, weight in self._pieces(row):
            weight.copy_(piece)


class ElasticAveraging(Downpour):
    """Elastic averaging SGD: every worker moves weights of its own, bound to a centre (arXiv:1412.6651, algorithm 1).

    When a worker with the weights w talks to the centre c, both move towards each other by a share of their difference:

        d = alpha (w - c),    w <- w - d,    c <- c + d,    alpha = elastic / workers
    """

    needs_states = True  # workers have weights and optimisers of their own

    @torch.no_grad()
    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        """The centre moves towards the weights in a row, and puts in their place what they move by."""
        for piece, weight in self._pieces(row):
            difference = self._share * (piece.to(weight.device) - weight)
            weight += difference
            piece.copy_(difference)
        self._step.average.update(number)
        return None

    def work(self, batches: Sequence[TrainingBatch], row: Tensor, version: int, events: int) -> list[Record]:
        """A worker takes a step for each of some batches, and puts its weights into a row."""
        made = []
        for batch in batches:
            events += batch.num_events
            terms = self._step.gradients([batch])
            length = self._step.move(version, rate_after(self._settings, events))
            made.append(([batch], {**terms, "gradient": length}))
        records = [_record(version + 1, batch, values) for batch, values in made]  # which waits for the device
        with torch.no_grad():
            for piece, weight in self._pieces(row):
                piece.copy_(weight)
        return records

    @torch.no_grad()
    def arrive(self, row: Tensor) -> None:
        """A worker moves by what is in a row."""
        for piece, weight in self._pieces(row):
            weight -= piece.to(weight.device)


METHODS = {"downpour": Downpour, "easgd": ElasticAveraging}


def _record(number: int, batches: Sequence[TrainingBatch], values: Mapping[str, Tensor]) -> Record:
    places = tuple(batch.position for batch in batches)
    return Record(number, places, {name: float(value) for name, value in values.items()})


def work(
    settings: TrainSettings,
    folder: Path,
    feeds: Mapping[int, Feed],
    step: TrainingStep,
    method: Downpour,
    stop: StopRequest,
    messages: Messages,
    state: TrainingState,
) -> None:
    """A worker: works until the master tells it to end."""
    row = torch.empty(step.model.num_parameters)
    version, events, go_on = state.step, state.events, True
    step.redraw(version)
    while go_on:
        drawn = []
        with messages.phases("data"):
            for _ in range(settings.asynchronous.period):
                feed = min(feeds.values(), key=lambda feed: feed.position)  # the lane that is furthest behind
                drawn.append((feed, feed.next((settings.length.events - events) // settings.source.lanes)))
        batches = [batch for _, batch in drawn]
        records = method.work(batches, row, version, events)
        if bad := next((record for record in records if record.not_finite), None):  # the master shall not get it
            guilty = drawn if len(records) == 1 else [drawn[records.index(bad)]]
            raise diverged(bad, folder, [(feed, batch.position) for feed, batch in guilty])
        report = WorkerReport(
            version,
            events=sum(batch.num_events for batch in batches),
            computed=sum(batch.elements.num_elements for batch in batches),
            real=sum(batch.num_elements for batch in batches),
            positions={lane: feed.position for lane, feed in feeds.items()},
            shape=next(iter(feeds.values())).shape,
            values={name: sum(r.values[name] for r in records) / len(records) for name in records[0].values},
            signal=stop.signal_name,
        )
        messages.send(MASTER, report, row)
        answer: Answer = messages.receive(row, MASTER, Answer)[1]
        method.arrive(row)
        for number in range(version + 1, answer.version + 1):
            step.redraw(number)
        if answer.wants_state:
            messages.send(MASTER, snapshot(step), kind=Tensors)
        version, events, go_on = answer.version, answer.events, answer.go_on


class Master:
    """Takes what workers bring, in the order in which it comes, and answers them; has the weights that are saved.

    It alone validates and writes; what workers bring meanwhile waits for it. When the end has come, by the number of events,
    for want of progress, by a signal or by a worker that failed, what every worker brings next is still taken, and answered
    with the end.
    """

    def __init__(
        self,
        trainer: Trainer,
        step: TrainingStep,
        method: Downpour,
        stop: StopRequest,
        messages: Messages,
        workers: int,
    ) -> None:
        self._settings, self._trainer, self._state = trainer.settings, trainer, trainer.state
        self._step, self._method, self._stop_request = step, method, stop
        self._messages, self._phases, self._workers = messages, messages.phases, workers
        self._row = torch.empty(step.model.num_parameters)
        #: By how many moves the weights that workers had worked with were behind.
        self._staleness: list[int] = []
        self._ending = self._wants_states = self._validation_due = False
        self._states: dict[int, dict[str, Tensor]] = {}

    def run(self) -> RingflowError | None:
        """Train to the end; the error to raise if it was ended before."""
        trainer, messages, failure = self._trainer, self._messages, None
        accounts: dict[int, dict[str, Any]] = {}
        with trainer.monitored():
            while len(accounts) < self._workers:
                worker, message = messages.receive(self._row, kind=WorkerReport)
                if isinstance(message, RingflowError):
                    failure, accounts[worker], self._ending = message, {}, True
                    continue
                self._take_in(message)
                late = time.perf_counter() - trainer.checkpointed >= self._settings.length.checkpoint_seconds
                self._ending |= trainer.finished or self._stop_request.signal_name is not None
                self._answer(worker)
                if self._ending:
                    accounts[worker] = messages.receive(self._row, worker)[1]  # at once, or it would be a report
                elif late or self._validation_due:
                    self._validate_if_due()
                    if self._method.needs_states:  # it is written when all workers have sent theirs
                        self._wants_states, trainer.checkpointed = True, time.perf_counter()
                    else:
                        self._write_checkpoint()
            if failure is not None:
                return failure
            if trainer.stopped_early:
                say(f"stopped early: {self._state.since_best} validations without a better one")
            else:
                self._validation_due |= trainer.finished
                self._validate_if_due()
            self._write_checkpoint()
        accounts[MASTER] = messages.account()
        record = {
            "sync": self._settings.sync,
            "workers": self._workers,
            "staleness_mean": sum(self._staleness) / max(len(self._staleness), 1),
            "staleness_largest": max(self._staleness, default=0),
            "ranks": [
                {"rank": rank, "role": "worker" if rank else "master", **accounts[rank]} for rank in sorted(accounts)
            ],
        }
        write_atomic(trainer.folder / ACCOUNT_FILE, json.dumps(record, indent=1) + "\n")
        return None if trainer.finished else stopped(self._stop_request.signal_name or "a signal", self._state.events)

    def _take_in(self, report: WorkerReport) -> None:
        """Let a report have its effect."""
        state, every = self._state, self._settings.length.validate_every
        before = state.events
        self._staleness.append(state.step - report.version)
        rate = rate_after(self._settings, state.events + report.events)
        with self._phases("optimizer"):
            self._step.redraw(state.step)
            length = self._method.take_in(self._row, state.step, rate)
        state.count(report.events, report.computed, report.real)
        for lane, position in report.positions.items():
            state.positions[lane] = position
        state.shape = report.shape
        self._stop_request.signal_name = self._stop_request.signal_name or report.signal
        values = report.values if length is None else {**report.values, "gradient": length}
        self._trainer.note([Record(state.step, (), values)], rate)
        self._validation_due |= state.events // every > before // every

    def _answer(self, worker: int) -> None:
        wants_state = self._method.needs_states and (self._wants_states or self._ending)
        answer = Answer(self._state.step, self._state.events, not self._ending, wants_state)
        self._messages.send(worker, answer, self._row)
        if wants_state:
            self._states[worker] = self._messages.receive(self._row, worker, Tensors)[1]
            # From now on all are asked with every answer, so that each state is as of the last row that its worker brought.
            if len(self._states) == self._workers and not self._ending:
                self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        with self._phases("checkpoint"):
            tensors = snapshot(self._step)
            for worker, theirs in self._states.items():
                tensors |= {_prefix(worker) + name: value for name, value in theirs.items()}
            self._trainer.checkpoint(tensors)
        self._wants_states, self._states = False, {}

    def _validate_if_due(self) -> None:
        if self._validation_due:
            with self._phases("validation"):
                self._trainer.validate(self._step.average.model())
            self._validation_due = False
            self._ending |= self._trainer.stopped_early

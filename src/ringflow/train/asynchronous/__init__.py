"""Training with a master and workers that do not wait for each other, over MPI.

    with joined(settings) as world:
        train(settings, data, folder, world)

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
from torch import Tensor

from ringflow.base.errors import StoppedError
from ringflow.base.log import say
from ringflow.base.rundir import write_atomic
from ringflow.train.asynchronous.mpi import MASTER, Messages, MpiWorld, joined
from ringflow.train.batches import DataPosition, Feed, FixedShape, TrainingBatch
from ringflow.train.checkpoint import TrainingState, restore, snapshot
from ringflow.train.data import TrainingData
from ringflow.train.device import choose_device
from ringflow.train.optim import rate_at
from ringflow.train.profile import Phases
from ringflow.train.settings import TrainSettings
from ringflow.train.step import Record, TrainingStep
from ringflow.train.trainer import Trainer, batch_memory_advice, diverged, make_feeds, make_model
from ringflow.train.world import ALONE, StopRequest, catching_signals, stopped

__all__ = ["MpiWorld", "joined", "train"]

ACCOUNT_FILE = "asynchronous.json"
#: The worker that has the first lane.
_FIRST_WORKER = MASTER + 1


class WorkerReport(NamedTuple):
    """What a worker sends with its row."""

    #: Of the weights it had fetched before.
    version: int
    events: int
    #: Elements that went through the network, and those of them that were not only there to fill a batch up.
    computed: int
    real: int
    #: The next batch of each of its lanes.
    positions: dict[int, DataPosition]
    shape: FixedShape | None
    #: Means of what its batches gave.
    values: dict[str, float]
    #: The signal that asked it to end.
    signal: str | None = None


class Answer(NamedTuple):
    """What the master sends with its row."""

    #: Times that its weights have moved.
    version: int
    #: Events shown to all workers.
    events: int
    go_on: bool = True
    #: Whether it wants to have all that the worker would need to go on.
    wants_state: bool = False


class Account(NamedTuple):
    """What a process spent its time on, and what it sent, since its start."""

    seconds: dict[str, float]
    bytes_sent: int
    bytes_received: int


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


def train(
    settings: TrainSettings,
    data: TrainingData,
    folder: Path,
    world: MpiWorld,
    rules: Callable[[], Mapping[str, float | None]] = dict,
) -> dict[str, Any]:
    """Train in a folder, or go on with what is there. The master has no sources of events.

    What is in the folder afterwards is as after any other training, and `asynchronous.json` beside it.
    """
    trainers: list[Trainer] = []  # the master's, and nobody else's

    def begin() -> TrainingState | None:
        """Where the training is; the master keeps what knows it."""
        trainers.append(Trainer(settings, data, folder, rules=rules))
        return None if trainers[0].finished else trainers[0].state

    with batch_memory_advice(settings), catching_signals() as stop:
        error, state = None, world.on_first(begin)
        if state is None:
            if trainers:
                trainers[0].say_finished()
        elif trainers:
            error = _lead(trainers[0], world, stop)
        else:
            _follow(settings, data, folder, state, world, stop)
        outcome = world.broadcast((error or trainers[0].result()) if trainers else None)
    if isinstance(outcome, StoppedError):
        outcome.told = not world.is_first
        raise outcome
    assert outcome is not None, "the master sends it"
    return outcome


def _lead(trainer: Trainer, world: MpiWorld, stop: StopRequest) -> StoppedError | None:
    """The training as the master sees it."""
    settings, device, tensors = trainer.settings, trainer.device, trainer.tensors
    step = TrainingStep(make_model(settings, device, None, new=tensors is None), settings, device)
    if tensors is not None:
        restore(tensors, step, trainer.folder)
    _share_weights(step, world, new=tensors is None)
    for worker in world.workers:
        # One that was not there before has nothing, and begins with the weights that all have now.
        prefix = _prefix(worker)
        own = {name.removeprefix(prefix): value for name, value in (tensors or {}).items() if name.startswith(prefix)}
        world.messages.send(worker, own)
    method = METHODS[settings.sync](step, settings, len(world.workers))
    return Master(trainer, step, method, stop).run(world.messages, world.workers)


def _follow(
    settings: TrainSettings,
    data: TrainingData,
    folder: Path,
    state: TrainingState,
    world: MpiWorld,
    stop: StopRequest,
) -> None:
    """The training as a worker sees it."""
    phases, device, new = Stopwatch(), choose_device(settings.compute.device), state.step == 0
    feeds = make_feeds(data.sources, settings, state, device)
    first = feeds[0] if world.rank == _FIRST_WORKER else None
    step = TrainingStep(make_model(settings, device, first, new=new), settings, device, ALONE, phases)
    _share_weights(step, world, new=new)
    if own := world.messages.receive(source=MASTER)[1]:
        restore(own, step, folder)
    method = METHODS[settings.sync](step, settings, len(world.workers))
    work(settings, folder, feeds, step, method, stop, world.messages, state, phases)


def _share_weights(step: TrainingStep, world: MpiWorld, *, new: bool) -> None:
    """Everybody has the weights of one process, who knows them, and averages that begin with them."""
    source = _FIRST_WORKER if new else MASTER
    weights = world.broadcast({name: value.cpu() for name, value in step.model.state_dict().items()}, source)
    if world.rank != source:
        step.model.load_state_dict(weights)
        with torch.no_grad():
            for name, weight in step.model.named_parameters():
                step.average.weights[name].copy_(weight)


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

    @torch.no_grad()
    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        """The master moves along the gradient in a row, as step number `number`, and puts the weights in its place.

        Returns the length of the gradient."""
        for piece, weight in pieces(row, self._weights):
            weight.grad = piece.to(weight.device)
        length = self._step.move(number, rate)
        for piece, weight in pieces(row, self._weights):
            piece.copy_(weight)
        return float(length)

    def work(self, batches: Sequence[TrainingBatch], row: Tensor, version: int, events: int) -> list[Record]:
        """A worker puts the gradient of some batches, taken as one, into a row; its weights are of this version, fetched when
        so many events had been shown."""
        terms = self._step.gradients(batches)
        with torch.no_grad():
            for piece, weight in pieces(row, self._weights):
                piece.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        length = row.norm().to(terms["total"].device)
        return [_record(version + 1, batches, {**terms, "gradient": length})]

    @torch.no_grad()
    def arrive(self, row: Tensor) -> None:
        """A worker takes the weights in a row."""
        for piece, weight in pieces(row, self._weights):
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
        for piece, weight in pieces(row, self._weights):
            difference = self._share * (piece.to(weight.device) - weight)
            weight += difference
            piece.copy_(difference)
        self._step.average.update(number)
        return None

    def work(self, batches: Sequence[TrainingBatch], row: Tensor, version: int, events: int) -> list[Record]:
        """A worker takes a step for each of some batches, and puts its weights into a row."""
        step, made = self._step, []
        for batch in batches:
            events += batch.num_events
            terms = step.gradients([batch])
            length = step.move(version, rate_after(self._settings, events))
            made.append(([batch], {**terms, "gradient": length}))
        records = [_record(version + 1, batch, values) for batch, values in made]  # which waits for the device
        with torch.no_grad():
            for piece, weight in pieces(row, self._weights):
                piece.copy_(weight)
        return records

    @torch.no_grad()
    def arrive(self, row: Tensor) -> None:
        """A worker moves by what is in a row."""
        for piece, weight in pieces(row, self._weights):
            weight -= piece.to(weight.device)


METHODS = {"downpour": Downpour, "easgd": ElasticAveraging}


def _record(number: int, batches: Sequence[TrainingBatch], values: Mapping[str, Tensor]) -> Record:
    places = tuple(batch.position for batch in batches)
    return Record(number, places, {name: float(value) for name, value in values.items()})


def pieces(row: Tensor, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """What of a row belongs to each tensor, in its shape and as the same memory, with the tensor."""
    for piece, tensor in zip(torch.split(row, [tensor.numel() for tensor in tensors]), tensors, strict=True):
        yield piece.view_as(tensor), tensor


def work(
    settings: TrainSettings,
    folder: Path,
    feeds: Mapping[int, Feed],
    step: TrainingStep,
    method: Downpour,
    stop: StopRequest,
    messages: Messages,
    state: TrainingState,
    phases: Stopwatch,
) -> None:
    """A worker: works until the master tells it to end, then tells the master what the time went into."""
    messages.phases, row = phases, torch.empty(step.model.num_parameters)
    version, events, go_on = state.step, state.events, True
    step.redraw(version)
    while go_on:
        drawn = []
        with phases("data"):
            for _ in range(settings.asynchronous.period):
                feed = min(feeds.values(), key=lambda feed: feed.position)  # the lane that is furthest behind
                drawn.append((feed, feed.next((settings.length.events - events) // settings.source.lanes)))
        batches = [batch for _, batch in drawn]
        records = method.work(batches, row, version, events)
        if bad := next((record for record in records if record.not_finite), None):  # the master shall not get it
            guilty = drawn if len(records) == 1 else [drawn[records.index(bad)]]
            raise diverged(bad, folder, [(feed, batch.position) for feed, batch in guilty])
        report = WorkerReport(
            version=version,
            events=sum(batch.num_events for batch in batches),
            computed=sum(batch.elements.num_elements for batch in batches),
            real=sum(batch.num_elements for batch in batches),
            positions={lane: feed.position for lane, feed in feeds.items()},
            shape=next(iter(feeds.values())).shape,
            values={name: sum(r.values[name] for r in records) / len(records) for name in records[0].values},
            signal=stop.signal_name,
        )
        messages.send(MASTER, report, row)
        answer: Answer = messages.receive(row, source=MASTER)[1]
        method.arrive(row)
        for number in range(version + 1, answer.version + 1):
            step.redraw(number)
        if answer.wants_state:
            messages.send(MASTER, snapshot(step))
        version, events, go_on = answer.version, answer.events, answer.go_on
    messages.send(MASTER, Account(phases.seconds, messages.bytes_sent, messages.bytes_received))


class Master:
    """Takes what workers bring, in the order in which it comes, and answers them; has the weights that are saved.

    It alone validates and writes; what workers bring meanwhile waits for it. When the end has come, by the number of events,
    for want of progress or by a signal, what every worker brings next is still taken, and answered with the end.
    """

    def __init__(self, trainer: Trainer, step: TrainingStep, method: Downpour, stop: StopRequest) -> None:
        self._settings, self._trainer, self._state = trainer.settings, trainer, trainer.state
        self._step, self._method, self._stop_request = step, method, stop
        self._row = torch.empty(step.model.num_parameters)
        self._phases = Stopwatch()
        #: By how many moves the weights that workers had worked with were behind.
        self._staleness: list[int] = []
        self._ending = self._wants_states = self._validation_due = False
        self._states: dict[int, dict[str, Tensor]] = {}

    def run(self, messages: Messages, workers: Sequence[int]) -> StoppedError | None:
        """Train to the end; the error to raise if it was stopped before."""
        messages.phases = self._phases
        accounts: dict[int, Account] = {}
        with self._trainer.monitored():
            while len(accounts) < len(workers):
                worker, report = messages.receive(self._row)
                self._take_in(report)
                late = time.perf_counter() - self._trainer.checkpointed >= self._settings.length.checkpoint_seconds
                self._ending |= self._trainer.finished or self._stop_request.signal_name is not None
                self._answer(worker, messages, len(workers))
                if self._ending:
                    accounts[worker] = messages.receive(source=worker)[1]  # at once, or it would be taken for a report
                elif late or self._validation_due:
                    self._validate_if_due()
                    self._begin_checkpoint()
            if self._trainer.stopped_early:
                say(f"stopped early: {self._state.since_best} validations without a better one")
            else:
                self._validation_due |= self._trainer.finished
                self._validate_if_due()
            self._write_checkpoint()
        own = Account(self._phases.seconds, messages.bytes_sent, messages.bytes_received)
        self._write_accounts([own, *(accounts[worker] for worker in workers)])
        if self._trainer.finished:
            return None
        return stopped(self._stop_request.signal_name or "a signal", self._state.events)

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

    def _answer(self, worker: int, messages: Messages, workers: int) -> None:
        wants_state = self._method.needs_states and (self._wants_states or self._ending)
        messages.send(worker, Answer(self._state.step, self._state.events, not self._ending, wants_state), self._row)
        if wants_state:
            self._states[worker] = messages.receive(source=worker)[1]
            # From now on all are asked with every answer, so that each state is as of the last row that its worker brought.
            if len(self._states) == workers and not self._ending:
                self._write_checkpoint()

    def _begin_checkpoint(self) -> None:
        """Write a checkpoint, now or when all workers have sent what belongs into it."""
        if self._method.needs_states:
            self._wants_states = True
            self._trainer.checkpointed = time.perf_counter()
        else:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        with self._phases("checkpoint"):
            tensors = snapshot(self._step)
            for worker, theirs in self._states.items():
                tensors |= {_prefix(worker) + name: value for name, value in theirs.items()}
            self._trainer.checkpoint(tensors)
        self._wants_states, self._states = False, {}

    def _validate_if_due(self) -> None:
        if not self._validation_due:
            return
        with self._phases("validation"):
            self._trainer.validate(self._step.average.model())
        self._validation_due = False
        self._ending |= self._trainer.stopped_early

    def _write_accounts(self, accounts: Sequence[Account]) -> None:
        """What all processes spent their time on, by rank; the first is the master's."""
        roles = ["master", *["worker"] * (len(accounts) - 1)]
        record = {
            "sync": self._settings.sync,
            "workers": len(accounts) - 1,
            "staleness_mean": sum(self._staleness) / max(len(self._staleness), 1),
            "staleness_largest": max(self._staleness, default=0),
            "ranks": [
                {"rank": rank, "role": role, **account._asdict()}
                for rank, (role, account) in enumerate(zip(roles, accounts, strict=True))
            ],
        }
        write_atomic(self._trainer.folder / ACCOUNT_FILE, json.dumps(record, indent=1) + "\n")


def _prefix(worker: int) -> str:
    """What the names of a worker's tensors begin with in a checkpoint."""
    return f"worker-{worker}/"

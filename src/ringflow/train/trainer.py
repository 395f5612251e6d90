"""The loop: steps, validations, checkpoints, until the events are shown or nothing gets better any more.

    train(assignment, sources, world)

A folder that holds a checkpoint is gone on with, exactly where it was: on a CPU the weights at the end are, bit for bit, those
of a training that was never interrupted. Processes each take some of the lanes; the first one validates and writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from ringflow.base.errors import DivergenceError, FailureError
from ringflow.base.log import say
from ringflow.elements.batch import ElementBatch, join
from ringflow.infer.shipped import MODEL_FILE
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.train.batches import BEGINNING, ChunkSource, DataPosition, Feed, FixedShape
from ringflow.train.checkpoint import (
    Checkpoint,
    Checkpoints,
    TrainingState,
    refuse_other_settings,
    restore,
    snapshot,
)
from ringflow.train.device import choose_device, is_out_of_memory, peak_memory, undisturbed
from ringflow.train.monitor import Monitor
from ringflow.train.optim import rate_at
from ringflow.train.profile import UNMEASURED, Phases
from ringflow.train.runs import HISTORY_FILE, LAST_MODEL_FILE
from ringflow.train.settings import TrainSettings
from ringflow.train.step import Record, TrainingStep, save_bad_batch
from ringflow.train.validation import Rules, ValidationLoss, figure, plain
from ringflow.train.world import ALONE, StopRequest, World, catching_signals, stopped

BAD_BATCH_FILE = "bad_batch.safetensors"

#: Figures of the averaged network, which it gets in evaluation mode and leaves where it is.
Validate = Callable[[Model], dict[str, float]]


class Pace(Protocol):
    """Looks at a training after every validation and says how far it goes, for example a hyper-parameter search."""

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        """Told the figures of every validation; events up to which the training goes on until it is validated again at the
        latest. Not more than `events`: it ends here.

        Everything is on disk when it is asked, so the process may be ended while it waits. It asks first of all: with
        `(0, {})` in a new training, with its last validation again in one that goes on or was finished already. Other
        processes of the training wait for the answer no longer than `compute.timeout`.
        """


@dataclass(frozen=True)
class Assignment:
    """What a training is to learn from, to be measured with, and where it leaves what it made."""

    settings: TrainSettings
    validation: ElementBatch
    validate: Validate | None
    folder: Path
    card: Mapping[str, Any]
    #: Who says how far it goes; only the first process asks.
    pace: Pace | None = None
    #: What the rules make of the same validation events.
    rules: Rules | None = None


@dataclass(frozen=True)
class TrainingResult:
    """What came of a training; counts and times are those of all its starts together."""

    steps: int
    events: int
    seconds: float
    #: Events per second of steps, loading included, validations and checkpoints not.
    events_per_second: float
    padding_share: float
    #: Step, events and metrics of the best validation.
    best: dict[str, float | None]
    stopped_early: bool
    #: Whether its pace wanted no more.
    ended_by_pace: bool
    peak_memory_bytes: int
    history: Path
    model: Path


def train(
    assignment: Assignment, sources: Mapping[int, ChunkSource], world: World = ALONE, phases: Phases = UNMEASURED
) -> TrainingResult:
    """Train in a folder, or go on with what is there. Whoever made the sources, by lane, closes them.

    The best averaged network, by `jet_iqr_over_median` or else by the loss, is `model.safetensors` in the folder, the last one
    `last.safetensors`. A signal that asks for an end is answered with a checkpoint and a `StoppedError`.
    """
    with memory_errors(assignment.settings), catching_signals() as stop:
        trainer = Trainer(assignment, sources, world, phases, stop)
        trainer.fit()
    return trainer.progress.result()


class Trainer:
    """A training in one process, from its start or its last checkpoint to its end."""

    def __init__(
        self,
        assignment: Assignment,
        sources: Mapping[int, ChunkSource],
        world: World,
        phases: Phases,
        stop: StopRequest,
    ) -> None:
        settings, self._world, self._phases, self._stop_request = assignment.settings, world, phases, stop
        self._settings, device = settings, choose_device(settings.compute.device)
        self._lanes = max(settings.source.lanes, 1)
        self.progress = Progress(assignment, world)
        self._state, found = self.progress.state, self.progress.found
        self._resize()
        self._feeds = make_feeds(sources, settings, self.progress.start(), device)
        model = make_model(settings, device, self._feeds.get(0) if world.is_first else None, new=found is None)
        self._step = TrainingStep(model, settings, device, world, phases)
        if found is not None:
            restore(found.tensors, self._step, assignment.folder)
        self._mark = self._checkpointed = time.perf_counter()

    def fit(self) -> None:
        """Train to the end."""
        progress, state, step, length = self.progress, self._state, self._step, self._settings.length
        if progress.finished:
            progress.say_finished()
            progress.ask()
            return
        with progress.shown():
            self._ask()
            while not progress.ended:
                with self._phases("data"):
                    left = (length.events - state.events) // self._lanes
                    batches = [feed.next(left) for feed in self._feeds.values()]
                counted = batches if step.spread.place.part == 0 else []  # the parts of a copy have the same batches
                late = time.perf_counter() - self._checkpointed >= length.checkpoint_seconds
                with self._phases("idle"):
                    # When it is time for a checkpoint, the clock of the first process says.
                    sums = self._world.all_reduce(
                        [
                            sum(batch.num_events for batch in counted),
                            sum(batch.elements.num_elements for batch in counted),
                            sum(batch.num_elements for batch in counted),
                            late and self._world.is_first,
                            self._stop_request.signal_name is not None,
                        ]
                    )
                events, computed, real, checkpoint, stop = map(int, sums)
                step.take(batches, state.step, self._rate(state.events + events))
                state.count(events, computed, real)
                if step.records.full:
                    self._read_records()
                self._phases.end_step(state.step, events)
                due = progress.is_due(state.events - events)
                if due or checkpoint or stop:
                    self._read_records()
                    if due:
                        progress.validate(step.average.model())
                    self._checkpoint()
                if stop and not progress.finished:
                    self._raise_stopped()
                if due:
                    self._ask()
        if progress.stopped_early:
            self._say(f"stopped early: {state.since_best} validations without a better one")
        elif not progress.finished:
            self._say(f"its pace ends the training after {state.events} events")

    def _rate(self, events: int) -> float:
        settings = self._settings
        elements = self._lanes * settings.compute.batch_elements
        return rate_at(settings.optimizer, events, settings.length.events, elements, self._state.resized_at)

    def _read_records(self) -> None:
        """Read what the last steps gave; this waits for the device, so the clock is right afterwards."""
        with self._phases("idle"):
            records = self._step.records.read()
        now = time.perf_counter()
        self._state.step_seconds += now - self._mark
        self._mark = now
        if bad := next((record for record in records if record.not_finite), None):
            self._raise_diverged(bad)
        self.progress.note(records, self._rate(self._state.events))

    def _checkpoint(self) -> None:
        state = self._state
        by_rank = self._world.all_gather([feed.position for feed in self._feeds.values()])
        parts = self._step.spread.place.parts
        state.positions = [position for positions in by_rank[::parts] for position in positions]
        state.shape = next(iter(self._feeds.values())).shape
        self.progress.checkpoint(snapshot(self._step))
        self._mark = self._checkpointed = time.perf_counter()

    def _ask(self) -> None:
        """Hear how far to go; that takes as long as it takes, and is no part of a step."""
        self.progress.ask()
        self._mark = self._checkpointed = time.perf_counter()

    def _resize(self) -> None:
        """Go on with another number of lanes than before, if that is asked for."""
        before = len(self._state.positions)
        if self.progress.found is None or self._lanes == before:
            return
        cut = self._state.resize(self._lanes)
        if not self.progress.finished:
            left_out = "; the rest of this pass through the events is left out" if cut else ""
            self._say(f"source.lanes={self._lanes}, not {before} as before{left_out}")

    def _raise_diverged(self, bad: Record) -> NoReturn:
        guilty = [not finite for finite in self._world.all_gather(bad.finite_here)]
        rank = guilty.index(True) if any(guilty) else 0  # a gradient can be at fault where no term is
        batches = None
        if self._world.rank == rank:
            batches = [feed.again(place) for feed, place in zip(self._feeds.values(), bad.positions, strict=True)]
        raise diverged(bad, self.progress.folder, batches)

    def _raise_stopped(self) -> NoReturn:
        names = [name for name in self._world.all_gather(self._stop_request.signal_name) if name]
        error = stopped(names[0] if names else "a signal", self._state.events)
        error.told = not self._world.is_first
        raise error

    def _say(self, text: str) -> None:
        if self._world.is_first:
            say(text)


class Start(NamedTuple):
    """Where a training begins, or goes on."""

    goes_on: bool
    finished: bool
    step: int
    events: int
    positions: Sequence[DataPosition]
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
        feeds[lane] = Feed(
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
            feeds[lane].skip_turn()
    return feeds


def make_model(settings: TrainSettings, device: torch.device, first: Feed | None, *, new: bool) -> Model:
    """The network; a `new` one with the weights of its start file, or scaled to the first chunk where that is at hand."""
    torch.manual_seed(settings.seed)
    model = Model(settings.model).to(device)
    if new and settings.start is not None:
        model.load_state_dict(load_model(Path(settings.start)).model.state_dict())
    elif new and first is not None:
        model.embedding.fit(first.chunk().features_NF)
    return model


def diverged(bad: Record, folder: Path, batches: Sequence[ElementBatch] | None) -> DivergenceError:
    """The error of a loss that became NaN; the batches, if this process has them, are saved to look at."""
    path = folder / BAD_BATCH_FILE
    if batches is not None:
        save_bad_batch(path, join(batches), bad)
    return DivergenceError(
        f"{', '.join(bad.not_finite)} became NaN or infinite at step {bad.step}; the batch is in {path}: "
        "look at it, or start again in another folder with a smaller optimizer.rate"
    )


@contextmanager
def memory_errors(settings: TrainSettings) -> Iterator[None]:
    """Say what to do when the memory is full."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        budget = settings.compute.batch_elements
        raise FailureError(
            f"out of memory with batches of {budget} elements; try compute.batch_elements={max(budget // 2, 1)}"
        ) from None


class Progress:
    """How far a training is, and what stays of it: history, the best and the last network, checkpoints.

    All processes call the same things at the same time; the first one measures and writes.
    """

    def __init__(self, assignment: Assignment, world: World) -> None:
        settings, self.folder, self._world = assignment.settings, assignment.folder, world
        self._assignment, self._settings = assignment, settings
        self._described = settings.model_dump(mode="json")
        self._device = choose_device(settings.compute.device)
        self._checkpoints = Checkpoints(self.folder)
        self._monitor: Monitor | None = None
        self.found = world.on_first(self._checkpoints.read)
        if self.found is not None:
            before = TrainSettings.model_validate(self.found.settings)  # with what was not yet there at that time
            refuse_other_settings(before.model_dump(mode="json"), self._described, self.folder)
        self.state = TrainingState() if self.found is None else self.found.state
        self._seconds_before, self._started = self.state.seconds, time.perf_counter()
        self._paced = world.broadcast(assignment.pace is not None)  # what the others were given does not count
        self._goal, self._ended_by_pace = math.inf, False
        self._loss = ValidationLoss(assignment.validation, settings, self._device) if world.is_first else None

    def start(self) -> Start:
        """Where the feeds and the network begin; says what a change of the size of batches leaves out."""
        state, found = self.state, self.found
        same = found is None or found.settings["compute"]["batch_elements"] == self._settings.compute.batch_elements
        if not same and any(position.batch for position in state.positions) and self._world.is_first:
            say("batches of another size than before: the rest of this pass through the events is left out")
        return Start(
            found is not None, self.finished, state.step, state.events, tuple(state.positions), state.shape, same
        )

    @contextmanager
    def shown(self) -> Iterator[None]:
        """While the training runs, its history is written and its progress shown."""
        if not self._world.is_first:
            yield
            return
        with Monitor(self.folder, self.state, self._settings.length.events, self._assignment.rules) as self._monitor:
            yield

    @property
    def stopped_early(self) -> bool:
        """Whether nothing got better for long enough."""
        return 0 < self._settings.length.patience <= self.state.since_best

    @property
    def finished(self) -> bool:
        """Whether all events are shown, or it is no use to show more."""
        return self.state.events >= self._settings.length.events or self.stopped_early

    @property
    def ended(self) -> bool:
        """Whether it is finished, or its pace wants no more."""
        return self.finished or self._ended_by_pace

    def is_due(self, events_before: int) -> bool:
        """Whether a validation is due, after a step before which so many events had been shown."""
        every, events = self._settings.length.validate_every, self.state.events
        return events // every > events_before // every or events >= self._goal or self.finished

    def ask(self) -> None:
        """Tell the pace the last validation, and hear how far to go."""
        if not self._paced:
            return
        last, pace = dict(self.state.last), self._assignment.pace
        events = int(last.pop("events", 0) or 0)
        self._goal = self._world.on_first(lambda: pace.ask(events, last) if pace else 0)
        self._ended_by_pace = self._goal <= events

    def note(self, records: Sequence[Record], rate: float) -> None:
        """Show steps that were done."""
        if self._monitor:
            self._monitor.steps(records, self.state, rate)

    def say_finished(self) -> None:
        """Tell people that there is nothing to do."""
        if self._world.is_first:
            say(f"the training in {self.folder} is finished; give a larger length.events to go on, or another folder")

    def validate(self, model: Model) -> None:
        """Measure the averaged network, and keep it: as the last one, and as the best if it is."""
        state = self.state
        found = self._world.on_first(lambda: self._figures(model))
        if self._monitor:
            self._monitor.validation(found, state)
        state.last = {"events": state.events, **found}
        state.since_best += 1
        if not state.best or figure(found) < figure(state.best):
            state.best = {"step": state.step, "events": state.events, **found}
            state.since_best = 0
            self._save(MODEL_FILE, model, found)
        self._save(LAST_MODEL_FILE, model, found)

    def _figures(self, model: Model) -> dict[str, float | None]:
        assert self._loss is not None, "the first process measures"
        metrics = self._loss.measure(model)
        if self._assignment.validate is not None:
            with undisturbed(self._device), torch.no_grad():
                metrics |= self._assignment.validate(model)
        return plain(metrics)

    def _save(self, name: str, model: Model, metrics: dict[str, float | None]) -> None:
        if self._world.is_first:
            training = {"steps": self.state.step, "events": self.state.events}
            card = {"settings": self._described, **self._assignment.card, "metrics": metrics, "training": training}
            save_model(self.folder / name, model, card=card)

    def checkpoint(self, tensors: dict[str, Tensor]) -> None:
        """Write down the state and these tensors."""
        self.state.seconds = self._seconds_before + time.perf_counter() - self._started
        if self._monitor:
            self._monitor.flush()
        written = Checkpoint(self.state, self._described, tensors)
        self._world.on_first(lambda: self._checkpoints.write(written))

    def result(self) -> TrainingResult:
        """What the training came to."""
        state = self.state
        return TrainingResult(
            steps=state.step,
            events=state.events,
            seconds=state.seconds,
            events_per_second=state.events / max(state.step_seconds, 1e-9),
            padding_share=state.padding_share,
            best=dict(state.best),
            stopped_early=self.stopped_early,
            ended_by_pace=self._ended_by_pace and not self.finished,
            peak_memory_bytes=peak_memory(self._device),
            history=self.folder / HISTORY_FILE,
            model=self.folder / MODEL_FILE,
        )

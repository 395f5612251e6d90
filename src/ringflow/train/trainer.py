"""The loop: steps, validations, checkpoints, until the events are shown or nothing gets better any more.

    train(settings, source, validation, validate, folder, card)

A folder that holds a checkpoint is gone on with, exactly where it was: on a CPU the weights at the end are, bit for bit, those
of a training that was never interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ringflow.base.errors import FailureError
from ringflow.base.log import say
from ringflow.elements.batch import ElementBatch
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.train.bad_batch import save_bad_batch
from ringflow.train.batches import ChunkSource, Feed
from ringflow.train.checkpoint import Checkpoint, Checkpoints, TrainingState, refuse_other_settings
from ringflow.train.device import choose_device, is_out_of_memory, peak_memory, undisturbed
from ringflow.train.monitor import HISTORY_FILE, Monitor
from ringflow.train.schedule import rate_factor
from ringflow.train.settings import TrainSettings
from ringflow.train.snapshot import restore, snapshot
from ringflow.train.step import Record, TrainingStep
from ringflow.train.validation import ValidationLoss, figure, plain

MODEL_FILE, LAST_MODEL_FILE = "model.safetensors", "last.safetensors"

#: Figures of the averaged network, which it gets in evaluation mode and leaves where it is.
Validate = Callable[[Model], dict[str, float]]


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
    peak_memory_bytes: int
    history: Path
    model: Path


def train(
    settings: TrainSettings,
    source: ChunkSource,
    validation: ElementBatch,
    validate: Validate | None,
    folder: Path,
    card: Mapping[str, Any],
) -> TrainingResult:
    """Train in a folder, or go on with what is there. Whoever made the source closes it.

    The best averaged network, by `jet_iqr_over_median` of `validate` or else by the loss on the events of `validation`, is
    `model.safetensors` in the folder, the last one `last.safetensors`; `card` goes into both.
    """
    try:
        run = _Run(settings, source, validation, validate, folder, card)
        if run.finished:
            say(f"the training in {folder} is finished; give a larger length.events to go on, or another folder")
        else:
            run.go()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        budget = settings.compute.batch_elements
        raise FailureError(
            f"out of memory with batches of {budget} elements; try compute.batch_elements={max(budget // 2, 1)}"
        ) from None
    return run.result()


class _Run:
    """A training, from its start or its last checkpoint to its end."""

    def __init__(
        self,
        settings: TrainSettings,
        source: ChunkSource,
        validation: ElementBatch,
        validate: Validate | None,
        folder: Path,
        card: Mapping[str, Any],
    ) -> None:
        self._settings, self._folder, self._card, self._validate = settings, folder, card, validate
        self._device = choose_device(settings.compute.device)
        self._checkpoints = Checkpoints(folder)
        found = self._checkpoints.read()
        if found is not None:
            refuse_other_settings(found.settings, self._described(), folder)
        self._state = TrainingState() if found is None else found.state
        torch.manual_seed(settings.seed)
        fresh = found is None and settings.start is None
        model = Model(settings.model)
        if found is None and settings.start is not None:
            model.load_state_dict(load_model(Path(settings.start)).model.state_dict())
        self._step = TrainingStep(model.to(self._device), settings, self._device)
        self._feed = self._make_feed(source, found)
        if fresh:
            self._step.model.embedding.fit(self._feed.chunk().features_NF)
        elif found is not None:
            restore(found.tensors, self._step, self._device, folder)
        self._loss = ValidationLoss(validation, settings, self._device)
        self._seconds_before, self._started = self._state.seconds, time.perf_counter()
        self._mark = self._checkpointed = self._started

    def _make_feed(self, source: ChunkSource, found: Checkpoint | None) -> Feed:
        settings, state = self._settings, self._state
        budget = settings.compute.batch_elements
        as_before = found is None or found.settings["compute"]["batch_elements"] == budget
        feed = Feed(
            source,
            budget=budget,
            reuse=settings.source.reuse,
            seed=settings.seed,
            device=self._device,
            position=state.position,
            shape=state.shape if as_before else None,
        )
        if not as_before and state.position.batch > 0:
            say("batches of another size than before: the rest of this pass through the events is left out")
            feed.skip_turn()
        return feed

    @property
    def _stopped_early(self) -> bool:
        patience = self._settings.length.patience
        return 0 < patience <= self._state.since_best

    @property
    def finished(self) -> bool:
        """Whether all events are shown, or it is no use to show more."""
        return self._state.events >= self._settings.length.events or self._stopped_early

    def go(self) -> None:
        """Train to the end."""
        every = self._settings.length.validate_every
        with Monitor(self._folder, self._state, self._settings.length.events) as monitor:
            while not self.finished:
                events_before = self._state.events
                self._take_step()
                if self._step.records.full:
                    self._look(monitor)
                if self._state.events // every > events_before // every or self.finished:
                    self._look(monitor)
                    self._validate_now(monitor)
                    self._checkpoint(monitor)
                elif time.perf_counter() - self._checkpointed >= self._settings.length.checkpoint_seconds:
                    self._look(monitor)
                    self._checkpoint(monitor)
        if self._stopped_early:
            say(f"stopped early: {self._state.since_best} validations without a better one")

    def _take_step(self) -> None:
        state = self._state
        batch = self._feed.next(self._settings.length.events - state.events)
        events = state.events + batch.num_events
        self._step.take(batch, state.step, self._rate(events))
        state.step, state.events = state.step + 1, events
        state.position, state.shape = self._feed.position, self._feed.shape
        state.computed += batch.elements.num_elements
        state.padding += batch.elements.num_elements - batch.num_elements

    def _rate(self, events: int) -> float:
        optimizer = self._settings.optimizer
        fraction = events / self._settings.length.events
        return optimizer.rate * rate_factor(fraction, optimizer.warmup, optimizer.final)

    def _look(self, monitor: Monitor) -> None:
        """Read what the last steps gave; this waits for the device, so the clock is right afterwards."""
        records = self._step.records.read()
        now = time.perf_counter()
        self._state.step_seconds += now - self._mark
        self._mark = now
        if bad := next((record for record in records if record.not_finite), None):
            self._stop_at(bad)
        monitor.steps(records, self._state, self._rate(self._state.events))

    def _stop_at(self, bad: Record) -> None:
        path = save_bad_batch(self._folder, self._feed.again(bad.position), bad)
        raise FailureError(
            f"{', '.join(bad.not_finite)} became NaN or infinite at step {bad.step}; the batch is in {path}: "
            "look at it, or start again in another folder with a smaller optimizer.rate"
        )

    def _validate_now(self, monitor: Monitor) -> None:
        state = self._state
        model = self._step.average.model()
        metrics = self._loss.measure(model)
        if self._validate is not None:
            with undisturbed(self._device), torch.no_grad():
                metrics |= self._validate(model)
        shown = plain(metrics)
        monitor.validation(shown, state)
        state.since_best += 1
        if not state.best or figure(shown) < figure(state.best):
            state.best = {"step": state.step, "events": state.events, **shown}
            state.since_best = 0
            self._save(MODEL_FILE, model, shown)
        self._save(LAST_MODEL_FILE, model, shown)

    def _save(self, name: str, model: Model, metrics: dict[str, float | None]) -> None:
        training = {"steps": self._state.step, "events": self._state.events}
        card = {"settings": self._described(), **self._card, "metrics": metrics, "training": training}
        save_model(self._folder / name, model, card=card)

    def _checkpoint(self, monitor: Monitor) -> None:
        monitor.flush()
        self._state.seconds = self._seconds_before + time.perf_counter() - self._started
        tensors = snapshot(self._step, self._device)
        self._checkpoints.write(Checkpoint(self._state, self._described(), tensors))
        self._mark = self._checkpointed = time.perf_counter()

    def _described(self) -> dict[str, Any]:
        return self._settings.model_dump(mode="json")

    def result(self) -> TrainingResult:
        """What the training came to."""
        state = self._state
        return TrainingResult(
            steps=state.step,
            events=state.events,
            seconds=state.seconds,
            events_per_second=state.events / max(state.step_seconds, 1e-9),
            padding_share=state.padding_share,
            best=dict(state.best),
            stopped_early=self._stopped_early,
            peak_memory_bytes=peak_memory(self._device),
            history=self._folder / HISTORY_FILE,
            model=self._folder / MODEL_FILE,
        )

"""The loop: steps, validations, checkpoints, until the events are shown or nothing gets better any more.

    train(settings, sources, validation, validate, folder, card, team)

A folder that holds a checkpoint is gone on with, exactly where it was: on a CPU the weights at the end are, bit for bit, those
of a training that was never interrupted. Processes of a team each take some of the lanes; the first one validates and writes.
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
from ringflow.elements.batch import ElementBatch, join
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.train.bad_batch import save_bad_batch
from ringflow.train.batches import BEGINNING, ChunkSource, Feed
from ringflow.train.checkpoint import Checkpoint, Checkpoints, TrainingState, refuse_other_settings
from ringflow.train.device import choose_device, is_out_of_memory, peak_memory, undisturbed
from ringflow.train.monitor import HISTORY_FILE, Monitor, Silence
from ringflow.train.schedule import rate_factor
from ringflow.train.settings import TrainSettings
from ringflow.train.snapshot import restore, snapshot
from ringflow.train.step import Record, TrainingStep
from ringflow.train.team import ALONE, Team
from ringflow.train.validation import ValidationLoss, figure, plain

MODEL_FILE, LAST_MODEL_FILE, BAD_BATCH_FILE = "model.safetensors", "last.safetensors", "bad_batch.safetensors"

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
    sources: Mapping[int, ChunkSource],
    validation: ElementBatch,
    validate: Validate | None,
    folder: Path,
    card: Mapping[str, Any],
    team: Team = ALONE,
) -> TrainingResult:
    """Train in a folder, or go on with what is there. Whoever made the sources, by lane, closes them.

    The best averaged network, by `jet_iqr_over_median` of `validate` or else by the loss on the events of `validation`, is
    `model.safetensors` in the folder, the last one `last.safetensors`; `card` goes into both.
    """
    try:
        run = _Run(settings, sources, validation, validate, folder, card, team)
        if run.finished:
            run.say(f"the training in {folder} is finished; give a larger length.events to go on, or another folder")
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
        sources: Mapping[int, ChunkSource],
        validation: ElementBatch,
        validate: Validate | None,
        folder: Path,
        card: Mapping[str, Any],
        team: Team,
    ) -> None:
        self._settings, self._folder, self._card, self._validate = settings, folder, card, validate
        self._device, self._team = choose_device(settings.compute.device), team
        self._checkpoints = Checkpoints(folder)
        found = team.first(self._checkpoints.read)
        if found is not None:
            refuse_other_settings(found.settings, self._described(), folder)
        self._state = TrainingState() if found is None else found.state
        torch.manual_seed(settings.seed)
        self._feeds = {lane: self._make_feed(source, lane, found) for lane, source in sources.items()}
        model = Model(settings.model).to(self._device)
        if found is None and settings.start is not None:
            model.load_state_dict(load_model(Path(settings.start)).model.state_dict())
        elif found is None and team.is_first:
            model.embedding.fit(self._feeds[0].chunk().features_NF)
        self._step = TrainingStep(model, settings, self._device, team)
        if found is not None:
            restore(found.tensors, self._step, folder)
        self._loss = ValidationLoss(validation, settings, self._device)
        self._seconds_before, self._started = self._state.seconds, time.perf_counter()
        self._mark = self._checkpointed = self._started

    def say(self, text: str) -> None:
        """Tell people something, once."""
        if self._team.is_first:
            say(text)

    def _make_feed(self, source: ChunkSource, lane: int, found: Checkpoint | None) -> Feed:
        settings, state = self._settings, self._state
        position = BEGINNING if found is None else state.positions[lane]
        budget = settings.compute.batch_elements
        as_before = found is None or found.settings["compute"]["batch_elements"] == budget
        feed = Feed(
            source,
            budget=budget,
            reuse=settings.source.reuse,
            seed=settings.seed,
            device=self._device,
            lane=lane,
            position=position,
            shape=state.shape if as_before else None,
        )
        if not as_before and position.batch > 0:
            self.say("batches of another size than before: the rest of this pass through the events is left out")
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
        with self._monitor() as monitor:
            while not self.finished:
                events_before = self._state.events
                late = self._take_step()
                if self._step.records.full:
                    self._look(monitor)
                if self._state.events // every > events_before // every or self.finished:
                    self._look(monitor)
                    self._validate_now(monitor)
                    self._checkpoint(monitor)
                elif late:
                    self._look(monitor)
                    self._checkpoint(monitor)
        if self._stopped_early:
            self.say(f"stopped early: {self._state.since_best} validations without a better one")

    def _monitor(self) -> Monitor | Silence:
        if not self._team.is_first:
            return Silence()
        return Monitor(self._folder, self._state, self._settings.length.events)

    def _take_step(self) -> bool:
        """Take a step; whether it is time for a checkpoint, by the clock of the first process."""
        state, settings = self._state, self._settings
        left = (settings.length.events - state.events) // max(settings.source.lanes, 1)
        batches = [feed.next(left) for feed in self._feeds.values()]
        late = time.perf_counter() - self._checkpointed >= settings.length.checkpoint_seconds
        events, computed, real, speaks = self._team.add(
            [
                sum(batch.num_events for batch in batches),
                sum(batch.elements.num_elements for batch in batches),
                sum(batch.num_elements for batch in batches),
                late and self._team.is_first,
            ]
        )
        self._step.take(batches, state.step, self._rate(state.events + int(events)))
        state.step, state.events = state.step + 1, state.events + int(events)
        state.computed += int(computed)
        state.padding += int(computed - real)
        return bool(speaks)

    def _rate(self, events: int) -> float:
        optimizer = self._settings.optimizer
        fraction = events / self._settings.length.events
        return optimizer.rate * rate_factor(fraction, optimizer.warmup, optimizer.final)

    def _look(self, monitor: Monitor | Silence) -> None:
        """Read what the last steps gave; this waits for the device, so the clock is right afterwards."""
        records = self._step.records.read()
        now = time.perf_counter()
        self._state.step_seconds += now - self._mark
        self._mark = now
        if bad := next((record for record in records if record.not_finite), None):
            self._stop_at(bad)
        monitor.steps(records, self._state, self._rate(self._state.events))

    def _stop_at(self, bad: Record) -> None:
        team = self._team
        guilty = [not finite for finite in team.gather(bad.finite_here)]
        rank = guilty.index(True) if any(guilty) else 0  # a gradient can be at fault where no term is
        path = self._folder / BAD_BATCH_FILE
        if team.rank == rank:
            again = [feed.again(place) for feed, place in zip(self._feeds.values(), bad.positions, strict=True)]
            save_bad_batch(path, join(again), bad)
        raise FailureError(
            f"{', '.join(bad.not_finite)} became NaN or infinite at step {bad.step}; the batch is in {path}: "
            "look at it, or start again in another folder with a smaller optimizer.rate"
        )

    def _validate_now(self, monitor: Monitor | Silence) -> None:
        state = self._state
        model = self._step.average.model()
        shown = self._team.first(lambda: self._figures(model))
        monitor.validation(shown, state)
        state.since_best += 1
        if not state.best or figure(shown) < figure(state.best):
            state.best = {"step": state.step, "events": state.events, **shown}
            state.since_best = 0
            self._save(MODEL_FILE, model, shown)
        self._save(LAST_MODEL_FILE, model, shown)

    def _figures(self, model: Model) -> dict[str, float | None]:
        """Figures of the averaged network."""
        metrics = self._loss.measure(model)
        if self._validate is not None:
            with undisturbed(self._device), torch.no_grad():
                metrics |= self._validate(model)
        return plain(metrics)

    def _save(self, name: str, model: Model, metrics: dict[str, float | None]) -> None:
        if not self._team.is_first:
            return
        training = {"steps": self._state.step, "events": self._state.events}
        card = {"settings": self._described(), **self._card, "metrics": metrics, "training": training}
        save_model(self._folder / name, model, card=card)

    def _checkpoint(self, monitor: Monitor | Silence) -> None:
        monitor.flush()
        state = self._state
        state.seconds = self._seconds_before + time.perf_counter() - self._started
        by_rank = self._team.gather([feed.position for feed in self._feeds.values()])
        state.positions = [position for positions in by_rank for position in positions]
        state.shape = next(iter(self._feeds.values())).shape
        tensors = snapshot(self._step)
        self._team.first(lambda: self._checkpoints.write(Checkpoint(state, self._described(), tensors)))
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

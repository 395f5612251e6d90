"""What stays of a training while it runs: figures of validations, the best and the last network, checkpoints.

All processes of a team call the same things at the same time; the first one measures and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ringflow.elements.batch import ElementBatch
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.train.checkpoint import Checkpoint, Checkpoints, TrainingState, refuse_other_settings
from ringflow.train.device import choose_device, peak_memory, undisturbed
from ringflow.train.monitor import HISTORY_FILE, Monitor, Silence
from ringflow.train.pace import Goal, Pace
from ringflow.train.settings import TrainSettings
from ringflow.train.team import Team
from ringflow.train.validation import Rules, ValidationLoss, figure, plain

MODEL_FILE, LAST_MODEL_FILE = "model.safetensors", "last.safetensors"

#: Figures of the averaged network, which it gets in evaluation mode and leaves where it is.
Validate = Callable[[Model], dict[str, float]]


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


class Keeper:
    """Writes into the folder of a training, and knows how far it is."""

    def __init__(self, assignment: Assignment, team: Team) -> None:
        settings, self.folder, self._team = assignment.settings, assignment.folder, team
        self._settings, self._card, self._validate = settings, assignment.card, assignment.validate
        self._rules = assignment.rules
        self._device = choose_device(settings.compute.device)
        self._checkpoints = Checkpoints(self.folder)
        self.found = team.first(self._checkpoints.read)
        if self.found is not None:
            before = TrainSettings.model_validate(self.found.settings)  # with what was not yet there at that time
            refuse_other_settings(before.model_dump(mode="json"), self._described(), self.folder)
        self.state = TrainingState() if self.found is None else self.found.state
        self.goal = Goal(assignment.pace, team)
        self._loss = ValidationLoss(assignment.validation, settings, self._device) if team.is_first else None

    def monitor(self) -> Monitor | Silence:
        """What shows how the training goes."""
        if not self._team.is_first:
            return Silence()
        return Monitor(self.folder, self.state, self._settings.length.events, self._rules)

    @property
    def stopped_early(self) -> bool:
        """Whether nothing got better for long enough."""
        patience = self._settings.length.patience
        return 0 < patience <= self.state.since_best

    @property
    def finished(self) -> bool:
        """Whether all events are shown, or it is no use to show more."""
        return self.state.events >= self._settings.length.events or self.stopped_early

    @property
    def ended(self) -> bool:
        """Whether it is finished, or its pace wants no more."""
        return self.finished or self.goal.ended

    def is_due(self, events_before: int) -> bool:
        """Whether a validation is due, after a step before which so many events had been shown."""
        every, events = self._settings.length.validate_every, self.state.events
        return events // every > events_before // every or events >= self.goal.events or self.finished

    def ask(self) -> None:
        """Tell the pace the last validation, and hear how far to go."""
        self.goal.ask(self.state.last)

    def validate(self, model: Model, monitor: Monitor | Silence) -> None:
        """Measure the averaged network, and keep it: as the last one, and as the best if it is."""
        state = self.state
        shown = self._team.first(lambda: self._figures(model))
        monitor.validation(shown, state)
        state.last = {"events": state.events, **shown}
        state.since_best += 1
        if not state.best or figure(shown) < figure(state.best):
            state.best = {"step": state.step, "events": state.events, **shown}
            state.since_best = 0
            self._save(MODEL_FILE, model, shown)
        self._save(LAST_MODEL_FILE, model, shown)

    def _figures(self, model: Model) -> dict[str, float | None]:
        assert self._loss is not None, "the first process measures"
        metrics = self._loss.measure(model)
        if self._validate is not None:
            with undisturbed(self._device), torch.no_grad():
                metrics |= self._validate(model)
        return plain(metrics)

    def _save(self, name: str, model: Model, metrics: dict[str, float | None]) -> None:
        if not self._team.is_first:
            return
        training = {"steps": self.state.step, "events": self.state.events}
        card = {"settings": self._described(), **self._card, "metrics": metrics, "training": training}
        save_model(self.folder / name, model, card=card)

    def checkpoint(self, tensors: dict[str, Tensor], monitor: Monitor | Silence) -> None:
        """Write down the state and these tensors."""
        monitor.flush()
        written = Checkpoint(self.state, self._described(), tensors)
        self._team.first(lambda: self._checkpoints.write(written))

    def _described(self) -> dict[str, Any]:
        return self._settings.model_dump(mode="json")

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
            ended_by_pace=self.goal.ended and not self.finished,
            peak_memory_bytes=peak_memory(self._device),
            history=self.folder / HISTORY_FILE,
            model=self.folder / MODEL_FILE,
        )

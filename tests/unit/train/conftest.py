"""Trainings on a few made-up events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.made_up import TINY, MadeUpSource, made_up_events
from ringflow.elements.batch import ElementBatch
from ringflow.train.data import TrainingData
from ringflow.train.settings import TrainSettings
from ringflow.train.trainer import Trainer
from ringflow.train.world import ALONE, World


@pytest.fixture
def events() -> Callable[..., ElementBatch]:
    return made_up_events


@pytest.fixture
def source() -> Callable[..., MadeUpSource]:
    return MadeUpSource


@pytest.fixture
def tiny() -> Callable[..., TrainSettings]:
    """Settings of a training that takes a moment, with overrides."""
    return lambda *overrides: TrainSettings.resolve(None, [*TINY, *overrides])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


@pytest.fixture
def start(run: Path) -> Callable[..., SimpleNamespace]:
    """Train in the run folder, or another one; the result."""

    def go(
        settings: TrainSettings, folder: Path = run, *, world: World = ALONE, pace: Any = None, **changed: Any
    ) -> SimpleNamespace:
        folder.mkdir(exist_ok=True)
        lanes = range(max(settings.source.lanes, 1))
        sources = {lane: MadeUpSource(24 - 7 * lane) for lane in lanes}  # of different lengths
        data = TrainingData(**{"sources": sources, "validation": made_up_events(10, 99), **changed})
        return SimpleNamespace(**Trainer(settings, data, folder, world, pace).fit())

    return go

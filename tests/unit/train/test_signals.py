"""A training that is asked to end does so after its step, and goes on as if it had not."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ringflow.base.errors import StoppedError
from ringflow.elements.batch import ElementBatch
from ringflow.models.file import load_model
from ringflow.train.keeper import Assignment
from ringflow.train.settings import TrainSettings
from ringflow.train.signals import heeding_signals
from ringflow.train.step import TrainingStep
from ringflow.train.trainer import train


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_a_training_with_a_checkpoint(
    number: signal.Signals,
    code: int,
    tiny: Callable[..., TrainSettings],
    source: Callable[..., Any],
    events: Callable[..., ElementBatch],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def go(folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        train(Assignment(tiny(), events(10, 99), None, folder, {}), {0: source()})

    go(tmp_path / "undisturbed")
    take = TrainingStep.take

    def interrupted(step: TrainingStep, batches: Any, number_of_step: int, rate: float) -> None:
        if number_of_step == 2:
            os.kill(os.getpid(), number)
        take(step, batches, number_of_step, rate)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "take", interrupted)
        with pytest.raises(StoppedError, match=rf"stopped by {number.name} after \d+ events") as caught:
            go(tmp_path / "stopped")
    assert caught.value.exit_code == code
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == ["step-0000000004"]
    go(tmp_path / "stopped")
    first, second = (load_model(tmp_path / run / "last.safetensors") for run in ("undisturbed", "stopped"))
    assert first.card["training"] == second.card["training"]
    for name, weight in first.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name


def test_the_second_signal_has_its_usual_effect():
    before = signal.getsignal(signal.SIGUSR1)
    with heeding_signals() as wish:
        assert wish.signal_name is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wish.signal_name == "SIGUSR1"
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) == before


def test_what_is_ignored_stays_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with heeding_signals() as wish:
            os.kill(os.getpid(), signal.SIGINT)
            assert wish.signal_name is None
    finally:
        signal.signal(signal.SIGINT, before)

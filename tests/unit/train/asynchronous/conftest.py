"""Messages without MPI: a post that hands out what was prepared, and a comm whose processes are one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ringflow.models.model import Model
from ringflow.train.phases import UNMEASURED
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep


class ScriptedPost:
    """Receives what is in its script, one after the other, and remembers what was sent."""

    def __init__(self, *script: tuple[int, Any, Tensor | None]) -> None:
        self.script = deque(script)
        self.sent: list[tuple[int, Any, Tensor | None]] = []
        self.phases = UNMEASURED
        self.bytes_sent = self.bytes_received = 0

    def send(self, to: int, letter: Any, row: Tensor | None = None) -> None:
        self.sent.append((to, letter, None if row is None else row.clone()))

    def receive(self, row: Tensor | None = None, by: int | None = None) -> tuple[int, Any]:
        sender, letter, content = self.script.popleft()
        assert by in (None, sender), f"{by} was expected, not {sender}"
        assert (row is None) == (content is None), "a row comes where one is expected"
        if row is not None and content is not None:
            row.copy_(content)
        return sender, letter


@pytest.fixture
def post() -> Callable[..., ScriptedPost]:
    return ScriptedPost


@pytest.fixture
def make_step() -> Callable[[TrainSettings], TrainingStep]:
    def make(settings: TrainSettings) -> TrainingStep:
        torch.manual_seed(settings.seed)
        return TrainingStep(Model(settings.model), settings, torch.device("cpu"))

    return make

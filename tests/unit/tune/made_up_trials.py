"""A study whose trials are a formula: for what decides about them, without trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ringflow.base.errors import UsageError
from ringflow.train.settings import TrainSettings
from ringflow.tune.create import create
from ringflow.tune.executor import Begun, Ended, Message, Order, Said, Trouble
from ringflow.tune.folder import StudyFolder
from ringflow.tune.settings import StudySettings

SPACE = """
["optimizer.rate"]
type = "float"
low = 1e-4
high = 1e-1
log = true

["model.layers"]
type = "int"
low = 1
high = 6
"""
EVENTS = 16_000


def make_study(tmp_path: Path, *words: str, space: str = SPACE, name: str = "study", **settings: object) -> StudyFolder:
    """The folder of a study, as the command makes it."""
    file = tmp_path / f"{name}.toml"
    file.write_text(space)
    training = TrainSettings.resolve("clic_tiny", [f"length.events={EVENTS}", *words])
    chosen = {"trials": 8, "least": 1000, "search": "random", **settings}
    return create(training, StudySettings.model_validate(chosen), file, tmp_path / name)


def loss(settings: Mapping[str, object], resource: int) -> float:
    """Best at a rate of 0.003 with four layers, and better with time."""
    optimizer, model = settings["optimizer"], settings["model"]
    assert isinstance(optimizer, Mapping)
    assert isinstance(model, Mapping)
    away = (math.log10(optimizer["rate"]) + 2.5) ** 2 + 0.1 * (model["layers"] - 4) ** 2
    return away + 1.0 + (resource / 1000) ** -0.5


class MadeUpExecutor:
    """Trials that report at once what a formula says; `mishap` may end the start of one instead."""

    def __init__(
        self,
        places: int = 2,
        mishap: Callable[[Order], tuple[Trouble, str] | None] = lambda order: None,
        figures: Callable[[Mapping[str, object], int], dict[str, float | None]] = lambda settings, resource: {
            "loss": loss(settings, resource)
        },
    ) -> None:
        self._places = self.free = places
        self._mishap, self._figures = mishap, figures
        self._orders: dict[int, Order] = {}
        self._messages: list[Message] = []
        self.started: list[Order] = []
        self.closed = False

    def room(self, workers: int) -> bool:
        if workers > self._places:
            raise UsageError(f"{workers} processes never fit")
        return self.free >= workers

    def start(self, order: Order) -> None:
        assert order.trial not in self._orders
        assert (order.ticket / "order.json").is_file()
        self.free -= order.workers
        assert self.free >= 0
        self._orders[order.trial] = order
        self.started.append(order)
        self._messages.append(Begun(order.trial))
        if trouble := self._mishap(order):
            self._end(order.trial, *trouble)
        else:
            self._say(order, order.until)

    def _say(self, order: Order, resource: int) -> None:
        self._messages.append(Said(order.trial, resource, self._figures(order.settings, resource)))

    def answer(self, trial: int, until: int) -> None:
        if until:
            self._say(self._orders[trial], until)
        else:
            self._end(trial)

    def _end(self, trial: int, trouble: Trouble | None = None, reason: str = "") -> None:
        self.free += self._orders.pop(trial).workers
        self._messages.append(Ended(trial, trouble, reason))

    def poll(self, seconds: float) -> Sequence[Message]:
        first, self._messages = self._messages[:1], self._messages[1:]
        return first

    def close(self) -> None:
        self.closed = True

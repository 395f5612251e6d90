"""What every executor promises, wherever its trials run. A test of a new one inherits `ExecutorContract`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "distributed"))

from tiny_training import LONGER, TINY, checkpoints

from ringflow.train.settings import TrainSettings
from ringflow.tune.desk import DESK_FOLDER, lay
from ringflow.tune.executor import Begun, Ended, Executor, Message, Order, Said

SECONDS = 120.0
#: Of the tiny training, in the middle and at its end.
MIDDLE, END = 80, 160
#: It does not end by itself.
ENDLESS = (*LONGER, "length.events=100000000", "length.validate_every=100000000")
#: And it writes nothing unless it is told to end.
UNSAVED = (*ENDLESS, "length.checkpoint_seconds=1000000")


class Bench:
    """An executor with orders of tiny trainings, as a driver lays them."""

    def __init__(self, executor: Executor, study: Path, dataset: Path) -> None:
        self.executor, self.study, self.dataset = executor, study, dataset
        self._numbers = count()
        self.orders: dict[int, Order] = {}
        self.heard: list[Message] = []

    def order(self, trial: int, until: int = MIDDLE, workers: int = 1, words: Sequence[str] = TINY) -> Order:
        settings = TrainSettings.resolve(None, [f"data={self.dataset}", *words])
        ticket = self.study / DESK_FOLDER / f"{trial:06d}-{next(self._numbers)}"
        run = self.study / "trials" / f"{trial:04d}"
        return Order(trial, ticket.absolute(), run.absolute(), settings.model_dump(mode="json"), until, workers)

    def start(self, trial: int, until: int = MIDDLE, workers: int = 1, words: Sequence[str] = TINY) -> Order:
        order = self.order(trial, until, workers, words)
        self.until("there is room", lambda: self.executor.room(workers))
        lay(order)
        self.executor.start(order)
        self.orders[trial] = order
        return order

    def until(self, what: str, ready: Callable[[], Any]) -> Any:
        """Poll until something is so."""
        deadline = time.monotonic() + SECONDS
        while not (found := ready()):
            assert time.monotonic() < deadline, f"{what}: did not happen; heard {self.heard}"
            self.heard += self.executor.poll(0.2)
        return found

    def next(self, kind: type[Message], trial: int) -> Any:
        """The next message of a kind from a trial; others of the trial before it are an error."""

        def found() -> Message | None:
            return next((message for message in self.heard if message.trial == trial), None)

        message = self.until(f"{kind.__name__} of trial {trial}", found)
        assert isinstance(message, kind), f"{message} came, not {kind.__name__}; {words_of(self.orders[trial])}"
        self.heard.remove(message)
        return message

    def play(self, trial: int, until: int = MIDDLE, workers: int = 1) -> Said:
        """Start a trial, and end it at its first report."""
        self.start(trial, until, workers)
        self.next(Begun, trial)
        said: Said = self.next(Said, trial)
        self.executor.answer(trial, 0)
        assert self.next(Ended, trial) == Ended(trial)
        return said


def words_of(order: Order) -> str:
    """What the processes of an order have said, as far as it lies beside it."""
    files = [*order.ticket.glob("*.txt"), *order.ticket.parents[1].glob("slurm/*.out")]
    return "\n".join(path.read_text(errors="replace")[-2000:] for path in files)


class ExecutorContract:
    """Inherit it, and give a fixture `bench` with an executor of two slots."""

    def test_a_trial_reports_is_answered_and_ends(self, bench: Bench) -> None:
        order = bench.start(3, MIDDLE)
        bench.next(Begun, 3)
        said = bench.next(Said, 3)
        assert MIDDLE <= said.resource < END
        assert said.figures["loss"] is not None
        bench.executor.answer(3, END)
        assert bench.next(Said, 3).resource >= END
        bench.executor.answer(3, 0)
        assert bench.next(Ended, 3) == Ended(3)
        assert (order.run / "last.safetensors").is_file()
        assert bench.heard == []

    def test_trials_do_not_mix_and_room_comes_back(self, bench: Bench) -> None:
        for trial in (0, 1):
            assert bench.executor.room(1)
            bench.start(trial, END if trial else MIDDLE)
        assert not bench.executor.room(1)
        for trial, resource in ((1, END), (0, MIDDLE)):
            bench.next(Begun, trial)
            assert bench.next(Said, trial).resource >= resource
        bench.executor.answer(0, 0)
        assert bench.next(Ended, 0) == Ended(0)
        bench.until("there is room again", lambda: bench.executor.room(1))
        assert bench.heard == [], "the other one waits"
        bench.executor.answer(1, 0)
        assert bench.next(Ended, 1) == Ended(1)

    def test_a_trial_that_cannot_be_trained_says_why(self, bench: Bench) -> None:
        bench.start(0, words=(*TINY, "compute.device=nothing"))
        bench.next(Begun, 0)
        ended = bench.next(Ended, 0)
        assert ended.trouble == "refused"
        assert "device 'nothing' cannot be used here" in ended.reason
        bench.play(0)

    def test_the_end_is_a_checkpoint_from_which_another_goes_on(
        self, bench: Bench, again: Callable[[], Executor]
    ) -> None:
        order = bench.start(0, 10**8, words=UNSAVED)
        bench.next(Begun, 0)
        history = order.run / "history.jsonl"
        bench.until("it trains", lambda: history.exists() and history.stat().st_size)
        bench.executor.close()
        bench.executor.close()
        found = checkpoints(order.run)
        assert found, f"nothing was written at the end; {words_of(order)}"
        bench.executor, bench.heard = again(), []
        bench.start(0, 1, words=ENDLESS)
        bench.next(Begun, 0)
        assert bench.next(Said, 0).resource >= 1

    def test_a_poll_of_nothing_is_nothing(self, bench: Bench) -> None:
        assert list(bench.executor.poll(0.0)) == []
        assert list(bench.executor.poll(0.1)) == []


class TwoProcessesContract:
    """For an executor whose trials have several processes."""

    def test_a_trial_goes_on_with_another_number_of_processes(self, bench: Bench) -> None:
        first = bench.play(0, MIDDLE)
        second = bench.play(0, END, workers=2)
        assert MIDDLE <= first.resource < END <= second.resource
        run = bench.orders[0].run
        assert "2" in (run / "run.json").read_text()
        assert len((run / "history.jsonl").read_text().splitlines()) >= 2

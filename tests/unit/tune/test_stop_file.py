"""A file or a signal asks a process to stop; a training hears of it when it listens, and dies of nothing."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ringflow.train.world import StopRequest, catching_signals
from ringflow.tune.executors.stop_file import ask_to_stop, heeding_stop


def wait(ready: Callable[[], object]) -> None:
    until = time.monotonic() + 20.0
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def heard(wish: StopRequest) -> bool:
    return wish.signal_name == "SIGUSR1"


def test_nothing_is_wished_for_at_first(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with heeding_stop(tmp_path) as stopped, catching_signals() as wish:
        time.sleep(0.3)  # three looks
        assert not stopped()
        assert wish.signal_name is None
    assert signal.getsignal(signal.SIGUSR1) is before


def test_the_file_is_heard_by_a_training(tmp_path: Path) -> None:
    with heeding_stop(tmp_path) as stopped, catching_signals() as wish:
        ask_to_stop(tmp_path)
        wait(lambda: heard(wish))
        assert stopped()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_that_comes_early_is_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    with heeding_stop(tmp_path) as stopped:
        os.kill(os.getpid(), number)
        wait(stopped)
        time.sleep(0.3)  # three looks, at none of which somebody listens
        with catching_signals() as wish:
            wait(lambda: heard(wish))


def test_an_order_that_was_taken_away_is_a_stop(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket"
    ticket.mkdir()
    with heeding_stop(ticket) as stopped:
        shutil.rmtree(ticket)
        wait(stopped)


def test_a_training_that_has_heard_is_not_told_twice(tmp_path: Path) -> None:
    with heeding_stop(tmp_path) as stopped, catching_signals() as wish:
        os.kill(os.getpid(), signal.SIGUSR1)
        wait(lambda: heard(wish))
        ask_to_stop(tmp_path)
        wait(stopped)
        time.sleep(0.3)  # the second one would end this process

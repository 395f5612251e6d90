"""Workers: which orders they carry out, when they stop, and what a training hears of it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import ringflow.tune.worker as worker_module
from ringflow.base.errors import DiskFullError, DivergenceError, FailureError, SettingsError, StoppedError
from ringflow.train.world import StopRequest, catching_signals
from ringflow.tune.worker import Channel, Order, Worker, train_order


def order(run: Path, trial: int = 7, workers: int = 1) -> Order:
    return Order(trial=trial, run=run, settings={}, until=10, workers=workers)


def ends(folder: Path) -> tuple[Channel, Channel]:
    folder.mkdir(parents=True, exist_ok=True)
    return Channel(folder, "driver", "worker"), Channel(folder, "worker", "driver")


def wait(ready: Callable[[], object]) -> None:
    until = time.monotonic() + 20.0
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_what_is_sent_is_received_once_and_in_order(tmp_path: Path) -> None:
    driver, worker = ends(tmp_path)
    assert worker.receive() is None
    driver.send(**order(tmp_path).model_dump(mode="json"))
    driver.send(until=3)
    assert Order.model_validate(worker.receive()) == order(tmp_path)
    assert worker.receive() == {"until": 3}
    assert worker.receive() is None
    worker.send(kind="begun")
    assert driver.receive() == {"kind": "begun"}
    assert not list(tmp_path.iterdir())


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, str | None]]]:
    """Orders that a worker carried out, and what it says of its place among others."""
    found: list[tuple[int, str | None]] = []

    def train(order: Order, channel: Channel | None, stopped: Callable[[], bool]) -> None:
        found.append((order.trial, os.environ.get("RANK")))

    monkeypatch.setattr(worker_module, "train_order", train)
    with patch.dict(os.environ):
        yield found


def test_a_worker_takes_what_is_there_and_ends_when_nothing_comes(
    tmp_path: Path, trained: list[tuple[int, str | None]]
) -> None:
    driver, _ = ends(tmp_path / "one")
    for trial in range(3):
        driver.send(**order(tmp_path / "run", trial).model_dump(mode="json"))
    Worker(tmp_path / "one", idle=0.2).work()
    assert driver.receive() == {"kind": "ready"}
    assert trained == [(0, None), (1, None), (2, None)]
    driver, _ = ends(tmp_path / "pair")
    driver.send(**order(tmp_path / "run", 3, workers=2).model_dump(mode="json"))
    Worker(tmp_path / "pair", size=2, idle=0.2).work()
    assert trained[-1] == (3, "0")
    port = os.environ["MASTER_PORT"]
    Worker(tmp_path / "pair", rank=1, size=2).work()  # it follows the first one, to its end
    assert trained[-1] == (3, "1")
    assert os.environ["MASTER_PORT"] == port


def test_a_worker_that_is_asked_to_stop_takes_nothing(tmp_path: Path, trained: list[tuple[int, str | None]]) -> None:
    (tmp_path / "stop").touch()
    Worker(tmp_path).work()
    assert trained == []


def heard(wish: StopRequest) -> bool:
    return wish.signal_name == "SIGUSR1"


@pytest.mark.parametrize("way", ["file", "SIGUSR1", "SIGTERM", "taken away"])
def test_a_wish_to_stop_is_passed_on_to_a_training_once_it_listens(tmp_path: Path, way: str) -> None:
    before, folder = signal.getsignal(signal.SIGUSR1), tmp_path / "w"
    folder.mkdir()
    with Worker(folder)._heeding() as stopped:
        assert not stopped()
        if way == "file":
            (folder / "stop").touch()
        elif way == "taken away":
            shutil.rmtree(folder)
        else:
            os.kill(os.getpid(), signal.Signals[way])
        wait(stopped)
        time.sleep(0.3)  # three looks, at none of which somebody listens
        with catching_signals() as wish:
            wait(lambda: heard(wish))
            time.sleep(0.3)  # a second one would end this process
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (StoppedError("x"), "interrupted"),
        (SettingsError("x"), "refused"),
        (DivergenceError("x"), "diverged"),
        (DiskFullError("x"), "full"),
        (FailureError("x"), "failed"),
        (ValueError("x"), "failed"),
    ],
)
def test_troubles_have_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, trouble: str) -> None:
    def fail(*arguments: object, **more: object) -> None:
        raise error

    monkeypatch.setattr("ringflow.train.run.train", fail)
    driver, worker = ends(tmp_path)
    assert train_order(order(tmp_path), worker, lambda: False) == trouble
    assert driver.receive() == {"kind": "begun"}
    assert (driver.receive() or {})["trouble"] == trouble


def test_a_report_is_answered_or_the_wait_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training of three validations: before its rung, at it, and at the next one, where the wait is stopped."""
    asked, stop = list[int](), threading.Event()

    def train(settings: object, run: Path, *, pace: Callable[[int, dict[str, None]], int]) -> None:
        for events in (5, 12, 40):
            asked.append(pace(events, {"loss": None}))

    monkeypatch.setattr("ringflow.train.run.train", train)
    driver, worker = ends(tmp_path)
    thread = threading.Thread(target=train_order, args=(order(tmp_path), worker, stop.is_set))
    thread.start()
    said: list[dict[str, object]] = []
    wait(lambda: said.extend(filter(None, [driver.receive()])) or len(said) == 2)
    driver.send(until=40)
    wait(lambda: said.extend(filter(None, [driver.receive()])) or len(said) == 3)
    stop.set()
    thread.join()
    assert [(words["kind"], words.get("resource")) for words in said] == [
        ("begun", None),
        ("report", 12),
        ("report", 40),
    ]
    assert asked == [10, 40]
    assert (driver.receive() or {})["trouble"] == "interrupted"

"""Workers: who claims which order, when they stop, and what a training hears of it."""

from __future__ import annotations

import json
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
from ringflow.tune.worker import (
    Begun,
    Ended,
    Mail,
    Order,
    Said,
    Voice,
    Worker,
    ask_to_stop,
    claim,
    is_claimed,
    offer,
    trouble_of,
    work_folder,
    worker_folder,
)


def order(study: Path, trial: int, workers: int = 1) -> Order:
    made = Order(trial, work_folder(study) / "orders" / f"{trial}", study / "trials" / f"{trial:04d}", {}, 10, workers)
    made.write()
    offer(study, made, trial)
    return made


def worker(study: Path, name: str = "w", **words: object) -> Worker:
    worker_folder(study, name).mkdir(parents=True, exist_ok=True)
    return Worker(study, name, **words)  # type: ignore[arg-type]


def wait(ready: Callable[[], object]) -> None:
    until = time.monotonic() + 20.0
    while not ready():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_oldest_order_of_a_size_is_claimed_once(tmp_path: Path) -> None:
    orders = [order(tmp_path, trial, workers=1 + trial % 2) for trial in range(4)]
    assert Order.read(orders[3].folder) == orders[3]
    assert claim(tmp_path, 2, "a") == orders[1].folder.absolute()
    assert claim(tmp_path, 2, "b") == orders[3].folder.absolute()
    assert claim(tmp_path, 2, "c") is None
    assert claim(tmp_path, 3, "c") is None
    assert is_claimed(orders[1], "a")
    assert not is_claimed(orders[1], "b")


def test_workers_that_want_the_same_order_get_different_ones(tmp_path: Path) -> None:
    for trial in range(30):
        order(tmp_path, trial)
    found: list[Path] = []

    def take(name: str) -> None:
        while (folder := claim(tmp_path, 1, name)) is not None:
            found.append(folder)

    threads = [threading.Thread(target=take, args=(str(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 30


def test_what_a_worker_says_is_heard_in_order_and_answered(tmp_path: Path) -> None:
    made = order(tmp_path, 7)
    mail, voice = Mail(made), Voice(made.folder)
    voice.say("begun", worker="w")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(voice.report(10, {"loss": None}, lambda: False)))
    thread.start()
    heard: list[object] = []
    wait(lambda: heard.extend(mail.look()) or len(heard) == 2)
    assert heard == [Begun(7, "w"), Said(7, 10, {"loss": None})]
    mail.answer(40)
    thread.join()
    assert answers == [40]
    with pytest.raises(StoppedError, match="waited for an answer after 40 events"):
        voice.report(40, {}, lambda: True)
    voice.say("ended", trouble="failed", reason="why")
    assert [*mail.look()][-1] == mail.ended == Ended(7, "failed", "why")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str | None]]]:
    """Orders that a worker carried out, and what it says of its place among others."""
    found: list[tuple[str, str | None]] = []

    def train(order: Order, name: str | None, stopped: Callable[[], bool]) -> None:
        found.append((order.folder.name, os.environ.get("RANK")))

    monkeypatch.setattr(worker_module, "train_order", train)
    with patch.dict(os.environ):
        yield found


def test_a_worker_takes_what_is_there_and_ends_when_nothing_comes(
    tmp_path: Path, trained: list[tuple[str, str | None]]
) -> None:
    for trial in range(3):
        order(tmp_path, trial)
    order(tmp_path, 3, workers=2)
    worker(tmp_path, idle=0.2).work()
    assert trained == [("0", None), ("1", None), ("2", None)]
    first = worker(tmp_path, "pair", size=2, idle=0.2)
    first.work()
    assert trained[-1] == ("3", "0")
    told = json.loads((worker_folder(tmp_path, "pair") / "task-0.json").read_text())
    assert Path(told["order"]).name == "3"
    worker(tmp_path, "pair", rank=1, size=2).work()  # it follows the first one, to its end
    assert trained[-1] == ("3", "1")
    assert os.environ["MASTER_PORT"] == str(told["port"])


def test_a_worker_that_is_asked_to_stop_takes_nothing(tmp_path: Path, trained: list[tuple[str, str | None]]) -> None:
    asked = worker(tmp_path)
    ask_to_stop(tmp_path, "w")
    with asked._heeding() as stopped:
        wait(stopped)
        order(tmp_path, 0)
        assert asked._claim(0, stopped) is None


def heard(wish: StopRequest) -> bool:
    return wish.signal_name == "SIGUSR1"


@pytest.mark.parametrize("way", ["file", "SIGUSR1", "SIGTERM", "taken away"])
def test_a_wish_to_stop_is_passed_on_to_a_training_once_it_listens(tmp_path: Path, way: str) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with worker(tmp_path)._heeding() as stopped:
        assert not stopped()
        if way == "file":
            ask_to_stop(tmp_path, "w")
        elif way == "taken away":
            shutil.rmtree(work_folder(tmp_path))
        else:
            os.kill(os.getpid(), signal.Signals[way])
        wait(stopped)
        time.sleep(0.3)  # three looks, at none of which somebody listens
        with catching_signals() as wish:
            wait(lambda: heard(wish))
            time.sleep(0.3)  # a second one would end this process
    assert signal.getsignal(signal.SIGUSR1) is before


def test_troubles_have_types() -> None:
    errors = [StoppedError("x"), SettingsError("x"), DivergenceError("x"), DiskFullError("x"), FailureError("x")]
    assert list(map(trouble_of, errors)) == ["interrupted", "refused", "diverged", "full", "failed"]

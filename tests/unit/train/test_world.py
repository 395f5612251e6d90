"""Processes that work together: collectives, what is said when they cannot meet, and signals that ask for an end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures import FOLDER
from fixtures.made_up import assert_same_weights
from ringflow.base.errors import FailureError, LostPeerError, StoppedError, UsageError
from ringflow.launch.environment import free_port
from ringflow.train.parallel import MeshPlace
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep
from ringflow.train.world import ALONE, Tensors, catching_signals, collective, joined, room

CPU = torch.device("cpu")
SCRIPT = FOLDER / "two_ranks.py"
GARBAGE = (b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04cos\nsystem\n", b"\xff" * 1000, bytes(64), b"")
WORDS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WORDS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What two processes saw of each other, while strangers said to their store what it does not understand."""
    port = free_port()
    started = []
    try:
        for rank in range(2):
            words = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {**os.environ, **{name: str(value) for name, value in words.items()}}
            command = [sys.executable, str(SCRIPT)]
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        strangers: list[socket.socket] = []
        while len(strangers) < len(GARBAGE) and started[0].poll() is None:
            time.sleep(0.05)
            with suppress(OSError):  # it is not there yet, or no more
                strangers.append(socket.create_connection(("127.0.0.1", port)))
                strangers[-1].sendall(GARBAGE[len(strangers) - 1])
        answers = [process.communicate(timeout=120)[0] for process in started]
        for stranger in strangers:
            stranger.close()
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    return [json.loads(answer) for answer in answers]


def test_processes_know_of_each_other(seen: list[dict[str, Any]]):
    assert [process["who"] for process in seen] == [[0, 2, True], [1, 2, False]]
    for process in seen:
        assert process["add"] == [1.0, 4.0, 2.0**41 + 2.0]
        assert process["tensors"] == [3.0, 5.0]
        assert process["tell"] == "by 0"
        assert process["first"] == {"made by": 0}
        assert process["gather"] == [["rank", 0], ["rank", 1, "rank", 1]]
        assert process["whole"]


def test_an_error_of_the_first_one_is_everybodys_and_told_once(seen: list[dict[str, Any]]):
    expected = [["UsageError", "this cannot be", told] for told in (False, True)]
    assert [process["refused"] for process in seen] == expected


def test_a_difference_is_an_error_of_all_and_told_once(seen: list[dict[str, Any]]):
    message = "process 1 has another taste than process 0; give all of them the same"
    assert [process["same"] for process in seen] == [[], []]
    assert [process["other"] for process in seen] == [["UsageError", message, False], ["UsageError", message, True]]


def test_one_alone_does_it_all_itself():
    with joined(CPU) as world:
        assert world is ALONE
    tensor = torch.tensor([3.0])
    ALONE.all_reduce_(tensor)
    ALONE.broadcast_(tensor)
    assert tensor.item() == 3.0
    assert ALONE.all_reduce([1.0, 2.0]) == [1.0, 2.0]
    assert ALONE.all_gather("a") == ["a"]
    assert ALONE.on_first(lambda: 7) == 7
    ALONE.require_same({"taste": "sweet"})


@pytest.mark.parametrize(
    ("changed", "said"),
    [({name: None}, f"WORLD_SIZE is set but {name} is not") for name in ("RANK", "MASTER_ADDR", "MASTER_PORT")]
    + [({"WORLD_SIZE": size}, f"WORLD_SIZE={size} is no number of processes") for size in ("two", "", "-1", "1.5")],
)
def test_an_environment_that_cannot_be_is_one_line(
    changed: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch
):
    given = {**dict(zip(WORDS, ("0", "2", "0", "127.0.0.1", "1"), strict=True)), **changed}
    for name, value in given.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"^{said}"):
        joined(CPU).__enter__()


def test_others_that_do_not_come_are_one_line(monkeypatch: pytest.MonkeyPatch):
    port = str(free_port())
    for name, value in zip(WORDS, ("0", "2", "0", "127.0.0.1", port), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(FailureError, match=f"did not meet at 127.0.0.1:{port} .*are all of them started") as caught:
        joined(CPU, timeout=0.5).__enter__()
    assert "\n" not in str(caught.value)


def test_a_first_process_elsewhere_is_one_line(monkeypatch: pytest.MonkeyPatch):
    for name, value in zip(WORDS, ("0", "2", "0", "192.0.2.1", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(FailureError, match=r"MASTER_ADDR=192\.0\.2\.1 is no address of .*, the first machine"):
        joined(CPU, timeout=0.5).__enter__()


@pytest.mark.parametrize(("length", "kind"), [(0, Any), (-1, Any), (2**26 + 1, Any), (2**62, Tensors)])
def test_no_memory_is_taken_for_what_nobody_means(length: int, kind: Any):
    with pytest.raises(FailureError, match=f"another process tells of {length} bytes, which it cannot mean"):
        room(length, kind)


def test_what_torch_raises_where_processes_meet_is_a_lost_one_unless_memory_is_full():
    with pytest.raises(LostPeerError, match=r"another process of this training ended \(closed by peer\)"), collective():
        raise RuntimeError("closed\nby peer")
    with pytest.raises(torch.OutOfMemoryError), collective():
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_every_lane_belongs_to_one_process(size: int):
    dealt = [list(MeshPlace.of(rank, size, "replicate", 0).lanes(6)) for rank in range(size)]
    in_order = [lane for lanes in dealt for lane in lanes]
    assert in_order == list(range(6)), "a checkpoint lists them so"
    assert {len(lanes) for lanes in dealt} == {6 // size}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_a_training_with_a_checkpoint(
    number: signal.Signals,
    code: int,
    tiny: Callable[..., TrainSettings],
    start: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    start(tiny(), tmp_path / "undisturbed")
    take = TrainingStep.take

    def interrupted(step: TrainingStep, batches: Any, number_of_step: int, rate: float) -> None:
        if number_of_step == 2:
            os.kill(os.getpid(), number)
        take(step, batches, number_of_step, rate)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "take", interrupted)
        with pytest.raises(StoppedError, match=rf"stopped by {number.name} after \d+ events") as caught:
            start(tiny(), tmp_path / "stopped")
    assert caught.value.exit_code == code
    assert [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir()] == ["step-0000000004"]
    start(tiny(), tmp_path / "stopped")
    assert_same_weights(tmp_path / "stopped", tmp_path / "undisturbed")


def test_the_second_signal_has_its_usual_effect_and_what_is_ignored_stays_so():
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with catching_signals() as request:
            os.kill(os.getpid(), signal.SIGINT)
            assert request.signal_name is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert request.signal_name == "SIGUSR1"
            assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGUSR1) == before[signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGINT, before[signal.SIGINT])

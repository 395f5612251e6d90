"""Processes that work together: what they add up and tell each other, and what is said when they cannot meet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fixtures import FOLDER
from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.environment import free_port
from ringflow.train.parallel.places import Places
from ringflow.train.team import ALONE, joined

CPU = torch.device("cpu")
SCRIPT = FOLDER / "two_of_a_team.py"
WORDS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in WORDS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes saw of each other."""
    folder, port = tmp_path_factory.mktemp("meeting"), free_port()
    started = []
    try:
        for rank in range(2):
            words = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            environment = {**os.environ, **{name: str(value) for name, value in words.items()}}
            command = [sys.executable, str(SCRIPT), str(folder)]
            started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        answers = [process.communicate(timeout=120)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0]
    return [json.loads(answer) for answer in answers]


def test_they_know_who_they_are(seen: list[dict[str, Any]]):
    assert [process["who"] for process in seen] == [[0, 2, True], [1, 2, False]]


def test_sums_are_everybodys_and_exact(seen: list[dict[str, Any]]):
    for process in seen:
        assert process["add"] == [1.0, 4.0, 2.0**41 + 2.0]
        assert process["tensors"] == [3.0, 5.0]


def test_what_the_first_one_says_reaches_all(seen: list[dict[str, Any]]):
    for process in seen:
        assert process["tell"] == "by 0"
        assert process["first"] == {"made by": 0}
        assert process["gather"] == [["rank", 0], ["rank", 1]]


def test_an_error_of_the_first_one_is_everybodys_and_told_once(seen: list[dict[str, Any]]):
    for name in ("refused", "not held"):
        assert [process[name] for process in seen] == [
            ["UsageError", "this cannot be", False],
            ["UsageError", "this cannot be", True],
        ]


def test_the_first_one_holds_while_all_work(seen: list[dict[str, Any]]):
    assert [process["held"] for process in seen] == [[True, False]] * 2


def test_a_difference_is_an_error_of_all_and_told_once(seen: list[dict[str, Any]]):
    message = "process 1 has another taste than process 0; give all of them the same"
    assert [process["same"] for process in seen] == [[], []]
    assert [process["other"] for process in seen] == [["UsageError", message, False], ["UsageError", message, True]]


def test_one_alone_does_it_all_itself():
    with joined(CPU) as team:
        assert team is ALONE
    tensor = torch.tensor([3.0])
    ALONE.add_(tensor)
    ALONE.tell_(tensor)
    assert tensor.item() == 3.0
    assert ALONE.add([1.0, 2.0]) == [1.0, 2.0]
    assert ALONE.gather("a") == ["a"]
    assert ALONE.first(lambda: 7) == 7
    ALONE.agree("taste", "sweet")

    def refuse() -> None:
        raise UsageError("this cannot be")

    with pytest.raises(UsageError, match="this cannot be") as caught:
        ALONE.first(refuse)
    assert not caught.value.told


def test_one_alone_lets_go_of_what_it_held_when_something_fails():
    did: list[str] = []

    @contextmanager
    def holding() -> Iterator[None]:
        did.append("taken")
        try:
            yield
        finally:
            did.append("let go")

    with pytest.raises(KeyError), ALONE.first_holds(holding):
        raise KeyError
    assert did == ["taken", "let go"]


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_a_word_that_is_missing_is_one_line(missing: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in zip(WORDS, ("0", "2", "0", "127.0.0.1", "1"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with pytest.raises(UsageError, match=f"^WORLD_SIZE is set but {missing} is not; start with `ringflow launch`"):
        joined(CPU).__enter__()


@pytest.mark.parametrize("size", ["two", "", "-1", "1.5"])
def test_a_number_of_processes_that_is_none_is_one_line(size: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WORLD_SIZE", size)
    with pytest.raises(UsageError, match=f"^WORLD_SIZE={size} is no number of processes"):
        joined(CPU).__enter__()


def test_others_that_do_not_come_are_one_line(monkeypatch: pytest.MonkeyPatch):
    port = str(free_port())
    for name, value in zip(WORDS, ("0", "2", "0", "127.0.0.1", port), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(FailureError, match=f"did not meet at 127.0.0.1:{port} .*are all of them started") as caught:
        joined(CPU, timeout=0.5).__enter__()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_every_lane_belongs_to_one_process(size: int):
    dealt = [list(Places.of(rank, size, "replicate", 0).lanes(6)) for rank in range(size)]
    assert [lane for lanes in dealt for lane in lanes] == list(
        range(6)
    )  # in the order in which a checkpoint lists them
    assert {len(lanes) for lanes in dealt} == {6 // size}

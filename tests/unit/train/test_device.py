"""The device module: choices, fall-backs, and errors one can act on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import ringflow.train
from ringflow.base.errors import UsageError
from ringflow.train import device as device_module
from ringflow.train.device import (
    accelerated,
    choose_device,
    choose_precision,
    is_out_of_memory,
    undisturbed,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("name", ["hpu", "no_such_device", "cpu:x"])
def test_a_device_that_is_not_there_is_a_usage_error(name: str):
    with pytest.raises(UsageError, match=rf"device '{name}' cannot be used here .*use the device cpu"):
        choose_device(name)


def test_auto_takes_what_torch_finds(monkeypatch: pytest.MonkeyPatch):
    for found, expected in ((None, "cpu"), (torch.device("mps"), "cpu"), (torch.device("xpu"), "xpu")):
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available, f=found: f)
        assert choose_device("auto").type == expected
    assert choose_device("cpu") == CPU


def test_precision_follows_the_device_unless_chosen():
    asked = {
        (CPU, "auto"): "float32",
        (GPU, "auto"): "bfloat16",
        (CPU, "bfloat16"): "bfloat16",
        (GPU, "float32"): "float32",
    }
    assert {case: choose_precision(*case) for case in asked} == {
        case: getattr(torch, name) for case, name in asked.items()
    }


def double(x: int) -> int:
    return 2 * x


def test_compilation_is_for_accelerators_or_on_demand(monkeypatch: pytest.MonkeyPatch):
    asked: list[bool | None] = []

    def compiler(function: object, dynamic: bool | None) -> object:
        asked.append(dynamic)
        return function

    monkeypatch.setattr(torch, "compile", compiler)
    assert accelerated(double, CPU, "auto") is double
    assert accelerated(double, GPU, "no") is double
    assert asked == []
    assert accelerated(double, GPU, "auto")(3) == 6
    assert accelerated(double, CPU, "yes")(3) == 6
    assert asked == [False, None]


def test_without_a_compiler_the_training_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def compiled(x: int) -> int:
        if x > 1:
            raise RuntimeError("no C compiler\nfound")
        if x < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: compiled)
    function = accelerated(double, CPU, "yes")
    assert [function(2), function(3)] == [4, 6]
    assert capsys.readouterr().err == (
        "torch.compile does not work here (RuntimeError: no C compiler found); training goes on without it, slower\n"
    )
    function = accelerated(double, CPU, "yes")
    with pytest.raises(torch.OutOfMemoryError):
        function(-1)
    assert function(1) == 1
    with pytest.raises(RuntimeError, match="no C compiler"):  # once compiled, an error is an error
        function(2)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("x"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), True),
        (RuntimeError("HIP out of memory. Tried to allocate"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_out_of_memory_is_recognised(error: BaseException, expected: bool):
    assert is_out_of_memory(error) is expected


def test_random_numbers_go_on_as_if_nothing_had_been_drawn():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    with undisturbed(CPU, seed=7):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with undisturbed(CPU, seed=7):
        assert torch.equal(torch.rand(3), first)


def test_no_other_module_of_the_training_names_an_accelerator():
    folder = Path(ringflow.train.__file__).parent
    word = re.compile(r"\b(cuda|hip|xpu|hpu|mps)\b")
    guilty = [path.name for path in folder.glob("*.py") if word.search(path.read_text(encoding="utf-8"))]
    assert guilty == [Path(device_module.__file__).name]


def test_processes_of_a_machine_have_an_accelerator_each(monkeypatch: pytest.MonkeyPatch):
    chosen: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: GPU)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert choose_device("auto") == GPU
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto") == torch.device("cuda:1")
    assert chosen == [1]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(
        UsageError, match=r"process 2 of this machine has no cuda of its own, there are 2; start at most 2"
    ):
        choose_device("auto")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")  # a launcher that shows every process its own
    assert choose_device("auto") == torch.device("cuda:0")

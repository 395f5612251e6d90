"""The machine: which device, how precise, compiled or not, and what takes its time. Alone it knows kinds of accelerators.

Devices are chosen by name and used through interfaces that all of them share, so that a ROCm build of torch (whose device
is called `cuda`), an Intel GPU (`xpu`) or a Gaudi (`hpu`) is used like any other.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from ringflow import __version__
from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import say
from ringflow.base.provenance import code_version, package_version

P = ParamSpec("P")
R = TypeVar("R")

#: Accelerators that `auto` passes over: no double precision, no variable-length attention.
_NOT_BY_ITSELF = ("mps",)
#: Variables by which launchers show a process some of the accelerators only.
_SEEN = (
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "HABANA_VISIBLE_DEVICES",
)
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "failed to allocate")


def choose_device(name: str) -> torch.device:
    """The device of this name; `auto` is the accelerator torch finds, else the CPU. Processes of one machine have one each."""
    if name == "auto":
        found = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if found is None or found.type in _NOT_BY_ITSELF else _own(found)
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1.0).item()
    # What torch raises depends on the device and on what torch was built with.
    except (RuntimeError, AssertionError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split("\n")[0].split())[:200]
        if reason.startswith("Expected one of"):  # and twenty names follow, most of which nobody has
            reason = "torch has none of that name; a GPU is called cuda"
        raise UsageError(
            f"device '{name}' cannot be used here ({reason}); use the device cpu, or auto for what is there"
        ) from None
    return _own(device)


def _own(device: torch.device) -> torch.device:
    """The accelerator of this process, where several were started on a machine and none is named by number."""
    if not is_accelerator(device) or device.index is not None or "LOCAL_RANK" not in os.environ:
        return device
    number, there = int(os.environ["LOCAL_RANK"]), torch.accelerator.device_count()
    if there == 1 and any(name in os.environ for name in _SEEN):
        number = 0  # whoever started the processes lets each see its own alone
    if number >= there:
        raise UsageError(
            f"process {number} of this machine has no {device.type} of its own, there are {there}; "
            f"start at most {there} per machine, or give compute.device=cpu"
        )
    torch.accelerator.set_device_index(number)
    return torch.device(device.type, number)


def is_accelerator(device: torch.device) -> bool:
    """Whether work on it goes on while the host does something else."""
    return device.type != "cpu"


def choose_precision(device: torch.device, name: str) -> torch.dtype:
    """The type of the numbers in which the network computes; the weights themselves are float32."""
    if name == "auto":
        return torch.bfloat16 if is_accelerator(device) else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32


@contextmanager
def computing_in(precision: torch.dtype, device: torch.device) -> Iterator[None]:
    """Matrix products in this precision."""
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision is torch.bfloat16):
        yield


def accelerated(function: Callable[P, R], device: torch.device, choice: str) -> Callable[P, R]:
    """The function, compiled if that is chosen (`auto`: on an accelerator) and if there is a compiler that can do it."""
    if choice == "no" or (choice == "auto" and not is_accelerator(device)):
        return function
    chosen: Callable[P, R] = torch.compile(function, dynamic=False if is_accelerator(device) else None)
    proven = False

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal chosen, proven
        try:
            result = chosen(*args, **kwargs)
        except Exception as error:
            if proven or is_out_of_memory(error):
                raise
            # If it is not the compiler that fails but the function, it fails again, with a clearer error.
            result = function(*args, **kwargs)
            reason = " ".join(str(error).split())[:160]
            say(
                f"torch.compile does not work here ({type(error).__name__}: {reason}); training goes on without it, slower"
            )
            chosen = function
        proven = True
        return result

    return call


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is what a device, or the host, says when its memory is full."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _OUT_OF_MEMORY)


@contextmanager
def memory_advice(advice: str) -> Iterator[None]:
    """Say what to do when the memory is full."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise FailureError(f"out of memory {advice}") from None


def synchronize(device: torch.device) -> None:
    """Wait until everything asked of the device is done."""
    if is_accelerator(device):
        torch.accelerator.synchronize(device)


def give_back_memory() -> None:
    """Let go of what a training left, so that others on the same accelerator can have it."""
    gc.collect()
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


def peak_memory(device: torch.device) -> int:
    """The most memory in use so far, in bytes: of the device, or of the process on a CPU."""
    if is_accelerator(device):
        return int(torch.accelerator.max_memory_allocated(device))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes if sys.platform == "darwin" else 1024 * kilobytes


def random_states(device: torch.device) -> dict[str, Tensor]:
    """States of torch's own generators, by the type of device they are on."""
    states = {"cpu": torch.get_rng_state()}
    if is_accelerator(device):
        states[device.type] = torch.get_device_module(device).get_rng_state(device).cpu()
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """Put the states back; one of a device that is not used now is left alone."""
    torch.set_rng_state(states["cpu"])
    if is_accelerator(device) and device.type in states:
        torch.get_device_module(device).set_rng_state(states[device.type], device)


@contextmanager
def undisturbed(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Whatever random numbers the body draws (from `seed` on, if given), those drawn after it are the same."""
    before = random_states(device)
    try:
        if seed is not None:
            torch.manual_seed(seed)
        yield
    finally:
        set_random_states(before, device)


def hardware(device: str) -> dict[str, Any]:
    """The machine that a number was measured on: processor, cores, accelerator, and versions of what was timed."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    described: dict[str, Any] = {
        "processor": next(names, platform.processor()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "ringflow": __version__,
        "code": code_version(),
    }
    if device != "cpu":
        # Most kinds of accelerators can say what they are called; one that cannot is known by its kind.
        name_of = getattr(torch.get_device_module(device), "get_device_name", None)
        described["accelerator"] = name_of() if name_of else device
    return described


class Phases:
    """What the time of a step goes into, see `profile`; this one is free, since nobody measures."""

    def __call__(self, name: str) -> AbstractContextManager[None]:
        """While the context is open, a process is in this phase; contexts may be within each other.

        In an `idle` one all processes meet: it is opened by each when it is there, and ends when what they add up is known.
        """
        return nullcontext()

    def handed_over(self, size: int) -> Callable[[], object]:
        """Gradients of so many bytes begin to travel while the backward goes on; call what is returned when they are there."""
        return lambda: None

    def end_step(self, step: int, events: int) -> None:
        """A step is done, and showed so many events to all processes together."""


UNMEASURED = Phases()

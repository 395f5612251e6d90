"""Reading the time: of the host, or of an accelerator that works while the host goes on."""

from __future__ import annotations

import time
from typing import Any

import torch

from ringflow.train.device import is_accelerator, synchronize


class Watch:
    """The clock of the host."""

    def now(self) -> int:
        """Nanoseconds, when all that was asked for is done."""
        return time.perf_counter_ns()

    def start(self) -> None:
        """Marks follow, to be read when the phase is over."""

    def mark(self) -> Any:
        """This moment, without waiting for anything."""
        return time.perf_counter_ns()

    def read(self, mark: Any) -> int:
        """Nanoseconds of a mark, as `now` gives them."""
        return int(mark)


class DeviceWatch(Watch):
    """The clock of the host, read when the device has done its work; marks are events in its stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._zero, self._first = 0, self._event()

    def now(self) -> int:
        synchronize(self._device)
        return time.perf_counter_ns()

    def start(self) -> None:
        self._zero, self._first = self.now(), self._event()

    def mark(self) -> torch.Event:
        return self._event()

    def read(self, mark: torch.Event) -> int:
        return self._zero + round(1e6 * self._first.elapsed_time(mark))

    def _event(self) -> torch.Event:
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        return event


def watch_for(device: torch.device) -> Watch:
    """The watch for what is computed on a device."""
    return DeviceWatch(device) if is_accelerator(device) else Watch()

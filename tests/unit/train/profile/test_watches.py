"""Marks in the stream of a device are read on the clock of the host."""

from __future__ import annotations

import pytest
import torch

from ringflow.train.profile import watches
from ringflow.train.profile.watches import DeviceWatch, Watch, watch_for


class Device:
    """A device that is behind the host, and catches up when it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host_ns, self.stream_ms, self.waited = 5_000_000, 100.0, 0
        device = self

        class Event:
            def __init__(self, where: torch.device, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at_ms = device.stream_ms

            def elapsed_time(self, later: Event) -> float:
                return later.at_ms - self.at_ms

        monkeypatch.setattr(watches.torch, "Event", Event)
        monkeypatch.setattr(watches, "synchronize", self.wait)
        monkeypatch.setattr(watches.time, "perf_counter_ns", lambda: self.host_ns)

    def wait(self, device: torch.device) -> None:
        self.waited += 1
        self.host_ns += 2_000_000


def test_marks_of_a_device_are_times_of_the_host(monkeypatch: pytest.MonkeyPatch):
    device = Device(monkeypatch)
    watch = watch_for(torch.device("cuda"))
    assert isinstance(watch, DeviceWatch)
    assert watch.now() == 7_000_000
    watch.start()
    device.stream_ms += 1.5
    early = watch.mark()
    device.stream_ms += 3.0
    late = watch.mark()
    assert device.waited == 2  # marks wait for nothing
    assert (watch.read(early), watch.read(late)) == (10_500_000, 13_500_000)


def test_on_a_cpu_a_mark_is_the_time():
    watch = watch_for(torch.device("cpu"))
    assert type(watch) is Watch
    before, mark, after = watch.now(), watch.mark(), watch.now()
    assert before <= watch.read(mark) <= after

"""TensorBoard files, written in place: a writer with a thread of its own would wait for ever once a disk is full."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any


class Board:
    """A file of numbers over steps; `going_on_after` hides what earlier files hold after that step."""

    def __init__(self, folder: Path, going_on_after: int = 0) -> None:
        from tensorboardX.proto.event_pb2 import SessionLog
        from tensorboardX.record_writer import RecordWriter

        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._records = RecordWriter(str(folder / name))
        self._write(file_version="brain.Event:2")
        if going_on_after:
            self._write(step=going_on_after + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, name: str, value: float, step: int) -> None:
        """One number after a step."""
        from tensorboardX.proto.summary_pb2 import Summary

        self._write(step=step, summary=Summary(value=[Summary.Value(tag=name, simple_value=value)]))

    def flush(self) -> None:
        """Make sure that what was written outlives the process and the machine."""
        self._records.flush()

    def close(self) -> None:
        """Write the rest."""
        self._records.close()

    def _write(self, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **content).SerializeToString())

"""A process that carries out one order after the other, so that only its first one waits for Python and torch to load.

It is told orders on stdin, a JSON object per line, and rings on stdout: `ring` when something new lies on the desk, `done` when
an order is over. When stdin ends, so does the process, after a checkpoint: whoever started it may have been killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from ringflow.base.threads import wait_without_spinning
from ringflow.launch.environment import OURS

RING, DONE = "ring", "done"
#: Held by every process of a study as long as it lives.
LOCK_FILE = "workers.lock"


def main(desk: Path) -> None:
    """Until stdin ends."""
    wait_without_spinning()
    lock = os.open(desk / LOCK_FILE, os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_SH)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # typed at a terminal it is meant for the driver, which tells us
    bell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # nothing else may ring
    stopping = threading.Event()
    orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders, stopping), daemon=True).start()

    from ringflow.train.device import give_back_memory  # takes seconds
    from ringflow.tune.trial import carry_out

    while (told := orders.get()) is not None:
        ticket = Path(told["ticket"])
        _speak_into(Path(told["output"]))
        _take_place(told["place"])
        carry_out(ticket, ring=lambda: print(RING, file=bell), stopped=stopping.is_set)
        give_back_memory()
        print(DONE, file=bell)


def _listen(orders: queue.SimpleQueue[dict[str, Any] | None], stopping: threading.Event) -> None:
    for line in sys.stdin:
        orders.put(json.loads(line))
    stopping.set()
    orders.put(None)
    os.kill(os.getpid(), signal.SIGTERM)  # a training writes a checkpoint; whatever else there is has nothing to save


def _speak_into(path: Path) -> None:
    """What is written for people goes beside the run of the trial."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _take_place(place: dict[str, str]) -> None:
    """Who this process is among those of its trial."""
    for name in (*OURS, "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    os.environ.update(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

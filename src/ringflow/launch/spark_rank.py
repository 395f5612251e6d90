"""One of several processes that Spark has placed, and whoever watches it there.

TorchDistributor starts `together` in every task, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. The work itself is a
process below it: so one that is killed is something to tell, not the end of the task, which Spark would report on a hundred
lines. The watchers tell each other how their processes ended, through the store at MASTER_ADDR:MASTER_PORT, which torchrun
keeps or the first watcher; when one has failed, the others are ended soon after. Run as a module, this is the process that
calls a function.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

from ringflow.base.errors import FailureError, RingflowError
from ringflow.base.log import complain
from ringflow.launch.environment import STORE_KEPT, loopback_store, loopback_variables

_SECONDS_BETWEEN_LOOKS = 0.3
#: Time for the others to find out by themselves that one has failed, and to say so.
_SECONDS_OF_GRACE = 5.0
_SECONDS_TO_MEET = 120.0
#: The store takes no more at a time.
_PIECE = 4 << 20
_FAILED, _ENDED = "ringflow/failed", "ringflow/ended"


class Ended(NamedTuple):
    """How a process ended."""

    rank: int
    code: int  # negative: the signal that ended it
    answer: bytes = b""  # what it wrote on stdout
    order: int = 0  # 1 for the first that failed, 2 for the second; 0 for one that did not
    stopped: bool = False  # because another had failed


def together(command: Sequence[str], given: bytes, folder: str, quiet: bool) -> list[Ended] | None:
    """Run Python with these words in a folder, `given` on its stdin, as one of a team. On the first node: how all ended."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    watch = _Watch(rank)
    ended = watch.run(command, given, folder, quiet)
    watch.tell(ended)
    return watch.heard(size) if os.environ["GROUP_RANK"] == "0" else None


class _Watch:
    """Looks after a process, and at what the other watchers say."""

    def __init__(self, rank: int) -> None:
        self._rank, self._parent = rank, os.getppid()
        self._met: Any = None
        self._told_to_end = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._told_to_end = True

    @property
    def _is_over(self) -> bool:
        """Whether Spark has given up the task."""
        return self._told_to_end or os.getppid() != self._parent

    def run(self, command: Sequence[str], given: bytes, folder: str, quiet: bool) -> Ended:
        """Run a process to its end, or until there is no use in it any more."""
        if not os.path.isdir(folder):
            where = socket.gethostname()
            complain(
                f"ringflow: error: a worker on {where} cannot see {folder}; start in a folder that all workers see"
            )
            return self._ended(1, b"")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL if quiet else None}
        # The process finds the store that torchrun keeps, or the first watcher; it need not open one.
        environment = {**os.environ, **loopback_variables(os.environ["MASTER_ADDR"]), STORE_KEPT: "True"}
        start = [sys.executable, *command]
        with subprocess.Popen(start, cwd=folder, env=environment, **pipes) as child:  # type: ignore[call-overload]
            os.nice(10)  # torch, for the store, takes seconds to load: the process comes first
            try:
                return self._watched(child, given)
            finally:
                child.kill()

    def _watched(self, child: subprocess.Popen[bytes], given: bytes) -> Ended:
        input_once: bytes | None = given
        failed_at: float | None = None
        stopped = False
        while True:
            try:
                answer, _ = child.communicate(input_once, _SECONDS_BETWEEN_LOOKS)
                return self._ended(child.returncode, answer, stopped)
            except subprocess.TimeoutExpired:
                input_once = None
            now = time.monotonic()
            if failed_at is None and self._store.check([_FAILED]):
                failed_at = now
            stopped = self._is_over or (failed_at is not None and now - failed_at > _SECONDS_OF_GRACE)
            if stopped:
                child.terminate()

    def _ended(self, code: int, answer: bytes, stopped: bool = False) -> Ended:
        order = self._store.add(_FAILED, 1) if code else 0
        return Ended(self._rank, code, answer, order, stopped)

    @property
    def _store(self) -> Any:
        if self._met is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            if self._rank == 0 and os.environ.get(STORE_KEPT) == "False":
                self._met = loopback_store(*place, int(os.environ["WORLD_SIZE"]))
            else:
                self._met = TCPStore(*place, is_master=False, timeout=timedelta(seconds=_SECONDS_TO_MEET))
        return self._met

    def tell(self, ended: Ended) -> None:
        """Let the first watcher know."""
        content = pickle.dumps(ended)
        pieces = range(0, len(content), _PIECE)
        for number, start in enumerate(pieces):
            self._store.set(f"{_ENDED}/{ended.rank}/{number}", content[start : start + _PIECE])
        self._store.set(f"{_ENDED}/{ended.rank}", str(len(pieces)))

    def heard(self, size: int) -> list[Ended]:
        """What all watchers have told, when the last one has."""
        while not self._store.check([f"{_ENDED}/{rank}" for rank in range(size)]):
            if self._is_over:
                sys.exit(1)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return [pickle.loads(self._read(rank)) for rank in range(size)]

    def _read(self, rank: int) -> bytes:
        pieces = int(self._store.get(f"{_ENDED}/{rank}"))
        return b"".join(self._store.get(f"{_ENDED}/{rank}/{number}") for number in range(pieces))


def outcome(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What a function returns, or its error as one that can travel."""
    try:
        return function(*args, **kwargs), None
    except RingflowError as error:
        return None, error
    except Exception as error:
        said = " ".join(str(error).split())
        rank = os.environ.get("RANK", "0")
        failure = FailureError(f"{type(error).__name__} in process {rank}: {said}; the traceback follows")
        failure.add_note(traceback.format_exc())
        return None, failure


def main() -> int:
    """Read a function from stdin, call it, and write its outcome on stdout; what it prints goes to stderr."""
    from pyspark import cloudpickle

    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        made = outcome(*cloudpickle.load(sys.stdin.buffer))
        cloudpickle.dump(made, answers)  # type: ignore[no-untyped-call]
    return int(made[1] is not None)


if __name__ == "__main__":
    sys.exit(main())

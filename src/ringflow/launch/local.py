"""Processes on this machine, started and watched by torchrun."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence

from ringflow.base.errors import FailureError


def arguments(words: Sequence[str], workers: int, restarts: int = 0) -> list[str]:
    """What torchrun is told, to start a ringflow command in `workers` processes; if one dies, all are started again up to
    `restarts` times."""
    return [
        "--standalone",
        f"--nproc-per-node={workers}",
        f"--max-restarts={restarts}",
        "--module",
        "ringflow.cli",
        *words,
    ]


def run(words: Sequence[str], workers: int, restarts: int = 0) -> int:
    """Run a ringflow command in several processes; its exit code. What is wrong the command says itself."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for name in ("torch.distributed.elastic", torchrun.logger.name):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # tables and tracebacks for a wrong word
    try:
        asked = torchrun.parse_args(arguments(words, workers, restarts))  # type: ignore[no-untyped-call]
        torchrun.run(asked)  # type: ignore[no-untyped-call]
    except SignalException as error:
        return 128 + error.sigval
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        raise FailureError(
            f"process {rank} was ended by {name}, and the others with it; start again: it goes on from the last checkpoint"
        ) from None
    return 0

"""Processes on this machine, started and watched by torchrun."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence

from ringflow.base.errors import FailureError
from ringflow.launch.restarts import STOPPED, with_restarts

#: Signals that ask a training to stop after a checkpoint.
_STOP = (signal.SIGTERM, signal.SIGUSR1)
#: Signals that torchrun passes on.
_PASSED_ON = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


def arguments(words: Sequence[str], workers: int) -> list[str]:
    """What torchrun is told, to start a ringflow command in `workers` processes."""
    # It could start them again by itself, but would do so after a wrong word, too.
    return ["--standalone", f"--nproc-per-node={workers}", "--max-restarts=0", "--module", "ringflow.cli", *words]


def run(words: Sequence[str], workers: int, restarts: int = 0) -> int:
    """Run a ringflow command in several processes; its exit code. What is wrong the command says itself.

    If one dies, all are started again up to `restarts` times.
    """
    return with_restarts(lambda: _run(words, workers), restarts)


def _run(words: Sequence[str], workers: int) -> int:
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.setdefault("TORCHELASTIC_SIGNALS_TO_HANDLE", _PASSED_ON)
    for name in [*logging.Logger.manager.loggerDict]:
        if name.startswith(("torch.distributed.elastic", torchrun.logger.name)):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # tables and tracebacks for a wrong word
    try:
        asked = torchrun.parse_args(arguments(words, workers))  # type: ignore[no-untyped-call]
        torchrun.run(asked)  # type: ignore[no-untyped-call]
    except SignalException as error:  # which the processes got, too
        return STOPPED if error.sigval in _STOP else 128 + error.sigval
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        name = signal.Signals(-failure.exitcode).name
        raise FailureError(
            f"process {rank} was ended by {name}, and the others with it; start again: it goes on from the last checkpoint"
        ) from None
    return 0

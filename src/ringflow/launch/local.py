"""Processes on this machine, started and watched by torchrun."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Sequence

from ringflow.launch.environment import STOPPED, changed, killed

_VARIABLES = {
    # Torchrun opens no store for the processes: the first of them does, on loopback.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1",
}


def run(words: Sequence[str], workers: int) -> int:
    """Run a ringflow command in several processes; its exit code. What is wrong the command says itself."""
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    for name in [*logging.Logger.manager.loggerDict]:
        if name.startswith(("torch.distributed.elastic", torchrun.logger.name)):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # tables and tracebacks for a wrong word
    try:
        with tempfile.TemporaryDirectory(prefix="ringflow-") as folder, changed(os.environ, _VARIABLES):
            # With --standalone it would listen on every address of the machine; so it notes in a file that it is alone.
            alone = ["--rdzv-backend=c10d", "--rdzv-conf=store_type=file", f"--rdzv-endpoint={folder}/meeting"]
            # It could start them again by itself, but would do so after a wrong word, too.
            options = [*alone, "--local-addr=127.0.0.1", f"--nproc-per-node={workers}", "--max-restarts=0"]
            asked = torchrun.parse_args([*options, "--module", "ringflow.cli", *words])  # type: ignore[no-untyped-call]
            torchrun.run(asked)  # type: ignore[no-untyped-call]
    except SignalException as error:  # which the processes got, too
        return STOPPED if error.sigval in (signal.SIGTERM, signal.SIGUSR1) else 128 + error.sigval
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode >= 0:
            return failure.exitcode
        raise killed(f"process {rank}", -failure.exitcode) from None
    return 0

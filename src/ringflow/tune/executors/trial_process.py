"""A process of a trial on a cluster: it trains as one of several, writes beside the run, and can be asked to stop."""

from __future__ import annotations

import os
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from ringflow.base.log import complain
from ringflow.tune.desk import read_order
from ringflow.tune.executors.stop_file import heeding_stop
from ringflow.tune.trial import carry_out


def work_on(ticket: Path) -> None:
    """Carry out an order, in the main thread of every process of the trial."""
    log = log_of(read_order(ticket).run, int(os.environ.get("RANK", "0")))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as said, redirect_stdout(said), redirect_stderr(said):
        try:
            with heeding_stop(ticket) as stopped:
                carry_out(ticket, stopped=stopped)
        except Exception:
            if not ticket.is_dir():
                complain("the order was taken back by a new driver; what was trained is saved")
                return
            traceback.print_exc()  # a mistake of ours, or a disk that takes no report
            raise


def log_of(run: Path, rank: int) -> Path:
    """Where a process of a trial writes what it has to say."""
    return run.with_suffix(".log" if rank == 0 else f".{rank}.log")

"""A process of a trial, as `srun` starts it: `python -m ringflow.tune.executors.slurm_job TICKET`."""

from __future__ import annotations

import sys
from pathlib import Path

from ringflow.base.threads import wait_without_spinning
from ringflow.launch.environment import adopt


def main(ticket: Path) -> None:
    """Carry out the order on a ticket."""
    wait_without_spinning()
    adopt()
    # torch is imported now that the environment is as it is to be.
    from ringflow.tune.executors.trial_process import work_on

    work_on(ticket)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

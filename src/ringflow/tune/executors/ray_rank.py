"""A process of a trial on a Ray cluster: an actor that trains as one of several, and can do so again for the next order."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from ringflow.base.errors import FailureError
from ringflow.base.threads import wait_without_spinning
from ringflow.launch.environment import OURS, QUIET, free_port
from ringflow.launch.frameworks import framework

LOOPBACK = "127.0.0.1"


class Rank:
    """One of the processes of a trial; `folder` is where the driver was started: names of files are meant from there."""

    def __init__(self, folder: str) -> None:
        os.environ |= QUIET  # before torch is there
        wait_without_spinning()
        self._folder = folder

    def meeting_place(self, on_one_node: bool) -> tuple[str, str]:
        """Address and port where the processes meet, if this is the first one."""
        address = LOOPBACK if on_one_node else framework("ray.util", "ray").get_node_ip_address()
        return str(address), str(free_port())

    def carry_out(self, ticket: str, rank: int, size: int, place: tuple[str, str] | None, on_gpus: bool) -> None:
        """Train as an order says, as one of several processes if there is a place to meet."""
        for name in (*OURS, "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)
        if place is not None:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": "0" if on_gpus else str(rank),  # a process sees no GPU but its own
                "MASTER_ADDR": place[0],
                "MASTER_PORT": place[1],
            }
        self._go_there(Path(ticket))
        # torch is imported now that the environment is as it is to be.
        from ringflow.tune.executors.trial_process import work_on

        work_on(Path(ticket))

    def _go_there(self, ticket: Path) -> None:
        try:
            os.chdir(self._folder)
            os.listdir(ticket)
        except OSError as error:
            raise FailureError(
                f"{socket.gethostname()} cannot see {error.filename}; put the study on a file system that all nodes share"
            ) from None

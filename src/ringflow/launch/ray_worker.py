"""What a process of Ray Train does for `ringflow launch ray`: meet the others, and run the command."""

from __future__ import annotations

import importlib
import io
import os
import socket
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from ringflow.base.log import complain
from ringflow.launch.environment import free_port
from ringflow.launch.frameworks import framework
from ringflow.launch.restarts import is_final


class FailedHereError(Exception):
    """The command failed and said why; Ray shall start it again."""


class Wire(io.TextIOBase):
    """A stream that ends in the launching process; what is written goes there when it is flushed."""

    def __init__(self, queue: Any, name: str) -> None:
        super().__init__()
        self._queue, self._name, self._text = queue, name, ""

    def write(self, text: str) -> int:
        """Keep it until it is flushed."""
        self._text += text
        return len(text)

    def flush(self) -> None:
        """Send what was written, and wait until it is there: a process that dies afterwards has said it."""
        if self._text:
            self._queue.put((self._name, self._text))
            self._text = ""


def work(told: dict[str, Any]) -> int:
    """Run the command in this process of Ray; its exit code. A traceback goes where the command's words go."""
    queue = told["queue"]
    with redirect_stdout(Wire(queue, "stdout")), redirect_stderr(Wire(queue, "stderr")):
        try:
            _meet(told["on_gpus"])
            code = _command(told["words"], told["folder"])
        except Exception:
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    if told["restarts"] and not is_final(code):
        raise FailedHereError
    return code


def _meet(on_gpus: bool) -> None:
    """Put into the environment who this process is and where all of them meet."""
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero

    context = get_context()
    here = framework("ray.util", "ray").get_node_ip_address()
    address, port = broadcast_from_rank_zero((here, free_port()))
    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        # A process sees no GPU but its own.
        "LOCAL_RANK": "0" if on_gpus else str(context.get_local_rank()),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def _command(words: list[str], folder: str) -> int:
    try:
        os.chdir(folder)  # names of files are meant from where the command was given
    except OSError:
        complain(
            f"ringflow: error: {socket.gethostname()} cannot see {folder}; start from a folder on a file system that all "
            "nodes share"
        )
        return 1
    return int(importlib.import_module("ringflow.cli").main(words))

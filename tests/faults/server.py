"""A warm process that runs commands in forks of itself: an example costs its work, not the start of an interpreter.

A request per line of stdin, an answer per line of stdout, both JSON: a command and where it is disturbed gives the number of
its process; the number of a process gives how it ended, once it has. What an undisturbed command imported is imported here,
for the next ones.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

#: A command that hangs ends after so many seconds.
PATIENCE = 120


def main() -> None:
    from ringflow.base.provenance import code_version
    from ringflow.cli import main as command

    code_version()  # the same for all, even if somebody commits meanwhile
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            _, status = os.waitpid(asked, os.WUNTRACED)
            answer = "stopped" if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        elif isinstance(asked, list):
            answer = sum(map(warm, asked))
        else:
            answer = os.fork() or run(command, **asked)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def warm(name: str) -> bool:
    """Import a module that commands import, unless it would not let go of the process."""
    with suppress(Exception):
        importlib.import_module(name)
    assert threading.active_count() == 1, f"{name} starts a thread, which a fork would lose"
    return name in sys.modules


def run(command: object, words: list[str], place: str, step: int, how: int, notes: str) -> NoReturn:
    """In a fork: the command, and the end of the process. Beside what it says and its steps, `notes` has its imports."""
    code = 70
    try:
        os.chdir(place)
        output = os.open(f"{notes}/said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["TMPDIR"] = tempfile.tempdir = f"{place}/tmp"
        signal.alarm(PATIENCE)
        shim = ctypes.CDLL(None)
        shim.faults_begin(place.encode(), ctypes.c_long(step), how, f"{notes}/steps".encode())
        code = command(words)  # type: ignore[operator]
        Path(notes, "imports").write_text(json.dumps(list(sys.modules)), encoding="utf-8")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()

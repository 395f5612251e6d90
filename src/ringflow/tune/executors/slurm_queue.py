"""How jobs of Slurm come to their orders: a folder of small files, of which a job takes the oldest by renaming it.

STUDY/slurm/queue-2/00000012     an order of two processes that nobody has; holds the path of its ticket
TICKET/claimed-4711              the same file, when job 4711 has taken it
TICKET/released.json             its processes are gone, and with which exit code
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ringflow.base.rundir import write_atomic, write_errors

_CLAIMED, _RELEASED = "claimed-", "released.json"


def slurm_folder(study: Path) -> Path:
    """Where jobs of a study find their orders, and leave what they have to say."""
    return study / "slurm"


def _queue(study: Path, workers: int) -> Path:
    return slurm_folder(study) / f"queue-{workers}"


def clear(study: Path) -> None:
    """Take back all orders that nobody has."""
    for queue in slurm_folder(study).glob("queue-*"):
        shutil.rmtree(queue, ignore_errors=True)


def post(study: Path, workers: int, number: int, ticket: Path) -> None:
    """Offer an order to jobs of its size; lower numbers are taken first."""
    queue = _queue(study, workers)
    with write_errors(queue):
        queue.mkdir(parents=True, exist_ok=True)
    write_atomic(queue / f"{number:08d}", str(ticket.absolute()))


def claim(study: Path, workers: int, job: str) -> Path | None:
    """Take the oldest order of a size; its ticket, or None if there is none. Of several jobs that want it one gets it."""
    for offer in _offers(_queue(study, workers)):
        try:
            ticket = Path(offer.read_text(encoding="utf-8"))
            offer.rename(ticket / f"{_CLAIMED}{job}")
        except FileNotFoundError:
            continue  # another job was faster
        return ticket
    return None


def _offers(queue: Path) -> Iterator[Path]:
    try:
        names = sorted(os.listdir(queue))
    except FileNotFoundError:
        names = []
    return (queue / name for name in names if name.isdecimal())


def claimant(ticket: Path) -> str | None:
    """The job that has an order."""
    names = [name for name in os.listdir(ticket) if name.startswith(_CLAIMED)]
    return names[0].removeprefix(_CLAIMED) if names else None


def release(ticket: Path, code: int) -> None:
    """Say that the processes of an order are gone."""
    write_atomic(ticket / _RELEASED, json.dumps({"code": code}))


def released(ticket: Path) -> int | None:
    """The exit code of the processes of an order; None as long as they are there."""
    try:
        return int(json.loads((ticket / _RELEASED).read_text(encoding="utf-8"))["code"])
    except FileNotFoundError:
        return None

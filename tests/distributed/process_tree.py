"""Who was started by whom."""

from __future__ import annotations

import subprocess


def descendants(pid: int) -> dict[int, str]:
    """All processes that another one started, or they in turn, with their command lines."""
    lines = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in lines.splitlines()]
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        children = {int(row[0]): " ".join(row[2:]) for row in rows if int(row[1]) in parents}
        found |= children
        parents = set(children)
    return found

"""Who was started by whom, and who listens where."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

_LISTEN = "0A"


def descendants(pid: int) -> dict[int, str]:
    """All processes that another one started, or they in turn, with their command lines."""
    everybody = list(_processes())
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        children = {child: line for child, parent, line in everybody if parent in parents}
        found |= children
        parents = set(children)
    return found


def _processes() -> Iterator[tuple[int, int, str]]:
    """Number, number of the parent and command line of every process; a small Linux has no ps, and macOS no /proc."""
    if not Path("/proc/self/stat").exists():
        lines = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
        for pid, parent, *words in (line.split(maxsplit=2) for line in lines.splitlines()):
            yield int(pid), int(parent), " ".join(words)
        return
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            state, parent = folder.joinpath("stat").read_text().rpartition(")")[2].split()[:2]
            line = folder.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            yield int(folder.name), int(parent), line or f"[{state}]"


class Listening(NamedTuple):
    """A socket that takes connections, and the processes that hold it."""

    address: IPv4Address | IPv6Address
    port: int
    held_by: tuple[int, ...]

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return (getattr(self.address, "ipv4_mapped", None) or self.address).is_loopback


def listening(pids: Iterable[int]) -> list[Listening]:
    """The sockets of processes that take connections by TCP."""
    holders: dict[str, list[int]] = {}
    for pid in pids:
        with suppress(OSError):  # it has ended
            for file in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    holders.setdefault(str(file.readlink()), []).append(pid)
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [
        Listening(*_place(row[1]), tuple(holders[f"socket:[{row[9]}]"]))
        for row in rows
        if row[3] == _LISTEN and f"socket:[{row[9]}]" in holders
    ]


def _place(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    """Address and port, as the kernel writes them: words of four bytes in the order of the machine."""
    address, port = text.split(":")
    words = [int(address[start : start + 8], 16) for start in range(0, len(address), 8)]
    return ip_address(struct.pack(f"={len(words)}I", *words)), int(port, 16)

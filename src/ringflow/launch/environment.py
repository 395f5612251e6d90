"""What processes that were started together know of each other, in the variables that torch reads.

MPI and Slurm tell a process its number in words of their own. Whoever starts it adds MASTER_ADDR and MASTER_PORT, the place
where the processes meet.
"""

from __future__ import annotations

import errno
import hmac
import importlib
import io
import os
import secrets
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import lru_cache
from ipaddress import ip_address
from select import select
from typing import Any, NamedTuple

from ringflow.base.errors import FailureError, StoppedError, UsageError
from ringflow.base.log import complain, printable

#: Number of the process, number of all, number on its machine, by who started them.
_WORDS = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)

#: What torch reads to know a process among the others; left from elsewhere it would be believed.
OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
#: Whether somebody else than the first process keeps the store where they meet, as torchrun says it.
STORE_KEPT = "TORCHELASTIC_USE_AGENT_STORE"
#: What torch's C++ has to say about a process that died is a stack of frames; the command says it in one line.
QUIET = {"TORCH_CPP_LOG_LEVEL": "FATAL"}
#: Told to stop, and did so after a checkpoint.
STOPPED = StoppedError.exit_code
_DONE, _WRONG_USAGE, _SIGNAL = 0, 2, 128
#: Time for the last words of processes that have ended; between looks whether all is over.
_SECONDS_TO_END, _SECONDS_BETWEEN_LOOKS = 5.0, 0.05
#: For whoever connects to say who they are; bytes of what they then say at once.
_SECONDS_TO_BE_KNOWN, _LONGEST_LINE = 5.0, 2**16
GOES_ON = "it goes on from the last checkpoint"


def adopt(variables: MutableMapping[str, str] = os.environ) -> None:
    """Translate the words of MPI or Slurm, if a meeting place was given and torch's own words are not there."""
    if "RANK" in variables or "MASTER_ADDR" not in variables:
        return
    for rank, size, local_rank in _WORDS:
        if rank in variables and size in variables:
            variables["RANK"], variables["WORLD_SIZE"] = variables[rank], variables[size]
            variables["LOCAL_RANK"] = variables.get(local_rank, variables[rank])
            return


def is_loopback(host: str) -> bool:
    """Whether a name or an address leads to this machine and cannot be reached from another."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


@lru_cache(maxsize=1)
def meeting_store(host: str, port: int, size: int) -> Any:
    """The store through which `size` processes meet, kept here and at this address alone: torch's own listens on all.

    It is kept for those who meet again: others may be early, and would find the store of the meeting before.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        keeps = socket.create_server(address[:2], family=family)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise FailureError(
                f"MASTER_ADDR={host} is no address of {socket.gethostname()}, the first machine"
            ) from None
        raise
    return TCPStore(host, port, size, is_master=True, wait_for_workers=False, master_listen_fd=keeps.detach())


def loopback_variables(meeting: str) -> dict[str, str]:
    """What keeps processes that meet at a loopback address off the network when they talk: torch's, and those of MPICH."""
    if not is_loopback(meeting):
        return {}
    [interface] = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES", "FI_TCP_IFACE")
    return {name: interface for name in names if name not in os.environ}  # whoever sets one keeps their choice


@contextmanager
def changed(variables: MutableMapping[str, str], new: Mapping[str, str]) -> Iterator[None]:
    """Set variables as long as the context lasts."""
    before = {name: variables[name] for name in new if name in variables}
    variables.update(new)
    try:
        yield
    finally:
        for name in new:
            variables.pop(name, None)
        variables.update(before)


def free_port() -> int:
    """A port on this machine that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("", 0))  # free on all its addresses: which one the processes meet at is known later
        return int(found.getsockname()[1])


def require_free(port: str) -> None:
    """An error if somebody listens on a port of this machine already: not all of the processes would notice."""
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"MASTER_PORT={port} is no port; give a number below 65536, or unset it")
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", int(port)))
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"MASTER_PORT={port} cannot be used ({reason}); give another, or unset it") from None


def killed(process: str, number: int) -> FailureError:
    """What is said of a process that was ended by a signal of this number."""
    name = signal.Signals(number).name
    return FailureError(f"{process} was ended by {name}, and the others with it; start again: {GOES_ON}")


def is_final(code: int) -> bool:
    """Whether another start would not change an exit code: done, wrong usage, told to stop, or ended by a signal itself."""
    return code in (_DONE, _WRONG_USAGE, STOPPED) or code > _SIGNAL


def with_restarts(start: Callable[[], int], restarts: int) -> int:
    """Start something, and again up to `restarts` times while it fails; the last exit code.

    A command goes on from its last checkpoint by itself.
    """
    for number in range(1, restarts + 1):
        try:
            if is_final(code := start()):
                return code
        except FailureError as error:
            complain(f"ringflow: {error}")
        complain(f"ringflow: starting again, {number} of {restarts}")
    return start()


class Hearing(NamedTuple):
    """Where processes elsewhere say what they have to say, and what makes them known there."""

    host: str
    port: int
    secret: str


@contextmanager
def listening(host: str) -> Iterator[Hearing]:
    """A place, at this address alone, where processes elsewhere are heard; what they say comes on stderr.

    Lines of text are all that is taken. Whoever does not begin with the secret is not heard.
    """
    speakers, stream, secret = [], sys.stderr, secrets.token_hex(32)

    class Lines(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            speakers.append(threading.current_thread())
            with suppress(OSError):  # nothing is said for long, or it is gone
                self.connection.settimeout(_SECONDS_TO_BE_KNOWN)
                if not hmac.compare_digest(self.rfile.readline(len(secret) + 1), f"{secret}\n".encode()):
                    return
                self.connection.settimeout(None)
                while line := self.rfile.readline(_LONGEST_LINE):
                    stream.write(printable(line.decode(errors="replace")))
                    stream.flush()

    if host in ("", "0.0.0.0", "::"):
        raise FailureError(f"what processes say would be heard at every address of this machine ({host!r}); name one")
    with socketserver.ThreadingTCPServer((host, 0), Lines) as server:
        server.daemon_threads = True  # one whose machine is gone never ends
        threading.Thread(target=server.serve_forever, args=(_SECONDS_BETWEEN_LOOKS,), daemon=True).start()
        try:
            yield Hearing(host, server.server_address[1], secret)
        finally:
            server.shutdown()
            while select([server], [], [], 0)[0]:  # whoever has connected, and was not heard yet
                server.handle_request()
            until = time.monotonic() + _SECONDS_TO_END
            for speaker in speakers:
                speaker.join(max(until - time.monotonic(), 0.0))


def connected(place: Hearing) -> socket.socket:
    """A connection to a place where this process is heard."""
    connection = socket.create_connection(place[:2])
    connection.sendall(f"{place.secret}\n".encode())
    return connection


def enter(folder: str) -> None:
    """Go to the folder where the command was given: names of files are meant from there."""
    try:
        os.chdir(folder)
    except OSError:
        raise FailureError(
            f"{socket.gethostname()} cannot see {folder}; start from a folder on a file system that all nodes share"
        ) from None


def run_here(words: Sequence[str]) -> tuple[int, str]:
    """Run a ringflow command in this process; its exit code, and what it writes on stdout."""
    with redirect_stdout(io.StringIO()) as said:
        code = int(importlib.import_module("ringflow.cli").main(words))
    return code, said.getvalue()

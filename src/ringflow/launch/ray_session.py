"""A connection to Ray: the one that this process has, one to a cluster that answers, or to one that is started here."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.environment import is_loopback
from ringflow.launch.frameworks import framework, one_line, require_answer, split_address

_ADVICE = "start it with `ray start --head`, or leave --address out to use this machine"


def open_ray(address: str | None = None, workers: int | None = None) -> tuple[Any, bool]:
    """The module `ray`, connected to a cluster or to one that is started on this machine; and whether it was done here.

    The connection that this process has already is taken as it is.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what becomes the default, and silences a warning
    ray = framework("ray", "ray")
    if ray.is_initialized():
        return ray, False
    head = None if address is None else _head(address)
    own = {"include_dashboard": False, "num_cpus": workers} if head is None else {}
    try:
        with _loopback_kept(head is None or is_loopback(head[0])):
            # What workers print would come on stdout, which belongs to --json.
            where = "local" if head is None else f"{head[0]}:{head[1]}"
            ray.init(where, log_to_driver=False, logging_level=logging.WARNING, **own)
    except Exception as error:  # Ray has a dozen kinds for this
        raise FailureError(
            f"cannot use Ray at {address or 'this machine'} ({one_line(str(error))}); {_ADVICE}"
        ) from None
    return ray, True


@contextmanager
def _loopback_kept(keep: bool) -> Iterator[None]:
    """Let Ray start on loopback, or connect there.

    Otherwise it puts the address by which others reach this machine in the place of loopback, and listens on all of them. The
    constant is its own way not to, which it takes on laptops.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = before and not keep
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _head(address: str) -> tuple[str, int]:
    """Where the head of a cluster answers; an error if none does, for Ray itself tries for minutes."""
    from ray._private import services

    named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if named == "auto":
        try:
            named = services.get_ray_address_from_environment("auto", None)
        except ConnectionError:
            raise FailureError(f"no Ray cluster runs on this machine; {_ADVICE}") from None
    if "://" in named or (head := split_address(named)) is None:
        raise UsageError(
            f"{named} is no address of a Ray cluster; give auto or HOST:PORT of its head, on a machine of the cluster"
        )
    if is_loopback(head[0]):
        # A head that others can reach calls itself by the address they use, though it answers here, too.
        outward = str(services.get_node_ip_address()), head[1]  # type: ignore[no-untyped-call]
        with suppress(FailureError), require_answer("Ray cluster", *outward, _ADVICE):
            head = outward
    with require_answer("Ray cluster", *head, _ADVICE) as connection:
        if not os.environ.get("RAY_USE_TLS") and not _speaks_grpc(connection):
            raise FailureError(
                f"what answers at {head[0]}:{head[1]} is no Ray cluster; give the port of its head (6379)"
            )
    return head


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side answers the greeting of HTTP/2 with its settings, as every gRPC server does."""
    settings = 4
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, settings, 0, 0, 0, 0, 0]))
        answer = connection.recv(9, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 9 and answer[3] == settings

"""A connection to Ray: the one that this process has, one to a cluster that answers, or to one that is started here."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from ringflow.base.errors import FailureError, UsageError
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
    own: dict[str, Any] = {}
    if address is None:
        own = {"include_dashboard": False, "num_cpus": workers}
    else:
        _require_head(address)
    try:
        # What workers print would come on stdout, which belongs to --json.
        ray.init(address or "local", log_to_driver=False, logging_level=logging.WARNING, **own)
    except Exception as error:  # Ray has a dozen kinds for this
        raise FailureError(
            f"cannot use Ray at {address or 'this machine'} ({one_line(str(error))}); {_ADVICE}"
        ) from None
    return ray, True


def _require_head(address: str) -> None:
    """Make sure that a head answers: Ray itself tries for minutes."""
    from ray._private.services import canonicalize_bootstrap_address

    named = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    if "://" in named or (named != "auto" and split_address(named) is None):
        raise UsageError(
            f"{named} is no address of a Ray cluster; give auto or HOST:PORT of its head, on a machine of the cluster"
        )
    # The address that Ray will use: it puts the address of this machine in the place of localhost.
    head = split_address(canonicalize_bootstrap_address(named) or "")
    if head is None:
        raise FailureError(f"no Ray cluster runs on this machine; {_ADVICE}")
    with require_answer("Ray cluster", *head, _ADVICE) as connection:
        if not os.environ.get("RAY_USE_TLS") and not _speaks_grpc(connection):
            raise FailureError(
                f"what answers at {head[0]}:{head[1]} is no Ray cluster; give the port of its head (6379)"
            )


def _speaks_grpc(connection: socket.socket) -> bool:
    """Whether the other side answers the greeting of HTTP/2 with its settings, as every gRPC server does."""
    settings = 4
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, settings, 0, 0, 0, 0, 0]))
        answer = connection.recv(9, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(answer) == 9 and answer[3] == settings

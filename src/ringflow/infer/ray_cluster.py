"""Workers on Ray: every task is a Ray task; its workers keep the model between tasks, and are replaced when they die."""

from __future__ import annotations

import logging
import os
import socket
from concurrent.futures import Future
from typing import Any, Self

from ringflow.base.errors import FailureError, UsageError
from ringflow.infer.carried import CarriedModel
from ringflow.infer.remote import framework, one_line, require_answer, split_address
from ringflow.infer.shards import Answer, ShardSource, ShardTask, reconstruct_shard

#: How often a task is given to another worker when the first one dies.
_NEW_TRIES = 3
_ADVICE = "start it with `ray start --head`, or leave --address out to use this machine"


class RayCluster:
    """The workers of a Ray cluster, or of the one that this process is connected to, which then stays connected."""

    def __init__(self, address: str | None, workers: int | None, source: ShardSource, model: CarriedModel) -> None:
        self._ray, self._ours = open_ray(address, workers)
        self.workers = workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        self.at_once = self.workers
        self._told = self._ray.put((source, model))
        self._work = self._ray.remote(num_cpus=1, max_retries=_NEW_TRIES)(_work)
        self._under_way: set[Any] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for task in list(self._under_way):
            self._ray.cancel(task)
        if self._ours:
            self._ray.shutdown()

    def submit(self, task: ShardTask) -> Future[Answer]:
        """Start a task."""
        reference = self._work.remote(self._told, task)
        self._under_way.add(reference)
        future: Future[Answer] = reference.future()
        # Whoever holds a reference keeps the result in Ray's memory.
        future.add_done_callback(lambda _: self._under_way.discard(reference))
        return future

    def explain(self, error: Exception) -> FailureError:
        """What went wrong, in one line."""
        if "No module named 'ringflow'" in str(error):
            return FailureError("the workers' Python has no ringflow; install it on every node of the cluster")
        if isinstance(error, (self._ray.exceptions.WorkerCrashedError, self._ray.exceptions.OutOfMemoryError)):
            return FailureError(
                "workers died again and again, perhaps for want of memory; use fewer --workers and run the same command "
                "again: it goes on where it stopped"
            )
        reason = one_line(str(error))
        return FailureError(f"Ray failed ({reason}); run the same command again: it goes on where it stopped")


def _work(told: tuple[ShardSource, CarriedModel], task: ShardTask) -> Answer:
    """What a worker does."""
    source, model = told
    return reconstruct_shard(source, model, task)


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

"""Connections to Ray, and processes on a Ray cluster, started and watched by Ray Train.

    run(["train", "clic_tiny", "--out", "runs/first"], workers=2, address="auto")

Ray Train chooses the nodes, starts a process on each slot, and starts all again if one dies. The process group is the one that
the command makes itself, as with every other launcher: Ray only tells where to meet. What the processes say comes back over a
connection of its own, because Ray adds a prefix to every line and writes all of them on stdout.
"""

from __future__ import annotations

import io
import logging
import os
import re
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError, RingflowError, UsageError
from ringflow.base.log import complain, say
from ringflow.launch.environment import (
    GOES_ON,
    QUIET,
    connected,
    enter,
    free_port,
    is_final,
    is_loopback,
    listening,
    run_here,
)
from ringflow.launch.frameworks import framework, one_line, require_answer, split_address

_ADVICE = "start it with `ray start --head`, or leave --address out to use this machine"
#: Whoever trains on the CPU wants no GPU to be kept for it.
_ON_CPU = "compute.device=cpu"
#: Ray Train writes everything that is printed a second time, into its log.
_VARIABLES = {"RAY_TRAIN_ENABLE_PRINT_PATCH": "0", **QUIET}

_GO_ON = f"start again: {GOES_ON}"


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


def run(words: Sequence[str], workers: int, address: str | None = None, restarts: int = 0) -> int:
    """Run a ringflow command in several processes of a Ray cluster, or of one that is started here; its exit code.

    The processes work in the folder of this one. If one dies, all are started again up to `restarts` times.
    """
    ray, ours = open_ray(address, workers)
    try:
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        train, wants = framework("ray.train", "ray"), _share(ray, words, workers)
        host = ray.util.get_node_ip_address()
        with tempfile.TemporaryDirectory(prefix="ringflow-ray-") as folder, listening(host) as place:
            # A TorchTrainer is this one with a process group of its own, which would be in the way of the command's.
            trainer = DataParallelTrainer(
                work,
                train_loop_config={
                    "words": list(words),
                    "folder": str(Path.cwd()),
                    "says_at": place,
                    "restarts": restarts,
                    "on_gpus": "GPU" in wants,
                },
                scaling_config=train.ScalingConfig(
                    num_workers=workers, use_gpu="GPU" in wants, resources_per_worker=wants
                ),
                run_config=train.RunConfig(
                    storage_path=folder,  # nothing is kept there: ringflow writes its own checkpoints
                    failure_config=train.FailureConfig(max_failures=restarts),
                    worker_runtime_env={"env_vars": _VARIABLES},
                ),
            )
            code, said = _fit(ray, trainer)
        sys.stdout.write(said)
        return code
    finally:
        if ours:
            ray.shutdown()


def _share(ray: Any, words: Sequence[str], workers: int) -> dict[str, float]:
    """What a worker gets of a node; an error if the cluster does not have that much, for Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    on_gpus = _ON_CPU not in words and any(node.get("GPU", 0.0) >= 1.0 for node in nodes)
    wants = {"CPU": 1.0, "GPU": 1.0} if on_gpus else {"CPU": 1.0}

    def slots(*places: dict[str, float]) -> int:
        return sum(min(int(place.get(name, 0.0)) for name in wants) for place in places)

    if slots(*nodes) < workers:
        kind, way_out = ("GPUs", f", train with {_ON_CPU},") if on_gpus else ("cores", "")
        raise FailureError(
            f"{workers} workers do not fit: the Ray cluster has {slots(*nodes)} {kind}; use --workers {max(slots(*nodes), 1)}"
            f"{way_out} or add nodes with `ray start --address`"
        )
    if (free := slots(ray.available_resources())) < workers:
        say(f"waiting: {free} of the {workers} slots are free")
    return wants


def _fit(ray: Any, trainer: Any) -> tuple[int, str]:
    """Exit code and stdout of the first process."""
    from ray.train import TrainingFailedError

    try:
        with redirect_stdout(io.StringIO()):  # where Ray tells of dead workers, at great length
            code, said = trainer.fit().return_value
        return code, said
    except TrainingFailedError as error:
        failures = getattr(error, "worker_failures", {})
        if failures and all(FailedHereError.__name__ in str(failure) for failure in failures.values()):
            return 1, ""  # the command has said why
        if "No module named 'ringflow'" in str(error):
            reason = "the workers' Python has no ringflow; install it on every node of the cluster"
        elif not failures:
            reason = f"Ray Train failed ({one_line(str(error))}); {_GO_ON}"
        else:
            rank, told = min(failures), str(failures[min(failures)])
            kind = re.search(r"exit type: (\w+)", told)  # the rest of many lines is the same for every death
            why = f"Ray says {kind[1]}" if kind else one_line(told)
            reason = f"process {rank} was ended, and the others with it ({why}); {_GO_ON}"
        raise FailureError(reason) from None
    except ray.exceptions.RayError as error:
        raise FailureError(f"the Ray cluster was lost ({one_line(str(error))}); {_GO_ON}") from None


class FailedHereError(Exception):
    """The command failed and said why; Ray shall start it again."""


def work(config: dict[str, Any]) -> tuple[int, str]:
    """Run the command in this process of Ray; its exit code and its stdout. A traceback goes where the command's words go."""
    code, said = 1, ""
    with (
        connected(config["says_at"]) as connection,
        connection.makefile("w") as stream,
        redirect_stderr(stream),
    ):
        try:
            _meet(config["on_gpus"])
            enter(config["folder"])
            code, said = run_here(config["words"])
        except RingflowError as error:
            complain(f"ringflow: error: {error}")
        except Exception:
            traceback.print_exc()
    if config["restarts"] and not is_final(code):
        raise FailedHereError
    return code, said


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

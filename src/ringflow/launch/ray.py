"""Connections to Ray, and processes on a Ray cluster, started and watched by Ray Train.

    run(["train", "clic_tiny", "--out", "runs/first"], workers=2, address="auto")

Ray Train chooses the nodes, starts a process on each slot, and starts all again if one dies. The process group is the one that
the command makes itself, as with every other launcher: Ray only tells where to meet. What the processes say comes back through
a queue, because Ray's own way adds a prefix to every line and writes all of them on stdout.
"""

from __future__ import annotations

import importlib
import io
import logging
import os
import re
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import complain, say
from ringflow.launch.environment import GOES_ON, QUIET, free_port, is_final, is_loopback
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
        wants = _share(ray, words, workers)
        with tempfile.TemporaryDirectory(prefix="ringflow-ray-") as folder, _output_queue() as queue:
            config = {"words": list(words), "folder": str(Path.cwd()), "queue": queue, "restarts": restarts}
            return _fit(ray, _trainer(config, workers, wants, folder))
    finally:
        if ours:
            ray.shutdown()


def _share(ray: Any, words: Sequence[str], workers: int) -> dict[str, float]:
    """What a worker gets of a node; an error if the cluster does not have that much, for Ray would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    on_gpus = _ON_CPU not in words and any(node.get("GPU", 0.0) >= 1.0 for node in nodes)
    wants = {"CPU": 1.0, "GPU": 1.0} if on_gpus else {"CPU": 1.0}
    slots = _slots(nodes, wants)
    if slots < workers:
        kind, way_out = ("GPUs", f", train with {_ON_CPU},") if on_gpus else ("cores", "")
        raise FailureError(
            f"{workers} workers do not fit: the Ray cluster has {slots} {kind}; use --workers {max(slots, 1)}{way_out} or add "
            "nodes with `ray start --address`"
        )
    free = _slots([{name: ray.available_resources().get(name, 0.0) for name in wants}], wants)
    if free < workers:
        say(f"waiting: {max(free, 0)} of the {workers} slots are free")
    return wants


def _slots(nodes: Sequence[dict[str, float]], wants: dict[str, float]) -> int:
    return sum(min(int(node.get(name, 0.0) // amount) for name, amount in wants.items()) for node in nodes)


@contextmanager
def _output_queue() -> Iterator[Any]:
    """A queue; what comes in it is written on the stream that it names, and nothing else is: Ray tells of dead workers on
    stdout, at great length."""
    from ray.util.queue import Queue

    queue, streams = Queue(actor_options={"num_cpus": 0}), {"stdout": sys.stdout, "stderr": sys.stderr}

    def listen() -> None:
        while (said := queue.get()) is not None:
            name, text = said
            streams[name].write(text)
            streams[name].flush()

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        with redirect_stdout(io.StringIO()):
            yield queue
    finally:
        queue.put(None)
        listener.join()
        queue.shutdown()


def _trainer(config: dict[str, Any], workers: int, wants: dict[str, float], folder: str) -> Any:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    train, on_gpus = framework("ray.train", "ray"), "GPU" in wants
    # A TorchTrainer is this one with a process group of its own, which would be in the way of the command's.
    return DataParallelTrainer(
        work,
        train_loop_config={**config, "on_gpus": on_gpus},
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=on_gpus, resources_per_worker=wants),
        run_config=train.RunConfig(
            storage_path=folder,  # nothing is kept there: ringflow writes its own checkpoints
            failure_config=train.FailureConfig(max_failures=config["restarts"]),
            worker_runtime_env={"env_vars": _VARIABLES},
        ),
    )


def _fit(ray: Any, trainer: Any) -> int:
    from ray.train import TrainingFailedError

    try:
        return int(trainer.fit().return_value)
    except TrainingFailedError as error:
        failures = getattr(error, "worker_failures", {})
        told = [failure for failure in failures.values() if FailedHereError.__name__ in str(failure)]
        if failures and len(told) == len(failures):
            return 1  # the command has said why
        raise _explained(error, failures) from None
    except ray.exceptions.RayError as error:
        raise FailureError(f"the Ray cluster was lost ({one_line(str(error))}); {_GO_ON}") from None


def _explained(error: Exception, failures: dict[int, Exception]) -> FailureError:
    if "No module named 'ringflow'" in str(error):
        return FailureError("the workers' Python has no ringflow; install it on every node of the cluster")
    if not failures:
        return FailureError(f"Ray Train failed ({one_line(str(error))}); {_GO_ON}")
    rank = min(failures)
    told = str(failures[rank])
    kind = re.search(r"exit type: (\w+)", told)  # the rest of many lines is the same for every death
    reason = f"Ray says {kind[1]}" if kind else one_line(told)
    return FailureError(f"process {rank} was ended, and the others with it ({reason}); {_GO_ON}")


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


def work(config: dict[str, Any]) -> int:
    """Run the command in this process of Ray; its exit code. A traceback goes where the command's words go."""
    queue = config["queue"]
    with redirect_stdout(Wire(queue, "stdout")), redirect_stderr(Wire(queue, "stderr")):
        try:
            _meet(config["on_gpus"])
            code = _command(config["words"], config["folder"])
        except Exception:
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    if config["restarts"] and not is_final(code):
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

"""Processes on a Ray cluster, started and watched by Ray Train.

    run(["train", "clic_tiny", "--out", "runs/first"], workers=2, address="auto")

Ray Train chooses the nodes, starts a process on each slot, and starts all again if one dies. The process group is the one that
the command makes itself, as with every other launcher: Ray only tells where to meet. What the processes say comes back through
a queue, because Ray's own way adds a prefix to every line and writes all of them on stdout.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError
from ringflow.base.log import say
from ringflow.launch.environment import QUIET
from ringflow.launch.frameworks import framework, one_line
from ringflow.launch.ray_session import open_ray

#: Whoever trains on the CPU wants no GPU to be kept for it.
_ON_CPU = "compute.device=cpu"
#: Ray Train writes everything that is printed a second time, into its log.
_VARIABLES = {"RAY_TRAIN_ENABLE_PRINT_PATCH": "0", **QUIET}

_GO_ON = "start again: it goes on from the last checkpoint"


def run(words: Sequence[str], workers: int, address: str | None = None, restarts: int = 0) -> int:
    """Run a ringflow command in several processes of a Ray cluster, or of one that is started here; its exit code.

    The processes work in the folder of this one. If one dies, all are started again up to `restarts` times.
    """
    ray, ours = open_ray(address, workers)
    try:
        wants = _share(ray, words, workers)
        with tempfile.TemporaryDirectory(prefix="ringflow-ray-") as folder, _heard() as queue:
            told = {"words": list(words), "folder": str(Path.cwd()), "queue": queue, "restarts": restarts}
            return _fit(ray, _trainer(told, workers, wants, folder))
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
def _heard() -> Iterator[Any]:
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


def _trainer(told: dict[str, Any], workers: int, wants: dict[str, float], folder: str) -> Any:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    from ringflow.launch.ray_worker import work

    train, on_gpus = framework("ray.train", "ray"), "GPU" in wants
    # A TorchTrainer is this one with a process group of its own, which would be in the way of the command's.
    return DataParallelTrainer(
        work,
        train_loop_config={**told, "on_gpus": on_gpus},
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=on_gpus, resources_per_worker=wants),
        run_config=train.RunConfig(
            storage_path=folder,  # nothing is kept there: ringflow writes its own checkpoints
            failure_config=train.FailureConfig(max_failures=told["restarts"]),
            worker_runtime_env={"env_vars": _VARIABLES},
        ),
    )


def _fit(ray: Any, trainer: Any) -> int:
    from ray.train import TrainingFailedError

    from ringflow.launch.ray_worker import FailedHereError

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

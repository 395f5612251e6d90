"""Processes on the executors of Spark, placed by its TorchDistributor.

    run(["train", "clic_tiny", "data=data/ttbar", "--out", "runs/first"], workers=2, master="spark://head:7077")
    run_function(train_fn, ("data/ttbar",), workers=2)

Spark starts all processes at once, in barrier mode, on its own machine if no master is given. They work in the folder of this
process, which their machines have to see. What the first one says comes while it works; what it writes on stdout, when it is
done.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from ringflow.base.errors import FailureError, RingflowError
from ringflow.base.log import say
from ringflow.launch.environment import changed
from ringflow.launch.frameworks import one_line
from ringflow.launch.local import NO_STORE, arguments
from ringflow.launch.restarts import with_restarts
from ringflow.launch.spark_rank import Ended, together
from ringflow.launch.spark_session import open_spark, require_slots

#: What torchrun and torch say of a process that failed is said here, on one line; and lines come when they are written.
_VARIABLES = {"LOGLEVEL": "CRITICAL", "TORCH_CPP_LOG_LEVEL": "FATAL", "PYTHONUNBUFFERED": "1"}
_GO_ON = "start again: it goes on from the last checkpoint"
#: What Spark says when an executor, or the Python of a task, is gone.
_SIGNS_OF_DEATH = (
    "ExecutorLostFailure",
    "Python worker exited unexpectedly",
    "failed with return code",
    "ExecutorExited",
)


def run(words: Sequence[str], workers: int, master: str | None = None, restarts: int = 0) -> int:
    """Run a ringflow command in several processes; its exit code. What is wrong the command says itself.

    If one dies, all are started again up to `restarts` times.
    """
    return with_restarts(lambda: _run(words, workers, master), restarts)


def _run(words: Sequence[str], workers: int, master: str | None) -> int:
    ended = _distribute(["-m", "ringflow.cli", *words], b"", workers, master)
    sys.stdout.write(ended[0].answer.decode())
    sys.stdout.flush()
    failed = first_failure(ended)
    if failed is not None and failed.code < 0:
        raise _killed(failed)
    return failed.code if failed else 0


def run_function(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int,
    master: str | None = None,
    quiet: bool = False,
) -> list[Any]:
    """Call a function in several processes that know of each other; what it returned, by rank. Its error is raised here."""
    from pyspark import cloudpickle

    given = cloudpickle.dumps((function, tuple(args), dict(kwargs or {})))  # type: ignore[no-untyped-call]
    ended = _distribute(["-m", "ringflow.launch.spark_rank"], given, workers, master, quiet)
    failed = first_failure(ended)
    if failed is None:
        return [cloudpickle.loads(one.answer)[0] for one in ended]
    if failed.code < 0:
        raise _killed(failed)
    if not failed.answer:
        raise FailureError(f"process {failed.rank} ended with code {failed.code}; see what it says above")
    error: BaseException = cloudpickle.loads(failed.answer)[1]
    if isinstance(error, RingflowError):
        error.told = False  # whoever should have told it did so in another process
    raise error


def first_failure(ended: Sequence[Ended]) -> Ended | None:
    """The process that the others failed with: one that was killed before one that gave up, and the first of those."""
    failed = [one for one in ended if one.code]
    return min(failed, key=lambda one: (one.stopped, one.code > 0, one.order)) if failed else None


def _killed(failed: Ended) -> FailureError:
    name = signal.Signals(-failed.code).name
    return FailureError(f"process {failed.rank} was ended by {name}, and the others with it; {_GO_ON}")


def _distribute(
    command: Sequence[str], given: bytes, workers: int, master: str | None, quiet: bool = False
) -> list[Ended]:
    """Run Python with these words in several processes; how each of them ended."""
    begun = time.perf_counter()
    session, ours = open_spark(master, workers)
    try:
        distributor = _distributor(session, workers)
        require_slots(session.sparkContext, distributor.num_tasks)
        if ours:
            session.sparkContext.setLogLevel("OFF")
            say(f"spark is ready, with {workers} workers, after {time.perf_counter() - begun:.1f} s")
        return _placed(distributor, session.sparkContext, [list(command), given, os.getcwd(), quiet])
    finally:
        if ours:
            session.stop()


def _distributor(session: Any, workers: int) -> Any:
    from pyspark.ml.torch.distributor import TorchDistributor

    on_gpus = float(session.conf.get("spark.task.resource.gpu.amount", "0")) >= 1
    distributor = TorchDistributor(workers, local_mode=_is_here(session.sparkContext), use_gpu=on_gpus)
    distributor.logger.setLevel(logging.WARNING)
    return distributor


def _placed(distributor: Any, context: Any, told: Sequence[Any]) -> list[Ended]:
    # Beside a local master the processes are children of this one, elsewhere those of tasks, and what they say comes on stderr.
    variables = os.environ if _is_here(context) else context.environment
    with changed(variables, _VARIABLES | NO_STORE), warnings.catch_warnings(), redirect_stdout(sys.stderr):
        # Said of pandas 3 whenever Spark meets Arrow; pandas has no part in what is done here.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        try:
            start = _torchrun if _is_here(context) else distributor._run_training_on_pytorch_file
            ended: list[Ended] = distributor._run(together, start, *told)
        except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
            raise _explained(str(error)) from None
    return ended


def _torchrun(params: dict[str, Any], script: str) -> None:
    """Start a script beside a local master as TorchDistributor does, but on loopback."""
    from pyspark.ml.torch.distributor import TorchDistributor

    with tempfile.TemporaryDirectory(prefix="ringflow-") as folder:
        words = arguments([script], params["num_processes"], f"{folder}/meeting")
        wrapper = [sys.executable, "-m", "pyspark.ml.torch.torch_run_process_wrapper"]
        TorchDistributor._execute_command([*wrapper, *words])


def _is_here(context: Any) -> bool:
    return bool(context.master == "local" or context.master.startswith("local["))


def _explained(text: str) -> FailureError:
    if "No module named 'ringflow'" in text:
        return FailureError(
            "the workers' Python has no ringflow; install it there, or set PYSPARK_PYTHON to one that has"
        )
    if any(sign in text for sign in _SIGNS_OF_DEATH):
        return FailureError(f"a worker of Spark died, perhaps for want of memory, and the others with it; {_GO_ON}")
    return FailureError(f"Spark failed ({one_line(text)}); {_GO_ON}")

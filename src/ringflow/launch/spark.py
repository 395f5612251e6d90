"""Sessions of Spark, and processes on its executors, placed by its TorchDistributor.

    run(["train", "clic_tiny", "data=data/ttbar", "--out", "runs/first"], workers=2, master="spark://head:7077")
    run_function(train_fn, ("data/ttbar",), workers=2)

Spark starts all processes at once, in barrier mode, on its own machine if no master is given. They work in the folder of this
process, which their machines have to see. What the first one says comes while it works; what it writes on stdout, when it is
done.

TorchDistributor starts `together` in every task, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. The work itself is a
process below it: so one that is killed is something to tell, not the end of the task, which Spark would report on a hundred
lines. The watchers tell each other how their processes ended, through the store at MASTER_ADDR:MASTER_PORT, which torchrun
keeps or the first watcher; when one has failed, the others are ended soon after. Run as a module, this is the process that
calls a function.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ringflow.base.errors import FailureError, RingflowError, UsageError
from ringflow.base.log import complain, say
from ringflow.launch.environment import (
    GOES_ON,
    STORE_KEPT,
    changed,
    killed,
    loopback_store,
    loopback_variables,
    with_restarts,
)
from ringflow.launch.frameworks import framework, one_line, require_answer, split_address
from ringflow.launch.local import NO_STORE, arguments

_SECONDS_FOR_WORKERS = 60.0
#: Without a new worker, after which no more are expected of a standalone master: those of one start all at once.
_SECONDS_FOR_MORE = 10.0
_SECONDS_BETWEEN_LOOKS = 0.3
#: Time for the others to find out by themselves that one has failed, and to say so.
_SECONDS_OF_GRACE = 5.0
_SECONDS_TO_MEET = 120.0
#: The store takes no more at a time.
_PIECE = 4 << 20
_FAILED, _ENDED = "ringflow/failed", "ringflow/ended"
_LOOPBACK = ("localhost", "127.0.0.1")
#: What torchrun and torch say of a process that failed is said here, on one line; and lines come when they are written.
_VARIABLES = {"LOGLEVEL": "CRITICAL", "TORCH_CPP_LOG_LEVEL": "FATAL", "PYTHONUNBUFFERED": "1"}
_GO_ON = f"start again: {GOES_ON}"
#: What Spark says when an executor, or the Python of a task, is gone.
_SIGNS_OF_DEATH = (
    "ExecutorLostFailure",
    "ExecutorExited",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
    "failed with return code",
)


@contextmanager
def quiet_about_pandas() -> Iterator[None]:
    """Spark warns of pandas 3 whenever it meets Arrow; pandas has no part in what is done here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


def open_spark(master: str | None = None, workers: int | None = None) -> tuple[Any, bool]:
    """A session at a master, on this machine unless given, and whether it was opened here.

    The session that this process has already is taken as it is.
    """
    framework("pyspark", "spark")
    with quiet_about_pandas():
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if (there := SparkContext._active_spark_context) is not None:
            if master not in (None, there.master):
                raise UsageError(
                    f"this process has a session at {there.master}; stop it before you open one at {master}"
                )
            return SparkSession.builder.getOrCreate(), False
        master = master or f"local[{workers or '*'}]"
        require_master(master)
        require_java()
        # The same Python on both sides; an environment of one's own for the workers is left as it is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder.appName("ringflow")
        for name, value in _settings(master, workers).items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate(), True
        except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
            raise _no_session(master, str(error)) from None


def _no_session(master: str, reason: str) -> FailureError:
    if "JAVA_GATEWAY_EXITED" in reason:
        return FailureError(
            "Spark does not start; it needs Java 17 or later: see what it says above, and set JAVA_HOME"
        )
    if "stopped SparkContext" in reason:
        return FailureError(f"{master} answers but takes no work; is it a Spark master, of the version installed here?")
    return FailureError(f"no Spark session at {master} ({one_line(reason)}); see what Spark says above")


def _settings(master: str, workers: int | None) -> dict[str, str]:
    settings = {
        "spark.master": master,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if workers and not master.startswith("local"):
        settings["spark.cores.max"] = settings["spark.executor.instances"] = str(workers)
    hosts = [host for host, _ in _standalone(master)]
    if master.startswith("local") or (hosts and all(host in _LOOPBACK for host in hosts)):
        # The name of a laptop leads nowhere often enough.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return settings


def _standalone(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of the masters in `spark://host:port,host:port`."""
    if not master.startswith("spark://"):
        return []
    addresses = [split_address(part) for part in master.removeprefix("spark://").split(",")]
    if None in addresses:
        raise UsageError(f"{master} is no Spark master; give spark://HOST:PORT, the port is 7077 unless chosen")
    return [address for address in addresses if address is not None]


def require_master(master: str) -> None:
    """An error if it is none, or if none of several answers."""
    if not master.startswith(("spark://", "local", "yarn", "k8s://")):
        raise UsageError(f"{master} is no Spark master; give spark://HOST:PORT, local[2], yarn or k8s://URL")
    problems = []
    for host, port in _standalone(master):
        try:
            require_answer("Spark master", host, port, "start it, or leave --master out to use this machine").close()
            return
        except FailureError as problem:
            problems.append(problem)
    if problems:
        raise problems[0]


def require_java() -> None:
    """An error if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME={home} has none" if home else "there is none"
        raise FailureError(f"Spark needs Java 17 or later, and {where}; install a Java runtime or set JAVA_HOME to it")


def await_workers(context: Any) -> None:
    """Wait until there is a worker: Spark itself would wait for ever."""
    until = time.monotonic() + _SECONDS_FOR_WORKERS
    # The first of those it knows is this process.
    while not context.master.startswith("local") and context._jsc.sc().getExecutorMemoryStatus().size() < 2:
        if context._jsc.sc().isStopped():
            raise _no_session(context.master, "stopped SparkContext")
        if time.monotonic() > until:
            raise FailureError(
                f"{context.master} has no free worker since {_SECONDS_FOR_WORKERS:.0f} s; start one, or end other work on it"
            )
        time.sleep(0.1)


def require_slots(context: Any, wanted: int) -> None:
    """Wait until so many tasks can run at once; an error when no more come, for Spark itself would try for minutes."""
    await_workers(context)
    scala = context._jsc.sc()
    profile = scala.resourceProfileManager().defaultResourceProfile()
    seconds = _SECONDS_FOR_MORE if context.master.startswith("spark://") else _SECONDS_FOR_WORKERS
    slots, since = 0, time.monotonic()
    while (found := int(scala.maxNumConcurrentTasks(profile))) < wanted:
        if found != slots:
            slots, since = found, time.monotonic()
        if context.master.startswith("local") or time.monotonic() - since > seconds:
            raise FailureError(
                f"{wanted} workers do not fit: {context.master} has {found} free slots; use --workers {max(found, 1)}, or "
                "give it more cores"
            )
        time.sleep(0.1)


def explained(text: str, died: str, otherwise: str) -> FailureError:
    """In one line, what Spark raised: `died` of workers that are gone, `otherwise` of what is not known."""
    if "No module named 'ringflow'" in text:
        return FailureError(
            "the workers' Python has no ringflow; install it there, or set PYSPARK_PYTHON to one that has"
        )
    if any(sign in text for sign in _SIGNS_OF_DEATH):
        return FailureError(died)
    return FailureError(otherwise)


class Ended(NamedTuple):
    """How a process ended."""

    rank: int
    code: int  # negative: the signal that ended it
    answer: bytes = b""  # what it wrote on stdout
    order: int = 0  # 1 for the first that failed, 2 for the second; 0 for one that did not
    stopped: bool = False  # because another had failed


def run(words: Sequence[str], workers: int, master: str | None = None, restarts: int = 0) -> int:
    """Run a ringflow command in several processes; its exit code. What is wrong the command says itself.

    If one dies, all are started again up to `restarts` times.
    """

    def once() -> int:
        ended = _distribute(["-m", "ringflow.cli", *words], b"", workers, master)
        sys.stdout.write(ended[0].answer.decode())
        sys.stdout.flush()
        failed = first_failure(ended)
        return failed.code if failed else 0

    return with_restarts(once, restarts)


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
    ended = _distribute(["-m", "ringflow.launch.spark"], given, workers, master, quiet)
    failed = first_failure(ended)
    if failed is None:
        return [cloudpickle.loads(one.answer)[0] for one in ended]
    if not failed.answer:
        raise FailureError(f"process {failed.rank} ended with code {failed.code}; see what it says above")
    error: BaseException = cloudpickle.loads(failed.answer)[1]
    if isinstance(error, RingflowError):
        error.told = False  # whoever should have told it did so in another process
    raise error


def first_failure(ended: Sequence[Ended]) -> Ended | None:
    """The process that the others failed with: one that was killed, which is an error, before the first that gave up."""
    failed = [one for one in ended if one.code]
    first = min(failed, key=lambda one: (one.stopped, one.code > 0, one.order), default=None)
    if first is not None and first.code < 0:
        raise killed(f"process {first.rank}", -first.code)
    return first


def _distribute(
    command: Sequence[str], given: bytes, workers: int, master: str | None, quiet: bool = False
) -> list[Ended]:
    """Run Python with these words in several processes; how each of them ended."""
    begun = time.perf_counter()
    session, ours = open_spark(master, workers)
    context = session.sparkContext
    try:
        from pyspark.ml.torch.distributor import TorchDistributor

        here = context.master == "local" or context.master.startswith("local[")
        on_gpus = float(session.conf.get("spark.task.resource.gpu.amount", "0")) >= 1
        distributor = TorchDistributor(workers, local_mode=here, use_gpu=on_gpus)
        distributor.logger.setLevel(logging.WARNING)
        require_slots(context, distributor.num_tasks)
        if ours:
            context.setLogLevel("OFF")
            say(f"spark is ready, with {workers} workers, after {time.perf_counter() - begun:.1f} s")
        # Beside a local master processes are children of this one, elsewhere those of tasks; what they say comes on stderr.
        variables = os.environ if here else context.environment
        work = (list(command), given, os.getcwd(), quiet)
        with changed(variables, _VARIABLES | NO_STORE), quiet_about_pandas(), redirect_stdout(sys.stderr):
            ended: Any = distributor._run(together, _torchrun, *work) if here else distributor.run(together, *work)
        return list(ended)
    except RingflowError:
        raise
    except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
        died = f"a worker of Spark died, perhaps for want of memory, and the others with it; {_GO_ON}"
        raise explained(str(error), died, f"Spark failed ({one_line(str(error))}); {_GO_ON}") from None
    finally:
        if ours:
            session.stop()


def _torchrun(params: dict[str, Any], script: str) -> None:
    """Start a script beside a local master as TorchDistributor does, but on loopback: its own listens everywhere."""
    from pyspark.ml.torch.distributor import TorchDistributor

    with tempfile.TemporaryDirectory(prefix="ringflow-") as folder:
        words = arguments([script], params["num_processes"], f"{folder}/meeting")
        wrapper = [sys.executable, "-m", "pyspark.ml.torch.torch_run_process_wrapper"]
        TorchDistributor._execute_command([*wrapper, *words])


def together(command: Sequence[str], given: bytes, folder: str, quiet: bool) -> list[Ended] | None:
    """Run Python with these words in a folder, `given` on its stdin, as one of a team. On the first node: how all ended."""
    watch = _Watch()
    watch.report(watch.run(command, given, folder, quiet))
    return watch.gathered() if os.environ["GROUP_RANK"] == "0" else None


class _Watch:
    """Looks after a process, and at what the other watchers say."""

    def __init__(self) -> None:
        self._rank, self._size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._parent = os.getppid()
        self._opened: Any = None
        self._terminated = False
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True

    @property
    def _is_over(self) -> bool:
        """Whether Spark has given up the task."""
        return self._terminated or os.getppid() != self._parent

    @property
    def _store(self) -> Any:
        if self._opened is None:
            from torch.distributed import TCPStore  # type: ignore[attr-defined]

            if self._rank == 0 and os.environ.get(STORE_KEPT) == "False":
                self._opened = loopback_store(*self._place, self._size)
            else:
                self._opened = TCPStore(*self._place, is_master=False, timeout=timedelta(seconds=_SECONDS_TO_MEET))
        return self._opened

    def run(self, command: Sequence[str], given: bytes, folder: str, quiet: bool) -> Ended:
        """Run a process to its end, or until there is no use in it any more."""
        if not os.path.isdir(folder):
            where = socket.gethostname()
            complain(
                f"ringflow: error: a worker on {where} cannot see {folder}; start in a folder that all workers see"
            )
            return self._ended(1, b"")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL if quiet else None}
        # The process finds the store that torchrun keeps, or the first watcher; it need not open one.
        environment = {**os.environ, **loopback_variables(self._place[0]), STORE_KEPT: "True"}
        start = [sys.executable, *command]
        with subprocess.Popen(start, cwd=folder, env=environment, **pipes) as child:  # type: ignore[call-overload]
            os.nice(10)  # torch, for the store, takes seconds to load: the process comes first
            try:
                return self._watched(child, given)
            finally:
                child.kill()

    def _watched(self, child: subprocess.Popen[bytes], given: bytes) -> Ended:
        input_once: bytes | None = given
        failed_at: float | None = None
        stopped = False
        while True:
            try:
                answer, _ = child.communicate(input_once, _SECONDS_BETWEEN_LOOKS)
                return self._ended(child.returncode, answer, stopped)
            except subprocess.TimeoutExpired:
                input_once = None
            now = time.monotonic()
            if failed_at is None and self._store.check([_FAILED]):
                failed_at = now
            stopped = self._is_over or (failed_at is not None and now - failed_at > _SECONDS_OF_GRACE)
            if stopped:
                child.terminate()

    def _ended(self, code: int, answer: bytes, stopped: bool = False) -> Ended:
        order = self._store.add(_FAILED, 1) if code else 0
        return Ended(self._rank, code, answer, order, stopped)

    def report(self, ended: Ended) -> None:
        """Let the first watcher know."""
        starts = range(0, len(ended.answer), _PIECE)
        for number, start in enumerate(starts):
            self._store.set(f"{_ENDED}/{ended.rank}/{number}", ended.answer[start : start + _PIECE])
        fields = {"code": ended.code, "order": ended.order, "stopped": ended.stopped, "pieces": len(starts)}
        self._store.set(f"{_ENDED}/{ended.rank}", json.dumps(fields))

    def gathered(self) -> list[Ended]:
        """What all watchers have reported, when the last one has."""
        while not self._store.check([f"{_ENDED}/{rank}" for rank in range(self._size)]):
            if self._is_over:
                sys.exit(1)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return [self._read(rank) for rank in range(self._size)]

    def _read(self, rank: int) -> Ended:
        fields = json.loads(self._store.get(f"{_ENDED}/{rank}"))
        pieces = [self._store.get(f"{_ENDED}/{rank}/{number}") for number in range(fields.pop("pieces"))]
        return Ended(rank, answer=b"".join(pieces), **fields)


def outcome(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What a function returns, or its error as one that can travel."""
    try:
        return function(*args, **kwargs), None
    except RingflowError as error:
        return None, error
    except Exception as error:
        said = " ".join(str(error).split())
        rank = os.environ.get("RANK", "0")
        failure = FailureError(f"{type(error).__name__} in process {rank}: {said}; the traceback follows")
        failure.add_note(traceback.format_exc())
        return None, failure


def main() -> int:
    """Read a function from stdin, call it, and write its outcome on stdout; what it prints goes to stderr."""
    from pyspark import cloudpickle

    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        made = outcome(*cloudpickle.load(sys.stdin.buffer))
        cloudpickle.dump(made, answers)  # type: ignore[no-untyped-call]
    return int(made[1] is not None)


if __name__ == "__main__":
    sys.exit(main())

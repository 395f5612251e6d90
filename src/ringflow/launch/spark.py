"""Sessions of Spark, and processes on its executors, all at once (barrier mode).

    run(["train", "clic_tiny", "data=data/ttbar", "--out", "runs/first"], workers=2, master="spark://head:7077")
    run_function(train_fn, ("data/ttbar",), workers=2)

The processes work in the folder of this one, which their machines have to see. What they say comes while they work; what the
first one writes on stdout, when it is done. A task of Spark, `_watch`, starts a process with RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT set: so one that is killed is something to tell, not the end of the task, which Spark would report on a hundred
lines. The tasks tell each other how their processes are, by the barrier; when one has failed, the others are ended soon after.
Run as a module, this is the process.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ringflow.base.errors import FailureError, RingflowError, UsageError
from ringflow.base.log import say
from ringflow.base.wire import decode, encode
from ringflow.launch.environment import (
    GOES_ON,
    QUIET,
    STORE_KEPT,
    Hearing,
    connected,
    enter,
    free_port,
    is_loopback,
    killed,
    listening,
    loopback_variables,
    meeting_store,
    run_here,
)
from ringflow.launch.frameworks import framework, one_line, require_answer, split_address

T = TypeVar("T")

_SECONDS_FOR_WORKERS = 60.0
#: Without a new worker, after which no more are expected of a standalone master: those of one start all at once.
_SECONDS_FOR_MORE = 10.0
_SECONDS_BETWEEN_LOOKS = 1.0
#: Time for the others to find out by themselves that one has failed, and to say so.
_SECONDS_OF_GRACE = 5.0
_GO_ON = f"start again: {GOES_ON}"
#: What Spark says when an executor, or the Python of a task, is gone.
_SIGNS_OF_DEATH = (
    "ExecutorLostFailure",
    "ExecutorExited",
    "Python worker exited unexpectedly",
    "Python worker failed to connect back",
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
        hosts = require_master(master)
        require_java()
        # The same Python on both sides; an environment of one's own for the workers is left as it is.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        settings: dict[str, Any] = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False}
        settings["spark.log.level"] = "ERROR"
        if workers and not master.startswith("local"):
            settings["spark.cores.max"] = settings["spark.executor.instances"] = str(workers)
        if master.startswith("local") or (hosts and all(map(is_loopback, hosts))):
            # The name of a laptop leads nowhere often enough.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        try:
            return SparkSession.builder.appName("ringflow").master(master).config(map=settings).getOrCreate(), True
        except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
            reason = f"no Spark session at {master} ({one_line(str(error))}); see what Spark says above"
            if "JAVA_GATEWAY_EXITED" in str(error):
                reason = "Spark does not start; it needs Java 17 or later: see what it says above, and set JAVA_HOME"
            raise FailureError(reason) from None


def require_master(master: str) -> list[str]:
    """The hosts of a standalone master, one of which answers; an error if none does, or if it is no master."""
    if not master.startswith("spark://"):
        if not master.startswith(("local", "yarn", "k8s://")):
            raise UsageError(f"{master} is no Spark master; give spark://HOST:PORT, local[2], yarn or k8s://URL")
        return []
    addresses = [split_address(part) for part in master.removeprefix("spark://").split(",")]
    problem: RingflowError = UsageError(
        f"{master} is no Spark master; give spark://HOST:PORT, the port is 7077 unless chosen"
    )
    found = [address for address in addresses if address is not None]
    for host, port in found if len(found) == len(addresses) else ():
        try:
            require_answer("Spark master", host, port, "start it, or leave --master out to use this machine").close()
            return [host for host, _ in found]
        except FailureError as error:
            problem = error
    raise problem


def require_java() -> None:
    """An error if there is no Java."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME={home} has none" if home else "there is none"
        raise FailureError(f"Spark needs Java 17 or later, and {where}; install a Java runtime or set JAVA_HOME to it")


def await_workers(context: Any, wanted: int = 1) -> None:
    """Wait until so many tasks can run at once; an error when no more come, for Spark itself would wait for ever."""
    scala, master = context._jsc.sc(), context.master
    slots, since = 0, time.monotonic()
    while not scala.isStopped():
        found = int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))
        if found >= wanted:
            return
        if found != slots:
            slots, since = found, time.monotonic()
        seconds = _SECONDS_FOR_MORE if found and master.startswith("spark://") else _SECONDS_FOR_WORKERS
        if master.startswith("local") or time.monotonic() - since > seconds:
            if not found:
                raise FailureError(
                    f"{master} has no free worker since {seconds:.0f} s; start one, or end other work on it"
                )
            raise FailureError(
                f"{wanted} workers do not fit: {master} has {found} free slots; use --workers {found}, or give it more cores"
            )
        time.sleep(0.1)
    raise FailureError(f"{master} answers but takes no work; is it a Spark master, of the version installed here?")


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
    answer: bytes = b""  # what it wrote or returned, or its error
    look: int = 0  # number of the look at which it had
    stopped: bool = False  # because another had failed


def run(words: Sequence[str], workers: int, master: str | None = None) -> int:
    """Run a ringflow command in several processes; its exit code. What is wrong the command says itself."""
    ended = _distribute(list(words), b"", workers, master)
    if failed := first_failure(ended):
        return failed.code
    sys.stdout.write(ended[0].answer.decode())
    sys.stdout.flush()
    return 0


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
    # A function, and what it returns, can be anything, and travel as Spark lets everything travel: pickled, over its own
    # connections, which it lets its own driver and executors use; on a machine, through a pipe from a process to its child.
    cloudpickle = framework("pyspark.cloudpickle", "spark")
    work = cloudpickle.dumps(partial(function, *args, **(kwargs or {})))
    ended = _distribute(None, work, workers, master, quiet)
    if failed := first_failure(ended):
        raise FailureError(f"process {failed.rank} ended with code {failed.code}; see what it says above")
    return [cloudpickle.loads(one.answer) for one in ended]


def first_failure(ended: Sequence[Ended]) -> Ended | None:
    """The first process that failed without an error that came back; one that was killed, or an error, is raised."""
    failed = [one for one in ended if one.code]
    first = min(failed, key=lambda one: (one.stopped, one.code > 0, one.look), default=None)
    if first is not None and first.code < 0:
        raise killed(f"process {first.rank}", -first.code)
    if first is not None and first.answer:
        raise decode(first.answer)
    return first


def _distribute(
    words: list[str] | None, function: bytes, workers: int, master: str | None, quiet: bool = False
) -> list[Ended]:
    """Run a command, or a pickled function if there are no words, in several processes; how each of them ended."""
    begun = time.perf_counter()
    session, ours = open_spark(master, workers)
    context = session.sparkContext
    try:
        await_workers(context, workers)
        if ours:
            context.setLogLevel("OFF")
            say(f"spark is ready, with {workers} workers, after {time.perf_counter() - begun:.1f} s")
        host = session.conf.get("spark.driver.host")
        bound = session.conf.get("spark.driver.bindAddress", host)
        with listening(host if bound in ("0.0.0.0", "::") else bound) as place:
            said_at = None if quiet else place._replace(host=host)
            watch = partial(_watch, job=encode((said_at, os.getcwd(), words)) + b"\n" + function)
            ended: list[Ended] = context.parallelize(range(workers), workers).barrier().mapPartitions(watch).collect()
        return ended
    except RingflowError:
        raise
    except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
        died = f"a worker of Spark died, perhaps for want of memory, and the others with it; {_GO_ON}"
        raise explained(str(error), died, f"Spark failed ({one_line(str(error))}); {_GO_ON}") from None
    finally:
        if ours:
            session.stop()


def _watch(_: object, job: bytes) -> Iterator[Ended]:
    """A task: runs a process, and ends it when it is no use any more."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    hosts = [task.address.rpartition(":")[0] for task in context.getTaskInfos()]
    rank, host = context.partitionId(), "127.0.0.1" if is_loopback(hosts[0]) else hosts[0]
    environment = {
        **os.environ,
        **QUIET,
        **loopback_variables(host),
        "PYTHONUNBUFFERED": "1",
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
        "MASTER_ADDR": host,
        "MASTER_PORT": context.allGather(str(free_port()))[0],
    }
    if gpus := context.resources().get("gpu"):
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus.addresses), "LOCAL_RANK": "0"}
    start = [sys.executable, "-m", "ringflow.launch.spark"]
    with subprocess.Popen(start, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            yield _watched(child, job, rank, context)
        finally:
            child.kill()


def _watched(child: subprocess.Popen[bytes], job: bytes, rank: int, context: Any) -> Ended:
    ended: Ended | None = None
    failed_at = float("inf")
    stopped = False
    for look in count():
        if ended is None:
            with suppress(subprocess.TimeoutExpired):
                answer, _ = child.communicate(job if look == 0 else None, _SECONDS_BETWEEN_LOOKS)
                ended = Ended(rank, child.returncode, answer, look, stopped)
        else:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        codes = context.allGather("" if ended is None else str(ended.code))
        if ended is not None and all(codes):
            return ended
        if any(code not in ("", "0") for code in codes):
            failed_at = min(failed_at, time.monotonic())
        if ended is None and time.monotonic() - failed_at > _SECONDS_OF_GRACE:
            stopped = True
            child.terminate()
    raise AssertionError("looks have no end")


def _command(words: Sequence[str]) -> str:
    """What a ringflow command writes on stdout; it ends the process if it fails, when it has said why."""
    code, said = run_here(words)
    if code:
        sys.exit(code)
    return said


def outcome(folder: str, work: Callable[[], T]) -> T | RingflowError:
    """What a function returns in a folder, or its error as one that can travel."""
    try:
        enter(folder)
        return work()
    except RingflowError as error:
        return error
    except Exception as error:
        said, rank = " ".join(str(error).split()), os.environ.get("RANK", "0")
        failure = FailureError(f"{type(error).__name__} in process {rank}: {said}; the traceback follows")
        failure.add_note(traceback.format_exc())
        return failure


def main() -> int:
    """Read a command or a function from stdin, run it, and write what came of it on stdout; what it prints goes where all
    is said."""
    from pyspark import cloudpickle

    place, folder, words = decode(sys.stdin.buffer.readline(), tuple[Hearing | None, str, list[str] | None])
    work = (
        partial(_command, words) if words is not None else cloudpickle.load(sys.stdin.buffer)
    )  # a pipe of the parent's
    try:
        said = os.open(os.devnull, os.O_WRONLY) if place is None else connected(place).detach()
    except OSError:  # then it is in the log of the executor
        said = os.dup(2)
    parent = os.getppid()

    def follow() -> None:
        while os.getppid() == parent:  # if Spark gives up the task, a training ends with a checkpoint
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os.kill(os.getpid(), signal.SIGTERM)

    def meet_and_work() -> Any:
        if os.environ["RANK"] == "0":  # the store of the function would listen everywhere
            meeting_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"]))
        return work()

    threading.Thread(target=follow, daemon=True).start()
    with os.fdopen(os.dup(1), "wb") as answers:
        for stream in (1, 2):
            os.dup2(said, stream)
        os.environ[STORE_KEPT] = "True"
        made = outcome(folder, meet_and_work)
        if failed := isinstance(made, RingflowError):
            answers.write(encode(made))
        else:
            answers.write(cloudpickle.dumps(made) if words is None else made.encode())  # type: ignore[no-untyped-call]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Where trials run: processes of this machine, a Ray cluster, jobs of Slurm.

All start workers and give them orders, see `worker`; they differ in how a worker is started, watched and ended. A worker has
one size for life: a trial that is to have more processes ends with a checkpoint, and goes on with another worker.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import say
from ringflow.base.processes import usable_cores, wait_without_spinning
from ringflow.base.rundir import write_errors
from ringflow.launch.frameworks import framework, one_line
from ringflow.launch.slurm import ENDED, Job, ask, beginning, submit
from ringflow.tune.worker import LOCK_FILE, STOP_FILE, Channel, Message, Order, Worker, read_message, work_folder

#: Workers in a row that end without having begun anything, until it is no use to start more.
_MOST_IN_VAIN = 3


@dataclass
class _Started:
    """A worker that was started and has not ended."""

    name: str
    size: int
    channel: Channel
    #: Whether it has said that it is there; the order that it has, whether it has begun with it, and ever with any.
    ready: bool = False
    order: Order | None = None
    begun: bool = False
    served: bool = False
    since: float = field(default_factory=time.monotonic)


class Executor(ABC):
    """Starts trials and listens to them: who has which order, and who is needed. How workers are started is for others."""

    #: Seconds between two looks at what was said; to write a checkpoint at the end.
    _pause, _to_end = 0.02, 30.0
    #: Whether idle workers are in the way of others although there are places.
    _crowded = False

    def __init__(self, study: Path) -> None:
        self._study, self._work = study.absolute(), work_folder(study)
        with write_errors(study):
            self._work.mkdir(parents=True, exist_ok=True)
        self._workers: dict[str, _Started] = {}
        self._queue: list[Order] = []  # orders that no worker has
        self._ended: dict[str, str] = {}  # workers that are gone, and how
        self._in_vain = 0

    @abstractmethod
    def _require(self, size: int) -> None:
        """An error if a trial of so many processes never fits."""

    @abstractmethod
    def _places(self) -> int:
        """How many workers there may be, each counted by `_weight`."""

    def _weight(self, size: int) -> int:
        return size

    @abstractmethod
    def _launch(self, size: int) -> str:
        """Start a worker; its name."""

    @abstractmethod
    def _gone(self) -> Mapping[str, str]:
        """Workers that have ended since, and how if that was not well."""

    @abstractmethod
    def _kill(self, name: str) -> None:
        """End a worker at once."""

    def room(self, workers: int) -> bool:
        """Whether a trial of so many processes can be started now, perhaps for idle ones; an error if it never can."""
        self._require(workers)
        orders = [*self._queue, *(worker.order for worker in self._workers.values() if worker.order)]
        return sum(self._weight(size) for size in (workers, *(order.workers for order in orders))) <= self._places()

    def start(self, order: Order) -> None:
        """Begin with an order, for which there is room. At most one order of a trial at a time."""
        self._queue.append(order)

    def answer(self, trial: int, until: int) -> None:
        """What a trial that waits is told: the resource of its next report, or 0 to end."""
        for worker in self._workers.values():  # none, if it has ended meanwhile
            if worker.order is not None and worker.order.trial == trial:
                worker.channel.send(until=until)

    def poll(self, seconds: float) -> Sequence[Message]:
        """What happened since the last call; waits up to so long for something to happen."""
        until = time.monotonic() + seconds
        while True:
            self._assign()
            self._start_who_is_missing()
            self._ended |= self._gone()
            messages = [message for worker in [*self._workers.values()] for message in self._hear(worker)]
            if messages or time.monotonic() >= until:
                return messages
            time.sleep(self._pause)

    def _assign(self) -> None:
        for order in [*self._queue]:
            for worker in self._workers.values():
                if worker.ready and worker.order is None and worker.size == order.workers:
                    worker.order, worker.begun = order, False
                    worker.channel.send(**order.model_dump(mode="json"))
                    self._queue.remove(order)
                    break

    def _start_who_is_missing(self) -> None:
        wanted = [order.workers for order in self._queue]
        idle = [one for one in self._workers.values() if one.order is None and one.size not in wanted]
        for worker in idle if wanted and self._crowded else ():
            self._dismiss(worker)
        for size in wanted:
            coming = sum(one.size == size and one.order is None for one in self._workers.values())
            if coming >= wanted.count(size):
                continue
            while self._weight(size) + sum(self._weight(one.size) for one in self._workers.values()) > self._places():
                if not idle:
                    return
                self._dismiss(idle.pop())
            name = self._launch(size)
            self._workers[name] = _Started(name, size, Channel(self._work / name, "driver", "worker"))

    def _dismiss(self, worker: _Started) -> None:
        if self._workers.pop(worker.name, None):
            self._kill(worker.name)

    def _hear(self, worker: _Started) -> list[Message]:
        """What a worker said, and what it means if it has ended meanwhile."""
        messages: list[Message] = []
        while (words := worker.channel.receive()) is not None:
            if words.get("kind") == "ready":
                worker.ready = True
            elif worker.order is not None:
                messages.append(read_message(worker.order.trial, words))
            if words.get("kind") == "begun":
                worker.begun = worker.served = True
                self._in_vain = 0
        ended = messages[-1] if messages and messages[-1].kind == "ended" else None
        if ended and ended.trouble == "failed" and worker.size > 1:  # one of the other processes may be the reason
            self._ended |= self._gone()
        if (how := self._ended.pop(worker.name, None)) is not None:
            self._workers.pop(worker.name, None)
            if worker.order is not None and not worker.begun:
                self._queue.insert(0, worker.order)
            elif worker.order is not None and (ended is None or (ended.trouble == "failed" and how)):
                # What its first process said of the end counts, unless it only noticed it.
                reason = how or "its processes ended without a word"
                lost = Message("ended", worker.order.trial, trouble="lost", reason=reason)
                return [*(message for message in messages if message is not ended), lost]
            if how and not worker.served:
                self._in_vain += 1
                if self._in_vain >= _MOST_IN_VAIN:
                    raise FailureError(
                        f"{self._in_vain} workers in a row ended before they took a trial, the last one {how}; then resume "
                        "the study"
                    )
        elif ended:
            worker.order = None
            if ended.trouble is not None and worker.size > 1:  # its processes may not be of one mind
                self._dismiss(worker)
        return messages

    def close(self) -> None:
        """End all that runs, after a checkpoint where it can write one; safe to call twice."""
        for name in self._workers:
            with suppress(OSError):  # the folder was taken away, which they notice themselves
                (self._work / name).mkdir(exist_ok=True)
                (self._work / name / STOP_FILE).touch()
        until = time.monotonic() + self._to_end
        while self._workers and time.monotonic() < until:
            for name in self._gone():
                self._workers.pop(name, None)
            time.sleep(self._pause)
        for name in self._workers:
            self._kill(name)
        self._queue, self._workers = [], {}


class LocalExecutor(Executor):
    """So many processes of this machine, on the accelerators that there are, or else on the cores."""

    def __init__(self, study: Path, workers: int, accelerators: int = 0) -> None:
        super().__init__(study)
        _wait_for_orphans(self._study, self._to_end)
        threads = max(usable_cores() // workers, 1)
        self._variables = {"OMP_NUM_THREADS": str(threads)} if "OMP_NUM_THREADS" not in os.environ else {}
        self._limit, self._accelerators = workers, accelerators
        self._slots = list(range(workers))
        self._processes: dict[str, list[tuple[subprocess.Popen[bytes], int]]] = {}

    def _require(self, size: int) -> None:
        if size > self._limit:
            raise UsageError(f"a trial of {size} processes does not fit on --workers {self._limit}; give more")

    def _places(self) -> int:
        return self._limit

    def _launch(self, size: int) -> str:
        name = uuid4().hex[:8]
        slots, self._slots = self._slots[:size], self._slots[size:]
        self._processes[name] = []
        for rank, slot in enumerate(slots):
            local_rank = slot % self._accelerators if self._accelerators else None
            words = {"folder": str(self._work / name), "rank": rank, "size": size, "local_rank": local_rank}
            with self._log(name).open("a") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "ringflow.tune.worker", json.dumps(words)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self._variables},
                    process_group=0,  # what is typed at the terminal is not for it
                )
            self._processes[name].append((process, slot))
        return name

    def _log(self, name: str) -> Path:
        return self._work / f"worker-{name}.log"

    def _gone(self) -> Mapping[str, str]:
        """As soon as one process of a worker is gone, the others cannot go on without it."""
        found = {}
        for name, processes in [*self._processes.items()]:
            codes = [process.poll() for process, _ in processes]
            rank = next((rank for rank, code in enumerate(codes) if code), None)
            if rank is not None or None not in codes:
                found[name] = "" if rank is None else self._told(name, rank, codes[rank] or 0)
                self._kill(name)
        return found

    def _told(self, name: str, rank: int, code: int) -> str:
        if code > 0:
            return f"process {rank} of the trial was ended with exit code {code}; see {self._log(name)}"
        hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
        return f"process {rank} of the trial was ended by {signal.Signals(-code).name}{hint}"

    def _kill(self, name: str) -> None:
        for process, slot in self._processes.pop(name, ()):
            process.kill()
            process.wait()
            self._slots.append(slot)
        self._slots.sort()


def _wait_for_orphans(study: Path, seconds: float) -> None:
    """Processes that outlived a killed driver are writing their checkpoints."""
    lock = os.open(study / LOCK_FILE, os.O_RDONLY | os.O_CREAT, 0o644)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                return  # a file system without locks
        raise FailureError(f"processes of an earlier start still run in {study}; end them, or wait")
    finally:
        os.close(lock)


class RayExecutor(Executor):
    """On a cluster that answers at an address, or on one that is started here; a worker is actors in a placement group.

    Not more than `workers` processes at a time; with `on_gpus` each has a GPU, if there is one in the cluster.
    """

    _pause, _seconds_to_rest = 0.1, 30.0

    def __init__(self, study: Path, address: str | None, workers: int | None, on_gpus: bool) -> None:
        super().__init__(study)
        from ringflow.launch.ray import open_ray

        self._ray, self._ours = open_ray(address, workers)
        # Ray tells of dead processes at great length on stdout, which belongs to --json.
        self._quiet = ExitStack()
        self._quiet.enter_context(redirect_stdout(io.StringIO()))
        self._limit, self._wants = workers, {"CPU": 1.0}
        if on_gpus and any(node.get("GPU", 0.0) >= 1.0 for node in self._nodes()):
            self._wants["GPU"] = 1.0
        self._actors: dict[str, tuple[Any, list[Any], list[Any]]] = {}  # group, actors, what they return
        self._most = 0

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _places(self) -> int:
        slots = slots_of(self._nodes(), self._wants)
        now = slots if self._limit is None else min(slots, self._limit)
        self._most = max(self._most, now)
        return now

    def _require(self, size: int) -> None:
        self._places()
        if size > self._most:
            kind = "GPUs" if "GPU" in self._wants else "cores"
            raise FailureError(
                f"a trial of {size} processes does not fit: {self._most} {kind} of the Ray cluster can be used; give trials "
                f"at most {max(self._most, 1)} processes, or add nodes with `ray start --address`"
            )

    def _launch(self, size: int) -> str:
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        name = uuid4().hex[:8]
        group = placement_group([dict(self._wants) for _ in range(size)], strategy="PACK")
        make = self._ray.remote(RayWorker)
        actors = [
            make.options(
                num_cpus=self._wants["CPU"],
                num_gpus=self._wants.get("GPU", 0.0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
            ).remote(str(Path.cwd()), len(self._nodes()) == 1)
            for rank in range(size)
        ]
        # A process sees no GPU but its own.
        words = {"size": size, "idle": self._seconds_to_rest, "local_rank": 0 if "GPU" in self._wants else None}
        working = [actor.work.remote(str(self._work / name), rank=rank, **words) for rank, actor in enumerate(actors)]
        self._actors[name] = group, actors, working
        return name

    def _gone(self) -> Mapping[str, str]:
        found = {}
        try:
            for name, (_, _, working) in [*self._actors.items()]:
                done, _ = self._ray.wait(working, num_returns=len(working), timeout=0)
                ends = [self._how(rank, one) for rank, one in enumerate(working) if one in done]
                if any(ends) or len(done) == len(working):
                    found[name] = next(filter(None, ends), "")
                    self._kill(name)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise FailureError(
                f"the Ray cluster was lost ({one_line(str(error))}); start it again and resume the study"
            ) from None
        return found

    def _how(self, rank: int, result: Any) -> str:
        """What became of a process that has ended; nothing if it ended well."""
        try:
            self._ray.get(result)
        except self._ray.exceptions.RayTaskError as error:
            if "No module named 'ringflow'" in str(error):
                raise FailureError(
                    "the workers' Python has no ringflow; install it on every node of the cluster"
                ) from None
            return f"process {rank} failed ({one_line(f'{type(error.cause).__name__}: {error.cause}')})"
        except self._ray.exceptions.RayActorError as error:
            # Ray says much of a dead process, most of which is the same for every death.
            told = str(error)
            kind = re.search(r"exit type: (\w+)", told, re.IGNORECASE)
            if "running low on memory" in told:
                return f"process {rank} was ended (out of memory)"
            return f"process {rank} was ended ({f'Ray says {kind[1]}' if kind else one_line(told)})"
        return ""

    def _kill(self, name: str) -> None:
        from ray.util.placement_group import remove_placement_group

        group, actors, _ = self._actors.pop(name, (None, [], []))
        with suppress(self._ray.exceptions.RayError):  # a cluster that was lost has taken them along
            for actor in actors:
                self._ray.kill(actor)
            if group is not None:
                remove_placement_group(group)

    def close(self) -> None:
        """Ask all trials to write a checkpoint, and end their processes."""
        with suppress(FailureError):  # a cluster that was lost
            super().close()
        if self._ours:
            self._ray.shutdown()
            self._ours = False
        self._quiet.close()


class RayWorker:
    """An actor: one process of a worker. `folder` is where the driver was started: names of files are meant from there."""

    def __init__(self, folder: str, on_one_node: bool) -> None:
        from ringflow.launch.environment import QUIET

        os.environ |= QUIET  # before torch is there
        wait_without_spinning()
        self._folder, self._on_one_node = folder, on_one_node

    def work(self, work: str, **words: Any) -> None:
        """Carry out orders until there are none."""
        import socket

        try:
            os.chdir(self._folder)
            os.listdir(Path(work).parent)
        except OSError as error:
            raise FailureError(
                f"{socket.gethostname()} cannot see {error.filename}; put the study on a file system that all nodes share"
            ) from None
        host = "127.0.0.1" if self._on_one_node else str(framework("ray.util", "ray").get_node_ip_address())
        try:
            Worker(Path(work), host=host, **words).work()
        except SystemExit as end:  # which Ray would take for an intended exit
            raise FailureError(f"it ended with exit code {end.code}") from None


def slots_of(nodes: Sequence[Mapping[str, float]], wants: Mapping[str, float]) -> int:
    """Processes that nodes have room for."""
    return sum(min(int(node.get(name, 0.0) // amount) for name, amount in wants.items()) for node in nodes)


class SlurmExecutor(Executor):
    """Up to `max_jobs` jobs at a time; `job` says what they ask for, its `tasks_per_node` how many processes fit on a node.

    A job without work ends after `idle` seconds. Jobs of a study have a name that no other study has, so a driver finds those
    of an earlier one that was killed. Slurm is asked every few seconds: it has others to answer.
    """

    _pause, _to_end, _crowded = 0.1, 60.0, True
    _seconds_between_questions, _seconds_to_tell = 5.0, 30.0

    def __init__(self, study: Path, job: Job, max_jobs: int, idle: int = 60) -> None:
        if absent := next((tool for tool in ("sbatch", "squeue", "scancel", "srun") if not shutil.which(tool)), None):
            raise FailureError(
                f"{absent} is not on the path: start the study on a machine of the cluster, or without --executor slurm"
            )
        super().__init__(study)
        self._job, self._max_jobs, self._idle = job, max_jobs, idle
        self._job_name = f"{job.name}-{hashlib.sha256(str(self._study.resolve()).encode()).hexdigest()[:8]}"
        self._mine = (f"--user={os.getuid()}", f"--name={self._job_name}")
        self._asked, self._told = time.monotonic(), False
        (self._study / "slurm").mkdir(exist_ok=True)
        earlier = self._alive()
        if earlier is None:
            raise FailureError("Slurm does not answer; look at what `squeue` says, then resume the study")
        if earlier:
            say(f"ending {len(earlier)} jobs of an earlier start of this study")
            self._end_all()

    def _require(self, size: int) -> None:
        shape(self._job, size)

    def _places(self) -> int:
        return self._max_jobs

    def _weight(self, size: int) -> int:
        return 1

    def _launch(self, size: int) -> str:
        """Submit a job; its number is the name of the worker."""
        asked = replace(
            shape(self._job, size),
            # Another start would not find its order again, so it is not put back into the queue.
            extra=(
                *self._job.extra,
                f"--job-name={self._job_name}",
                shlex.quote(f"--output={self._output('%j')}"),
                "--no-requeue",
            ),
        )
        words = ["tune", "work", str(self._study), "--workers", str(size), "--idle", str(self._idle)]
        # If one process ends badly the others cannot go on without it; Slurm tells all of them when time is nearly up.
        options = f"--ntasks={size} --cpus-per-task={asked.cpus_per_task} --kill-on-bad-exit=1"
        text = [*beginning(asked), f'exec srun {options} "$python" -m ringflow.cli {shlex.join(words)}', ""]
        return submit("\n".join(text), Path.cwd())  # names of files are meant from here

    def _output(self, number: str) -> Path:
        return self._study / "slurm" / f"job-{number}.out"

    def _states(self) -> dict[str, tuple[str, str]] | None:
        """State of the study's jobs and why they wait, of those too that ended lately; None if Slurm does not answer."""
        told = ask("squeue", *self._mine, "--noheader", "--states=all", "--format=%i %T %r")
        if told.returncode:
            return None  # the controller may be down for a while; jobs go on without it
        rows = [[*line.split(maxsplit=2), ""] for line in told.stdout.splitlines()]
        return {row[0]: (row[1], row[2]) for row in rows}

    def _alive(self) -> list[str] | None:
        states = self._states()
        return None if states is None else [number for number, (state, _) in states.items() if state not in ENDED]

    def _gone(self) -> Mapping[str, str]:
        if time.monotonic() - self._asked < self._seconds_between_questions:
            return {}
        states = self._states()
        self._asked = time.monotonic()
        if states is None:
            return {}
        found = {}
        for number, worker in self._workers.items():
            state, reason = states.get(number, ("forgotten by Slurm", ""))
            if state in ENDED or number not in states:
                how = f"job {number} ended as {state}; see {self._output(number)}"
                found[number] = "" if state == "COMPLETED" else how
            elif state == "PENDING" and not self._told and time.monotonic() - worker.since > self._seconds_to_tell:
                self._told = True  # a job that asks for what the cluster does not have may wait for ever
                say(f"job {number} waits in the queue of Slurm ({reason})")
        return found

    def _kill(self, name: str) -> None:
        ask("scancel", "--quiet", name)

    def close(self) -> None:
        """End all jobs, after checkpoints."""
        if self._workers:
            self._queue, self._workers = [], {}
            self._end_all()

    def _end_all(self) -> None:
        """End all jobs, those that run after a checkpoint; an error if Slurm does not get them ended."""
        ask("scancel", "--quiet", *self._mine, "--state=PENDING")
        ask("scancel", "--quiet", *self._mine, "--state=RUNNING", "--signal=USR1")
        for harder in (True, False):
            until = time.monotonic() + self._to_end
            while time.monotonic() < until:
                if self._alive() == []:
                    return
                time.sleep(0.5)
            if harder:
                ask("scancel", "--quiet", *self._mine)
        raise FailureError(
            f"jobs of the study do not end; look at `squeue --name={self._job_name}`, then resume the study"
        )


def shape(job: Job, workers: int) -> Job:
    """A job of so many processes: on one node as far as `tasks_per_node` allows, else on several full ones."""
    per_node = min(workers, job.tasks_per_node)
    if workers % per_node:
        raise UsageError(
            f"{workers} processes cannot be spread evenly over nodes of {job.tasks_per_node}; give trials a multiple of that"
        )
    gpus = per_node if job.gpus_per_node else 0
    return replace(job, nodes=workers // per_node, tasks_per_node=per_node, gpus_per_node=gpus)


def work_in_job(study: Path, workers: int, idle: float) -> None:
    """What every process of a job of Slurm does: `ringflow tune work`."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        raise UsageError("SLURM_JOB_ID is not set; this command is for the jobs of `ringflow tune --executor slurm`")
    if not work_folder(study).is_dir():
        raise UsageError(f"{study} hands out no trials; give the folder of a study that runs with --executor slurm")
    wait_without_spinning()
    rank, local_rank = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_LOCALID", "0"))
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    Worker(work_folder(study) / job, rank, workers, local_rank if workers > 1 else None, host, idle).work()

"""Where trials run: processes of this machine, a Ray cluster, jobs of Slurm.

All start workers and offer them orders, see `worker`; they differ in how a worker is started, watched and ended. A worker has
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
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.log import say
from ringflow.base.processes import usable_cores
from ringflow.base.rundir import write_errors
from ringflow.launch.frameworks import framework, one_line
from ringflow.launch.slurm import ENDED, Job, ask, beginning, submit
from ringflow.tune.worker import (
    LOCK_FILE,
    Begun,
    Ended,
    Mail,
    Message,
    Order,
    Worker,
    ask_to_stop,
    is_claimed,
    offer,
    work_folder,
    worker_folder,
)

#: Seconds to write a checkpoint at the end.
_TO_END = 30.0
#: Workers in a row that end without having taken anything, until it is no use to start more.
_MOST_IN_VAIN = 3


class Executor(Protocol):
    """Starts trials and listens to them."""

    def room(self, workers: int) -> bool:
        """Whether a trial of so many processes can be started now; an error if it never can."""

    def start(self, order: Order) -> None:
        """Begin with an order, which lies in its folder already; there is room. At most one order of a trial at a time."""

    def answer(self, trial: int, until: int) -> None:
        """What a trial that waits is told: the resource of its next report, or 0 to end."""

    def poll(self, seconds: float) -> Sequence[Message]:
        """What happened since the last call; waits up to so long for something to happen."""

    def close(self) -> None:
        """End all that runs, after a checkpoint where it can write one; safe to call twice."""


@dataclass
class _Started:
    """A worker that was started and has not ended; `trial`: whose order it has, `served`: whether it ever had one."""

    name: str
    size: int
    since: float
    trial: int | None = None
    served: bool = False
    dismissed: bool = False


class WorkerExecutor(ABC):
    """What all executors have in common: who has which order, and who is needed."""

    #: Seconds between two looks at what was said.
    _pause = 0.02
    #: Whether a worker that is killed is gone; until then it may take something.
    _ends_at_once = True

    def __init__(self, study: Path) -> None:
        self._study = study.absolute()
        with write_errors(study):
            work_folder(study).mkdir(parents=True, exist_ok=True)
        self._numbers = count()
        self._mail: dict[int, Mail] = {}
        self._workers: dict[str, _Started] = {}
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
        """Whether a worker of this size waits for work, or another one may be started, perhaps in the place of an idle one."""
        self._require(workers)
        needed = [one for one in self._workers.values() if not self._is_spare(one) and not one.dismissed]
        taken = sum(self._weight(one.size) for one in needed)
        return self._spare(workers) > 0 or taken + self._weight(workers) <= self._places()

    def _free(self, size: int) -> list[_Started]:
        return [one for one in self._workers.values() if one.size == size and one.trial is None and not one.dismissed]

    def _spare(self, size: int) -> int:
        """Workers of a size for which there is no order."""
        taken = {one.trial for one in self._workers.values()}
        wanted = sum(mail.order.workers == size for trial, mail in self._mail.items() if trial not in taken)
        return len(self._free(size)) - wanted

    def _is_spare(self, worker: _Started) -> bool:
        return worker in self._free(worker.size)[: max(self._spare(worker.size), 0)]

    def start(self, order: Order) -> None:
        """Offer an order to the workers, and start one if none of them is free."""
        self._mail[order.trial] = Mail(order)
        offer(self._study, order, next(self._numbers))
        self._start_who_is_missing()

    def _start_who_is_missing(self) -> None:
        for size in sorted({mail.order.workers for mail in self._mail.values()}):
            while self._spare(size) < 0:
                while self._taken() + self._weight(size) > self._places():
                    idle = next((one for one in self._workers.values() if self._is_spare(one)), None)
                    if idle is None:
                        return
                    self._dismiss(idle)
                name = self._launch(size)
                self._workers[name] = _Started(name, size, time.monotonic())

    def _taken(self) -> int:
        return sum(self._weight(one.size) for one in self._workers.values() if not one.dismissed)

    def _dismiss(self, worker: _Started) -> None:
        worker.dismissed = True
        self._kill(worker.name)
        if self._ends_at_once:
            self._workers.pop(worker.name, None)

    def _make_folder(self, name: str) -> None:
        folder = worker_folder(self._study, name)
        with write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def answer(self, trial: int, until: int) -> None:
        """What a trial that waits is told."""
        self._mail[trial].answer(until)

    def poll(self, seconds: float) -> Sequence[Message]:
        """What trials said, and which have ended; workers that ended early are started again."""
        until = time.monotonic() + seconds
        while True:
            messages = [message for trial in [*self._mail] for message in self._look(trial)]
            messages += self._see_who_is_gone()
            if messages or time.monotonic() >= until:
                return messages
            time.sleep(self._pause)

    def _look(self, trial: int) -> list[Message]:
        """What a trial said. If it failed on several processes, one of them may be the reason, which is found out first."""
        mail, messages = self._mail[trial], list[Message]()
        for message in mail.look():
            if isinstance(message, Begun):
                self._assign(message.worker, trial)
            if not isinstance(message, Ended):
                messages.append(message)
        if mail.ended is None:
            return messages
        if mail.ended.trouble == "failed" and mail.order.workers > 1:
            messages += self._see_who_is_gone()
        if trial in self._mail:
            messages.append(self._over(trial, mail.ended))
        return messages

    def _assign(self, name: str, trial: int) -> None:
        self._in_vain = 0
        if name in self._workers:
            self._workers[name].trial, self._workers[name].served = trial, True

    def _over(self, trial: int, ended: Ended) -> Ended:
        """The worker of an order is free again; after a trouble its processes may not be of one mind."""
        del self._mail[trial]
        for worker in [one for one in self._workers.values() if one.trial == trial]:
            worker.trial = None
            if ended.trouble is not None and worker.size > 1:
                self._dismiss(worker)
        return ended

    def _see_who_is_gone(self) -> list[Message]:
        """Workers that have ended, and what that means for their orders."""
        messages: list[Message] = []
        for name, how in self._gone().items():
            worker = self._workers.pop(name, None)
            if worker is None:
                continue
            for trial, mail in self._mail.items():  # it may have ended before it said that it has begun
                if worker.trial is None and trial not in {one.trial for one in self._workers.values()}:
                    worker.trial = trial if is_claimed(mail.order, name) else None
            if worker.trial is not None:
                messages += self._lose(worker.trial, how)
            elif how and not worker.served and not worker.dismissed:
                self._in_vain += 1
                if self._in_vain >= _MOST_IN_VAIN:
                    raise FailureError(
                        f"{self._in_vain} workers in a row ended before they took a trial, the last one {how}; then resume the "
                        "study"
                    )
        if messages or self._mail:
            self._start_who_is_missing()
        return messages

    def _lose(self, trial: int, how: str) -> list[Message]:
        """The worker of a trial is gone: what its first process said of the end counts, unless it only noticed it."""
        mail = self._mail[trial]
        os.listdir(mail.order.folder)  # lets a network file system forget which files were not there
        messages: list[Message] = [message for message in mail.look() if not isinstance(message, Ended)]
        said = mail.ended
        if said is None or (said.trouble == "failed" and how):
            said = Ended(trial, "lost", how or "its processes ended without a word")
        return [*messages, self._over(trial, said)]

    def _ask_all_to_stop(self) -> None:
        for queue in work_folder(self._study).glob("queue-*"):
            shutil.rmtree(queue, ignore_errors=True)
        for name in self._workers:
            with suppress(FailureError):  # the folder was taken away, which they notice themselves
                ask_to_stop(self._study, name)

    def close(self) -> None:
        """Let all workers write a checkpoint and end."""
        self._ask_all_to_stop()
        until = time.monotonic() + _TO_END
        while self._workers and time.monotonic() < until:
            for name in self._gone():
                self._workers.pop(name, None)
            time.sleep(self._pause)
        for name in [*self._workers]:
            self._kill(name)
        self._mail, self._workers = {}, {}


class LocalExecutor(WorkerExecutor):
    """So many processes of this machine, on the accelerators that there are, or else on the cores."""

    def __init__(self, study: Path, workers: int, accelerators: int = 0) -> None:
        super().__init__(study)
        _wait_for_orphans(self._study)
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
        self._make_folder(name)
        slots, self._slots = self._slots[:size], self._slots[size:]
        self._processes[name] = []
        for rank, slot in enumerate(slots):
            local_rank = slot % self._accelerators if self._accelerators else None
            words = {"study": str(self._study), "name": name, "rank": rank, "size": size, "local_rank": local_rank}
            with (work_folder(self._study) / f"worker-{name}.log").open("a") as log:
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

    def _gone(self) -> Mapping[str, str]:
        """As soon as one process of a worker is gone, the others cannot go on without it."""
        found = {}
        for name, processes in [*self._processes.items()]:
            codes = [process.poll() for process, _ in processes]
            rank = next((rank for rank, code in enumerate(codes) if code), None)
            if rank is not None:
                found[name] = self._told(name, rank, codes[rank] or 0)
            elif None not in codes:
                found[name] = ""
            if name in found:
                self._kill(name)
        return found

    def _told(self, name: str, rank: int, code: int) -> str:
        if code > 0:
            log = work_folder(self._study) / f"worker-{name}.log"
            return f"process {rank} of the trial was ended with exit code {code}; see {log}"
        hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
        return f"process {rank} of the trial was ended by {signal.Signals(-code).name}{hint}"

    def _kill(self, name: str) -> None:
        for process, slot in self._processes.pop(name, ()):
            process.kill()
            process.wait()
            self._slots.append(slot)
        self._slots.sort()


def _wait_for_orphans(study: Path) -> None:
    """Processes that outlived a killed driver are writing their checkpoints."""
    lock = os.open(study / LOCK_FILE, os.O_RDONLY | os.O_CREAT, 0o644)
    end = time.monotonic() + _TO_END
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


class RayExecutor(WorkerExecutor):
    """On a cluster that answers at an address, or on one that is started here; a worker is actors in a placement group.

    Not more than `workers` processes at a time; with `on_gpus` each has a GPU, if there is one in the cluster.
    """

    _pause, _seconds_to_rest, _seconds_between_counts = 0.05, 30.0, 1.0

    def __init__(self, study: Path, address: str | None, workers: int | None, on_gpus: bool) -> None:
        if workers is not None and workers < 1:
            raise UsageError(f"--workers {workers} leaves nothing to train on; give at least 1")
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
        self._counted, self._now, self._most = -self._seconds_between_counts, 0, 0

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _places(self) -> int:
        if time.monotonic() - self._counted >= self._seconds_between_counts:
            slots = slots_of(self._nodes(), self._wants)
            self._now = slots if self._limit is None else min(slots, self._limit)
            self._most = max(self._most, self._now)
            self._counted = time.monotonic()
        return self._now

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
        self._make_folder(name)
        group = placement_group([dict(self._wants) for _ in range(size)], strategy="PACK")
        make = self._ray.remote(RayWorker)
        actors = [
            make.options(
                num_cpus=self._wants["CPU"],
                num_gpus=self._wants.get("GPU", 0.0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
            ).remote(str(Path.cwd()))
            for rank in range(size)
        ]
        # A process sees no GPU but its own. The others wait in Ray until the first one has said where it is.
        host = actors[0].host.remote(len(self._nodes()) == 1) if size > 1 else "127.0.0.1"
        words = {"name": name, "size": size, "idle": self._seconds_to_rest}
        working = [
            actor.work.remote(str(self._study), host, {**words, "rank": rank}, "GPU" in self._wants)
            for rank, actor in enumerate(actors)
        ]
        self._actors[name] = group, actors, working
        return name

    def _gone(self) -> Mapping[str, str]:
        found = {}
        try:
            for name, (_, _, working) in [*self._actors.items()]:
                done, _ = self._ray.wait(working, num_returns=len(working), timeout=0)
                how = next(
                    (told for rank, one in enumerate(working) if one in done and (told := self._how(rank, one))), ""
                )
                if how or len(done) == len(working):
                    found[name] = how
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
            return f"process {rank} was ended ({_death(str(error))})"
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

    def __init__(self, folder: str) -> None:
        from ringflow.base.processes import wait_without_spinning
        from ringflow.launch.environment import QUIET

        os.environ |= QUIET  # before torch is there
        wait_without_spinning()
        self._folder = folder

    def host(self, on_one_node: bool) -> str:
        """Where the processes meet, if this is the first one."""
        if on_one_node:
            return "127.0.0.1"
        return str(framework("ray.util", "ray").get_node_ip_address())

    def work(self, study: str, host: str, words: dict[str, Any], on_gpus: bool) -> None:
        """Carry out orders until there are none."""
        import socket

        try:
            os.chdir(self._folder)
            os.listdir(worker_folder(Path(study), words["name"]))
        except OSError as error:
            raise FailureError(
                f"{socket.gethostname()} cannot see {error.filename}; put the study on a file system that all nodes share"
            ) from None
        try:
            Worker(Path(study), host=host, local_rank=0 if on_gpus else None, **words).work()
        except SystemExit as end:  # which Ray would take for an intended exit
            raise FailureError(f"it ended with exit code {end.code}") from None


def slots_of(nodes: Sequence[Mapping[str, float]], wants: Mapping[str, float]) -> int:
    """Processes that nodes have room for."""
    return sum(min(int(node.get(name, 0.0) // amount) for name, amount in wants.items()) for node in nodes)


def _death(told: str) -> str:
    """What Ray says of a dead process in many lines, most of which are the same for every death."""
    kind = re.search(r"exit type: (\w+)", told, re.IGNORECASE)
    if "running low on memory" in told:  # every death may be one for want of memory, says Ray; this one is
        return "out of memory"
    return f"Ray says {kind[1]}" if kind else one_line(told)


class SlurmExecutor(WorkerExecutor):
    """Up to `max_jobs` jobs at a time; `job` says what they ask for, its `tasks_per_node` how many processes fit on a node.

    A job without work ends after `idle` seconds. Jobs of a study have a name that no other study has, so a driver finds those
    of an earlier one that was killed. Slurm is asked every few seconds: it has others to answer.
    """

    _pause, _seconds_between_questions, _seconds_to_tell, _seconds_to_end = 0.1, 5.0, 30.0, 60.0
    _ends_at_once = False

    def __init__(self, study: Path, job: Job, max_jobs: int, idle: int = 60) -> None:
        if max_jobs < 1:
            raise UsageError(f"--max-jobs {max_jobs} leaves nothing to train in; give at least 1")
        if idle < 1:
            raise UsageError(f"jobs that wait {idle} seconds for a trial take none; give at least 1")
        tools = ("sbatch", "squeue", "scancel", "srun")
        if absent := next((tool for tool in tools if shutil.which(tool) is None), None):
            raise FailureError(
                f"{absent} is not on the path: start the study on a machine of the cluster, or without --executor slurm"
            )
        super().__init__(study)
        self._job, self._max_jobs, self._idle = job, max_jobs, idle
        mark = hashlib.sha256(str(self._study.resolve()).encode()).hexdigest()[:8]
        self._job_name = f"{job.name}-{mark}"
        self._mine = (f"--user={os.getuid()}", f"--name={self._job_name}")
        self._asked, self._told, self._idle_before = time.monotonic(), False, set[str]()
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
        number = submit(self.text(size), Path.cwd())  # names of files are meant from here
        self._make_folder(number)
        return number

    def text(self, size: int) -> str:
        """The script of a job that takes orders of so many processes."""
        asked = replace(
            shape(self._job, size),
            # Another start would not find its order again, so it is not put back into the queue.
            extra=(*self._job.extra, f"--job-name={self._job_name}", f"--output={self._output('%j')}", "--no-requeue"),
        )
        words = ["tune", "work", str(self._study), "--workers", str(size), "--idle", str(self._idle)]
        # If one process ends badly the others cannot go on without it; Slurm tells all of them when time is nearly up.
        options = f"--ntasks={size} --cpus-per-task={asked.cpus_per_task} --kill-on-bad-exit=1"
        return "\n".join([*beginning(asked), f'exec srun {options} "$python" -m ringflow.cli {shlex.join(words)}', ""])

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
        self._dismiss_idle()
        return found

    def _dismiss_idle(self) -> None:
        """While an order waits for its job, end those that had nothing to do at two questions in a row: they are in its way."""
        idle = {worker.name for worker in self._workers.values() if self._is_spare(worker)}
        if set(self._mail) - {worker.trial for worker in self._workers.values()}:
            for name in idle & self._idle_before:
                self._dismiss(self._workers[name])
        self._idle_before = idle

    def _kill(self, name: str) -> None:
        ask("scancel", "--quiet", name)

    def close(self) -> None:
        """End all jobs, after checkpoints; orders that nobody has are taken back."""
        if self._workers:
            self._ask_all_to_stop()
            self._mail, self._workers = {}, {}
            self._end_all()

    def _end_all(self) -> None:
        """End all jobs, those that run after a checkpoint; an error if Slurm does not get them ended."""
        ask("scancel", "--quiet", *self._mine, "--state=PENDING")
        ask("scancel", "--quiet", *self._mine, "--state=RUNNING", "--signal=USR1")
        if self._gone_within(self._seconds_to_end):
            return
        ask("scancel", "--quiet", *self._mine)
        if not self._gone_within(self._seconds_to_end):
            raise FailureError(
                f"jobs of the study do not end; look at `squeue --name={self._job_name}`, then resume the study"
            )

    def _gone_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self._alive() != []:
            if time.monotonic() > until:
                return False
            time.sleep(0.5)
        return True


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
    from ringflow.base.processes import wait_without_spinning

    wait_without_spinning()
    worker_folder(study, job).mkdir(parents=True, exist_ok=True)  # the driver may be slower than Slurm
    rank, local_rank = int(os.environ.get("SLURM_PROCID", "0")), int(os.environ.get("SLURM_LOCALID", "0"))
    host = os.environ.get("MASTER_ADDR", "127.0.0.1")
    Worker(study, job, rank, workers, local_rank if workers > 1 else None, host, idle).work()

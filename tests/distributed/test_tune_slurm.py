"""Trials in jobs of a real Slurm with one node of two cores: jobs take work, are cancelled, and outlive their driver."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fixtures import slurm_daemons
from fixtures.executor_contract import ENDLESS, UNSAVED, Bench, ExecutorContract, TwoProcessesContract
from fixtures.tiny_training import checkpoints, make_dataset
from ringflow.base.errors import FailureError
from ringflow.launch.slurm import Job
from ringflow.tune.executors import Executor, SlurmExecutor
from ringflow.tune.worker import Order

JOB = Job(name="rf", tasks_per_node=2, time="10")


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """A controller and a node with two cores; it may be asked often."""
    if reason := slurm_daemons.missing():
        pytest.skip(reason)
    # The name of a socket may not be longer than a hundred letters.
    with (
        tempfile.TemporaryDirectory(prefix="rf", dir="/tmp") as folder,
        slurm_daemons.slurm(Path(folder)) as settings,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(settings))
        patch.setattr(SlurmExecutor, "_seconds_between_questions", 0.3)
        yield


@pytest.fixture(scope="module")
def dataset(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture
def again(slurm: None, tmp_path: Path) -> Iterator[Callable[[], Executor]]:
    made: list[SlurmExecutor] = []

    def make() -> Executor:
        made.append(SlurmExecutor(tmp_path / "study", JOB, max_jobs=2))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def bench(again: Callable[[], Executor], tmp_path: Path, dataset: Path) -> Bench:
    return Bench(again(), tmp_path / "study", dataset)


def job_of(bench: Bench, trial: int) -> str:
    """The job that has a trial."""
    workers: list[str] = [
        worker.name
        for worker in bench.executor._workers.values()
        if worker.order is not None and worker.order.trial == trial
    ]
    return workers[0]


def jobs(states: str) -> set[str]:
    words = ["squeue", "--noheader", f"--states={states}", "--format=%i"]
    return set(subprocess.run(words, capture_output=True, text=True, check=True).stdout.split())


def processes(words: str) -> list[int]:
    """Those with these words in their command lines; `srun` has them, too."""
    listed = subprocess.run(["ps", "-ewwo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if words in line and "srun" not in line]


def rank_processes(order: Order) -> list[int]:
    return processes(f"tune work {order.run.parents[1]} ")


def rank_of(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next(word.split("=")[1] for word in variables if word.startswith("SLURM_PROCID="))


def trains(bench: Bench, workers: int = 1) -> Order:
    """A trial that has written a checkpoint, and does not end."""
    order = bench.start(0, 10**8, workers, ENDLESS)
    bench.next("begun", 0)
    bench.until("there is a checkpoint", lambda: checkpoints(order.run))
    return order


def test_a_trial_whose_process_is_killed_is_lost_and_another_job_takes_the_next_one(bench: Bench) -> None:
    order = trains(bench)
    number = job_of(bench, 0)
    for pid in rank_processes(order):
        os.kill(pid, signal.SIGKILL)
    ended = bench.next("ended", 0)
    assert ended.trouble == "lost"
    assert f"job {number} ended as FAILED; see " in ended.reason
    bench.play(1)


@pytest.mark.heavy
class TestTwoProcesses(TwoProcessesContract):
    """On the two cores of the node."""


@pytest.mark.heavy
class TestSlurmExecutor(ExecutorContract):
    """One node of two cores; every trial waits some seconds for Python and torch."""

    def test_one_of_two_killed_processes_is_a_lost_trial(self, bench: Bench) -> None:
        order = trains(bench, workers=2)
        second = next(pid for pid in rank_processes(order) if rank_of(pid) == "1")
        os.kill(second, signal.SIGKILL)
        assert bench.next("ended", 0).trouble == "lost"
        bench.play(0, 1, workers=2)

    def test_a_job_that_is_cancelled_ends_its_trial_with_a_checkpoint(self, bench: Bench) -> None:
        order = trains(bench)
        subprocess.run(["scancel", job_of(bench, 0)], check=True)
        assert bench.next("ended", 0).trouble == "interrupted"
        assert "stopped by" in order.run.with_suffix(".log").read_text()

    def test_a_job_whose_time_is_up_ends_its_trial_with_a_checkpoint(self, bench: Bench) -> None:
        order = bench.start(0, 10**8, words=UNSAVED)
        bench.next("begun", 0)
        history = order.run / "history.jsonl"
        bench.until("it trains", lambda: history.exists() and history.stat().st_size)
        number = job_of(bench, 0)
        subprocess.run(["scancel", "--signal=USR1", number], check=True)  # as Slurm does by itself
        assert bench.next("ended", 0).trouble == "interrupted"
        assert checkpoints(order.run)
        bench.until("the job has ended", lambda: number not in jobs("RUNNING,COMPLETING"))

    def test_jobs_of_a_driver_that_was_killed_are_ended_by_the_next_one(
        self, bench: Bench, again: Callable[[], Executor], capsys: pytest.CaptureFixture[str]
    ) -> None:
        trains(bench)
        assert jobs("RUNNING")
        bench.executor, bench.heard = again(), []
        assert not jobs("RUNNING,PENDING,COMPLETING")
        assert "ending 1 jobs of an earlier start of this study" in capsys.readouterr().err
        bench.play(0, 1)


def test_a_refused_partition_is_one_line(slurm: None, tmp_path: Path) -> None:
    executor = SlurmExecutor(tmp_path, Job(partition="nowhere"), max_jobs=1)
    Bench(executor, tmp_path, tmp_path).start(0, words=())
    with pytest.raises(FailureError, match=r"sbatch refused the job: .*invalid partition") as refused:
        executor.poll(0.0)
    assert "\n" not in str(refused.value)
    executor.close()


def test_jobs_that_take_nothing_are_not_submitted_for_ever(slurm: None, tmp_path: Path, dataset: Path) -> None:
    executor = SlurmExecutor(tmp_path, Job(setup=("no-such-program",)), max_jobs=1)
    bench = Bench(executor, tmp_path, dataset)
    bench.start(0)
    with pytest.raises(FailureError, match=r"3 workers in a row .* the last one job \d+ ended as FAILED"):
        bench.next("begun", 0)
    executor.close()

"""Which jobs of Slurm are submitted for which orders, and what is told when they end. A real Slurm is in tests/distributed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.slurm import Job
from ringflow.tune.desk import Side, lay
from ringflow.tune.executor import Begun, Ended, Order
from ringflow.tune.executors import slurm as slurm_executor
from ringflow.tune.executors.slurm import SlurmExecutor
from ringflow.tune.executors.slurm_jobs import State
from ringflow.tune.executors.slurm_queue import claim, release


class FakeJobs:
    """A Slurm that runs every job at once, until the test ends it."""

    def __init__(self, study: Path, job: Job, idle: int) -> None:
        self.known: dict[str, str] | None = {}
        self.sizes: dict[str, int] = {}
        self.cancelled: list[str] = []
        self.ended_all = 0
        self._numbers = count(1)

    def submit(self, workers: int) -> str:
        assert self.known is not None
        number = str(next(self._numbers))
        self.sizes[number], self.known[number] = workers, "RUNNING"
        return number

    def states(self) -> dict[str, State] | None:
        return None if self.known is None else {number: State(*state.split()) for number, state in self.known.items()}

    def alive(self) -> list[str] | None:
        return None if self.known is None else [number for number, state in self.known.items() if state == "RUNNING"]

    def cancel(self, *numbers: str) -> None:
        assert self.known is not None
        self.cancelled += numbers
        self.known |= dict.fromkeys(numbers, "CANCELLED")

    def end_all(self) -> None:
        self.ended_all += 1

    def output(self, number: str) -> Path:
        return Path(f"job-{number}.out")


Make = Callable[..., SlurmExecutor]
Orders = Callable[..., Order]


@pytest.fixture
def jobs(tmp_path: Path) -> FakeJobs:
    return FakeJobs(tmp_path, Job(), 60)


@pytest.fixture
def make(jobs: FakeJobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(slurm_executor, "Jobs", lambda study, job, idle: jobs)
    monkeypatch.setattr(slurm_executor, "_SECONDS_BETWEEN_QUESTIONS", 0.0)
    return lambda max_jobs=2, idle=60: SlurmExecutor(tmp_path, Job(tasks_per_node=2), max_jobs, idle)


@pytest.fixture
def order(tmp_path: Path) -> Orders:
    starts = count(1)

    def laid(trial: int, workers: int = 1) -> Order:
        ticket = tmp_path / "desk" / f"{trial:06d}-{next(starts)}"
        made = Order(trial, ticket, tmp_path / "trials" / f"{trial:04d}", {}, 10, workers)
        lay(made)
        return made

    return laid


def done(study: Path, workers: int, job: str) -> None:
    """A job takes an order and carries it out."""
    ticket = claim(study, workers, job)
    assert ticket is not None
    side = Side(ticket)
    side.begin()
    side.end()
    release(ticket, 0)


def test_a_job_takes_one_order_after_the_other(make: Make, jobs: FakeJobs, order: Orders, tmp_path: Path) -> None:
    executor = make()
    for trial in range(3):
        assert executor.room(1)
        executor.start(order(trial))
        done(tmp_path, 1, "1")
        assert executor.poll(9.0) == [Begun(trial), Ended(trial)]
    assert jobs.sizes == {"1": 1}


def test_there_are_as_many_jobs_as_orders_up_to_a_limit(
    make: Make, jobs: FakeJobs, order: Orders, tmp_path: Path
) -> None:
    executor = make(max_jobs=2)
    for trial in range(2):
        assert executor.room(2)
        executor.start(order(trial, 2))
    assert (jobs.sizes, executor.room(1), executor.room(2)) == ({"1": 2, "2": 2}, False, False)
    done(tmp_path, 2, "2")
    executor.poll(9.0)
    assert executor.room(2), "the second job waits for work"


def test_a_job_that_nobody_needs_makes_place_for_another_size(
    make: Make, jobs: FakeJobs, order: Orders, tmp_path: Path
) -> None:
    executor = make(max_jobs=1)
    executor.start(order(0))
    assert not executor.room(2)
    done(tmp_path, 1, "1")
    executor.poll(9.0)
    assert executor.room(2)
    executor.start(order(0, 2))
    assert (jobs.cancelled, jobs.sizes) == (["1"], {"1": 1, "2": 2})


def test_a_job_without_work_does_not_stay_in_the_way(make: Make, jobs: FakeJobs, order: Orders, tmp_path: Path) -> None:
    executor = make(max_jobs=5)
    executor.start(order(0))
    done(tmp_path, 1, "1")
    executor.poll(9.0)
    executor.start(order(1, 2))
    executor.poll(0.0)
    assert jobs.cancelled == [], "it was busy a moment ago"
    executor.poll(0.0)
    assert jobs.cancelled == ["1"]
    assert claim(tmp_path, 2, "2") is not None
    executor.start(order(2))
    assert jobs.sizes == {"1": 1, "2": 2, "3": 1}


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        (None, None, Ended(0, "lost", "job 1 ended as NODE_FAIL; see job-1.out")),
        (("interrupted", "saved"), None, Ended(0, "interrupted", "saved")),
        ((None, ""), 0, Ended(0)),
        (("failed", "another ended"), 137, Ended(0, "lost", "a process of the trial was ended by signal 9 in job 1")),
        (None, 137, Ended(0, "lost", "a process of the trial was ended by signal 9 in job 1")),
        (("diverged", "NaN"), 137, Ended(0, "diverged", "NaN")),
    ],
)
def test_what_an_order_ended_with(
    said: tuple[str, str] | None,
    code: int | None,
    expected: Ended,
    make: Make,
    jobs: FakeJobs,
    order: Orders,
    tmp_path: Path,
) -> None:
    executor, laid = make(), order(0)
    executor.start(laid)
    assert claim(tmp_path, 1, "1") == laid.ticket
    if said is not None:
        Side(laid.ticket).end(*said)  # type: ignore[arg-type]
    assert executor.poll(0.0) == [], "its job has not let go of it"
    if code is None:
        assert jobs.known is not None
        jobs.known["1"] = "NODE_FAIL"
    else:
        release(laid.ticket, code)
    assert executor.poll(9.0) == [expected]
    assert executor.room(1)


def test_processes_that_did_not_say_why_they_ended_have_left_a_log(make: Make, order: Orders, tmp_path: Path) -> None:
    executor, laid = make(), order(3)
    executor.start(laid)
    claim(tmp_path, 1, "1")
    release(laid.ticket, 1)
    log = tmp_path / "trials" / "0003.log"
    assert executor.poll(9.0) == [Ended(3, "failed", f"its processes ended with exit code 1; see {log}")]


def test_an_order_whose_job_went_away_gets_another_one(
    make: Make, jobs: FakeJobs, order: Orders, tmp_path: Path
) -> None:
    executor = make(max_jobs=1)
    executor.start(order(0))
    assert jobs.known is not None
    jobs.known.pop("1")  # forgotten
    executor.poll(0.0)
    assert jobs.sizes == {"1": 1, "2": 1}
    jobs.known["2"] = "COMPLETED"  # had waited too long for work
    executor.poll(0.0)
    done(tmp_path, 1, "3")
    assert executor.poll(9.0) == [Begun(0), Ended(0)]


def test_jobs_that_take_nothing_end_the_study(make: Make, jobs: FakeJobs, order: Orders) -> None:
    executor = make()
    executor.start(order(0))
    assert jobs.known is not None
    for number in ("1", "2", "3"):
        executor.poll(0.0)
        jobs.known[number] = "FAILED"
    with pytest.raises(
        FailureError, match="3 jobs in a row ended before they took a trial, the last one as FAILED; see job-3"
    ):
        executor.poll(0.0)


def test_jobs_that_wait_long_are_told_once(
    make: Make, jobs: FakeJobs, order: Orders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executor = make()
    for trial in range(2):
        executor.start(order(trial))
    jobs.known = {"1": "PENDING Resources", "2": "PENDING Priority"}
    executor.poll(0.0)
    assert capsys.readouterr().err == "", "for a moment all do"
    monkeypatch.setattr(slurm_executor, "_SECONDS_TO_TELL", -1.0)
    for _ in range(3):
        executor.poll(0.0)
    assert capsys.readouterr().err == "job 1 waits in the queue of Slurm (Resources)\n"


def test_a_slurm_that_does_not_answer_loses_nothing(make: Make, jobs: FakeJobs, order: Orders, tmp_path: Path) -> None:
    executor = make()
    executor.start(order(0))
    jobs.known = None
    assert executor.poll(0.0) == []
    done(tmp_path, 1, "1")
    assert executor.poll(9.0) == [Begun(0), Ended(0)]
    with pytest.raises(FailureError, match="Slurm does not answer"):
        make()


def test_jobs_and_offers_of_an_earlier_driver_are_taken_back(
    make: Make, jobs: FakeJobs, order: Orders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make().start(order(0))
    executor = make()
    assert jobs.ended_all == 1
    assert capsys.readouterr().err == "ending 1 jobs of an earlier start of this study\n"
    assert claim(tmp_path, 1, "1") is None
    executor.start(order(1))
    executor.close()
    executor.close()
    assert jobs.ended_all == 2
    assert claim(tmp_path, 1, "1") is None


def test_nonsense_is_refused(make: Make) -> None:
    with pytest.raises(UsageError, match="--max-jobs 0 leaves nothing"):
        make(max_jobs=0)
    with pytest.raises(UsageError, match="wait 0 seconds"):
        make(idle=0)
    with pytest.raises(UsageError, match="3 processes cannot be spread evenly over nodes of 2"):
        make().room(3)

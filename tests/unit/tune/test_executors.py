"""Which workers are started for which orders, and what is told when they end. Real clusters are in tests/distributed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from ringflow.base.errors import FailureError, InputFileError, UsageError
from ringflow.launch.slurm import Job
from ringflow.tune import executors
from ringflow.tune.executors import Executor, SlurmExecutor, shape, slots_of, work_in_job
from ringflow.tune.worker import Channel, Message, Order, work_folder


class FakeExecutor(Executor):
    """Two places; workers end when the test says so."""

    _pause = 0.0

    def __init__(self, study: Path) -> None:
        super().__init__(study)
        self.names, self.sizes = count(), dict[str, int]()
        self.ends: dict[str, str] = {}
        self.killed: list[str] = []

    def _require(self, size: int) -> None:
        if size > 2:
            raise UsageError("never")

    def _places(self) -> int:
        return 2

    def _launch(self, size: int) -> str:
        name = f"w{next(self.names)}"
        self.sizes[name] = size
        return name

    def _gone(self) -> dict[str, str]:
        ends, self.ends = self.ends, {}
        return ends

    def _kill(self, name: str) -> None:
        self.killed.append(name)


@pytest.fixture
def executor(tmp_path: Path) -> FakeExecutor:
    return FakeExecutor(tmp_path)


def ordered(executor: Executor, trial: int, workers: int = 1) -> None:
    assert executor.room(workers)
    executor.start(Order(trial=trial, run=Path("run"), settings={}, until=10, workers=workers))
    executor.poll(0.0)


class FakeWorker:
    """The other end of a worker that was started."""

    def __init__(self, executor: Executor, study: Path, name: str) -> None:
        self.executor, folder = executor, work_folder(study) / name
        folder.mkdir()
        self.channel = Channel(folder, "worker", "driver")
        self.channel.send(kind="ready")
        assert list(executor.poll(0.0)) == []
        executor.poll(0.0)

    def begin(self, trial: int) -> None:
        order = self.channel.receive()
        assert order is not None
        assert order["trial"] == trial
        self.channel.send(kind="begun")
        assert list(self.executor.poll(0.0)) == [Message("begun", trial)]

    def end(self, trouble: str | None = None, reason: str = "") -> None:
        self.channel.send(kind="ended", trouble=trouble, reason=reason)


def ended(trial: int, trouble: str | None = None, reason: str = "") -> Message:
    return Message("ended", trial, trouble=trouble, reason=reason)


def test_a_worker_takes_one_order_after_the_other(executor: FakeExecutor, tmp_path: Path) -> None:
    ordered(executor, 0)
    worker = FakeWorker(executor, tmp_path, "w0")
    for trial in range(3):
        worker.begin(trial)
        worker.channel.send(kind="report", resource=10, figures={"loss": None})
        assert list(executor.poll(0.0)) == [Message("report", trial, 10, {"loss": None})]
        executor.answer(trial, 0)
        assert worker.channel.receive() == {"until": 0}
        worker.end()
        assert list(executor.poll(0.0)) == [ended(trial)]
        ordered(executor, trial + 1)
    assert executor.sizes == {"w0": 1}


def test_there_are_as_many_workers_as_orders_and_idle_ones_make_place(executor: FakeExecutor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="never"):
        executor.room(3)
    workers = []
    for trial, name in ((0, "w0"), (1, "w1")):
        ordered(executor, trial)
        workers.append(FakeWorker(executor, tmp_path, name))
        workers[-1].begin(trial)
    assert not executor.room(1)
    workers[0].end()
    assert list(executor.poll(0.0)) == [ended(0)]
    assert executor.room(1)
    assert not executor.room(2)
    workers[1].end()
    executor.poll(0.0)
    ordered(executor, 2, workers=2)
    assert executor.sizes == {"w0": 1, "w1": 1, "w2": 2}
    assert sorted(executor.killed) == ["w0", "w1"]


@pytest.mark.parametrize(
    ("said", "how", "expected"),
    [
        (None, "killed", ("lost", "killed")),
        (None, "", ("lost", "its processes ended without a word")),
        (("failed", "lost a peer"), "killed", ("lost", "killed")),
        (("refused", "bad"), "killed", ("refused", "bad")),
        (("interrupted", "saved"), "", ("interrupted", "saved")),
    ],
)
def test_what_an_order_ended_with(
    executor: FakeExecutor, tmp_path: Path, said: tuple[str, str] | None, how: str, expected: tuple[str, str]
) -> None:
    ordered(executor, 0, workers=2)
    worker = FakeWorker(executor, tmp_path, "w0")
    worker.begin(0)
    if said:
        worker.end(*said)
    executor.ends = {"w0": how}
    assert list(executor.poll(0.0)) == [ended(0, *expected)]
    executor.answer(0, 10)  # to what it said before, too late
    assert executor.room(2)


def test_processes_of_a_trial_that_failed_are_not_used_again(executor: FakeExecutor, tmp_path: Path) -> None:
    ordered(executor, 0, workers=2)
    worker = FakeWorker(executor, tmp_path, "w0")
    worker.begin(0)
    worker.end("failed", "x")
    assert list(executor.poll(0.0)) == [ended(0, "failed", "x")]
    assert executor.killed == ["w0"]
    ordered(executor, 0, workers=2)
    assert executor.sizes == {"w0": 2, "w1": 2}


@pytest.mark.parametrize(
    "said",
    [
        "{",
        pytest.param("[" * 100_000, id="deep"),
        "[]",
        "{}",
        '{"kind": "dance"}',
        '{"kind": "report", "resource": "many", "figures": {}}',
        '{"kind": "report", "resource": 1, "figures": {"loss": "low"}}',
        '{"kind": "ended", "trouble": "bored"}',
    ],
)
def test_what_is_no_message_is_one_line(executor: FakeExecutor, tmp_path: Path, said: str) -> None:
    ordered(executor, 0)
    worker = FakeWorker(executor, tmp_path, "w0")
    worker.begin(0)
    (work_folder(tmp_path) / "w0" / "worker-2.json").write_text(said)
    with pytest.raises(InputFileError, match="is no message") as caught:
        executor.poll(0.0)
    assert len(str(caught.value)) < 400


def test_a_worker_that_went_away_before_it_began_is_replaced(executor: FakeExecutor, tmp_path: Path) -> None:
    ordered(executor, 0)
    executor.ends = {"w0": ""}  # before it said anything
    assert list(executor.poll(0.0)) == []
    executor.poll(0.0)
    assert executor.sizes == {"w0": 1, "w1": 1}
    assert FakeWorker(executor, tmp_path, "w1").channel.receive() is not None
    executor.ends = {"w1": "killed"}  # after it had the order, before it said so
    assert list(executor.poll(0.0)) == []
    executor.poll(0.0)
    FakeWorker(executor, tmp_path, "w2").begin(0)


def test_workers_that_take_nothing_end_the_study(executor: FakeExecutor, tmp_path: Path) -> None:
    ordered(executor, 0)
    for number in range(2):
        executor.ends = {f"w{number}": "as FAILED"}
        assert list(executor.poll(0.0)) == []
        executor.poll(0.0)
    executor.ends = {"w2": "as FAILED"}
    with pytest.raises(FailureError, match="3 workers in a row ended before they took a trial, the last one as FAILED"):
        executor.poll(0.0)


def test_the_end_asks_for_checkpoints(executor: FakeExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeExecutor, "_to_end", 0.1)
    ordered(executor, 0)
    FakeWorker(executor, tmp_path, "w0").begin(0)
    ordered(executor, 1)
    executor.close()
    executor.close()
    assert all((work_folder(tmp_path) / name / "stop").exists() for name in ("w0", "w1"))
    assert sorted(executor.killed) == ["w0", "w1"]


def test_places_of_ray_are_what_its_nodes_have() -> None:
    nodes = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 3.5}]
    assert slots_of(nodes, {"CPU": 1.0}) == 7
    assert slots_of(nodes, {"CPU": 1.0, "GPU": 1.0}) == 2


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A Slurm that runs every job at once, until the test ends it."""
    known = SimpleNamespace(jobs={}, told=[], texts=[])

    def ask(tool: str, *words: str, **more: object) -> SimpleNamespace:
        known.told.append((tool, *words))
        if tool == "scancel":
            known.jobs = {} if words[-1].startswith("--") else {**known.jobs, words[-1]: "CANCELLED x"}
        lines = "\n".join(f"{number} {state}" for number, state in (known.jobs or {}).items())
        return SimpleNamespace(returncode=int(known.jobs is None), stdout=lines)

    def submit(text: str, folder: Path) -> str:
        known.texts.append(text)
        number = str(len(known.texts))
        known.jobs[number] = "RUNNING None"
        return number

    monkeypatch.setattr(executors, "ask", ask)
    monkeypatch.setattr(executors, "submit", submit)
    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(SlurmExecutor, "_seconds_between_questions", 0.0)
    monkeypatch.setattr(SlurmExecutor, "_seconds_to_tell", 0.0)
    monkeypatch.setattr(SlurmExecutor, "_to_end", 0.1)
    return known


def test_jobs_of_slurm(slurm: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    executor = SlurmExecutor(tmp_path, Job(name="rf", tasks_per_node=2, notice=99), max_jobs=1)
    ordered(executor, 0, workers=2)
    (text,) = slurm.texts
    assert "#SBATCH --signal=USR1@99" in text
    assert "#SBATCH --no-requeue" in text
    assert (
        f'exec srun --ntasks=2 --cpus-per-task=1 --kill-on-bad-exit=1 "$python" -m ringflow.cli tune work {tmp_path}'
        in text
    )
    slurm.jobs["1"] = "PENDING Resources"
    executor.poll(0.0)
    executor.poll(0.0)
    assert capsys.readouterr().err.count("job 1 waits in the queue of Slurm (Resources)") == 1
    FakeWorker(executor, tmp_path, "1").begin(0)
    slurm.jobs = None  # it does not answer for a while
    assert list(executor.poll(0.0)) == []
    slurm.jobs = {"1": "TIMEOUT None"}
    lost = ended(0, "lost", f"job 1 ended as TIMEOUT; see {tmp_path}/slurm/job-1.out")
    assert list(executor.poll(0.0)) == [lost]
    ordered(executor, 1)
    executor.close()
    assert next(words for words in slurm.told if words[0] == "scancel")[-1] == "--state=PENDING"


def test_jobs_of_an_earlier_driver_are_ended(
    slurm: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.jobs = {"7": "RUNNING None"}
    SlurmExecutor(tmp_path, Job(), max_jobs=1)
    assert "ending 1 jobs of an earlier start of this study" in capsys.readouterr().err
    slurm.jobs = None
    with pytest.raises(FailureError, match="Slurm does not answer"):
        SlurmExecutor(tmp_path, Job(), max_jobs=1)


def test_a_machine_without_slurm_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda tool: None)
    with pytest.raises(FailureError, match="sbatch is not on the path: start the study on a machine of the cluster"):
        SlurmExecutor(tmp_path, Job(), max_jobs=1)


@pytest.mark.parametrize(("workers", "expected"), [(1, (1, 1, 1)), (4, (1, 4, 4)), (8, (2, 4, 4))])
def test_a_job_has_the_shape_of_its_trials(workers: int, expected: tuple[int, int, int]) -> None:
    made = shape(Job(tasks_per_node=4, gpus_per_node=4), workers)
    assert (made.nodes, made.tasks_per_node, made.gpus_per_node) == expected


def test_nonsense_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm: SimpleNamespace) -> None:
    made: list[Callable[[], object]] = [
        lambda: shape(Job(tasks_per_node=4), 6),
        lambda: work_in_job(tmp_path / "nowhere", 1, 1.0),
    ]
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    for attempt, said in zip(made, ("evenly", "hands out no trials"), strict=True):
        with pytest.raises(UsageError, match=said):
            attempt()
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UsageError, match="SLURM_JOB_ID is not set"):
        work_in_job(tmp_path, 1, 1.0)

"""What a job of a study asks of Slurm, and how it comes to its orders; programs stand in for those of Slurm."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch.slurm import Job
from ringflow.tune.executors import slurm_jobs, slurm_pilot
from ringflow.tune.executors.slurm_jobs import Jobs, State, shape
from ringflow.tune.executors.slurm_queue import claim, claimant, clear, post, released

Tools = Callable[[str, str], None]


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Put a program of these lines on the path, on which there is little else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "env", "sleep", "touch"):
        (folder / name).symlink_to(Path("/usr/bin") / name)
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, lines: str) -> None:
        (folder / name).write_text(f"#!/bin/bash\n{lines}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def slurm(tools: Tools, tmp_path: Path) -> Tools:
    for name in ("sbatch", "squeue", "srun"):
        tools(name, "exit 0")
    tools("scancel", f'echo "$@" >> {tmp_path}/told')
    return tools


@pytest.fixture
def pilot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that may be one of a job; signals are as before afterwards."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setattr(slurm_pilot, "_SECONDS_BETWEEN_LOOKS", 0.01)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ticket(study: Path, number: int, workers: int = 1) -> Path:
    made = study / "desk" / f"{number:06d}-1"
    made.mkdir(parents=True)
    post(study, workers, number, made)
    return made


def test_the_oldest_order_of_a_size_is_taken_once(tmp_path: Path) -> None:
    first, other, second = ticket(tmp_path, 9), ticket(tmp_path, 10, workers=2), ticket(tmp_path, 11)
    assert claimant(first) is None
    assert [claim(tmp_path, 1, job) for job in "abc"] == [first, second, None]
    assert (claimant(first), claimant(second), claimant(other)) == ("a", "b", None)
    clear(tmp_path)
    assert claim(tmp_path, 2, "d") is None


def test_jobs_that_want_the_same_order_get_different_ones(tmp_path: Path) -> None:
    tickets = {ticket(tmp_path, number) for number in range(60)}
    taken: list[tuple[str, Path]] = []

    def take(job: str) -> None:
        while (found := claim(tmp_path, 1, job)) is not None:
            taken.append((job, found))

    threads = [threading.Thread(target=take, args=(f"job{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(tickets)
    assert {found for _, found in taken} == tickets
    assert all(claimant(found) == job for job, found in taken)


@pytest.mark.parametrize(
    ("workers", "expected"), [(1, (1, 1, 1)), (2, (1, 2, 2)), (4, (1, 4, 4)), (8, (2, 4, 4)), (12, (3, 4, 4))]
)
def test_a_job_has_the_shape_of_its_trials(workers: int, expected: tuple[int, int, int]) -> None:
    job = shape(Job(tasks_per_node=4, gpus_per_node=4), workers)
    assert (job.nodes, job.tasks_per_node, job.gpus_per_node) == expected
    assert shape(Job(tasks_per_node=4), workers).gpus_per_node == 0


def test_a_job_takes_work_and_is_told_of_its_end(slurm: Tools, tmp_path: Path) -> None:
    job = Job(
        name="tune", tasks_per_node=2, partition="fast", notice=90, setup=("module load x",), extra=("--requeue",)
    )
    jobs = Jobs(tmp_path / "a study", job, idle=30)
    lines = jobs.text(2).splitlines()
    asked = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert asked[-4:] == [
        f"--job-name={jobs.name}",
        f"--output={jobs.output('%j')}",
        "--no-requeue",
        "--signal=B:USR1@90",
    ], "the last word of several counts"
    assert {"--ntasks-per-node=2", "--partition=fast"} <= set(asked)
    assert "module load x" in lines
    assert lines[-1].startswith("exec ")
    assert lines[-1].endswith(f"-m ringflow.cli tune work '{tmp_path}/a study' --workers 2 --idle 30")
    assert Jobs(tmp_path / "another", job, 30).name != jobs.name


def test_states_are_asked_for_by_name(slurm: Tools, tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Job(), 60)
    slurm(
        "squeue",
        f'echo "$@" > {tmp_path}/asked; echo "12 RUNNING None"; echo "13 COMPLETED"; echo "14 PENDING Not now"',
    )
    assert jobs.states() == {
        "12": State("RUNNING", "None"),
        "13": State("COMPLETED"),
        "14": State("PENDING", "Not now"),
    }
    assert jobs.alive() == ["12", "14"]
    assert f"--name={jobs.name} " in (tmp_path / "asked").read_text()
    slurm("squeue", "exit 1")
    assert (jobs.states(), jobs.alive()) == (None, None)


def test_jobs_end_after_a_checkpoint_or_at_once(slurm: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_jobs, "_SECONDS_BETWEEN_LOOKS", 0.01)
    jobs, told = Jobs(tmp_path, Job(), 60), tmp_path / "told"
    jobs.end_all()
    assert not told.exists(), "there are none"
    slurm("squeue", f"[ -e {told} ] || echo 12 RUNNING")
    jobs.end_all()
    words = [line.split()[3:] for line in told.read_text().splitlines()]
    assert words == [["--state=PENDING"], ["--state=RUNNING", "--batch", "--signal=USR1"]]
    slurm("squeue", "echo 12 RUNNING")
    monkeypatch.setattr(slurm_jobs, "_SECONDS_TO_SAVE", 0.0)
    monkeypatch.setattr(slurm_jobs, "_SECONDS_TO_END", 0.0)
    with pytest.raises(FailureError, match=f"jobs of the study do not end; look at `squeue --name={jobs.name}`"):
        jobs.end_all()
    assert told.read_text().splitlines()[-1].split()[3:] == []


@pytest.mark.parametrize("absent", ["sbatch", "squeue", "scancel", "srun"])
def test_a_machine_without_slurm_is_one_line(absent: str, slurm: Tools, tmp_path: Path) -> None:
    (tmp_path / "bin" / absent).unlink()
    with pytest.raises(FailureError, match=f"{absent} is not on the path: start the study on a machine of the cluster"):
        Jobs(tmp_path, Job(), 60)


SRUN = 'printf "%s\\n" "$@" "${MASTER_ADDR:-none}:${MASTER_PORT:-none}" "${RANK:-none}" > "${@: -1}/started"'


@pytest.mark.parametrize("workers", [1, 2])
def test_a_pilot_takes_what_is_there_and_ends_when_nothing_comes(
    workers: int, slurm: Tools, tmp_path: Path, pilot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm("srun", f"{SRUN}; exit 3")
    for name, value in {"MASTER_ADDR": "node1", "MASTER_PORT": "1", "RANK": "0", "SLURM_CPUS_PER_TASK": "7"}.items():
        monkeypatch.setenv(name, value)
    tickets = [ticket(tmp_path, number, workers) for number in range(2)]
    slurm_pilot.work(tmp_path, workers, idle=0.1)
    for found in tickets:
        *words, place, rank = (found / "started").read_text().splitlines()
        assert {f"--ntasks={workers}", "--cpus-per-task=7", "ringflow.tune.executors.slurm_job", str(found)} <= set(
            words
        )
        assert rank == "none", "which it would believe"
        assert place == "none:none" if workers == 1 else place.startswith("node1:")
        assert (claimant(found), released(found)) == ("4711", 3)


def test_a_pilot_whose_time_is_up_stops_its_trial_and_takes_no_other(slurm: Tools, tmp_path: Path, pilot: None) -> None:
    wait = "for _ in {1..2000}; do [ -e ${@: -1}/stop ] && exit 0; sleep 0.01; done; exit 1"
    slurm("srun", f"kill -USR1 $PPID; {wait}")
    first, second = ticket(tmp_path, 0), ticket(tmp_path, 1)
    slurm_pilot.work(tmp_path, 1, idle=60.0)
    assert (released(first), claimant(second)) == (0, None)


def test_a_pilot_that_is_not_in_a_job_says_so(tmp_path: Path, pilot: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="hands out no trials; give the folder of a study"):
        slurm_pilot.work(tmp_path, 1, idle=60.0)
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(UsageError, match="SLURM_JOB_ID is not set"):
        slurm_pilot.work(tmp_path, 1, idle=60.0)

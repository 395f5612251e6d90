"""Slurm runs the job that `ringflow launch slurm` writes: two processes train what one trains, and go on after a requeue."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fixtures import slurm_daemons
from fixtures.process_tree import Listening, descendants, listening
from fixtures.tiny_training import (
    LONGER,
    TINY,
    assert_same_training,
    checkpoints,
    make_dataset,
    ringflow,
    running,
    train_alone,
    wait_for,
)


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """A controller and a node with two cores."""
    if reason := slurm_daemons.missing():
        pytest.skip(reason)
    # The name of a socket may not be longer than a hundred letters.
    with (
        tempfile.TemporaryDirectory(prefix="rf", dir="/tmp") as folder,
        slurm_daemons.slurm(Path(folder)) as settings,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SLURM_CONF", str(settings))
        yield


@pytest.fixture(scope="module")
def dataset(slurm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


SUBMIT = ("launch", "slurm", "--tasks-per-node", 2, "--time", "10", "--wait", "--json")


def test_two_processes_are_as_one(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", f"data={dataset}", *TINY, "--json", "--out", "run"]
    setup = '--setup=echo "left: ${MASTER_PORT:-nothing}"'
    done = ringflow(*SUBMIT, setup, "--", *words, MASTER_PORT="1")
    job = json.loads(done.stdout)
    assert (job["processes"], job["exit_code"]) == (2, 0)
    assert '"processes": 2' in done.stderr, "what the job says is shown"
    logs = Path("run", "logs")
    assert f"submitted as job {job['job_id']}; its output is in {logs}/ringflow-{job['job_id']}-*.out" in done.stderr
    expected = [f"ringflow-{job['job_id']}{part}.out" for part in ("-job", "-rank-0", "-rank-1")]
    assert sorted(path.name for path in logs.iterdir()) == sorted(expected)
    assert "left: nothing\n" in done.stderr, "the meeting place of another team is not believed"
    assert_same_training(tmp_path / "run", train_alone(dataset, tmp_path / "alone"))


@pytest.mark.heavy
def test_a_job_that_is_told_to_stop_goes_on_later(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with running(*SUBMIT, "--", "train", f"data={dataset}", *LONGER, "--out", "run") as process:
        wait_for("a checkpoint", lambda: checkpoints(tmp_path / "run"), process)
        number = next((tmp_path / "run" / "logs").glob("ringflow-*.out")).stem.split("-")[1]
        # What Slurm does when the time of a job is nearly up.
        subprocess.run(["scancel", "--signal=USR1", number], check=True)
        stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert json.loads(stdout) == {"job_id": number, "processes": 2, "exit_code": 0}
    told = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True, check=True).stdout
    assert "JobState=COMPLETED" in told
    assert "Restarts=1" in told
    assert_same_training(tmp_path / "run", train_alone(dataset, tmp_path / "alone", LONGER))


def test_what_the_command_refuses_ends_the_job(slurm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = ringflow(*SUBMIT, "--", "train", "data=events", "no=thing", "--out", "run", code=2)
    assert json.loads(done.stdout)["exit_code"] == 2
    assert "ringflow: error: unknown setting 'no'" in done.stderr


def of_this_slurm() -> dict[int, str]:
    """Daemons, steps and tasks, with their command lines; there may be another Slurm on this machine."""
    settings = os.environ["SLURM_CONF"]
    found = {}
    for pid, line in descendants(0).items():
        with suppress(OSError):  # it has ended
            if settings in line or settings in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                found[pid] = line
    return found


@pytest.mark.heavy
def test_its_daemons_and_processes_listen_on_loopback(dataset: Path, tmp_path: Path) -> None:
    seen: dict[Listening, str] = {}
    with running(*SUBMIT, "--", "train", f"data={dataset}", *TINY, "--out", "run", folder=tmp_path) as process:
        while process.poll() is None:
            ours = of_this_slurm()
            seen |= {one: ours[one.held_by[0]] for one in listening(ours)}
            time.sleep(0.1)
    assert {name for line in seen.values() for name in ("slurmctld", "slurmd", "train") if name in line} == {
        "slurmctld",
        "slurmd",
        "train",
    }
    assert {one: line for one, line in seen.items() if not one.on_loopback} == {}


def test_a_refused_job_is_one_line(slurm: None, tmp_path: Path) -> None:
    done = ringflow("launch", "slurm", "--partition", "nowhere", "--", "train", "--out", tmp_path, code=1)
    assert done.stderr.startswith("ringflow: error: sbatch refused the job: ")
    assert "invalid partition" in done.stderr
    assert done.stderr.count("\n") == 1

"""Starting a command in several processes: what each launcher is told, and what is said when it is not there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.launch import mpi
from ringflow.launch.environment import adopt, free_port
from ringflow.launch.local import arguments
from ringflow.launch.slurm import Job, job_text

Command = Callable[..., Any]
MEETING = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a program of these lines on the path, on which there is little else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name: str, lines: str) -> None:
        (folder / name).write_text(f"#!/bin/bash\n{lines}\n")
        (folder / name).chmod(0o755)

    return make


def assert_one_line(done: Any, code: int, expected: str) -> None:
    assert (done.code, done.stderr.count("\n"), done.stdout) == (code, 1, "")
    assert done.stderr.startswith("ringflow: error: ")
    assert expected in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (MPICH, ("1", "4", "0")),
        (OPEN_MPI, ("2", "4", "1")),
        (SLURM, ("3", "4", "1")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, ("1", "4", "1")),
        ({**OPEN_MPI, **SLURM}, ("2", "4", "1")),  # mpiexec inside a job of Slurm
    ],
    ids=["mpich", "open mpi", "slurm", "no local number", "both"],
)
def test_the_words_of_others_are_translated(words: dict[str, str], expected: tuple[str, ...]) -> None:
    variables = {**MEETING, **words}
    adopt(variables)
    assert tuple(variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")) == expected
    assert variables.items() >= {**MEETING, **words}.items()


@pytest.mark.parametrize(
    "variables",
    [
        {**SLURM},  # a shell inside a job, where nobody named a meeting place
        {**MEETING, **SLURM, "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
        {**MEETING, "PMI_RANK": "1"},
        {},
    ],
    ids=["no meeting place", "torch's own words", "half of the words", "nothing"],
)
def test_what_is_no_team_or_one_already_is_left_alone(variables: dict[str, str]) -> None:
    before = dict(variables)
    adopt(variables)
    assert variables == before


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))


def test_torchrun_gets_the_command_as_it_is() -> None:
    told = arguments(["train", "data=a b", "--out", "run"], 3, 2)
    assert {"--standalone", "--nproc-per-node=3", "--max-restarts=2"} < set(told)
    assert told[-5:] == ["ringflow.cli", "train", "data=a b", "--out", "run"]


@pytest.mark.parametrize("how", ["local", "mpi", "slurm"])
@pytest.mark.parametrize(("words", "said"), [(["simulate", "ttbar"], "not 'simulate'"), ([], "but nothing was given")])
def test_a_command_that_cannot_be_shared_is_one_line(how: str, words: list[str], said: str, command: Command) -> None:
    done = command("launch", how, "--", *words)
    assert_one_line(done, 2, f"give a command that processes can share after `--` (train), {said}")


def test_a_job_asks_for_what_it_was_given() -> None:
    job = Job(nodes=3, tasks_per_node=4, gpus_per_node=4, time="2:00:00", partition="fast", extra=("--qos=high",))
    asked = [line.removeprefix("#SBATCH ") for line in job_text(["train"], job).splitlines() if "#SBATCH" in line]
    assert job.processes == 12
    expected = {"--nodes=3", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=2:00:00", "--partition=fast"}
    assert expected | {"--qos=high", "--requeue", "--signal=B:USR1@120", "--open-mode=append"} <= set(asked)
    assert not any("account" in line for line in asked)
    assert "gpus" not in job_text(["train"], Job())


def run_job(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a job as Slurm would on its first node."""
    variables = {"SLURM_JOB_ID": "20007", "SLURM_JOB_NODELIST": "node[1-2]", "FOLDER": str(folder)}
    environment = {**os.environ, **variables}
    return subprocess.run(
        ["bash"], input=text, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


HOSTS = 'if [ "$1" = show ]; then echo node1; echo node2; else echo "$@" > "$FOLDER/told"; fi'


def test_a_job_starts_the_command_word_by_word(tools: Callable[[str, str], None], tmp_path: Path) -> None:
    tools("scontrol", HOSTS)
    tools("srun", 'printf "%s\\n" "$@" "$MASTER_ADDR:$MASTER_PORT"; exit 7')
    words = ["train", "data=my data/it's $HOME", "--out", "runs/a;b"]
    done = run_job(job_text(words, Job(), python="py thon"), tmp_path)
    expected = ["--kill-on-bad-exit=1", "py thon", "-m", "ringflow.cli", *words, "node1:20007"]
    assert done.stdout.splitlines() == expected, done.stderr
    assert done.returncode == 7


def test_a_job_puts_itself_back_into_the_queue_when_its_time_is_up(
    tools: Callable[[str, str], None], tmp_path: Path
) -> None:
    tools("scontrol", HOSTS)
    # What runs goes on until the job has noticed.
    wait = 'for i in {1..500}; do [ -e "$FOLDER/told" ] && exit; sleep 0.02; done; touch "$FOLDER/late"'
    tools("srun", f'kill -USR1 "$PPID"; {wait}')
    run_job(job_text(["train"], Job()), tmp_path)
    assert (tmp_path / "told").read_text().split() == ["requeue", "20007"]
    assert not (tmp_path / "late").exists(), "it noticed when the training was over"


def test_a_job_can_be_looked_at(command: Command) -> None:
    words = ["--nodes", 2, "--gpus-per-node", 4, "--option=--qos=fast", "--", "train", "data=a b", "--out", "run"]
    done = command("launch", "slurm", "--dry-run", "--json", *words)
    shown = json.loads(done.stdout)
    assert (done.code, shown["processes"]) == (0, 8)
    assert "#SBATCH --qos=fast\n" in shown["job"]
    assert "train 'data=a b' --out run" in shown["job"]
    assert command("launch", "slurm", "--dry-run", *words).stderr.strip() == shown["job"].strip()


def test_a_job_is_submitted_or_the_reason_is_one_line(
    command: Command, tools: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(command("launch", "slurm", "--", "train"), 1, "sbatch is not on the path")
    tools("sbatch", 'cat > job; echo "42;cluster"')
    done = command("launch", "slurm", "--json", "--", "train")
    assert json.loads(done.stdout) == {"job_id": "42", "processes": 1}
    assert "submitted as job 42; its output is in ringflow-42.out" in done.stderr
    assert (tmp_path / "job").read_text() == job_text(["train"], Job())
    tools("sbatch", "echo 'error: no such\npartition' >&2; exit 1")
    assert_one_line(command("launch", "slurm", "--", "train"), 1, "sbatch refused the job: error: no such partition")


def test_without_mpiexec_it_is_one_line(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mpi.sys, "executable", str(tmp_path / "python"))
    assert_one_line(command("launch", "mpi", "--", "train"), 1, "mpiexec is not installed; pip install 'ringflow[mpi]'")


@pytest.mark.parametrize("hosts", [(), ("a", "b")])
def test_mpiexec_is_told_how_many_where_and_what(
    hosts: tuple[str, ...], tools: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools("mpiexec", f'printf "%s\\n" "$@" "$MASTER_ADDR" "$MASTER_PORT" > {tmp_path}/told; exit 3')
    python = str(tmp_path / "bin" / "python")
    monkeypatch.setattr(mpi.sys, "executable", python)
    for name in MEETING:
        monkeypatch.delenv(name, raising=False)
    assert mpi.run(["train", "data=a b"], 2, hosts) == 3
    *told, address, port = (tmp_path / "told").read_text().splitlines()
    where = ["-hosts", "a,b"] if hosts else []
    assert told == ["-n", "2", *where, python, "-m", "ringflow.cli", "train", "data=a b"]
    assert address == (socket.gethostname() if hosts else "127.0.0.1")
    assert int(port) > 0

"""The text of a job, what it does when its processes end, and how it is submitted and followed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch import slurm
from ringflow.launch.slurm import Job, follow, job_text

Command = Callable[..., Any]
Tools = Callable[[str, str], None]


def assert_one_line(done: Any, code: int, expected: str) -> None:
    assert (done.code, done.stderr.count("\n"), done.stdout) == (code, 1, "")
    assert done.stderr.startswith("ringflow: error: ")
    assert expected in done.stderr


def test_times_are_those_that_slurm_reads() -> None:
    for time in ("90", "90:00", "2:00:00", "1-12", "1-12:30", "1-12:30:59"):
        assert f"#SBATCH --time={time}\n" in job_text(["train"], Job(time=time))
    for time in ("", "2h", "1:2:3:4", "-5", "1-", "2:00:00 #", "²"):
        with pytest.raises(UsageError, match=r"is no time limit; give MINUTES, H:MM:SS or DAYS-HOURS"):
            Job(time=time)


def run_job(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a job as Slurm would on its first node."""
    ours = {"SLURM_JOB_ID": "20007", "SLURM_JOB_NODELIST": "node[1-2]", "FOLDER": str(folder)}
    return subprocess.run(
        ["bash"], input=text, env={**os.environ, **ours, **variables}, capture_output=True, text=True, timeout=60
    )


SCONTROL = 'if [ "$1" = show ]; then echo node1; echo node2; else echo "$@" >> "$FOLDER/told"; fi'
SRUN = 'printf "%s\\n" "$@" "$MASTER_ADDR:$MASTER_PORT" "$OMP_NUM_THREADS" "${RANK:-none}"; exit 7'


def test_a_job_starts_the_command_word_by_word(tools: Tools, tmp_path: Path) -> None:
    tools("scontrol", SCONTROL)
    tools("srun", SRUN)
    tools("py thon", "echo 12345")
    words = ["train", "data=my data/it's $HOME", "--out", "runs/a;b"]
    python = str(tmp_path / "bin" / "py thon")
    job = Job(cpus_per_task=3, python=python)
    left = {"RANK": "4", "MASTER_ADDR": "elsewhere", "MASTER_PORT": "1", "OMP_NUM_THREADS": "64"}
    done = run_job(job_text(words, job), tmp_path, **left)
    start = ["--cpus-per-task=3", "--kill-on-bad-exit=0", "--wait=60", python, "-m", "ringflow.cli", *words]
    assert done.stdout.splitlines() == [*start, "node1:12345", "3", "none"], done.stderr
    assert done.returncode == 7
    assert not (tmp_path / "told").exists()


def test_lines_for_the_shell_come_first_and_decide(tools: Tools, tmp_path: Path) -> None:
    tools("scontrol", SCONTROL)
    tools("srun", SRUN)
    job = Job(setup=("export MASTER_PORT=29500 OMP_NUM_THREADS=2", "export MASTER_ADDR=node1-ib"))
    done = run_job(job_text(["train"], job), tmp_path)
    assert done.stdout.splitlines()[-3:] == ["node1-ib:29500", "2", "none"], done.stderr
    done = run_job(job_text(["train"], Job(setup=("no-such-program",))), tmp_path)
    assert (done.returncode, done.stdout) == (127, ""), "nothing is started after a line that failed"


ENVIRONMENT = (
    'mkdir env; printf "#!/bin/bash\\necho theirs\\n" > env/python; chmod +x env/python; export PATH=$PWD/env:$PATH'
)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (Job(), sys.executable),
        (Job(setup=("true",)), sys.executable),
        (Job(setup=(ENVIRONMENT,)), "{folder}/env/python"),
        (Job(setup=(ENVIRONMENT,), python="/my/python"), "/my/python"),
    ],
    ids=["ours", "a setup of something else", "the one of the setup", "told"],
)
def test_processes_have_the_python_that_was_set_up(job: Job, expected: str, tools: Tools, tmp_path: Path) -> None:
    tools("scontrol", SCONTROL)
    tools("srun", 'printf "%s\\n" "$@"')
    for name in ("mkdir", "chmod"):
        tools(name, f'exec /usr/bin/{name} "$@"')
    job = replace(job, setup=(f"cd {tmp_path}", *job.setup, "export MASTER_PORT=29500"))
    done = run_job(job_text(["train"], job), tmp_path)
    started = done.stdout.splitlines()
    assert started[started.index("-m") - 1] == expected.format(folder=tmp_path), done.stderr


def test_what_processes_say_goes_into_the_folder_of_the_run(
    command: Command, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tools("sbatch", "cat > job; echo 42")
    done = command("launch", "slurm", "--", "train", "--out", "50% done/run")
    assert "its output is in 50% done/run/logs/ringflow-42-*.out" in done.stderr
    text = (tmp_path / "job").read_text()
    assert "#SBATCH '--output=50%% done/run/logs/ringflow-%j-job.out'\n" in text
    assert " '--output=50%% done/run/logs/ringflow-%j-rank-%t.out' --open-mode=append " in text
    assert (tmp_path / "50% done" / "run" / "logs").is_dir()
    (tmp_path / "file").touch()
    done = command("launch", "slurm", "--", "train", "--out=file/run")
    assert_one_line(done, 1, "cannot write file/run/logs: part of the path is a file; choose another folder")


@pytest.mark.parametrize(
    ("words", "cores"),
    [
        (["train", "clic_tiny"], 3),
        (["train", "clic_base", "source.workers=4"], 5),
        (["train", "clic_base", "data=data/ttbar"], 1),
        (["train", "data=sim:qq", "source.workers=7", "source.workers=6"], 7),
        (["train"], 2),
        (["bench", "scaling"], 1),
    ],
)
def test_cores_are_those_that_the_training_uses(words: list[str], cores: int, command: Command, tmp_path: Path) -> None:
    told = ["--out", str(tmp_path / "run")]
    text = json.loads(command("launch", "slurm", "--dry-run", "--json", "--", *words, *told).stdout)["job"]
    assert f"#SBATCH --cpus-per-task={cores}\n" in text
    assert "${OMP_NUM_THREADS:-1}" in text, "the others are for those that simulate"
    asked = command("launch", "slurm", "--dry-run", "--json", "--cpus-per-task", 9, "--", *words, *told).stdout
    assert "#SBATCH --cpus-per-task=9\n" in json.loads(asked)["job"]
    assert "${OMP_NUM_THREADS:-9}" in json.loads(asked)["job"]


def test_a_run_that_goes_on_has_the_cores_of_its_settings(command: Command, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text('data = "sim:qq"\n[source]\nworkers = 3\n')
    done = command("launch", "slurm", "--dry-run", "--", "train", "--out", tmp_path)
    assert "#SBATCH --cpus-per-task=4\n" in done.stderr


@pytest.mark.parametrize(("code", "told"), [(75, "requeue 20007\n"), (0, None), (1, None), (137, None)])
def test_a_job_that_was_told_to_stop_puts_itself_back_into_the_queue(
    code: int, told: str | None, tools: Tools, tmp_path: Path
) -> None:
    tools("scontrol", SCONTROL)
    tools("srun", f"exit {code}")
    assert run_job(job_text(["train"], Job()), tmp_path).returncode == code
    found = tmp_path / "told"
    assert (found.read_text() if found.exists() else None) == told


def test_a_job_can_be_looked_at(command: Command) -> None:
    words = ["--nodes", 2, "--gpus-per-node", 4, "--notice", 300, "--setup", "module load cuda", "conda activate a b"]
    words += ["--option=--qos=fast", "--", "train", "data=a b", "--out", "run"]
    done = command("launch", "slurm", "--dry-run", "--json", *words)
    shown = json.loads(done.stdout)
    assert (done.code, shown["processes"]) == (0, 8)
    asked = {line.removeprefix("#SBATCH ") for line in shown["job"].splitlines() if line.startswith("#SBATCH")}
    expected = {"--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=1:00:00", "--qos=fast"}
    assert expected | {"--requeue", "--signal=USR1@300", "--open-mode=append"} <= asked
    assert not any("account" in line or "partition" in line for line in asked)
    assert "\nmodule load cuda\nconda activate a b\n" in shown["job"]
    assert "train 'data=a b' --out run" in shown["job"]
    assert command("launch", "slurm", "--dry-run", *words).stderr.strip() == shown["job"].strip()


@pytest.mark.parametrize(
    "words",
    [
        *(["--partition", "gpu\n#SBATCH --uid=0"], ["--account", "a\x1b[2J"], ["--python", "py\x85thon"]),
        *(["--setup", "true\nrm -r run"], ["--option=--qos=fast\r--uid=0"], ["--time", "1:00:00\n"]),
        *(["--", "train", "data=a\nb"], ["--", "train", "--out", "run\u2028"], ["--", "train", "--out=a\x00"]),
    ],
    ids=repr,
)
def test_nothing_that_reaches_a_job_has_control_characters(words: list[str], command: Command, tools: Tools) -> None:
    tools("sbatch", "echo 42")
    done = command("launch", "slurm", *words, *(() if "--" in words else ("--", "train")))
    assert_one_line(done, 2, "")
    assert ("has a control character" if "--time" not in words else "is no time limit") in done.stderr


def test_a_job_is_submitted_or_the_reason_is_one_line(
    command: Command, tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(command("launch", "slurm", "--time", "2h", "--", "train"), 2, "--time '2h' is no time limit")
    assert_one_line(command("launch", "slurm", "--", "train"), 1, "sbatch is not on the path")
    tools("sbatch", 'cat > job; echo "42;cluster"')
    done = command("launch", "slurm", "--json", "--", "train")
    assert json.loads(done.stdout) == {"job_id": "42", "processes": 1}
    assert "submitted as job 42; its output is in ringflow-42.out" in done.stderr
    assert (tmp_path / "job").read_text() == job_text(["train"], Job(cpus_per_task=2, threads=1))
    tools("sbatch", "echo 'sbatch: error: no such\npartition' >&2; exit 1")
    assert_one_line(command("launch", "slurm", "--", "train"), 1, "sbatch refused the job: no such partition")


def test_a_job_is_followed_through_the_queue_to_its_end(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm, "_SECONDS_BETWEEN_LOOKS", 0.0)
    output, looks = tmp_path / "ringflow-42.out", tmp_path / "looks"
    states = ["PENDING", "RUNNING", "REQUEUED", "PENDING", "RUNNING", "FAILED"]
    answers = [
        f"JobId=42 JobState={state} Restarts=1 ExitCode={'3' if state == 'FAILED' else '0'}:0" for state in states
    ]
    cases = "\n".join(f'{number}) echo "{answer}";;' for number, answer in enumerate(answers))
    say = f'echo "look $n" >> {output}; echo -n "half" >> {output}'
    tools("scontrol", f"echo -n x >> {looks}; n=$(($(cat {looks} | wc -c) - 1)); {say}\ncase $n in\n{cases}\nesac")
    tools("wc", "exec /usr/bin/wc -c")
    assert follow("42", output) == 3
    said = capsys.readouterr().err
    assert said == "look 0\n" + "".join(f"halflook {n}\n" for n in range(1, len(states)))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("echo JobState=TIMEOUT ExitCode=0:15", "job 42 ended as TIMEOUT, see .*out; submit it again"),
        ("echo JobState=CANCELLED ExitCode=0:15", "job 42 ended as CANCELLED"),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", "Slurm has forgotten job 42"),
    ],
)
def test_a_job_that_did_not_end_by_itself_is_one_line(answer: str, expected: str, tools: Tools, tmp_path: Path) -> None:
    tools("scontrol", answer)
    with pytest.raises(FailureError, match=expected):
        follow("42", tmp_path / "ringflow-42.out")


def test_a_controller_that_is_down_is_waited_for(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_SECONDS_BETWEEN_LOOKS", 0.0)
    tools(
        "scontrol",
        f"[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; exit 1; }}; echo JobState=COMPLETED ExitCode=0:0",
    )
    assert follow("42", tmp_path / "ringflow-42.out") == 0

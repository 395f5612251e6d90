"""`ringflow tune` with real trainings: from a space to the best settings, and what happens when things are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fixtures.process_tree import descendants
from fixtures.tiny_training import TINY, command_line, make_dataset
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import TrialRecord, read_rows

pytestmark = pytest.mark.xdist_group("processes")

SPACE = """
["optimizer.rate"]
type = "float"
low = 1e-3
high = 1e-2
log = true

["model.width"]
type = "choice"
values = [8, 16]
"""
#: Trials of some seconds, with a checkpoint at nearly every step.
SLOW = ("length.events=1200", "length.validate_every=1200", "length.checkpoint_seconds=0.05")
SECONDS = 120.0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture
def words(tmp_path: Path, dataset: Path) -> list[str]:
    """The command of a small study."""
    (tmp_path / "space.toml").write_text(SPACE)
    lanes = [word for word in TINY if not word.startswith("source.lanes")]
    study = ["--space", str(tmp_path / "space.toml"), "--out", str(tmp_path / "study"), "--workers", "2"]
    return ["tune", f"data={dataset}", *lanes, *study, "--search", "random"]


@contextmanager
def started(words: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A driver, and the end of all that it started."""
    process = subprocess.Popen(command_line(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        for number in [*descendants(process.pid), process.pid]:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        process.communicate()


def wait_for(what: str, ready: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := ready()):
        assert time.monotonic() < deadline, f"{what}: did not happen"
        time.sleep(0.02)
    return found


def trials_of(study: Path) -> list[TrialRecord]:
    if not (study / "journal.log").is_file():
        return []
    try:
        return StudyFolder(study).record().trials
    except Exception:
        return []  # it is being made


def has_checkpoint(study: Path, trial: int) -> bool:
    return any((study / "trials" / f"{trial:04d}" / "checkpoints").glob("step-*"))


def require_all_counted_once(study: Path, trials: int) -> None:
    record = StudyFolder(study).record()
    assert len(record.trials) == trials
    assert all(trial.over for trial in record.trials)
    rows = [row for row in read_rows(study / "journal.log") if row.kind == "reported"]
    told = Counter((row.trial, row.data["resource"]) for row in rows)
    assert set(told.values()) == {1}


def test_from_a_space_to_the_best_settings(tmp_path: Path, words: list[str], command: Callable[..., Any]) -> None:
    study = tmp_path / "study"
    done = command(*words, "--trials", 3, "--objective", "loss,cpu_ms", "--json")
    assert done.code == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["trials"] == 3
    assert result["complete"] >= 1
    assert result["best"]["value"] > 0
    assert (Path(result["best"]["run"]) / "model.safetensors").is_file()
    assert "3 of 3 trials done" in done.stderr
    best = tmp_path / "best.toml"
    best.write_text(command("tune", "best", study).stdout)
    settings = TrainSettings.resolve(best)
    assert settings.optimizer.rate == result["best"]["settings"]["optimizer.rate"]
    assert command("tune", "best", study, "--front").code == 0
    assert command("tune", "report", study).code == 0
    assert (study / "report" / "index.html").is_file()
    again = command(*words, "--trials", 3, "--objective", "loss,cpu_ms", "--json")
    assert json.loads(again.stdout) == result, "the study was finished"
    refused = command(*words, "--trials", 4, "--objective", "loss,cpu_ms")
    assert refused.code == 2
    assert "has trials=3, not 4" in refused.stderr
    other = command("tune", "resume", study)
    assert other.code == 0
    origin = study / "origin.json"
    origin.write_text(origin.read_text().replace('"ringflow": "', '"ringflow": "9'))
    refused = command("tune", "resume", study)
    assert refused.code == 2
    assert "--allow-changes" in refused.stderr
    assert command("tune", "resume", study, "--allow-changes").code == 0
    journal = study / "journal.log"
    journal.write_bytes(b"no journal\n" + journal.read_bytes())
    damaged = command("tune", "resume", study, "--allow-changes")
    assert (damaged.code, "journal.log is damaged" in damaged.stderr) == (1, True)
    journal.rename(study / "study.db")
    earlier = command("tune", "report", study)
    assert (earlier.code, "is a study of an earlier version of ringflow" in earlier.stderr) == (1, True)


@pytest.mark.heavy
def test_a_preset_is_tuned_in_a_space_that_is_shipped(
    tmp_path: Path, dataset: Path, command: Callable[..., Any]
) -> None:
    small = ("detector=fake", "length.events=64", "compute.device=cpu", "--trials", 1, "--workers", 1)
    done = command("tune", "clic_tiny", f"data={dataset}", "--space", "training", *small, "--out", tmp_path / "study")
    assert done.code == 0, done.stderr
    assert f"next: ringflow tune report {tmp_path / 'study'}" in done.stderr
    (trial,) = trials_of(tmp_path / "study")
    assert trial.point["optimizer.rate"] == TrainSettings.resolve("clic_tiny").optimizer.rate  # the preset lies in it
    wrong = command("tune", "clic_tiny", f"data={dataset}", "--space", "space.toml", *small)
    assert wrong.code == 2
    assert "no space 'space.toml'; give a TOML file, or one of those that are shipped" in wrong.stderr


def test_a_driver_that_is_killed_is_gone_on_with(tmp_path: Path, words: list[str], command: Callable[..., Any]) -> None:
    study = tmp_path / "study"
    words = [*words, *SLOW, "--trials", "2"]
    with started(words) as driver:
        wait_for("a trial has a checkpoint", lambda: has_checkpoint(study, 0))
        workers = descendants(driver.pid)
        assert workers
        driver.kill()
        driver.wait()
        wait_for(
            "the processes have ended", lambda: not any(Path(f"/proc/{number}/exe").exists() for number in workers)
        )
    before = trials_of(study)
    assert any(not trial.over for trial in before)
    done = command("tune", "resume", study, "--workers", 2, "--json")
    assert done.code == 0, done.stderr
    require_all_counted_once(study, 2)
    assert [trial.point for trial in trials_of(study)][: len(before)] == [trial.point for trial in before]
    assert all(trial.failures == 0 for trial in trials_of(study))


@pytest.mark.heavy  # the next one is the same with two processes
def test_a_process_that_is_killed_costs_no_trial(tmp_path: Path, words: list[str]) -> None:
    study = tmp_path / "study"
    with started([*words, *SLOW, "--trials", "2", "--scheduler", "none", "--json"]) as driver:
        wait_for("both trials have a checkpoint", lambda: has_checkpoint(study, 0) and has_checkpoint(study, 1))
        victim = next(number for number in descendants(driver.pid) if _is_worker(number))
        os.kill(victim, signal.SIGKILL)
        out, said = driver.communicate(timeout=SECONDS)
        assert driver.returncode == 0, said
    require_all_counted_once(study, 2)
    failed = [trial for trial in trials_of(study) if trial.failures]
    assert len(failed) == 1
    assert "SIGKILL" in failed[0].reason
    assert failed[0].state == "complete"
    assert json.loads(out)["failed"] == 0


def _is_worker(number: int) -> bool:
    try:
        return b"ringflow.tune.worker" in Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.heavy
def test_a_rank_that_is_killed_costs_no_trial(tmp_path: Path, words: list[str]) -> None:
    """A trial of two processes: the other one ends, too, and both begin again."""
    study = tmp_path / "study"
    words = [*words, *SLOW, "--trials", "1", "--workers-per-trial", "2", "compute.batch_elements=30", "--json"]
    with started(words) as driver:
        wait_for("the trial has a checkpoint", lambda: has_checkpoint(study, 0))
        os.kill([number for number in descendants(driver.pid) if _is_worker(number)][-1], signal.SIGKILL)
        _, said = driver.communicate(timeout=SECONDS)
        assert driver.returncode == 0, said
    require_all_counted_once(study, 1)
    (trial,) = trials_of(study)
    assert trial.failures == 1
    assert trial.state == "complete"
    assert {said.workers for said in trial.reports} == {2}


@pytest.mark.heavy
def test_a_signal_ends_a_study_well(tmp_path: Path, words: list[str], command: Callable[..., Any]) -> None:
    study = tmp_path / "study"
    with started([*words, *SLOW, "--trials", "2"]) as driver:
        wait_for("a trial has a checkpoint", lambda: has_checkpoint(study, 0))
        second = command("tune", "resume", study)
        assert second.code == 1
        assert "another study is running" in second.stderr
        driver.terminate()
        _, said = driver.communicate(timeout=SECONDS)
        assert driver.returncode == 75, said
        assert "ringflow tune resume" in said
    assert command("tune", "resume", study, "--workers", 2).code == 0
    require_all_counted_once(study, 2)


def test_a_trial_that_diverges_is_stopped(tmp_path: Path, words: list[str], command: Callable[..., Any]) -> None:
    (tmp_path / "space.toml").write_text('["optimizer.rate"]\ntype = "choice"\nvalues = [1e30, 1e-3]\n')
    done = command(*words, "optimizer.clip=0", "--trials", 2, "--json")
    assert done.code == 0, done.stderr
    trials = {trial.point["optimizer.rate"]: trial for trial in trials_of(tmp_path / "study")}
    assert trials[1e30].state == "stopped"
    assert "became NaN or infinite" in trials[1e30].reason
    assert trials[1e-3].state == "complete"
    assert json.loads(done.stdout)["best"]["settings"] == {"optimizer.rate": 1e-3}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((SPACE.replace("optimizer.rate", "optimizer.rat"),), "optimizer.rate"),
        ((SPACE.replace("low = 1e-3", "low = 1"),), "low"),
        (('["seed"]\ntype = "int"\nlow = 1\nhigh = 9\n',), "seed cannot vary"),
        (('["length.events"]\ntype = "int"\nlow = 1\nhigh = 9\n',), "length.events cannot vary"),
        (('["loss.jet"]\ntype = "float"\nlow = 0.1\nhigh = 0.9\n',), "--objective jets"),
        ((SPACE, "--least", "9999"), "--least 9999"),
        ((SPACE, "sync=easgd"), "sync=easgd"),
        ((SPACE, "data=nowhere"), "nowhere"),
        ((SPACE, "--address", "127.0.0.1:1"), "--executor ray"),
        ((SPACE, "--scheduler", "magic"), "magic"),
        ((SPACE, "--warm-start", "nowhere"), "nowhere holds no study"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, words: list[str], command: Callable[..., Any], change: tuple[str, ...], said: str
) -> None:
    (tmp_path / "space.toml").write_text(change[0])
    done = command(*words, *change[1:])
    assert done.code in (1, 2)
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "study").exists()

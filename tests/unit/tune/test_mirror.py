"""Optuna's file of a study: what Optuna reads from it, and that nothing that goes wrong with it disturbs the study."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from pathlib import Path
from typing import Any

import optuna
import pytest

from fixtures.spoiled_study import make_spoiled_study
from fixtures.synthetic_study import make_study
from ringflow.base.errors import FailureError
from ringflow.tune import mirror as module
from ringflow.tune.folder import StudyFolder
from ringflow.tune.log import StudyLog, read_rows
from ringflow.tune.mirror import Mirror, rebuild
from ringflow.tune.record import Row


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """A study with trials of every state that Optuna has; its log is only read."""
    return make_spoiled_study(tmp_path_factory.mktemp("mirror") / "finished")


@pytest.fixture
def study(finished: StudyFolder, tmp_path: Path) -> StudyFolder:
    """A copy of it with an empty log."""
    path = tmp_path / "study"
    path.mkdir()
    for name in ("study.toml", "settings.toml", "space.toml", "origin.json"):
        (path / name).write_bytes((finished.path / name).read_bytes())
    with StudyLog(path / "study.db"):
        return StudyFolder(path)


def log(study: StudyFolder, rows: list[Row]) -> None:
    """Append rows at once: a log that waits for the disk after every one takes seconds."""
    with StudyLog(study.log):
        file = sqlite3.connect(study.log)
    words = [(row.time, row.kind, row.trial, json.dumps(row.data)) for row in rows]
    with file:
        file.executemany("INSERT INTO log (time, kind, trial, data) VALUES (?, ?, ?, ?)", words)
    file.close()


def loaded(study: StudyFolder) -> Any:
    storage = optuna.storages.RDBStorage(f"sqlite:///{study.path / 'optuna.db'}")
    try:
        return optuna.load_study(study_name=study.path.name, storage=storage), storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def trials(study: StudyFolder) -> list[Any]:
    found, storage = loaded(study)
    try:
        return list(found.trials)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def words(study: StudyFolder) -> list[tuple[Any, ...]]:
    """Everything that Optuna says of the trials, except the folders of their runs."""
    return [
        (t.number, t.state.name, t.values, t.params, t.distributions, str(t.intermediate_values), t.datetime_start,
         {name: word for name, word in t.user_attrs.items() if name != "run"})
        for t in trials(study)
    ]  # fmt: skip


def test_optuna_reads_what_the_log_says(finished: StudyFolder) -> None:
    assert rebuild(finished) == 40
    record, found = finished.record(), trials(finished)
    seen_states = set()
    states = {"complete": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}
    for trial, seen in zip(record.trials, found, strict=True):
        assert seen.number == trial.number
        diverged = trial.value is not None and math.isnan(trial.value)
        assert seen.state.name == ("FAIL" if diverged and trial.state == "complete" else states[trial.state])
        assert seen.params == trial.point
        assert seen.user_attrs["run"] == str(finished.run(trial.number))
        assert seen.user_attrs["resource"] == trial.resource
        assert list(seen.intermediate_values) == [said.resource for said in trial.reports]
        seen_states.add((seen.state.name, diverged))
        if diverged:
            assert seen.values is None
            assert math.isnan(list(seen.intermediate_values.values())[-1])
        elif seen.state.name in ("COMPLETE", "PRUNED"):
            assert seen.values == [trial.value]
        if trial.state == "failed":
            assert seen.user_attrs["reason"] == trial.reason
        assert seen.datetime_start.timestamp() == pytest.approx(trial.segments[0].start, abs=1e-3)
    assert seen_states == {("COMPLETE", False), ("PRUNED", False), ("FAIL", False), ("PRUNED", True), ("FAIL", True)}
    best, _ = loaded(finished)
    assert record.best is not None
    assert best.best_trial.number == record.best.number
    assert best.metric_names == ["loss"]


def test_parameters_have_their_distributions(finished: StudyFolder) -> None:
    rebuild(finished)
    make = optuna.distributions
    graph = next(trial for trial in trials(finished) if trial.params["model.backbone"] == "graph")
    assert graph.distributions == {
        "optimizer.rate": make.FloatDistribution(1e-4, 1e-2, log=True),
        "model.backbone": make.CategoricalDistribution(("attention", "graph", "mlp")),
        "model.width": make.IntDistribution(32, 256, step=32),
        "model.layers": make.IntDistribution(1, 8),
        "model.graph.bin_size": make.IntDistribution(32, 256, log=True),
        "model.dropout": make.FloatDistribution(0.0, 0.3),
        "optimizer.weight_decay": make.FloatDistribution(1e-4, 0.1, log=True),
    }
    other = next(trial for trial in trials(finished) if trial.params["model.backbone"] == "mlp")
    assert "model.graph.bin_size" not in other.params


def test_row_by_row_gives_the_same_as_all_at_once(finished: StudyFolder, study: StudyFolder) -> None:
    log(study, read_rows(finished.log))
    rows = read_rows(study.log)
    mirror = Mirror(study)
    for row in rows:
        mirror.apply([row])
    mirror.close()
    once = words(study)
    rebuild(study)
    assert words(study) == once


def test_a_study_that_goes_on(finished: StudyFolder, study: StudyFolder) -> None:
    rows = read_rows(finished.log)
    reported = next(number for number, row in enumerate(rows) if row.kind == "reported") + 1
    log(study, rows[:reported])
    Mirror(study).close()
    running = {trial.number for trial in study.record().trials if trial.state == "running"}
    assert running
    assert {trial.number for trial in trials(study) if trial.state.name == "RUNNING"} == running
    # The same file goes on, although the mirror is not told of all rows itself.
    log(study, rows[reported:])
    mirror = Mirror(study)
    mirror.apply(read_rows(study.log)[-3:])
    mirror.close()
    went_on = words(study)
    assert len(went_on) == 40
    rebuild(study)
    assert words(study) == went_on


def test_what_is_in_the_file_is_not_written_again(finished: StudyFolder, study: StudyFolder) -> None:
    rows = read_rows(finished.log)
    log(study, rows[:50])
    rebuild(study)
    file = sqlite3.connect(study.path / "optuna.db", isolation_level=None)
    file.execute("UPDATE trial_params SET param_value = 0.005 WHERE param_name = 'optimizer.rate'")
    file.close()
    log(study, rows[50:52])
    Mirror(study).close()
    untouched = {trial.number for trial in trials(study)} - {row.trial for row in rows[50:52]}
    assert untouched
    assert all(trials(study)[number].params["optimizer.rate"] == 0.005 for number in untouched)


def test_a_trial_that_waits_has_not_begun(finished: StudyFolder, study: StudyFolder) -> None:
    log(study, read_rows(finished.log)[:1])
    rebuild(study)
    (waiting,) = trials(study)
    assert waiting.state.name == "WAITING"
    assert waiting.datetime_start is None


def test_several_objectives(tmp_path: Path) -> None:
    folder = StudyFolder(make_study(tmp_path / "two", 16, objectives=("loss", "cpu_ms")))
    rebuild(folder)
    found, _ = loaded(folder)
    assert [direction.name for direction in found.directions] == ["MINIMIZE", "MINIMIZE"]
    complete = [trial for trial in folder.record().trials if trial.state == "complete"]
    assert complete
    for trial in complete:
        assert found.trials[trial.number].values == [trial.value, trial.figures["cpu_ms"]]
    assert {trial.number for trial in found.best_trials} <= {trial.number for trial in complete}
    stopped = next(trial for trial in found.trials if trial.state.name == "PRUNED")
    assert stopped.intermediate_values == {}
    assert stopped.user_attrs["reports"][0]["resource"] == 2000


def test_a_file_of_another_study_is_made_anew(finished: StudyFolder, study: StudyFolder) -> None:
    log(study, read_rows(finished.log))
    rebuild(study)
    study.log.unlink()
    log(study, read_rows(finished.log)[:1])
    Mirror(study).close()
    assert len(trials(study)) == 1


def test_nothing_is_done_without_optuna(study: StudyFolder, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(module, "_installed", lambda: False)
    mirror = Mirror(study)
    mirror.apply([])
    mirror.close()
    assert not (study.path / "optuna.db").exists()
    assert capsys.readouterr().err == ""


def test_a_damaged_file_is_told_once(
    finished: StudyFolder, study: StudyFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    log(study, read_rows(finished.log))
    (study.path / "optuna.db").write_bytes(b"this is no database" * 100)
    mirror = Mirror(study)
    for row in read_rows(study.log):
        mirror.apply([row])
    mirror.close()
    mirror.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"ringflow: {study.path / 'optuna.db'} is not kept up to date any more: ")
    assert "not a database" in line
    assert line.endswith("remove the file to have it made again; the study goes on without it")
    assert rebuild(study) == 40
    assert len(trials(study)) == 40


def test_a_locked_file_is_told_once(study: StudyFolder, finished: StudyFolder, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("ringflow.tune.optuna_file._SECONDS_TO_WAIT", 0.1)
    rebuild(study)
    other = sqlite3.connect(study.path / "optuna.db", isolation_level=None)
    try:
        other.execute("BEGIN EXCLUSIVE")
        log(study, read_rows(finished.log))
        Mirror(study).close()
    finally:
        other.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert "another program has locked it" in line
    assert len(read_rows(study.log)) == len(read_rows(finished.log))


def test_a_file_of_another_optuna_is_left_alone(study: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    rebuild(study)
    file = sqlite3.connect(study.path / "optuna.db", isolation_level=None)
    file.execute("UPDATE version_info SET schema_version = 13")
    file.close()
    Mirror(study).close()
    assert "its schema is 13, and ringflow writes schema 12" in capsys.readouterr().err


def test_the_end_does_not_wait_for_ever(study: StudyFolder, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    held = threading.Event()
    monkeypatch.setattr(module._Copy, "catch_up", lambda self: held.wait())
    mirror = Mirror(study)
    thread = mirror._thread
    mirror.close(0.1)
    assert "not everything was written within 0 seconds" in capsys.readouterr().err
    held.set()
    assert thread is not None
    thread.join()


def test_a_full_disk_is_told(finished: StudyFolder, study: StudyFolder, monkeypatch: Any, capsys: Any) -> None:
    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("ringflow.tune.optuna_file.OptunaFile.write", full)
    log(study, read_rows(finished.log))
    Mirror(study).close()
    assert "any more: the disk is full; free some space" in capsys.readouterr().err
    with pytest.raises(FailureError, match="the disk is full; free some space"):
        rebuild(study)

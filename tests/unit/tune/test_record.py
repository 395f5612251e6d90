"""The journal of a study: Optuna reads it, a half line is mended, and damage is told in one line."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import optuna
import pytest

from fixtures.made_up_trials import MadeUpExecutor, loss
from fixtures.made_up_trials import make_study as make_real_study
from fixtures.synthetic_study import make_spoiled_study
from ringflow.base.errors import DiskFullError, InputFileError
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import Journal, read_rows
from ringflow.tune.study import Study, drive

STATES = {"complete": "COMPLETE", "stopped": "PRUNED", "failed": "FAIL"}


def opened(folder: StudyFolder) -> optuna.Study:
    """As anybody opens it who knows nothing of ringflow."""
    backend = optuna.storages.journal.JournalFileBackend(str(folder.path / "journal.log"))
    return optuna.load_study(study_name=folder.path.name, storage=optuna.storages.JournalStorage(backend))


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    return make_spoiled_study(tmp_path_factory.mktemp("journal") / "first", 40)


@pytest.mark.filterwarnings("ignore:Some regimes")
def test_optuna_reads_what_happened(spoiled: StudyFolder) -> None:
    study, record = opened(spoiled), spoiled.record()
    assert study.metric_names == ["loss"]
    assert len(study.trials) == len(record.trials) == 40
    for shown, trial in zip(study.trials, record.trials, strict=True):
        diverged = trial.value is not None and math.isnan(trial.value)
        assert shown.state.name == ("FAIL" if diverged and trial.state == "complete" else STATES[trial.state])
        assert shown.params == trial.point
        assert shown.user_attrs["outcome"]["events"] == trial.resource
        assert shown.user_attrs["run"] == f"trials/{trial.number:04d}"
        on_the_way = {said.resource: said.value for said in trial.reports}
        assert shown.intermediate_values == pytest.approx(on_the_way, nan_ok=True)
        if shown.state.name == "COMPLETE":
            assert shown.value == trial.value
    best = record.best
    assert best is not None
    assert (study.best_trial.number, study.best_value) == (best.number, best.value)
    assert set(optuna.importance.get_param_importances(study))


def test_parameters_have_their_distributions(spoiled: StudyFolder) -> None:
    found = {name: kind for trial in opened(spoiled).trials for name, kind in trial.distributions.items()}
    make = optuna.distributions
    assert found["optimizer.rate"] == make.FloatDistribution(1e-4, 1e-2, log=True)
    assert found["model.width"] == make.IntDistribution(32, 256, step=32)
    assert found["model.backbone"] == make.CategoricalDistribution(("attention", "graph", "mlp"))
    assert found["model.graph.bin_size"] == make.IntDistribution(32, 256, log=True)


def test_several_objectives(tmp_path: Path) -> None:
    folder = make_real_study(tmp_path, objectives=["loss", "cpu_ms"], scheduler="asha", trials=8)
    both = MadeUpExecutor(
        figures=lambda settings, resource: {"loss": loss(settings, resource), "cpu_ms": settings["model"]["layers"]}
    )
    study = Study(folder)
    drive(study, both)
    shown = opened(folder)
    assert len(shown.directions) == 2
    for trial in shown.trials:
        assert trial.intermediate_values == {}
        assert (trial.state.name == "COMPLETE") == (trial.values is not None)
        assert trial.user_attrs["outcome"]["reports"][-1]["cpu_ms"] == trial.params["model.layers"]
    assert shown.best_trials


def test_a_half_line_of_a_killed_driver_is_taken_away(spoiled: StudyFolder) -> None:
    whole, before = spoiled.journal.read_bytes(), read_rows(spoiled.journal)
    try:
        spoiled.journal.write_bytes(whole + b'{"op_code": 4, "wor')
        assert read_rows(spoiled.journal) == before  # to look at it changes nothing
        Journal(spoiled.journal, spoiled.space, ("loss",))
        assert spoiled.journal.read_bytes() == whole
    finally:
        spoiled.journal.write_bytes(whole)


def test_damage_and_earlier_versions_are_one_line(spoiled: StudyFolder, tmp_path: Path) -> None:
    damaged = tmp_path / "journal.log"
    damaged.write_bytes(b"no journal\n" + spoiled.journal.read_bytes())
    with pytest.raises(InputFileError, match=r"journal\.log is damaged .*; put a copy of it back"):
        read_rows(damaged)
    damaged.unlink()
    with pytest.raises(InputFileError, match=r"journal\.log does not exist"):
        read_rows(damaged)
    (tmp_path / "study.db").touch()
    with pytest.raises(InputFileError, match="is a study of an earlier version of ringflow"):
        read_rows(damaged)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("reported", None),  # a row is missing
        ("reported", {"resource": "many"}),
        ("reported", {"value": []}),
        ("reported", {"verdict": "perhaps"}),
        ("reported", {"figures": 3}),
        ("begun", {"workers": None}),
        ("added", {"point": {}}),
        ("added", {"point": {"optimizer.rate": "fast"}}),
        ("added", {"retry_of": 900}),
        ("added", {"retry_of": -1}),
    ],
)
def test_rows_that_are_none_are_one_line(
    spoiled: StudyFolder, tmp_path: Path, kind: str, change: dict[str, object] | None
) -> None:
    """Whatever a line of the file says, nobody counts it as something else."""
    shutil.copytree(spoiled.path, tmp_path / "study")
    study, changed = StudyFolder(tmp_path / "study"), False
    lines = study.journal.read_text().splitlines()
    for number, line in enumerate(lines):
        words = json.loads(line)
        place = words.get("system_attr") or words.get("system_attrs") or {}
        key, value = next(((k, v) for k, v in place.items() if k.startswith("ringflow:")), ("", [0.0, "", {}]))
        if value[1] == kind:
            place[key] = [value[0], kind, {**value[2], **(change or {})}]
            lines[number : number + 1] = [] if change is None else [json.dumps(words)]
            changed = True
            break
    assert changed
    study.journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputFileError, match=r"put (a copy of it|copies of both) back") as caught:
        study.record()
    assert str(caught.value).isprintable()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_real_study(tmp_path)
    study = Study(folder)

    def full(*words: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DiskFullError, match=r"cannot write .*journal\.log: the disk is full"):
        study.add()


def test_what_people_write_into_the_journal_does_not_disturb(tmp_path: Path) -> None:
    """A note that the dashboard keeps with a study or a trial."""
    folder = make_real_study(tmp_path, trials=3)
    drive(Study(folder), MadeUpExecutor())
    rows = read_rows(folder.journal)
    opened(folder).set_user_attr("note", "look at trial 2")
    assert read_rows(folder.journal) == rows
    assert json.loads(folder.journal.read_text().splitlines()[-1])["user_attr"] == {"note": "look at trial 2"}
    assert Study(folder).finished

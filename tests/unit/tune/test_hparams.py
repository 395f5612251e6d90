"""Files for the HPARAMS page of TensorBoard, read back as it reads them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from fixtures.synthetic_study import make_study
from ringflow.tune.folder import StudyFolder
from ringflow.tune.hparams import write_hparams
from ringflow.tune.record import Journal


def events(folder: Path) -> list[Any]:
    """The records of the one file in a folder: length, check, content, check."""
    (path,) = folder.glob("*tfevents*")
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def plugin(event: Any) -> Any:
    return HParamsPluginData.FromString(event.summary.value[0].metadata.plugin_data.content)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_study(tmp_path_factory.mktemp("studies") / "two", 20, objectives=("loss", "jets"), failures=0.1)
    assert write_hparams(path) == path
    return path


def test_the_settings_and_the_values_of_every_trial_are_there(study: Path) -> None:
    record = StudyFolder(study).record()
    for trial in record.trials:
        head, start, *told = events(study / "tensorboard" / f"{trial.number:04d}")
        assert head.file_version == "brain.Event:2"
        hparams = plugin(start).session_start_info.hparams
        assert set(hparams) == set(trial.point)
        assert hparams["optimizer.rate"].number_value == trial.point["optimizer.rate"]
        assert hparams["model.backbone"].string_value == trial.point["model.backbone"]
        assert plugin(told[-1]).session_end_info.status == (2 if trial.state == "failed" else 1)
        scalars = [{value.tag: value.simple_value for value in event.summary.value} for event in told[:-1]]
        assert [event.step for event in told[:-1]] == [report.resource for report in trial.reports]
        for report, values in zip(trial.reports, scalars, strict=True):
            assert values["tune/loss"] == pytest.approx(report.value, rel=1e-6, nan_ok=True)
            jets = report.figures.get("jet_iqr_over_median", float("nan"))
            assert values["tune/jets"] == pytest.approx(jets, rel=1e-6, nan_ok=True)


def test_the_study_says_what_varies(study: Path) -> None:
    _, told = events(study / "tensorboard")
    experiment = plugin(told).experiment
    assert {info.name for info in experiment.hparam_infos} == {p.name for p in StudyFolder(study).space.parameters}
    assert [info.name.tag for info in experiment.metric_infos] == ["tune/loss", "tune/jets", "tune/events"]


def test_it_is_written_again_when_something_happened(tmp_path: Path) -> None:
    study = make_study(tmp_path / "young", 3, until=0.0)
    write_hparams(study)
    file = study / "tensorboard" / "0000"
    before = [path.stat().st_mtime_ns for path in file.iterdir()]
    write_hparams(study)
    assert [path.stat().st_mtime_ns for path in file.iterdir()] == before
    folder = StudyFolder(study)
    Journal(folder.journal, folder.space, folder.settings.objectives, study).append("gone", 0, reason="lost")
    write_hparams(study)
    assert plugin(events(file)[-1]).session_end_info.status == 2


def test_of_many_trials_the_best_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ringflow.tune.hparams.MOST_TRIALS", 3)
    study = write_hparams(make_study(tmp_path / "many", 12, scheduler="none"))
    ranked = sorted(StudyFolder(study).record().trials, key=lambda trial: trial.value or 0.0)
    expected = sorted(f"{trial.number:04d}" for trial in ranked[:3])
    assert sorted(path.name for path in (study / "tensorboard").iterdir() if path.is_dir()) == expected

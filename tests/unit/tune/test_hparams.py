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
from ringflow.tune.study import write_hparams


def events(folder: Path) -> list[Any]:
    """The records of the one file in a folder but its head: length, check, content, check."""
    (path,) = folder.glob("*tfevents*")
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(Event.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found[1:]


def plugin(event: Any) -> Any:
    return HParamsPluginData.FromString(event.summary.value[0].metadata.plugin_data.content)


def test_the_settings_and_the_values_of_every_trial_are_there(tmp_path: Path) -> None:
    study = make_study(tmp_path / "two", 12, objectives=("loss", "jets"), failures=0.1)
    assert write_hparams(study) == study
    folder = StudyFolder(study)
    for trial in folder.record().trials:
        start, *told = events(study / "tensorboard" / f"{trial.number:04d}")
        hparams = plugin(start).session_start_info.hparams
        assert set(hparams) == set(trial.point)
        assert hparams["optimizer.rate"].number_value == trial.point["optimizer.rate"]
        assert hparams["model.backbone"].string_value == trial.point["model.backbone"]
        if trial.state != "failed":
            assert plugin(told.pop()).session_end_info.status == 1
        found = {(event.step, value.tag): value.simple_value for event in told for value in event.summary.value}
        expected = {}
        for report in trial.reports:
            jets = report.figures.get("jet_iqr_over_median", float("nan"))
            for name, value in (("loss", report.value), ("jets", jets), ("events", report.resource)):
                expected[report.resource, f"tune/{name}"] = pytest.approx(value, rel=1e-6, nan_ok=True)
        assert found == expected
    experiment = plugin(events(study / "tensorboard")[0]).experiment
    assert {info.name for info in experiment.hparam_infos} == {p.name for p in folder.space.parameters}
    assert [info.name.tag for info in experiment.metric_infos] == ["tune/loss", "tune/jets", "tune/events"]


def test_of_many_trials_the_best_are_written_and_nothing_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_hparams(make_study(tmp_path / "many", 12, scheduler="none"))
    monkeypatch.setattr("ringflow.tune.study.MOST_TRIALS", 3)
    write_hparams(study)
    ranked = sorted(StudyFolder(study).record().trials, key=lambda trial: trial.value or 0.0)
    expected = sorted(f"{trial.number:04d}" for trial in ranked[:3])
    assert sorted(path.name for path in (study / "tensorboard").iterdir() if path.is_dir()) == expected
    assert len(list((study / "tensorboard").rglob("*tfevents*"))) == 4

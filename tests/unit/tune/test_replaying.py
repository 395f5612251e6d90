"""Replays of studies and of recorded trainings: rows, curves, pages and the command."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures.synthetic_study import make_study
from ringflow.base.errors import InputFileError, UsageError
from ringflow.cli.tuning import replay_command
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder
from ringflow.tune.options import Place, Plan
from ringflow.tune.replay.campaign import (
    COMPARED,
    REFERENCE,
    plan_campaign,
    replay_study,
    scaling,
    scaling_devices,
)
from ringflow.tune.replay.curves import (
    DEFAULT_HOURS,
    LearningCurve,
    carried_on,
    read_recorded,
    recorded_curves,
    write_curves,
)
from ringflow.tune.replay.engine import Allocation, Setting
from ringflow.tune.replay.page import lanes_of
from ringflow.tune.schedulers import Ladder

SHIPPED = recorded_curves(None)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("studies") / "first", 24)


def row_of(result: dict[str, Any], scheduler: str, devices: int) -> dict[str, Any]:
    (row,) = [row for row in result["rows"] if (row["scheduler"], row["devices"]) == (scheduler, devices)]
    return dict(row)


def test_recorded_trainings_come_with_the_package() -> None:
    assert len(SHIPPED.curves) >= 10
    for curve in SHIPPED.curves:
        assert curve.events[-1] == pytest.approx(1.0, abs=0.01)
        assert curve.values[-1] < curve.values[0]


def test_a_replay_of_recorded_trainings() -> None:
    result = replay_study(SHIPPED, devices=(16, 4), schedulers=["asha,none", "rasda"], orders=2)
    assert [(row["devices"], row["scheduler"]) for row in result["rows"]] == [
        (devices, name) for devices in (4, 16) for name in ("asha", "none", "rasda")
    ]
    random, asha, rasda = (row_of(result, name, 16) for name in ("none", "asha", "rasda"))
    assert random["trials"] == random["complete"] == asha["trials"] == 16
    seconds = 3600 * DEFAULT_HOURS + 120.0
    assert random["makespan_seconds"] == pytest.approx(seconds, rel=1e-6)
    assert random["device_hours"] == pytest.approx(16 * seconds / 3600, rel=1e-6)
    assert random["utilisation"] == pytest.approx(1.0)
    assert asha["complete"] < 16
    assert asha["device_hours"] < random["device_hours"]
    assert asha["best"] >= random["best"]
    assert (asha["speedup_makespan"], asha["speedup_equal_quality"]) == (1.0, 1.0)
    assert rasda["makespan_seconds"] < asha["makespan_seconds"] / 1.5
    assert rasda["speedup_equal_quality"] > 1.5
    assert rasda["reloads"] > 0
    assert {row["scheduler"] for row in result["scaling"]} == {"asha", "none", "rasda", "asha-in-turns"}
    assert {row["hours"] for row in result["sensitivity"]} == {1 / 12, 0.5, 2.0, 8.0}
    assert replay_study(SHIPPED, devices=(4, 16), schedulers=["none"], orders=2)["reference"] == "none"


def test_curves_of_a_study_are_those_of_its_trials(study: Path, tmp_path: Path) -> None:
    folder = StudyFolder(study)
    trials = [trial for trial in folder.record().trials if trial.reports]
    found = recorded_curves(study)
    assert len(found.curves) == len(trials) == 24
    stopped, whole = (
        next(number for number, trial in enumerate(trials) if trial.state == state) for state in ("stopped", "complete")
    )
    first, last = trials[stopped].reports[0], trials[whole].reports[-1]
    assert found.curves[stopped].value(first.resource / 128_000) == pytest.approx(first.value)
    assert found.curves[stopped].events[-1] == pytest.approx(1.0)
    assert found.curves[stopped].values[-1] < trials[stopped].reports[-1].value
    assert found.curves[whole].values[-1] == last.value

    assert write_curves(tmp_path / "curves.json", [study, study], what="twice the same") == 48
    kept = read_recorded(tmp_path / "curves.json")
    assert kept.what == "twice the same"
    again = kept.curves[24 + stopped]
    assert again.value(first.resource / 128_000) == pytest.approx(first.value, rel=1e-5)
    assert again.values[-1] == pytest.approx(found.curves[stopped].values[-1], rel=1e-4)


def test_validations_of_runs_come_before_reports(tmp_path: Path) -> None:
    path = make_study(tmp_path / "study", 4, scheduler="none")
    run = StudyFolder(path).run(2)
    run.mkdir(parents=True)
    lines = [{"kind": "validation", "events": events, "loss": 9.0 - events / 32_000} for events in (32_000, 128_000)]
    (run / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = recorded_curves(path).curves
    assert found[2] == LearningCurve([0.25, 1.0], [8.0, 5.0])
    assert len(found[1].events) == 1


def test_a_curve_is_carried_on_as_the_others_went_on() -> None:
    whole = [
        LearningCurve([10.0, 100.0], [4.0, 2.0]),
        LearningCurve([10.0, 100.0], [8.0, 2.0]),
        LearningCurve([10.0, 100.0], [5.0, 2.0]),
    ]
    cut, diverged = LearningCurve([10.0], [6.0]), LearningCurve([10.0, 20.0], [5.0, math.nan])
    *_, longer, same = carried_on([*whole, cut, diverged], 100.0)
    assert longer.events[-1] == pytest.approx(100.0)
    assert longer.values[-1] == pytest.approx(6.0 * 0.4)  # the median of 1/2, 1/4 and 2/5
    assert same is diverged
    assert carried_on([cut], 100.0)[0].values[-1] == 6.0


def test_a_study_is_replayed_as_long_as_it_was(study: Path) -> None:
    folder = StudyFolder(study)
    campaign = plan_campaign(recorded_curves(study), trials=24)
    assert not campaign.drawn
    assert plan_campaign(recorded_curves(study), trials=25).drawn
    record = folder.record()
    per_event = record.device_seconds / sum(trial.resource for trial in record.trials)
    assert campaign.hours == pytest.approx(per_event * 128_000 / 3600)
    shares = [rung / campaign.most for rung in campaign.ladder.rungs]
    assert shares == pytest.approx([1 / 64, 1 / 16, 1 / 4, 1.0], rel=1e-3)
    longer = replace(campaign, hours=8.0)
    for hours in (0.1, 0.3, 1.7, 2.0, 8.0):
        ladder = replace(campaign, hours=hours).ladder
        assert len(ladder.rungs) == len(ladder.from_the_end) == len(folder.ladder.rungs)
    assert longer.most == pytest.approx(8 / campaign.hours * campaign.most, rel=1e-6)
    assert longer.curves[0].value(longer.most) == campaign.curves[0].value(campaign.most)


def test_the_replay_is_of_what_tune_does_unless_told() -> None:
    campaign = plan_campaign(SHIPPED, trials=24)
    training = TrainSettings.resolve(None, [f"length.events={campaign.most}"])
    plan = Plan().settings(training, Place())
    assert campaign.ladder == Ladder(plan.least, campaign.most, plan.eta)
    assert Setting().retries == plan.retries
    assert Setting().initial_workers == plan.workers_per_trial
    assert plan.scheduler == REFERENCE


def test_the_replay_of_a_study_has_its_scheduler_and_its_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = make_study(tmp_path / "study", 8, scheduler="asha-promote", workers_per_trial=2)
    replay_command(study, devices=(4,), orders=1, as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert {row["scheduler"] for row in result["rows"]} == {"asha-promote", *COMPARED}
    assert {row["trials"] for row in result["rows"]} == {2}
    assert any(sentence.startswith("Trials have 2 devices at first") for sentence in result["assumptions"])


def test_few_devices_that_load_often_are_slower_than_their_number_says() -> None:
    campaign = plan_campaign(SHIPPED, trials=32, overrides=["upkeep.restart_seconds=60"])
    few: dict[str, Any] = {"trials": 32, "setting": Setting(reload_seconds=60.0), "orders": 2}
    rows = scaling(campaign, ["asha"], scaling_devices(32), **few)
    turns = {row["devices"]: row for row in rows if row["scheduler"] == "asha-in-turns"}
    plain = {row["devices"]: row for row in rows if row["scheduler"] == "asha"}
    assert list(turns) == [1, 2, 4, 8, 16, 32]
    assert max(row["over_linear"] for row in turns.values()) > 1.05
    assert max(row["over_linear"] for row in plain.values()) <= 1.0
    assert turns[32]["reloads"] == 0 < turns[8]["reloads"] < turns[1]["reloads"]
    assert turns[32]["device_hours_saved"] > 2.0
    assert plain[32]["device_hours_saved"] == pytest.approx(1.0)


def test_devices_of_segments_are_never_shared() -> None:
    segments = [Allocation(0, 0.0, 2.0, 1, 0, 1), Allocation(1, 0.0, 1.0, 2, 0, 1), Allocation(2, 1.0, 3.0, 3, 0, 1)]
    placed = {segment.trial: lanes for segment, lanes in lanes_of(segments, 4)}
    assert placed == {1: [(0, 2)], 0: [(2, 3)], 2: [(0, 2), (3, 4)]}


def test_the_page_holds_all_it_shows(study: Path, tmp_path: Path) -> None:
    recorded, out = recorded_curves(study), tmp_path / "page"
    result = replay_study(recorded, devices=(4, 16), schedulers=["asha", "rasda", "none"], orders=1, out=out)
    text = Path(result["page"]).read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert text.count("<img ") == 5
    assert text.count("<li>") == len(result["assumptions"])
    row = row_of(result, "rasda", 16)
    assert f"{row['speedup_equal_quality']:.2f}" in text
    hard, easy = (
        next(
            found["makespan"]
            for found in result["sensitivity"]
            if (found["scheduler"], found["trials_per_device"], found["penalty"]) == ("rasda", *case)
            and found["hours"] == 1 / 12
        )
        for case in ((4, 0.5), (1, 0.0))
    )
    assert re.search(f"<h1>RASDA .* {hard:.2f} times .* {easy:.2f} times", text)
    figures = tmp_path / "page" / "figures"
    assert {path.stem for path in figures.glob("*.png")} == {"makespan", "best", "devices", "scaling", "decides"}
    kept = json.loads((tmp_path / "page" / "replay.json").read_text())
    assert kept["rows"] == json.loads(json.dumps(result["rows"]))
    alone = replay_study(recorded, devices=[2], schedulers=["none"], orders=1, out=out)
    assert "random search on 2 devices takes" in Path(alone["page"]).read_text()


def test_the_command_speaks_to_people_and_machines(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay_command(study, devices=(4,), scheduler="asha,none", trials=8, orders=1, as_json=True)
    said = capsys.readouterr()
    assert [row["trials"] for row in json.loads(said.out)["rows"]] == [8, 8]
    replay_command(Path("upkeep.restart_seconds=30"), devices=(4,), scheduler="none", hours=1.0, orders=1)
    said = capsys.readouterr()
    assert said.out == ""
    assert "Every start takes 30 s" in said.err
    assert "faster than none" in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"scheduler": "best"}, "no scheduler is called 'best'"),
        ({"scheduler": ","}, "no scheduler was named"),
        ({"devices": (2,), "initial_workers": 3}, "3 processes per trial do not fit on 2 devices"),
        ({"hours": 1e-12}, "does not train a single event"),
        ({"hardware": "h20"}, "did you mean 'h200'"),
    ],
)
def test_what_cannot_be_replayed(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replay_command(None, **words)


def test_folders_and_files_that_hold_no_curves(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="holds no study"):
        recorded_curves(tmp_path)
    untold = make_study(tmp_path / "untold", 4, until=0.0)
    with pytest.raises(InputFileError, match=r"no trial of .* has reported a value"):
        recorded_curves(untold)
    with pytest.raises(InputFileError, match="no trial of these studies"):
        write_curves(tmp_path / "none.json", [untold], what="nothing")
    (tmp_path / "other.json").write_text('{"trials": [{}]}')
    with pytest.raises(InputFileError, match="holds no recorded curves"):
        read_recorded(tmp_path / "other.json")

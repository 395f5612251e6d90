"""Replays: studies on simulated clusters worked out by hand, learning curves, rows, the page and the command."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.even_costs import FREE, even_costs
from fixtures.synthetic_study import make_study
from ringflow.base.errors import InputFileError, UsageError
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder
from ringflow.tune.options import ExecutorOptions, Plan
from ringflow.tune.replay import (
    DEFAULT_HOURS,
    Allocation,
    CurveModel,
    LearningCurve,
    Recorded,
    Replay,
    Setting,
    carried_on,
    fit,
    read_recorded,
    recorded_curves,
    speedup,
    write_curves,
)
from ringflow.tune.replay.campaign import COMPARED, REFERENCE, plan_campaign, replay_study, scaling
from ringflow.tune.report import lanes_of
from ringflow.tune.schedulers import SCHEDULERS, Ladder

SHIPPED = recorded_curves(None)
FALLING = [LearningCurve([0.0, 40.0], [40.0, 0.0])]


def level(*values: float) -> list[LearningCurve]:
    """Trials that have one value from their beginning to their end."""
    return [LearningCurve([1.0], [value]) for value in values]


def run(curves: list[LearningCurve], scheduler: str, devices: int, **setting: Any) -> Replay:
    """An event per second and device, rungs at 10 and 40, and a start takes ten seconds."""
    ladder, assumed = Ladder(10, 40, 4), Setting(**setting)
    return Replay(curves, scheduler, devices=devices, ladder=ladder, costs=even_costs(), setting=assumed)


def test_a_trial_alone() -> None:
    result = run([LearningCurve([10.0, 40.0], [3.0, 1.0])], "none", 2)
    assert (result.makespan, result.device_seconds, result.utilisation) == (50.0, 50.0, 0.5)
    assert result.segments == [Allocation(0, 0.0, 50.0, 1, 0, 40)]
    assert result.best_over_time == [(50.0, 1.0)]
    assert (result.trials, result.complete, result.reloads) == (1, 1, 0)


@pytest.mark.parametrize(
    ("scheduler", "values", "devices", "setting", "makespan", "reloads"),
    [
        # Trials wait for devices.
        ("none", (1, 2, 3), 2, {}, 100.0, 0),
        ("none", (1, 2, 3), 2, {"initial_workers": 2}, 3 * (10.0 + 40 / 2), 0),
        # RASDA waits for its devices and starts anew.
        ("rasda", (1, 2, 3, 4), 4, {}, 20.0 + 10.0 + 30 / 4, 1),
        ("rasda", (1, 2, 3, 4), 4, {"reload_seconds": 5.0}, 42.5, 1),
        # Who was put aside is started again, as by the driver of a study; also if it goes on at once.
        ("asha-promote", (1, 2, 3, 4), 4, {"reload_seconds": 5.0}, 20.0 + 10.0 + 5.0 + 30.0, 1),
        ("asha-promote", (4, 3, 2, 1), 2, {"reload_seconds": 5.0}, 40.0 + 10.0 + 5.0 + 30.0, 1),
        # In turns nobody waits whose devices nobody wants.
        ("none", (1, 2), 2, {"turn": 20, "reload_seconds": 5.0}, 50.0, 0),
    ],
)
def test_what_a_study_takes(
    scheduler: str, values: tuple[float, ...], devices: int, setting: dict[str, Any], makespan: float, reloads: int
) -> None:
    result = run(level(*values), scheduler, devices, **setting)
    assert (result.makespan, result.reloads) == (makespan, reloads)


def test_asha_stops_and_goes_on_without_a_new_start() -> None:
    result = run(level(1.0, 2.0), "asha", 2)
    assert sorted(result.segments) == [Allocation(0, 0.0, 50.0, 1, 0, 40), Allocation(1, 0.0, 20.0, 1, 0, 10)]
    assert (result.complete, result.best_over_time) == (1, [(20.0, 1.0)])


def test_who_waits_for_devices_is_not_overtaken() -> None:
    # At 20 s trial 0 wants both devices, but trial 1 (the best so far, too) wants them as well: one after the other.
    result = run(level(2.0, 1.0, 3.0), "rasda", 2)
    assert [(segment.trial, segment.start, segment.workers) for segment in result.segments] == [
        (0, 0.0, 1), (1, 0.0, 1), (0, 20.0, 2), (1, 45.0, 2), (2, 70.0, 1),
    ]  # fmt: skip


def test_with_take_a_trial_goes_on_with_what_is_free() -> None:
    assert run(level(1.0), "rasda", 3, growth="take").segments[-1] == Allocation(0, 20.0, 40.0, 3, 10, 40)
    full = run(level(2.0, 1.0), "rasda", 2, growth="take")  # no device is free: no new start
    assert full.segments == [Allocation(0, 0.0, 50.0, 1, 0, 40), Allocation(1, 0.0, 50.0, 1, 0, 40)]


@pytest.mark.parametrize(("penalty", "shown"), [(0.0, 40.0), (1.0, 10 + 30 / 4), (0.5, 10 + 30 / 2)])
def test_larger_batches_may_be_worth_less_and_a_longer_training_makes_up_for_it(penalty: float, shown: float) -> None:
    assert run(FALLING, "rasda", 4, penalty=penalty).best == 40.0 - shown
    longer = run(FALLING, "rasda", 4, penalty=penalty, lengthen=True)
    assert (longer.best, longer.makespan) == (0.0, 20.0 + 10.0 + 30 / (4 * 4**-penalty))


def test_trials_that_take_turns_start_again_every_time() -> None:
    result = run(level(1.0, 2.0), "none", 1, turn=20, reload_seconds=5.0)
    assert result.segments == [
        Allocation(0, 0.0, 30.0, 1, 0, 20), Allocation(1, 30.0, 60.0, 1, 0, 20),
        Allocation(0, 60.0, 95.0, 1, 20, 40), Allocation(1, 95.0, 130.0, 1, 20, 40),
    ]  # fmt: skip


@given(
    scheduler=st.sampled_from(SCHEDULERS), devices=st.integers(1, 20), workers=st.integers(1, 4), seed=st.integers(0, 99),
    trials=st.integers(1, 40), growth=st.sampled_from(["wait", "take"]), turn=st.sampled_from([0, 3, 25]),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_devices_are_never_had_twice(
    scheduler: str, devices: int, workers: int, seed: int, trials: int, growth: str, turn: int
) -> None:
    curves = level(*[float(1 + number * (seed + 1) % 17) for number in range(trials)])
    result = run(curves, scheduler, devices, initial_workers=min(workers, devices), growth=growth, turn=turn)
    changes = [(segment.end, -segment.workers) for segment in result.segments]
    changes += [(segment.start, segment.workers) for segment in result.segments]
    used = 0
    for _, change in sorted(changes):  # at the same time devices are given back first
        used += change
        assert 0 <= used <= devices
    for trial in range(trials):
        own = sorted(segment for segment in result.segments if segment.trial == trial)
        assert own[0].first == 0
        assert all(before.end <= after.start and before.last == after.first for before, after in pairwise(own))
    assert result.device_seconds == pytest.approx(sum(s.workers * (s.end - s.start) for s in result.segments))
    assert result.makespan == max(segment.end for segment in result.segments)
    assert 0.0 < result.utilisation <= 1.0 + 1e-12


def test_lanes_of_segments_are_never_shared() -> None:
    placed = {
        what: lanes for what, _, _, lanes in lanes_of([(0.0, 2.0, 1, "a"), (0.0, 1.0, 2, "b"), (1.0, 3.0, 3, "c")])
    }
    assert placed == {"b": [(0, 2)], "a": [(2, 3)], "c": [(0, 2), (3, 4)]}


def test_a_curve_is_straight_between_its_points_and_level_outside() -> None:
    curve = LearningCurve([10.0, 20.0, 40.0], [4.0, 3.0, 1.0])
    assert [curve.value(events) for events in (0, 10, 15, 20, 30, 40, 99)] == [4.0, 4.0, 3.5, 3.0, 2.0, 1.0, 1.0]
    assert [curve.scaled(10.0).value(events) for events in (150, 400)] == [3.5, 1.0]


def test_a_fit_finds_the_power_law() -> None:
    shares = np.linspace(1 / 16, 1.0, 16)
    values = 2.0 + 1.5 * (shares**-0.5 - 1.0) / (16**0.5 - 1.0)
    assert fit(LearningCurve((8000 * shares).tolist(), values.tolist())) == pytest.approx((2, 1.5, 0.5, 0), abs=1e-6)
    rising = LearningCurve([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    assert fit(rising) == (2.5, 0.0, 1.0, math.sqrt(1.25))


def test_drawn_curves_are_like_the_recorded_ones() -> None:
    model = CurveModel(SHIPPED.curves)
    curves, recorded = model.draw(2000, seed=3), model.laws[:, 0]
    assert curves == model.draw(2000, seed=3) != model.draw(2000, seed=4)
    ends = np.array([curve.value(1.0) for curve in curves])
    assert abs(ends.mean() - recorded.mean()) < 3 * recorded.std() / len(recorded) ** 0.5
    assert ends.min() > 0.5 * recorded.min()
    early = np.array([curve.value(1 / 16) for curve in curves])
    assert (early > ends).mean() > 0.95
    assert np.corrcoef(early, ends)[0, 1] < 0.99
    smooth = np.array([curve.values for curve in model.draw(200, seed=3, scatter=0.0)])
    assert (np.diff(smooth, axis=1) <= 0.0).all()
    with pytest.raises(InputFileError, match="1 curves"):
        CurveModel([SHIPPED.curves[0], LearningCurve([1.0, 2.0, 3.0, 4.0], [1.0, math.nan, 1.0, 1.0])])


@pytest.mark.parametrize(
    ("restart", "penalty", "slowest", "fastest", "as_good"),
    [(10, 0.0, 1.5, math.inf, True), (1e4, 0.0, 0.0, 1.0, True), (10, 1.0, 0.0, math.inf, False)],
)
def test_rasda_is_faster_if_trials_are_long_against_a_start_and_as_good_if_batches_are_free(
    restart: float, penalty: float, slowest: float, fastest: float, as_good: bool
) -> None:
    words = [
        *FREE,
        "work.events=1",
        "work.seconds_per_event=1",
        "work.parameters=1",
        f"upkeep.restart_seconds={restart}",
    ]
    smooth = Recorded("", CurveModel(SHIPPED.curves).draw(200, seed=1, scatter=0.0))
    campaign = plan_campaign(smooth, trials=200, overrides=words, hours=12_000 / 3600)
    results = campaign.compare(["asha", "rasda"], [64], setting=Setting(penalty=penalty), orders=2)
    found = speedup(results, "rasda", "asha", 64)
    assert slowest < min(found.makespan, found.equal_quality) < fastest
    assert (found.best == found.other_best) == as_good
    assert speedup(results, "asha", "asha", 64)[:2] == (1.0, 1.0)
    assert [one.trials for one in results["asha", 64]] == [64, 64]  # all begin at once


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("studies") / "first", 24)


def row_of(result: dict[str, Any], scheduler: str, devices: int) -> dict[str, Any]:
    (row,) = [row for row in result["rows"] if (row["scheduler"], row["devices"]) == (scheduler, devices)]
    return dict(row)


def test_a_replay_of_recorded_trainings() -> None:
    assert len(SHIPPED.curves) >= 10
    assert all(curve.values[-1] < curve.values[0] for curve in SHIPPED.curves)
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


def test_curves_of_a_study_are_those_of_its_trials(study: Path, tmp_path: Path) -> None:
    trials = [trial for trial in StudyFolder(study).record().trials if trial.reports]
    found = recorded_curves(study)
    assert len(found.curves) == len(trials) == 24
    states = [trial.state for trial in trials]
    stopped, whole = states.index("stopped"), states.index("complete")
    first, last = trials[stopped].reports[0], trials[whole].reports[-1]
    assert found.curves[stopped].value(first.resource / 128_000) == pytest.approx(first.value)
    assert found.curves[stopped].events[-1] == pytest.approx(1.0)
    assert found.curves[stopped].values[-1] < trials[stopped].reports[-1].value
    assert found.curves[whole].values[-1] == last.value
    assert write_curves(tmp_path / "curves.json", [study, study], what="twice the same") == 48
    kept = read_recorded(tmp_path / "curves.json")
    assert kept.what == "twice the same"
    assert kept.curves[24 + stopped].values[-1] == pytest.approx(found.curves[stopped].values[-1], rel=1e-4)


def test_validations_of_runs_come_before_reports(tmp_path: Path) -> None:
    path = make_study(tmp_path / "study", 4, scheduler="none")
    lines = [{"kind": "train", "events": 5, "loss": 9.0}, {"kind": "validation", "events": 7, "loss": None}]
    lines += [{"kind": "validation", "events": events, "loss": 9.0 - events / 32_000} for events in (32_000, 128_000)]
    lines = [{**line, "step": 1} for line in lines]
    for trial, text in ((1, '{"kind": "validation", "step": 1}'), (2, "\n".join(map(json.dumps, lines))), (3, "{")):
        run = StudyFolder(path).run(trial)
        run.mkdir(parents=True)
        (run / "history.jsonl").write_text(text)
    found = recorded_curves(path).curves
    assert found[2] == LearningCurve([0.25, 1.0], [8.0, 5.0])
    assert [len(found[trial].events) for trial in (0, 1, 3)] == [1, 1, 1]  # what they reported


def test_a_curve_is_carried_on_as_the_others_went_on() -> None:
    whole = [LearningCurve([10.0, 100.0], [first, 2.0]) for first in (4.0, 8.0, 5.0)]
    cut, diverged = LearningCurve([10.0], [6.0]), LearningCurve([10.0, 20.0], [5.0, math.nan])
    *_, longer, same = carried_on([*whole, cut, diverged], 100.0)
    assert longer.events[-1] == pytest.approx(100.0)
    assert longer.values[-1] == pytest.approx(6.0 * 0.4)  # the median of 1/2, 1/4 and 2/5
    assert same is diverged
    assert carried_on([cut], 100.0)[0].values[-1] == 6.0


def test_a_study_is_replayed_as_it_was(study: Path) -> None:
    folder = StudyFolder(study)
    campaign, record = plan_campaign(recorded_curves(study), trials=24), folder.record()
    assert not campaign.drawn
    assert plan_campaign(recorded_curves(study), trials=25).drawn
    per_event = record.device_seconds / sum(trial.resource for trial in record.trials)
    assert campaign.hours == pytest.approx(per_event * 128_000 / 3600)
    for hours in (0.1, 1.7, 8.0):
        ladder = replace(campaign, hours=hours).ladder
        assert len(ladder.rungs) == len(ladder.from_the_end) == len(folder.ladder.rungs)
    longer = replace(campaign, hours=8.0)
    assert longer.most == pytest.approx(8 / campaign.hours * campaign.most, rel=1e-6)
    assert longer.curves[0].value(longer.most) == campaign.curves[0].value(campaign.most)
    # Without a study, what `tune` does unless told.
    usual = plan_campaign(SHIPPED, trials=24)
    plan = Plan().settings(TrainSettings.resolve(None, [f"length.events={usual.most}"]), ExecutorOptions())
    assert usual.ladder == Ladder(plan.least, usual.most, plan.eta)
    assert (Setting().initial_workers, REFERENCE) == (plan.workers_per_trial, plan.scheduler)


def test_few_devices_that_load_often_are_slower_than_their_number_says() -> None:
    campaign = plan_campaign(SHIPPED, trials=32, overrides=["upkeep.restart_seconds=60"])
    rows = scaling(campaign, ["asha"], [1, 2, 4, 8, 16, 32], trials=32, setting=Setting(reload_seconds=60.0), orders=2)
    turns, plain = (
        {row["devices"]: row for row in rows if row["scheduler"] == name} for name in ("asha-in-turns", "asha")
    )
    assert list(turns) == [1, 2, 4, 8, 16, 32]
    assert max(row["over_linear"] for row in turns.values()) > 1.05
    assert max(row["over_linear"] for row in plain.values()) <= 1.0
    assert turns[32]["reloads"] == 0 < turns[8]["reloads"] < turns[1]["reloads"]
    assert turns[32]["device_hours_saved"] > 2.0
    assert plain[32]["device_hours_saved"] == pytest.approx(1.0)


def test_the_page_holds_all_it_shows(study: Path, tmp_path: Path) -> None:
    recorded, out = recorded_curves(study), tmp_path / "page"
    result = replay_study(recorded, devices=(4, 16), schedulers=["asha", "rasda", "none"], orders=1, out=out)
    text = Path(result["page"]).read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert text.count("<img ") == 5
    assert text.count("<li>") == len(result["assumptions"])
    assert f"{row_of(result, 'rasda', 16)['speedup_equal_quality']:.2f}" in text
    told = {
        (row["trials_per_device"], row["penalty"]): row["makespan"]
        for row in result["sensitivity"]
        if (row["scheduler"], row["hours"]) == ("rasda", 1 / 12)
    }
    assert re.search(f"<h1>RASDA .* {told[4, 0.5]:.2f} times .* {told[1, 0.0]:.2f} times", text)
    assert {path.stem for path in (out / "figures").glob("*.png")} == {
        "makespan",
        "best",
        "devices",
        "scaling",
        "decides",
    }
    assert json.loads((out / "replay.json").read_text())["rows"] == json.loads(json.dumps(result["rows"]))
    alone = replay_study(recorded, devices=[2], schedulers=["none"], orders=1, out=out)
    assert "random search on 2 devices takes" in Path(alone["page"]).read_text()


def test_the_command_speaks_to_people_and_machines(tmp_path: Path, command: Callable[..., Any]) -> None:
    study = make_study(tmp_path / "study", 8, scheduler="asha-promote", workers_per_trial=2)
    result = json.loads(command("tune", "replay", study, "--devices", 4, "--orders", 1, "--json").stdout)
    assert {row["scheduler"] for row in result["rows"]} == {"asha-promote", *COMPARED}
    assert {row["trials"] for row in result["rows"]} == {2}
    assert any(sentence.startswith("Trials have 2 devices at first") for sentence in result["assumptions"])
    words = ("upkeep.restart_seconds=30", "--devices", 4, "--scheduler", "none", "--hours", 1, "--orders", 1)
    said = command("tune", "replay", *words)
    assert said.stdout == ""
    assert "Every start takes 30 s" in said.stderr
    assert "speed-ups over none" in said.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scheduler", "best"), "no scheduler is called 'best'"),
        (("--devices", 2, "--initial-workers", 3), "3 processes per trial do not fit on 2 devices"),
        (("--hours", 1e-12), "does not train a single event"),
        (("--hardware", "h20"), "did you mean 'h200'"),
        (("nowhere",), "nowhere holds no study"),
    ],
)
def test_what_cannot_be_replayed(words: tuple[object, ...], message: str, command: Callable[..., Any]) -> None:
    done = command("tune", "replay", *words)
    assert done.code != 0
    assert message in done.stderr


def test_what_holds_no_curves(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no curves"):
        run([], "none", 2)
    untold = make_study(tmp_path / "untold", 4, until=0.0)
    with pytest.raises(InputFileError, match=r"no trial of .* has reported a value"):
        recorded_curves(untold)
    with pytest.raises(InputFileError, match="no trial of these studies"):
        write_curves(tmp_path / "none.json", [untold], what="nothing")

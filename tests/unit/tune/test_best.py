"""Settings of the best trial, as a file to train with; the front of several objectives, and what it dominates."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.made_up_trials import known_trial
from fixtures.synthetic_study import make_study
from ringflow.base.config import to_toml
from ringflow.base.errors import FailureError, InputFileError, UsageError
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import Journal, State, TrialRecord
from ringflow.tune.table import best_settings, front_of, front_rows, hypervolume, non_dominated, short


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("studies") / "two", 40, objectives=("loss", "cpu_ms"))


def resolved(text: str, folder: Path) -> TrainSettings:
    path = folder / "best.toml"
    path.write_text(text, encoding="utf-8")
    return TrainSettings.resolve(path)


def test_training_takes_the_file_and_it_is_the_point_of_the_best_trial(study: Path, tmp_path: Path) -> None:
    folder = StudyFolder(study)
    best = folder.record().best
    assert best is not None
    text = best_settings(study)
    assert text.startswith(f"# trial {best.number} of two: loss {best.value:.5g}, cpu_ms ")
    settings = resolved(text, tmp_path)
    assert to_toml(settings) == text.partition("\n")[2]
    assert settings.optimizer.rate == best.point["optimizer.rate"]
    assert settings.model.backbone == best.point["model.backbone"]
    # What the space does not vary is as it was.
    assert settings.length == folder.training.length
    assert settings.loss == folder.training.loss


def test_another_objective_has_another_best_trial(study: Path) -> None:
    record = StudyFolder(study).record()
    complete = record.in_state("complete")
    cheapest = min(complete, key=lambda trial: trial.figures["cpu_ms"])
    assert len(complete) > 1
    assert best_settings(study, objective="cpu_ms").startswith(f"# trial {cheapest.number} ")
    with pytest.raises(UsageError, match="made no 'jets' small; choose from loss, cpu_ms"):
        best_settings(study, objective="jets")


def test_any_trial_can_be_taken(study: Path, tmp_path: Path) -> None:
    point = StudyFolder(study).record().trials[7].point
    assert resolved(best_settings(study, trial=7), tmp_path).model.width == point["model.width"]
    with pytest.raises(UsageError, match="has no trial 40; there are trials 0 to 39"):
        best_settings(study, trial=40)


def test_the_front_is_a_table_that_machines_can_read(study: Path) -> None:
    rows = front_rows(study)
    losses, costs = [row["loss"] for row in rows], [row["cpu_ms"] for row in rows]
    assert len(rows) > 1
    assert losses == sorted(losses)
    assert costs == sorted(costs, reverse=True)
    assert {"trial", "state", "events", "optimizer.rate"} <= rows[0].keys()
    assert json.loads(json.dumps(rows)) == rows


def test_before_the_first_report_there_is_nothing_to_give(tmp_path: Path) -> None:
    study = make_study(tmp_path / "young", 4, until=0.0)
    for give in (best_settings, front_rows):
        with pytest.raises(
            FailureError, match=r"no trial of .*young has a value yet; go on with `ringflow tune resume"
        ):
            give(study)
    assert best_settings(study, trial=0).startswith("# trial 0 of young, which has no value\n")
    with pytest.raises(InputFileError, match="holds no study"):
        best_settings(tmp_path / "nowhere")


def test_if_all_failed_it_says_why(tmp_path: Path) -> None:
    study = make_study(tmp_path / "sad", 2, until=0.0)
    folder = StudyFolder(study)
    journal = Journal(folder.journal, folder.space, folder.settings.objectives)
    for trial in (0, 1):
        journal.append("gone", trial, reason="no such device")
    with pytest.raises(FailureError, match=r"all 2 trials of .*sad failed, the last with: no such device"):
        best_settings(study)


def test_settings_in_a_few_words() -> None:
    point = {
        "optimizer.rate": 0.00123456,
        "model.width": 128,
        "optimizer.betas": [0.9, 0.98],
        "model.backbone": "graph",
    }
    assert short(point) == "rate=0.00123 width=128 betas=0.9,0.98 backbone=graph"
    assert short(point, 1) == "rate=0.00123 …"


Rows = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=12)


def trial(number: int, loss: float, cost: float | None = None, state: State = "complete") -> TrialRecord:
    costs = {} if cost is None else {"cpu_ms": cost}
    return known_trial(number, {}, loss, state=state, jet_iqr_over_median=loss / 10, **costs)


@given(Rows)
def test_no_other_row_beats_one_of_the_front(rows: list[tuple[int, int, int]]) -> None:
    front = non_dominated(rows)

    def beats(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    for index, row in enumerate(rows):
        beaten = any(beats(other, row) for other in rows)
        first = rows.index(row) == index
        assert (index in front) == (not beaten and first)


@given(Rows)
def test_the_volume_is_that_of_all_cells_that_are_dominated(rows: list[tuple[int, int, int]]) -> None:
    cells = np.stack(np.meshgrid(*[np.arange(6)] * 3, indexing="ij"), -1).reshape(-1, 3)
    dominated = np.any([(cells >= row).all(axis=1) for row in rows], axis=0).sum()
    assert hypervolume(rows, (6, 6, 6)) == pytest.approx(dominated)


def test_rows_beyond_the_reference_dominate_nothing() -> None:
    assert hypervolume([(1, 5), (3, 3)], (4, 4)) == pytest.approx(1.0)
    assert hypervolume([(5, 5)], (4, 4)) == 0.0


def test_the_front_of_trials_goes_from_the_best_to_the_cheapest() -> None:
    trials = [trial(0, 3.0, 9.0), trial(1, 2.0, 10.0), trial(2, 4.0, 1.0, "stopped"), trial(3, 4.0, 9.5)]
    front = front_of(trials, ("loss", "cpu_ms"))
    assert [found.number for found in front.trials] == [1, 0, 2]
    assert front.values.tolist() == [[2.0, 10.0], [3.0, 9.0], [4.0, 1.0]]
    # Of a box of 2 by 9, scaled to 1 by 1: from loss 3 on all that costs more than 9.
    assert front.hypervolume == pytest.approx(0.5 * (1 / 9))
    assert front.compared == 4


def test_trials_without_all_values_are_not_compared() -> None:
    trials = [trial(0, math.nan, 1.0), trial(1, 1.0), trial(2, 2.0, 2.0)]
    assert [found.number for found in front_of(trials, ("loss", "cpu_ms")).trials] == [2]
    assert front_of(trials[:2], ("loss", "cpu_ms")).trials == []
    assert front_of([], ("loss", "cpu_ms")).hypervolume == 0.0


def test_objectives_are_found_by_their_short_names() -> None:
    assert trial(0, 2.0, 3.0).values(("loss", "jets", "cpu_ms")) == [2.0, 0.2, 3.0]
    assert math.isnan(TrialRecord(0, {}).values(("loss",))[0])

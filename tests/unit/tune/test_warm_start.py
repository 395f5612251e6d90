"""What is learned from earlier studies, and from which nothing can be."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fixtures.spoiled_study import make_spoiled_study
from fixtures.synthetic_study import SPACE, make_study
from ringflow.base.errors import InputFileError, UsageError
from ringflow.tune.folder import StudyFolder
from ringflow.tune.scalar import scalarised
from ringflow.tune.search import make_search
from ringflow.tune.settings import StudySettings
from ringflow.tune.space_file import parse_space
from ringflow.tune.warm_start import earlier, earlier_trials

LOSS = StudySettings(least=1)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """A study in which trials were stopped, failed and diverged."""
    return make_spoiled_study(tmp_path_factory.mktemp("warm") / "first", 60)


def test_all_that_reported_is_known(study: StudyFolder) -> None:
    told = [trial for trial in study.record().trials if trial.reports]
    known = earlier(study.path, study.space, "loss")
    assert [trial.trial for trial in known] == list(range(-len(told), 0))
    for found, trial in zip(known, told, strict=True):
        assert found.point == trial.point
        assert found.value == pytest.approx(trial.value, nan_ok=True)
        assert (found.resource, found.complete) == (trial.resource, trial.state == "complete")


def test_another_objective_is_taken_from_the_figures(study: StudyFolder) -> None:
    told = [trial for trial in study.record().trials if trial.reports]
    for name in ("jets", "jet_iqr_over_median"):
        for found, trial in zip(earlier(study.path, study.space, name), told, strict=True):
            if trial.figures:
                assert found.value == trial.figures["jet_iqr_over_median"]
            else:
                assert found.value is not None
                assert math.isnan(found.value)


def test_an_objective_that_was_not_measured(study: StudyFolder) -> None:
    # Of those that diverged it is known that they did, but not that anything is better.
    told = [trial for trial in study.record().trials if trial.reports]
    measured = sum(bool(trial.figures) for trial in told)
    assert measured < len(told)
    with pytest.raises(UsageError, match=f"0 of {len(told)} are not of this space, {measured} have no parameters"):
        earlier(study.path, study.space, "parameters")


def test_points_of_another_space_are_left_out(study: StudyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    narrow = parse_space(SPACE.replace('values = ["attention", "graph", "mlp"]', 'values = ["attention", "graph"]'))
    known = earlier(study.path, narrow, "loss")
    told = [trial for trial in study.record().trials if trial.reports]
    inside = [trial for trial in told if trial.point["model.backbone"] != "mlp"]
    assert len(known) == len(inside) < len(told)
    assert f"{len(inside)} trials to learn from; {len(told) - len(inside)} of {len(told)}" in capsys.readouterr().err


def test_nothing_to_learn_from_is_an_error(study: StudyFolder, tmp_path: Path) -> None:
    other = parse_space("['optimizer.clip']\ntype = 'float'\nlow = 0.5\nhigh = 2.0\n")
    told = sum(bool(trial.reports) for trial in study.record().trials)
    with pytest.raises(UsageError, match=f"from {study.path}: {told} of {told} are not of this space, 0 have no loss"):
        earlier(study.path, other, "loss")
    empty = make_study(tmp_path / "empty", 4, until=0.0)
    with pytest.raises(UsageError, match="none of its trials reported anything"):
        earlier(empty, study.space, "loss")
    with pytest.raises(InputFileError, match="holds no study"):
        earlier(tmp_path, study.space, "loss")


def test_several_studies_are_put_on_one_scale(study: StudyFolder, tmp_path: Path) -> None:
    second = make_study(tmp_path / "second", 12, seed=2, objectives=("cpu_ms",))
    assert earlier_trials([], study.space, LOSS) == []
    (alone,) = {trial.value for trial in earlier_trials([study.path], study.space, LOSS) if trial.value == _best(study)}
    assert alone == _best(study)
    both = earlier_trials([study.path, second], study.space, LOSS)
    first = len(earlier(study.path, study.space, "loss"))
    assert [trial.trial for trial in both] == list(range(-len(both), 0))
    for part in (both[:first], both[first:]):
        values = [trial.value for trial in part if trial.value is not None and not math.isnan(trial.value)]
        assert min(values) == pytest.approx(-1.0)
        assert sum(value < 0 for value in values) == pytest.approx(len(values) / 2, abs=1)


def test_a_search_goes_on_from_what_is_known(study: StudyFolder) -> None:
    known = earlier_trials([study.path], study.space, LOSS)
    search = make_search("evolution", study.space, study.training, seed=3)
    cold, warm = search.ask(0, []), search.ask(0, known)
    assert cold != warm
    best = min((trial for trial in known if trial.value is not None and not math.isnan(trial.value)), key=_value)
    asked = [search.ask(number, known) or {} for number in range(10)]
    alike = sum(point["model.backbone"] == best.point["model.backbone"] for point in asked)
    assert alike >= 5


def _value(trial: object) -> float:
    return float(getattr(trial, "value"))  # noqa: B009


def _best(study: StudyFolder) -> float:
    return min(
        trial.value for trial in study.record().trials if trial.value is not None and not math.isnan(trial.value)
    )


def test_with_several_objectives_earlier_trials_count(study: StudyFolder, tmp_path: Path) -> None:
    several = StudySettings(least=1, objectives=("loss", "cpu_ms"))
    known = earlier_trials([study.path], study.space, several)
    assert len(known) == len(earlier(study.path, study.space, "loss"))
    told = [trial for trial in study.record().trials if trial.reports]
    for found, trial in zip(known, told, strict=True):
        if trial.figures:
            assert found.values == (trial.value, trial.figures["cpu_ms"])
        else:
            assert all(map(math.isnan, found.values))
    search = make_search("evolution", study.space, study.training, seed=3)
    asked = [search.ask(0, scalarised(known, (1, question))) for question in range(5)]
    assert search.ask(0, scalarised([], (1, 1))) not in asked
    second = make_study(tmp_path / "second", 12, seed=2)
    both = earlier_trials([study.path, second], study.space, several)
    scale = [value for trial in both for value in trial.values if math.isfinite(value)]
    assert (min(scale), max(scale)) == (0.0, 1.0)  # each study by its own ranks
    with pytest.raises(UsageError, match="have no parameters; give a study"):
        earlier_trials([study.path], study.space, StudySettings(least=1, objectives=("loss", "parameters")))

"""What is learned from earlier studies, and from which nothing can be."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from fixtures.made_up_trials import make_study as made_up
from fixtures.synthetic_study import SPACE, make_spoiled_study, make_study
from ringflow.base.errors import FailureError, InputFileError, UsageError
from ringflow.train.runs import claimed
from ringflow.tune.folder import StudyFolder, StudySettings, create, earlier_trials
from ringflow.tune.record import TrialRecord
from ringflow.tune.search import Search
from ringflow.tune.space import Space, parse_space


def earlier(path: Path, space: Space, *objectives: str) -> list[TrialRecord]:
    return earlier_trials([path], space, StudySettings(least=1, objectives=objectives))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """A study in which trials were stopped, failed and diverged."""
    return make_spoiled_study(tmp_path_factory.mktemp("warm") / "first", 60)


def test_all_that_reported_is_known(study: StudyFolder) -> None:
    told = [trial for trial in study.record().trials if trial.reports]
    known = earlier(study.path, study.space, "loss")
    assert [trial.number for trial in known] == list(range(-len(told), 0))
    for found, trial in zip(known, told, strict=True):
        assert found.point == trial.point
        assert found.value == pytest.approx(trial.value, nan_ok=True)
        assert (found.resource, found.state == "complete") == (trial.resource, trial.state == "complete")


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
    settings = StudySettings(least=1)
    assert earlier_trials([], study.space, settings) == []
    both = earlier_trials([study.path, second], study.space, settings)
    first = len(earlier(study.path, study.space, "loss"))
    assert [trial.number for trial in both] == list(range(-len(both), 0))
    for part in (both[:first], both[first:]):
        assert (
            min(trial.value for trial in part if trial.state == "complete" and math.isfinite(trial.value or 0.0)) == 0.0
        )


def test_a_search_goes_on_from_what_is_known(study: StudyFolder) -> None:
    known = earlier(study.path, study.space, "loss")
    search = Search("tpe", study.space, study.training, seed=3)
    assert search.ask(0, []) != search.ask(0, known)
    best = min(
        (trial for trial in known if trial.state == "complete" and math.isfinite(trial.value)),
        key=lambda one: one.value,
    )
    asked = [search.ask(number, known) or {} for number in range(10)]
    assert sum(point["model.backbone"] == best.point["model.backbone"] for point in asked) >= 5


def test_with_several_objectives_earlier_trials_count(study: StudyFolder) -> None:
    known = earlier(study.path, study.space, "loss", "cpu_ms")
    told = [trial for trial in study.record().trials if trial.reports]
    for found, trial in zip(known, told, strict=True):
        if trial.figures:
            assert found.values(("loss", "cpu_ms")) == [trial.value, trial.figures["cpu_ms"]]
        else:
            assert all(map(math.isnan, found.values(("loss", "cpu_ms"))))
    search = Search("evolution", study.space, study.training, seed=3, objectives=("loss", "cpu_ms"))
    assert search.ask(0, []) != search.ask(0, known)
    with pytest.raises(UsageError, match="have no loss or parameters; give a study"):
        earlier(study.path, study.space, "loss", "parameters")


class KilledError(BaseException):
    """Stands for a kill -9."""


def test_a_study_killed_while_it_is_made_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after every file that is written; what is there afterwards is the same as without."""
    expected = made_up(tmp_path, name="study").path
    whole = {path.name: path.read_bytes() for path in expected.iterdir()}
    shutil.rmtree(expected)
    rename, left = Path.replace, 0

    def mortal(self: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            raise KilledError
        left -= 1
        return rename(self, target)

    kills = 0
    for after in range(len(whole)):
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", mortal)
            left = after
            try:
                made_up(tmp_path, name="study")
                break
            except KilledError:
                kills += 1
    assert kills == len(whole) - 1  # all but the mark are put in their place
    assert {path.name: path.read_bytes() for path in made_up(tmp_path, name="study").path.iterdir()} == whole


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_study_that_runs_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    folder = made_up(tmp_path)
    with claimed(folder.path, "study"), pytest.raises(FailureError, match=r"another study is running in .*study; wait"):
        create(folder.training, folder.settings, tmp_path / "study.toml", folder.path, overwrite=overwrite)
    assert folder.space.parameters


@pytest.mark.parametrize("name", ["journal.log", "trials", "report"])
def test_nothing_is_read_or_written_through_a_link_out_of_a_study(tmp_path: Path, name: str) -> None:
    path = made_up(tmp_path).path
    if (path / name).exists():
        (path / name).rename(tmp_path / "outside")
    (path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(FailureError, match=f"{name} is a link out of its folder"):
        StudyFolder(path)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"data": 3}', '{"ringflow": "1", "data": [], "places": {"a": 1}}'])
def test_an_origin_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    folder = made_up(tmp_path)
    (folder.path / "origin.json").write_text(text)
    with pytest.raises(InputFileError, match=r"origin\.json is missing or damaged; put a copy of it back"):
        _ = folder.origin

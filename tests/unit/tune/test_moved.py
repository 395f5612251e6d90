"""Studies and runs that were moved, or are gone on with from another folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ringflow.tune.study as run_module
from fixtures.made_up_trials import MadeUpExecutor, make_study
from fixtures.tiny_training import TINY, make_dataset
from ringflow.base.errors import UsageError
from ringflow.models.file import load_model
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder, create, settled
from ringflow.tune.options import ExecutorOptions
from ringflow.tune.record import Journal, JournalRow, StudyRecord
from ringflow.tune.study import Study, drive

DATA = ("data=data/dataset", "detector=fake")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


@pytest.fixture
def project(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, in which we are."""
    folder = tmp_path / "project"
    shutil.copytree(made, folder / "data" / "dataset")
    monkeypatch.chdir(folder)
    return folder


def moved_together(project: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    project.rename(new := project.parent / "elsewhere")
    monkeypatch.chdir(project.parent)
    return new / what, []


def from_another_folder(project: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    (project.parent / "other").mkdir()
    monkeypatch.chdir(project.parent / "other")
    return Path("..") / "project" / what, []


def moved_alone(project: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[str]]:
    shutil.move(project / what, new := project.parent / "deep" / "er" / "moved")
    monkeypatch.chdir(project.parent)
    return new, ["data=project/data/dataset"]


WAYS = [moved_together, from_another_folder, moved_alone]


def begin(study: Path, rows: int = 12) -> None:
    """Let a study go on until so many rows are written, as if it were killed then."""

    class KilledError(Exception):
        pass

    left, append = [rows], Journal.append

    def appended(self: Journal, *words: Any, **data: Any) -> JournalRow:
        if not left[0]:
            raise KilledError
        left[0] -= 1
        return append(self, *words, **data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Journal, "append", appended)
        with pytest.raises(KilledError):
            drive(Study(StudyFolder(study)), MadeUpExecutor(places=1))


def points(record: StudyRecord) -> list[Any]:
    return [(trial.number, trial.point, trial.value, trial.state) for trial in record.trials]


@pytest.mark.parametrize("way", WAYS)
def test_a_moved_study_gives_the_same_points(
    project: Path, monkeypatch: pytest.MonkeyPatch, way: Callable[..., tuple[Path, list[str]]]
) -> None:
    made = make_study(project, *DATA, search="tpe", trials=14)
    begin(made.path)
    shutil.copytree(made.path, stays := project.parent / "unmoved")
    settings = TrainSettings.resolve(stays / "settings.toml", complete=False)
    study = Study(StudyFolder(stays))
    drive(study, MadeUpExecutor(places=1))
    expected = points(study.record)
    executor = MadeUpExecutor(places=1)
    monkeypatch.setattr(run_module, "make_executor", lambda folder, place: executor)
    moved, words = way(project, "study", monkeypatch)
    run_module.run(StudyFolder(moved), ExecutorOptions(), overrides=words)
    assert points(StudyFolder(moved).record()) == expected
    data = {order.settings["data"] for order in executor.started}
    assert [(Path(name) / "manifest.json").is_file() for name in data] == [True]
    assert StudyFolder(moved).training.model_copy(update={"data": settings.data}) == settings
    run_module.run(StudyFolder(moved), ExecutorOptions())  # what was found or given is remembered


@pytest.mark.parametrize("way", WAYS)
def test_a_moved_run_is_trained_on_as_if_it_had_stayed(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., Any],
    way: Callable[..., tuple[Path, list[str]]],
) -> None:
    settings = TrainSettings.resolve(None, [*TINY, *DATA])
    train(settings, Path("run"), pace=lambda events, figures: 80)
    shutil.copytree("run", "stays")
    train(settings, Path("stays"))
    expected = load_model(project / "stays" / "last.safetensors").model.state_dict()
    shutil.copytree("stays", project.parent / "kept")
    moved, words = way(project, "run", monkeypatch)
    done = command("train", *words, "--out", moved)
    assert done.code == 0, done.stderr
    found = load_model(moved / "last.safetensors").model.state_dict()
    assert all((found[name] == value).all() for name, value in expected.items())
    events = [json.loads(line)["events"] for line in (moved / "history.jsonl").read_text().splitlines()]
    assert events == sorted(events), "it began anew"


def test_data_that_are_nowhere_or_others_are_one_line(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    make_study(project, *DATA, trials=1)
    train(TrainSettings.resolve(None, [*TINY, *DATA]), Path("run"), pace=lambda events, figures: 80)
    monkeypatch.chdir(tmp_path)
    (project / "data" / "dataset").rename(tmp_path / "here")
    shutil.copytree("here", "other")
    with Path("other/manifest.json").open("a") as manifest:
        manifest.write("\n")
    for words, said in (
        (("tune", "resume", "project/study"), "say with data=FOLDER where they are now"),
        (
            ("tune", "resume", "project/study", "data=other"),
            "other is not what the study in project/study was made with",
        ),
        (("tune", "resume", "project/study", "seed=2"), "seed of the study in project/study stays as it is"),
        (("train", "--out", "project/run"), "say with data=FOLDER where they are now"),
        (("train", "data=other", "--out", "project/run"), "has data=data/dataset, not other"),
    ):
        refused = command(*words)
        assert (refused.code, len(refused.stderr.strip().splitlines())) == (2, 1), refused.stderr
        assert said in refused.stderr
    assert command("train", "data=here", "--out", "project/run").code == 0


def test_an_earlier_study_is_found_after_a_move(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_study(project, *DATA, trials=3, name="first")
    drive(Study(first), MadeUpExecutor())
    second = create(first.training, first.settings, project / "first.toml", project / "second", warm_start=[first.path])
    moved_together(project, "second", monkeypatch)
    with pytest.raises(FileNotFoundError):
        second.path.resolve(strict=True)
    now = settled(StudyFolder(project.parent / "elsewhere" / "second"))
    assert now.origin.warm_start == (str(project.parent / "elsewhere" / "first"),)


def test_the_same_study_is_known_under_another_name_of_its_data(project: Path) -> None:
    made = make_study(project, *DATA)
    assert make_study(project, f"data={project}/data/dataset", "detector=fake").path == made.path
    shutil.copytree("data/dataset", "other")
    with Path("other/manifest.json").open("a") as manifest:
        manifest.write("\n")
    with pytest.raises(UsageError, match="has data=data/dataset, not other"):
        make_study(project, "data=other", "detector=fake")

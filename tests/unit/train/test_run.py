"""A run in a folder, gone on with, refused where it would spoil something; its command, its presets, its page."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import awkward as ak
import pytest

from fixtures.fake_events import contents, write_fake_dataset
from ringflow.base.config import Settings, preset_names
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset
from ringflow.infer import shipped
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.train.run import train
from ringflow.train.runs import claimed, has_checkpoint, settings_of
from ringflow.train.settings import TrainSettings

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "train.md"
SMALL = (
    *("detector=fake", "model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16", "length.events=60"),
    *("length.validate_every=30", "length.validation_events=4", "compute.batch_elements=100", "compute.device=cpu"),
)

Command = Callable[..., Any]


def settings(dataset: Path, *overrides: str) -> TrainSettings:
    return TrainSettings.resolve(None, [f"data={dataset}", *SMALL, *overrides])


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_dataset(tmp_path_factory.mktemp("run") / "dataset", events=40)


@pytest.fixture(scope="module")
def finished(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained to its end."""
    run = tmp_path_factory.mktemp("run") / "finished"
    train(settings(dataset, "source.lanes=1"), run)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "run")


def assert_one_line(done: Any, code: int, expected: str) -> None:
    assert done.code == code
    assert done.stderr.startswith("ringflow: error: ")
    assert done.stderr.count("\n") == 1
    assert expected in done.stderr


def test_a_run_holds_the_model_its_settings_and_its_origin(finished: Path, dataset: Path) -> None:
    loaded = load_model(finished / "model.safetensors")
    assert loaded.card["detector"] == "fake"
    assert loaded.card["data"][0]["sample"] == "fake"
    assert loaded.card["settings"]["model"]["width"] == 16
    assert loaded.card["provenance"]["seeds"] == {"training": 1}
    assert "particle_f1" in loaded.card["metrics"]
    assert str(dataset.parent) not in json.dumps({**loaded.card, "settings": None})
    assert TrainSettings.resolve(settings_of(finished)) == settings(dataset, "source.lanes=1")
    assert has_checkpoint(finished)
    assert json.loads((finished / "run.json").read_text())["settings"]["data"] == str(dataset)


def test_a_run_goes_on_with_other_workers_but_not_with_another_network(
    dataset: Path, run: Path, command: Command
) -> None:
    assert train(settings(dataset, "source.workers=2", "length.events=90"), run)["events"] >= 90
    kept = contents(run)
    words = [f"data={dataset}", *SMALL, "model.width=32"]
    assert_one_line(command("train", *words, "--out", run), 2, "has model.width=16, not 32")
    assert contents(run) == kept


def test_a_run_remembers_its_settings(dataset: Path, run: Path, command: Command) -> None:
    done = command("train", "length.events=90", "--out", run, "--json")
    assert done.code == 0
    result = json.loads(done.stdout)
    assert (result["events"] >= 90, result["device"], result["processes"]) == (True, "cpu", 1)
    model = run / "model.safetensors"
    assert f"made: {model}" in done.stderr
    assert done.stderr.splitlines()[-1] == f"next: ringflow evaluate {dataset} --split test --model {model}"
    done = command("train", "--out", run)
    assert done.code == 0
    assert "is finished" in done.stderr


def test_overwrite_starts_anew_but_never_what_is_no_run(dataset: Path, run: Path, command: Command) -> None:
    (run / "mine").write_text("x")
    assert train(settings(dataset, "length.events=30"), run, overwrite=True)["events"] < 60
    assert not (run / "mine").exists()
    before = contents(dataset)
    done = command("train", f"data={dataset}", *SMALL, "--out", dataset, "--overwrite")
    assert_one_line(done, 2, "holds files that ringflow did not make")
    assert contents(dataset) == before


def test_without_true_particles_the_loss_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Dataset(write_fake_dataset(tmp_path / "dataset", events=20)).to_awkward()
    path = tmp_path / "outside"
    targets = {field: source.target[field] for field in source.target.fields}
    tracks = {field: source.track[field] for field in source.track.fields if field != "particle"}
    write_dataset(path, detector="fake", tracks=ak.zip(tracks), clusters=source.cluster, targets=ak.zip(targets))
    result = train(settings(path), tmp_path / "run")
    assert "chosen by its loss" in capsys.readouterr().err
    assert "loss" in result["best"]
    assert "jet_median" not in result["best"]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["data=nowhere"], 1, "no dataset at nowhere"),
        (["data=sim:ttbat"], 2, "did you mean 'ttbar'?"),
        (["data=sim:ttbar", "detector=clicc"], 2, "did you mean 'clic'?"),
        (["detector=clic"], 2, "of the detector 'fake', the training is for 'clic'"),
        (["compute.device=abacus"], 2, "device 'abacus' cannot be used here"),
        (["compute.device=meta"], 2, "device 'meta' cannot be used here"),
        (["data=sim:"], 2, "no data in 'sim:'"),
        (["model.width=30"], 2, "model.heads=2: width 30 must be a multiple of four times heads (2), for example 32"),
        (["optimizer.rate=inf"], 2, "optimizer.rate=inf: input should be a finite number"),
        (["seed=9223372036854775808"], 2, "seed=9223372036854775808: input should be less than"),
        (["model.widht=3"], 2, "did you mean 'model.width'?"),
        (["length.events=0"], 2, "length.events=0"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_made(
    dataset: Path, tmp_path: Path, command: Command, words: list[str], code: int, expected: str
) -> None:
    done = command("train", f"data={dataset}", *SMALL, *words, "--out", tmp_path / "run")
    assert_one_line(done, code, expected)
    assert not (tmp_path / "run").exists()


def test_a_batch_too_small_for_an_event_is_one_line_and_the_run_can_go_on(
    dataset: Path, tmp_path: Path, command: Command
) -> None:
    words = [f"data={dataset}", *SMALL, "compute.batch_elements=2", "--out", tmp_path / "run"]
    assert_one_line(command("train", *words), 2, "more than compute.batch_elements=2")
    assert command("train", "compute.batch_elements=100", "--out", tmp_path / "run").code == 0


@pytest.mark.parametrize("word", ["loss.jet=1e39", "optimizer.rate=1e30"])
def test_numbers_that_run_away_are_one_line_and_the_batch_is_kept(
    dataset: Path, tmp_path: Path, command: Command, word: str
) -> None:
    run = tmp_path / "run"
    done = command("train", f"data={dataset}", *SMALL, "length.validate_every=60", word, "--out", run)
    assert done.code == 1
    *_, last = done.stderr.splitlines()  # after what it said of the rules
    assert last.startswith("ringflow: error: ")
    assert "became NaN or infinite at step" in last
    assert (run / "bad_batch.safetensors").is_file()
    assert not (run / "model.safetensors").exists()


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_two_trainings_in_one_folder(dataset: Path, run: Path, command: Command, overwrite: list[str]) -> None:
    words = ["train", f"data={dataset}", *SMALL, "length.events=90", *overwrite, "--out", run]
    kept = contents(run)
    with claimed(run):
        assert_one_line(command(*words), 1, f"another training is running in {run}; wait for it")
        assert contents(run) == kept
    assert command(*words).code == 0


def test_a_run_with_a_way_out_is_not_gone_on_with(dataset: Path, run: Path, tmp_path: Path, command: Command) -> None:
    outside = tmp_path / "outside"
    (outside / "step-9999999999").mkdir(parents=True)
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").symlink_to(outside)
    words = ["train", f"data={dataset}", *SMALL, "length.events=90", "--out", run]
    assert_one_line(
        command(*words), 1, "checkpoints is a link out of its folder; put a copy in its place, or remove it"
    )
    assert (outside / "step-9999999999").is_dir()


def test_a_dataset_of_another_schema_is_one_line(dataset: Path, tmp_path: Path, command: Command) -> None:
    newer = shutil.copytree(dataset, tmp_path / "newer")
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps({**manifest, "schema_version": 99}))
    done = command("train", f"data={newer}", "detector=fake", "--out", tmp_path / "run")
    assert_one_line(done, 1, "has schema version 99, this ringflow reads 1")
    assert not (tmp_path / "run").exists()


def test_a_preset_is_named_or_the_names_are_said(command: Command, tmp_path: Path) -> None:
    assert TrainSettings.resolve("clic_tiny").detector == "clic"
    done = command("train", "clic_tyni", "--out", tmp_path / "run")
    assert_one_line(done, 2, "no settings file or preset 'clic_tyni'")


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_makes_a_network(name: str) -> None:
    assert Model(TrainSettings.resolve(name).model).num_parameters > 100_000


@pytest.mark.parametrize("name", shipped.model_names())
def test_a_shipped_model_was_made_with_its_preset(name: str) -> None:
    preset = TrainSettings.resolve(f"{name}_base")
    card = load_model(shipped.WEIGHTS / f"{name}.safetensors").card
    made = TrainSettings.model_validate(card["settings"])  # of what was not yet there: the default
    for section in ("data", "detector", "model", "loss", "optimizer", "length"):
        assert getattr(made, section) == getattr(preset, section)
    assert made.compute.batch_elements == preset.compute.batch_elements


def fields_of(section: type[Settings], prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from fields_of(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_the_documentation_names_every_setting() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Settings")[2]
    named = re.findall(r"`([a-z_.]+)`", "".join(re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)))
    assert sorted(named) == sorted(fields_of(TrainSettings))


def test_the_documented_use_works(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fake_dataset(tmp_path / "data" / "ttbar")
    shutil.copytree(finished, tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)), names)
    assert names["candidates"].counts.tolist()
    assert names["session"].card["data"][0]["sample"] == "fake"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "train_a_network.py"), run_name="__main__")
    assert re.search(r"^event 9: [1-9]\d* candidates$", capsys.readouterr().out, flags=re.MULTILINE)

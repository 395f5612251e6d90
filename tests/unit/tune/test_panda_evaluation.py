"""PanDA's evaluation: from a point to its loss, and a word about it whatever happens."""

from __future__ import annotations

import json
import math
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import FailureError, InputFileError, StoppedError, UsageError
from ringflow.cli.tuning import panda_evaluate, panda_steer
from ringflow.train import run as recipe
from ringflow.train.settings import TrainSettings
from ringflow.tune.panda import NO_LOSS, evaluated, is_of_another, read_datasets, stay_in

#: A training of less than a second.
SMALL = ("detector=fake", "model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16", "length.events=60")
SMALL += ("length.validate_every=30", "length.validation_events=4", "compute.batch_elements=100", "compute.device=cpu")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, as a job has one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def brought(here: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with a dataset that PanDA brought."""
    dataset = write_fake_dataset(tmp_path_factory.mktemp("brought") / "dataset", events=40)
    with tarfile.open("fake.tar", "w") as packed:
        packed.add(dataset, "fake")
    Path("input_ds.json").write_text('["fake.tar"]')
    return here


def output() -> Any:
    return json.loads(Path("output.json").read_text())


def test_a_training_from_point_to_loss(brought: Path) -> None:
    Path("input.json").write_text('{"optimizer.rate": 0.002}')
    panda_evaluate("clic_tiny", *SMALL, metrics=Path("metrics.tgz"))
    first = output()
    assert first["status"] == 0
    lines = [json.loads(line) for line in Path("run/history.jsonl").read_text().splitlines()]
    assert first["loss"] in [line.get("loss") for line in lines]
    assert TrainSettings.resolve(Path("run/settings.toml")).optimizer.rate == 0.002
    with tarfile.open("metrics.tgz") as packed:
        assert "run/history.jsonl" in packed.getnames()
    assert not is_of_another(Path("run"), {"optimizer.rate": 0.002})
    # A further try of the same point goes on; the next point of the same job begins anew.
    weights = Path("run/model.safetensors").stat().st_mtime_ns
    panda_evaluate("clic_tiny", *SMALL, objective="parameters")
    assert Path("run/model.safetensors").stat().st_mtime_ns == weights
    assert output()["loss"] > 1000
    assert is_of_another(Path("run"), {"optimizer.rate": 0.003})
    Path("input.json").write_text('{"optimizer.rate": 0.003}')
    with pytest.raises(UsageError, match="a validation has no figure 'jat'"):
        panda_evaluate("clic_tiny", *SMALL, objective="jat")
    assert TrainSettings.resolve(Path("run/settings.toml")).optimizer.rate == 0.003
    assert (output()["status"], output()["loss"]) == (2, NO_LOSS)


def test_both_ends_together(brought: Path) -> None:
    layers = {"model.layers": {"method": "uniformint", "dimension": {"low": 1, "high": 2}}}
    points: list[list[Any]] = []
    while True:
        Path("in.json").write_text(json.dumps({"points": points, "opt_space": layers}))
        panda_steer("clic_tiny", *SMALL, max_points=9, num_points=1, in_file=Path("in.json"), out_file=Path("out.json"))
        new = json.loads(Path("out.json").read_text())
        if not new:
            break
        Path("input.json").write_text(json.dumps(new[0]))
        panda_evaluate("clic_tiny", *SMALL)
        points.append([new[0], output()["loss"]])
    assert sorted(point["model.layers"] for point, _ in points) == [1, 2]
    assert points[0][1] != points[1][1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "input.json does not exist"),
        ("{", "input.json is not JSON"),
        ("[]", "must hold one table"),
        ('{"optimizer.rate": null}', "optimizer.rate: None is no value of a setting"),
        ('{"optimizer.rte": 1}', "unknown setting 'optimizer.rte'; did you mean"),
        ('{"model.heads": 5}', "must be a multiple of"),
    ],
)
def test_a_point_that_cannot_be_trained_tells_so(here: Path, text: str | None, said: str) -> None:
    if text is not None:
        Path("input.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        panda_evaluate("clic_tiny", "data=sim:qq")
    assert output()["status"] == 2
    assert output()["loss"] == NO_LOSS
    assert said.split("'")[0] in output()["message"]
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (FailureError("loss became NaN or infinite at step 3"), 1, "loss became NaN or infinite at step 3"),
        (StoppedError("stopped by a signal"), 75, "stopped by a signal"),
        (MemoryError("no\nmore"), 1, "MemoryError: no more"),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt: "),
    ],
)
def test_whatever_goes_wrong_is_told(
    here: Path, monkeypatch: Any, error: BaseException, status: int, message: str
) -> None:
    def train(*_: object, **__: object) -> None:
        # Who is killed in here leaves at least this.
        assert output()["status"] == 1
        assert "killed" in output()["message"]
        raise error

    monkeypatch.setattr(recipe, "train", train)
    Path("input.json").write_text("{}")
    with pytest.raises(type(error)):
        panda_evaluate("clic_tiny", "data=sim:qq")
    assert output() == {"status": status, "loss": NO_LOSS, "message": message.strip()}


def test_a_loss_that_is_no_number(here: Path) -> None:
    with pytest.raises(FailureError, match="ended with an objective of nan"):
        evaluated(Path("output.json"), lambda: math.nan)
    assert output()["status"] == 1


def test_only_the_first_of_several_processes_writes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert evaluated(Path("output.json"), lambda: 1.0) == 1.0
    assert not Path("output.json").exists()


def test_data_that_panda_brought(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("ttbar").mkdir()
    Path("ttbar/manifest.json").write_text("{}")
    with tarfile.open("qq.tar.gz", "w:gz") as packed:
        packed.add("ttbar", "some/qq")
    names = Path("input_ds.json")
    assert read_datasets(names, here) is None
    names.write_text('["ttbar/manifest.json", "ttbar/shard-00000.parquet", "qq.tar.gz"]')
    for _ in range(2):  # a retry finds it unpacked
        assert read_datasets(names, Path()) == "ttbar,datasets/qq/some/qq"
    seen: list[str] = []
    monkeypatch.setattr(
        recipe, "train", lambda settings, *_, **__: seen.append(settings.data) or {"best": {"loss": 1.0}}
    )
    Path("input.json").write_text("{}")
    panda_evaluate("clic_tiny")
    panda_evaluate("clic_tiny", "data=sim:zh")
    assert seen == ["ttbar,datasets/qq/some/qq", "sim:zh"]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("{}", UsageError, "must hold a list of file names"),
        ("[3]", UsageError, "must hold a list of file names"),
        ('["shard-0.parquet"]', UsageError, "names no dataset"),
        ('["gone.tar"]', InputFileError, "gone.tar is not there"),
        ('["broken.tgz"]', InputFileError, r"broken.tgz cannot be unpacked"),
    ],
)
def test_wrong_lists_of_data(here: Path, text: str, error: type[Exception], said: str) -> None:
    Path("input_ds.json").write_text(text)
    Path("broken.tgz").write_bytes(b"no archive")
    with pytest.raises(error, match=said):
        read_datasets(Path("input_ds.json"), here)
    assert not list(here.glob("datasets/[a-z]*"))


def test_libraries_write_below_the_working_folder_only_if_they_must(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    known = dict(os.environ)
    stay_in(here)
    assert dict(os.environ) == known
    monkeypatch.setattr(os, "environ", {**known, "HOME": "/nonexistent", "MPLCONFIGDIR": "/mine"})
    stay_in(here)
    assert os.environ["HOME"] == str(here / ".home")
    assert os.environ["NUMBA_CACHE_DIR"].startswith(str(here))
    assert os.environ["MPLCONFIGDIR"] == "/mine"

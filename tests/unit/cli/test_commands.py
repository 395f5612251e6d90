from __future__ import annotations

import errno
import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.config import Settings, explained
from ringflow.base.errors import DatasetError
from ringflow.launch.scaling import ScalingSettings
from ringflow.sim.settings import SimulateSettings
from ringflow.train.settings import TrainSettings

Command = Callable[..., Any]


class Recorder:
    """Stands for a recipe: keeps what it was called with, returns or raises what it was given."""

    def __init__(self, result: Any) -> None:
        self.result = result
        self.called: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called = (args, kwargs)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, Any], Recorder]:
    """Put a recorder in the place of `module.function`."""

    def replace(module: str, function: str, result: Any) -> Recorder:
        recorder = Recorder(result)
        stand_in = types.ModuleType(module)
        setattr(stand_in, function, recorder)
        parent, _, name = module.rpartition(".")
        monkeypatch.setitem(sys.modules, module, stand_in)
        monkeypatch.setattr(
            sys.modules.get(parent) or __import__(parent, fromlist=["x"]), name, stand_in, raising=False
        )
        return recorder

    return replace


def assert_one_line(stderr: str) -> str:
    assert stderr.startswith("ringflow: error: ")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    return stderr


def settings_of(recorder: Recorder) -> SimulateSettings:
    assert recorder.called is not None
    settings = recorder.called[0][0]
    assert isinstance(settings, SimulateSettings)
    return settings


def test_simulate_turns_flags_into_settings(command: Command, recipe: Callable[..., Recorder], tmp_path: Path) -> None:
    simulate = recipe("ringflow.recipes.simulate", "simulate", {"events": 12})
    flags = ["--events", 12, "--detector", "cld", "--workers", 2, "--seed", 3, "--device", "cuda", "--no-hits"]
    done = command("simulate", "ttbar", *flags, "--out", tmp_path, "--overwrite", "production.block_events=7")
    settings = settings_of(simulate)
    assert done.code == 0
    assert settings.detector == "cld"
    assert settings.generator.model_dump() == {"sample": "ttbar", "hepmc": None, "seed": 3}
    production = {"events": 12, "workers": 2, "device": "cuda", "keep_hits": False, "block_events": 7}
    assert settings.production.model_dump(include=set(production)) == production
    assert simulate.called is not None
    assert simulate.called[0][1] == tmp_path
    assert simulate.called[1] == {"overwrite": True}


def test_simulate_reads_a_file_of_events(command: Command, recipe: Callable[..., Recorder]) -> None:
    simulate = recipe("ringflow.recipes.simulate", "simulate", {})
    assert command("simulate", "production.events=5", "--hepmc", "a b.hepmc3", "--out", "x").code == 0
    settings = settings_of(simulate)
    assert settings.generator.hepmc == Path("a b.hepmc3")
    assert settings.generator.sample is None
    assert settings.production.events == 5


def test_an_override_beats_a_flag_and_a_flag_a_file(
    command: Command, recipe: Callable[..., Recorder], tmp_path: Path
) -> None:
    simulate = recipe("ringflow.recipes.simulate", "simulate", {})
    file = tmp_path / "start.toml"
    made = command("config", "generator.seed=5", "production.events=6", "production.workers=7", "--out", file)
    assert made.code == 0
    words = ["--settings", file, "--events", 8, "--workers", 9, "--out", "x", "production.workers=10"]
    assert command("simulate", "ttbar", *words).code == 0
    settings = settings_of(simulate)
    assert (settings.generator.seed, settings.production.events, settings.production.workers) == (5, 8, 10)


def test_json_is_all_there_is_on_stdout(command: Command, recipe: Callable[..., Recorder]) -> None:
    rows = [{"gate": "finite", "ok": True, "observed": 1.0, "expected": "1"}]
    recipe("ringflow.recipes.simulate", "simulate", {"events": 12})
    recipe("ringflow.recipes.validate", "validate", rows)
    recipe("ringflow.recipes.calibrate", "calibrate", {"scale": 1.5})
    recipe("ringflow.data.check", "check", rows)
    recipe("ringflow.bench.events", "simulate", {"events_per_second_per_core": 1.0})
    assert json.loads(command("simulate", "ttbar", "--out", "x", "--json").stdout) == {"events": 12}
    assert json.loads(command("validate", "--json").stdout) == rows
    assert json.loads(command("calibrate", "--json").stdout) == {"scale": 1.5}
    assert json.loads(command("check", "x", "--json").stdout) == rows
    assert json.loads(command("bench", "simulate", "--json").stdout) == {"events_per_second_per_core": 1.0}


@pytest.mark.parametrize(("ok", "code"), [(True, 0), (False, 1)])
def test_a_failed_check_fails_the_command(
    command: Command, recipe: Callable[..., Recorder], ok: bool, code: int
) -> None:
    recipe("ringflow.data.check", "check", [{"gate": "finite", "ok": ok, "observed": 1, "expected": 1}])
    recipe("ringflow.recipes.validate", "validate", [{"name": "photon", "ok": ok, "measured": 1.0}])
    assert command("check", "x").code == code
    assert command("validate").code == code


def test_a_demo_replaces_nothing_unless_told(command: Command, recipe: Callable[..., Recorder], tmp_path: Path) -> None:
    gates = [{"gate": "finite", "ok": False, "observed": 1, "expected": 0}]
    datasets = {"ttbar": {"summary": {"events": 200}, "gates": gates}}
    pages = {"report": "x/report", "events": "x/events/index.html"}
    result = {"datasets": datasets, "evaluation": {"samples": {}}, "training": {}, **pages, "ok": False}
    demo = recipe("ringflow.recipes.demo", "demo", result)
    done = command("demo", "--out", tmp_path, "--overwrite")
    assert demo.called == ((tmp_path,), {"training": False, "overwrite": True})
    assert done.code == 1
    assert "ttbar: 0 of 1 gates passed" in done.stderr
    assert done.stderr.endswith(f"made: x/events/index.html\nnext: ringflow display {tmp_path / 'ttbar'}\n")
    assert json.loads(command("demo", "--train", "--json").stdout) == result
    assert demo.called == ((Path("demo"),), {"training": True, "overwrite": False})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["simulat", "ttbar"], "simulate"),
        (["simulate", "ttbar", "--out", "x", "--evnts", "5"], "--events"),
        (["simulate", "ttbar", "--out", "x", "--events", "-5"], "-5"),
        (["simulate", "ttbar", "--out", "x", "--events", "ten"], "ten"),
        (["simulate", "ttbar", "--out", "x", "--device", "tpu"], "device 'tpu' cannot be used here"),
        (["simulate", "ttbar"], "--out"),
        (["simulate", "--out", "x"], "SAMPLE or --hepmc"),
        (["simulate", "ttbar", "--hepmc", "y", "--out", "x"], "SAMPLE or --hepmc"),
        (["simulate", "ttbar", "--out", "x", "production.event=4"], "'production.events'"),
        (["simulate", "ttbar", "--out", "x", "production.events=-4"], "production.events=-4"),
        (["simulate", "ttbar", "--out", "x", "more"], "section.field=value"),
        (["simulate", "ttbar", "--out", "x", "--settings", "nowhere.toml"], "nowhere.toml"),
        (["check"], "DATASET"),
        (["bench", "nothing"], "nothing"),
        (["config", "generator.sead=1"], "'generator.seed'"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(command: Command, words: list[str], expected: str) -> None:
    done = command(*words)
    assert done.code == 2
    assert done.stdout == ""
    assert expected in assert_one_line(done.stderr)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["simulate", "ttbar"], "ringflow simulate lacks --out (folder of the dataset); `ringflow simulate --help`"),
        (
            ["reconstruct", "data"],
            "ringflow reconstruct lacks --out (file to write: .parquet or .root (EDM4hep)); `ringflow",
        ),
        (["simulate", "ttbar", "--events", "many", "--out", "x"], '"many" into a whole number; give one'),
        (["train", "clic_tinny", "--out", "x"], "'clic_tinny'; did you mean 'clic_tiny'?"),
        (["train", "data", "--out", "x"], "clic_tiny), and then data=data"),
        (["train", "clic_tiny", "data", "--out", "x"], "cannot read 'data'; write data=data"),
        (
            ["train", "clic_tiny", "data=", "--out", "x"],
            "data= has no value; give one, or leave it out for 'sim:ttbar,qq'",
        ),
    ],
)
def test_a_plausible_mistake_says_what_to_do(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], advice: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    done = command(*words)
    assert done.code == 2
    assert advice in assert_one_line(done.stderr)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "x"], "interrupted"),
        (["simulate", "ttbar", "--out", "x"], "interrupted; the same command goes on where it stopped"),
        (
            ["simulate", "ttbar", "--out", "x", "--overwrite"],
            "interrupted; the same command without --overwrite goes on where it stopped",
        ),
    ],
)
def test_ctrl_c_says_whether_the_same_command_goes_on(
    command: Command, recipe: Callable[..., Recorder], words: list[str], said: str
) -> None:
    recipe("ringflow.data.check", "check", KeyboardInterrupt())
    recipe("ringflow.recipes.simulate", "simulate", KeyboardInterrupt())
    done = command(*words)
    assert (done.code, done.stderr) == (130, f"ringflow: error: {said}\n")


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (DatasetError("shard 3 is\ntruncated; make it again"), 1, "shard 3 is truncated; make it again"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "the disk is full"),
    ],
)
def test_what_stops_the_work_is_one_line(
    command: Command, recipe: Callable[..., Recorder], error: BaseException, code: int, expected: str
) -> None:
    recipe("ringflow.data.check", "check", error)
    done = command("check", "x")
    assert done.code == code
    assert expected in assert_one_line(done.stderr)


def test_an_error_of_ours_is_not_hidden(command: Command, recipe: Callable[..., Recorder]) -> None:
    recipe("ringflow.data.check", "check", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        command("check", "x")


def test_config_shows_names_and_settings(command: Command) -> None:
    done = command("config", "production.events=77", "--json")
    shown = json.loads(done.stdout)
    assert "ttbar" in shown["samples"]
    assert {"clic", "cld"} <= set(shown["detectors"])
    assert shown["settings"]["production"]["events"] == 77
    people = command("config", "production.events=77")
    assert people.stdout == ""
    assert "events = 77" in people.stderr
    assert "ttbar" in people.stderr


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["ttbat"], 2, "did you mean 'ttbar'?"),
        (["ttbar", "--detector", "clicc"], 2, "did you mean 'clic'?"),
        (["--hepmc", "nothing.hepmc3"], 1, "nothing.hepmc3"),
    ],
)
def test_what_does_not_exist_is_named_and_leaves_nothing(
    command: Command, tmp_path: Path, words: list[str], code: int, expected: str
) -> None:
    done = command("simulate", *words, "--events", 2, "--out", tmp_path / "out")
    assert done.code == code
    assert expected in assert_one_line(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_folder_is_named_before_any_work(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for words in (["simulate", "ttbar", "--events", 2], ["demo"]):
        done = command(*words, "--out", tmp_path / "file" / "below")
        assert done.code == 1
        assert str(tmp_path / "file" / "below") in assert_one_line(done.stderr)
    assert (tmp_path / "file").read_text() == "mine"


def test_the_folder_of_somebody_else_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    done = command("simulate", "ttbar", "--events", 2, "--out", tmp_path, "--overwrite")
    assert done.code == 2
    assert "thesis.tex" in assert_one_line(done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_is_no_dataset_is_named(command: Command, tmp_path: Path) -> None:
    done = command("check", tmp_path)
    assert done.code == 1
    assert str(tmp_path) in assert_one_line(done.stderr)


def test_the_module_runs_as_a_program() -> None:
    words = [sys.executable, "-m", "ringflow.cli", "simulate", "ttbar", "--out", "x", "--events", "-1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert_one_line(done.stderr)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["train", "clic_tiny", "--lr", "0.1", "--out", "x"], "train has no option --lr; write optimizer.rate=0.1"),
        (["train", "clic_tiny", "--learning-rate=0.1", "--out", "x"], "write optimizer.rate=0.1"),
        (["train", "clic_tiny", "--epochs", "3", "--out", "x"], "write length.events=EVENTS"),
        (["train", "clic_tiny", "--batch-size", "3", "--out", "x"], "write compute.batch_elements=ELEMENTS"),
        (["train", "clic_tiny", "--data", "data/x", "--out", "x"], "write data=data/x"),
        (["train", "clic_tiny", "--out", "x", "--device", "gpu"], "write compute.device=cuda"),
        (["train", "clic_tiny", "--profile", "--out", "x"], "write profile=VALUE"),
        (["train", "clic_tiny", "--gpus", "2", "--out", "x"], "write ringflow launch local --workers N -- train"),
        (["tune", "clic_tiny", "--weigth-decay", "2", "--space", "x"], "write optimizer.weight_decay=2"),
        (["simulate", "ttbar", "--out", "x", "--keep-hits", "false"], "write production.keep_hits=false"),
        (["simulate", "ttbar", "--out", "x", "--nevents", "3"], "did you mean --events?"),
        (["scaling-model", "--overlap", "0.5"], "write work.overlap=0.5"),
        (["evaluate", "--foo"], "evaluate has no option --foo; `ringflow evaluate --help` lists the options"),
        (["train", "clic_tiny", "lr=0.1", "--out", "x"], "unknown setting 'lr'; did you mean 'optimizer.rate'?"),
        (["train", "clic_tiny", "rate=0.1", "--out", "x"], "did you mean 'optimizer.rate'?"),
    ],
)
def test_an_option_that_is_a_setting_says_what_to_write(command: Command, words: list[str], advice: str) -> None:
    done = command(*words)
    assert done.code == 2
    assert advice in assert_one_line(done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "ttbar", "--out", "x", "--device", "gpu"],
        ["train", "clic_tiny", "compute.device=gpu", "--out", "x"],
        ["bench", "simulate", "--device", "gpu"],
        ["bench", "train", "--device", "gpu"],
        ["serve", "--port", "0", "--device", "gpu"],
    ],
)
def test_a_gpu_is_called_cuda(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*words)
    assert done.code == 2
    assert "device 'gpu' cannot be used here (torch has none of that name; a GPU is called cuda)" in done.stderr
    assert not (tmp_path / "x").exists()


def test_config_shows_every_setting_with_what_it_means(command: Command) -> None:
    people = command("config").stderr
    shown = json.loads(command("config", "--json").stdout)["settings"]
    assert set(shown) == {"simulate", "train", "scaling-model"}
    for kind in (SimulateSettings, TrainSettings, ScalingSettings):
        for name, meaning in explained(kind).items():
            assert meaning, f"{name} of {kind.__name__} has no comment"
            assert f"# {meaning}\n" in people
            assert name.rpartition(".")[2] + " =" in people


@pytest.mark.parametrize(
    ("words", "kind", "following"),
    [
        (["train", "clic_tiny", "optimizer.rate=0.002"], TrainSettings, "ringflow train {} --out runs/first"),
        (["clic_small"], TrainSettings, "ringflow train {} --out runs/first"),
        (["length.events=3"], TrainSettings, "ringflow train {} --out runs/first"),
        (["--train"], TrainSettings, "ringflow train {} --out runs/first"),
        (["simulate"], SimulateSettings, "ringflow simulate ttbar --out data/ttbar --settings {}"),
    ],
)
def test_config_writes_a_file_that_its_command_takes(
    command: Command, tmp_path: Path, words: list[str], kind: type[Settings], following: str
) -> None:
    file = tmp_path / "mine.toml"
    done = command("config", *words, "--out", file)
    assert done.stderr.endswith(f"next: {following.format(file)}\n")
    preset = next((word for word in words if word.startswith("clic_")), None)
    assert kind.resolve(file) == kind.resolve(preset, [word for word in words if "=" in word])


def test_config_writes_the_settings_of_one_command(command: Command, tmp_path: Path) -> None:
    for words in ([], ["scaling-model"]):
        done = command("config", *words, "--out", tmp_path / "x.toml")
        assert (done.code, (tmp_path / "x.toml").exists()) == (2, False)
        assert "`simulate` or `train`" in assert_one_line(done.stderr)

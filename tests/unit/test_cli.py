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

from ringflow.base.config import Settings
from ringflow.base.errors import DatasetError
from ringflow.sim.settings import SimulateSettings

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


def test_simulate_without_flags_keeps_the_defaults(command: Command, recipe: Callable[..., Recorder]) -> None:
    simulate = recipe("ringflow.recipes.simulate", "simulate", {})
    assert command("simulate", "ttbar", "--out", "x").code == 0
    assert settings_of(simulate) == SimulateSettings.resolve(None, ["generator.sample=ttbar"])


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


def test_simulate_ends_with_what_it_made_and_what_is_next(command: Command, recipe: Callable[..., Recorder]) -> None:
    recipe("ringflow.recipes.simulate", "simulate", {"events": 12})
    done = command("simulate", "ttbar", "--out", "data/x")
    assert done.stdout == ""
    assert done.stderr.splitlines()[-2:] == ["made: data/x", "next: ringflow check data/x"]


def test_json_is_all_there_is_on_stdout(command: Command, recipe: Callable[..., Recorder]) -> None:
    rows = [{"gate": "finite", "ok": True, "observed": 1.0, "expected": "1"}]
    recipe("ringflow.recipes.simulate", "simulate", {"events": 12})
    recipe("ringflow.recipes.validate", "validate", rows)
    recipe("ringflow.recipes.calibrate", "calibrate", {"scale": 1.5})
    recipe("ringflow.data.check", "check", rows)
    recipe("ringflow.bench.simulate", "run", {"events_per_second_per_core": 1.0})
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


@pytest.mark.parametrize(("flags", "overwrite"), [([], False), (["--overwrite"], True)])
def test_a_demo_replaces_nothing_unless_told(
    command: Command, recipe: Callable[..., Recorder], tmp_path: Path, flags: list[str], overwrite: bool
) -> None:
    gates = [{"gate": "finite", "ok": False, "observed": 1, "expected": 0}]
    datasets = {"ttbar": {"summary": {"events": 200}, "gates": gates}}
    result = {"datasets": datasets, "evaluation": {"samples": {}}, "training": {}, "report": "x/report", "ok": False}
    demo = recipe("ringflow.recipes.demo", "demo", result)
    done = command("demo", "--out", tmp_path, *flags)
    assert demo.called == ((tmp_path,), {"training": False, "overwrite": overwrite})
    assert done.code == 1
    assert "ttbar: 0 of 1 gates passed" in done.stderr
    assert "made: x/report" in done.stderr
    assert json.loads(command("demo", "--train", "--json").stdout) == result
    assert demo.called == ((Path("demo"),), {"training": True, "overwrite": False})


def test_validate_passes_its_numbers_on(command: Command, recipe: Callable[..., Recorder]) -> None:
    validate = recipe("ringflow.recipes.validate", "validate", [])
    command("validate", "--detector", "cld", "--events", 10, "--workers", 2, "--seed", 0)
    assert validate.called == (("cld", 10, 2, 0), {})


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["simulat", "ttbar"], "simulate"),
        (["simulate", "ttbar", "--out", "x", "--evnts", "5"], "--events"),
        (["simulate", "ttbar", "--out", "x", "--events", "-5"], "-5"),
        (["simulate", "ttbar", "--out", "x", "--events", "0"], "--events"),
        (["simulate", "ttbar", "--out", "x", "--events", "ten"], "ten"),
        (["simulate", "ttbar", "--out", "x", "--workers", "-1"], "-1"),
        (["simulate", "ttbar", "--out", "x", "--seed", "-1"], "-1"),
        (["simulate", "ttbar", "--out", "x", "--device", "tpu"], "device 'tpu' cannot be used here"),
        (["simulate", "ttbar"], "--out"),
        (["simulate", "--out", "x"], "SAMPLE or --hepmc"),
        (["simulate", "ttbar", "--hepmc", "y", "--out", "x"], "SAMPLE or --hepmc"),
        (["simulate", "ttbar", "--out", "x", "production.event=4"], "'production.events'"),
        (["simulate", "ttbar", "--out", "x", "production.events=-4"], "production.events=-4"),
        (["simulate", "ttbar", "--out", "x", "more"], "section.field=value"),
        (["simulate", "ttbar", "--out", "x", "--settings", "nowhere.toml"], "nowhere.toml"),
        (["validate", "--events", "-1"], "-1"),
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
    ("error", "code", "expected"),
    [
        (DatasetError("shard 3 is\ntruncated; make it again"), 1, "shard 3 is truncated; make it again"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "the disk is full"),
        (KeyboardInterrupt(), 130, "interrupted"),
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


def test_config_writes_settings_that_read_back(command: Command, tmp_path: Path) -> None:
    done = command("config", "generator.sample=ttbar", "--out", tmp_path / "s.toml")
    assert done.code == 0
    assert f"made: {tmp_path / 's.toml'}" in done.stderr
    settings: Settings = SimulateSettings.resolve(tmp_path / "s.toml")
    assert settings == SimulateSettings.resolve(None, ["generator.sample=ttbar"])


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

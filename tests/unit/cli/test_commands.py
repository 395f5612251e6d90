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
    """An override beats a flag, and a flag a file."""
    simulate = recipe("ringflow.recipes.simulate", "simulate", {"events": 12})
    file = tmp_path / "start.toml"
    made = command("config", "generator.seed=5", "production.events=6", "production.workers=7", "--out", file)
    assert made.code == 0
    flags = ["--events", 12, "--detector", "cld", "--workers", 2, "--device", "cuda", "--no-hits", "--settings", file]
    words = ["--out", tmp_path, "--overwrite", "production.block_events=7", "production.workers=10"]
    assert command("simulate", "ttbar", *flags, *words).code == 0
    settings = settings_of(simulate)
    assert settings.detector == "cld"
    assert settings.generator.model_dump() == {"sample": "ttbar", "hepmc": None, "seed": 5}
    production = {"events": 12, "workers": 10, "device": "cuda", "keep_hits": False, "block_events": 7}
    assert settings.production.model_dump(include=set(production)) == production
    assert simulate.called is not None
    assert (simulate.called[0][1], simulate.called[1]) == (tmp_path, {"overwrite": True})
    assert command("simulate", "production.events=5", "--hepmc", "a b.hepmc3", "--out", "x").code == 0
    assert settings_of(simulate).generator.model_dump() == {"sample": None, "hepmc": Path("a b.hepmc3"), "seed": 1}
    for words, sample in ((["ttbar"], "ttbar@500"), (["generator.sample=gun_pion"], "gun_pion@500")):
        assert command("simulate", *words, "--energy", "500.0", "--out", "x").code == 0
        assert settings_of(simulate).generator.sample == sample


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ttbar", "--energy", "91"], "ttbar cannot be made at 91.0 GeV; give an energy from 340 to 3000 GeV"),
        (["ttbar@500", "--energy", "91"], "ttbar@500 has an energy already; give ttbar, or leave --energy 91 out"),
        (["--hepmc", "a.hepmc3", "--energy", "91"], "--energy 91 is for samples; the events of a file have theirs"),
    ],
)
def test_an_impossible_energy_is_one_line(command: Command, words: list[str], message: str) -> None:
    done = command("simulate", *words, "--out", "x")
    assert (done.code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())


def test_json_is_all_there_is_on_stdout(command: Command, recipe: Callable[..., Recorder]) -> None:
    rows = [{"gate": "finite", "ok": True, "observed": 1.0, "expected": "1"}]
    for module, function, words, result in (
        ("ringflow.recipes.simulate", "simulate", ["simulate", "ttbar", "--out", "x"], {"events": 12}),
        ("ringflow.recipes.validate", "validate", ["validate"], rows),
        ("ringflow.recipes.calibrate", "calibrate", ["calibrate"], {"scale": 1.5}),
        ("ringflow.data.check", "check", ["check", "x"], rows),
        ("ringflow.bench.events", "simulate", ["bench", "simulate"], {"events_per_second_per_core": 1.0}),
    ):
        recipe(module, function, result)
        assert json.loads(command(*words, "--json").stdout) == result


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


LACKS_OUT = "ringflow reconstruct lacks --out (file to write: .parquet or .root (EDM4hep)); `ringflow"
CUDA = "device 'gpu' cannot be used here (torch has none of that name; a GPU is called cuda)"


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["simulate", "ttbar"], "ringflow simulate lacks --out (folder of the dataset); `ringflow simulate --help`"),
        (["reconstruct", "data"], LACKS_OUT),
        (["simulate", "ttbar", "--events", "many", "--out", "x"], '"many" into a whole number; give one'),
        (["train", "clic_tinny", "--out", "x"], "'clic_tinny'; did you mean 'clic_tiny'?"),
        (["train", "data", "--out", "x"], "ild_base), and then data=data"),
        (["train", "clic_tiny", "data", "--out", "x"], "cannot read 'data'; write data=data"),
        (["train", "clic_tiny", "data=", "--out", "x"], "data= has no value; give one, or leave it out for 'sim:ttbar"),
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
        *(
            ([*words, "--device", "gpu"], CUDA)
            for words in (["simulate", "ttbar", "--out", "x"], ["bench", "simulate"])
        ),
        (["train", "clic_tiny", "compute.device=gpu", "--out", "x"], CUDA),
        (["bench", "train", "--device", "gpu"], CUDA),
        (["serve", "--port", "0", "--device", "gpu"], CUDA),
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
    assert not (tmp_path / "x").exists()


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
    ("error", "expected"),
    [
        (DatasetError("shard 3 is\ntruncated; make it again"), "shard 3 is truncated; make it again"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
    ],
)
def test_what_stops_the_work_is_one_line(
    command: Command, recipe: Callable[..., Recorder], error: BaseException, expected: str
) -> None:
    recipe("ringflow.data.check", "check", error)
    done = command("check", "x")
    assert done.code == 1
    assert expected in assert_one_line(done.stderr)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["check", "x" * 5000], 1, "xxx... is longer than a path may be; give another"),
        (["check", "M\udcfcller"], 2, r"M\udcfcller is no text in UTF-8; rename it, or reach it by a link"),
    ],
)
def test_what_can_be_no_path_is_one_line(command: Command, words: list[str], code: int, expected: str) -> None:
    done = command(*words)
    assert done.code == code
    assert expected in assert_one_line(done.stderr)


def test_an_error_of_ours_is_not_hidden(command: Command, recipe: Callable[..., Recorder]) -> None:
    recipe("ringflow.data.check", "check", ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        command("check", "x")


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


def test_config_shows_names_and_every_setting_with_what_it_means(command: Command) -> None:
    people = command("config")
    assert people.stdout == ""
    shown = json.loads(command("config", "--json").stdout)
    assert "ttbar" in shown["samples"]
    assert {"clic", "cld"} <= set(shown["detectors"])
    assert set(shown["settings"]) == {"simulate", "train", "scaling-model"}
    for kind in (SimulateSettings, TrainSettings, ScalingSettings):
        for name, meaning in explained(kind).items():
            assert meaning, f"{name} of {kind.__name__} has no comment"
            assert f"# {meaning}\n" in people.stderr
            assert name.rpartition(".")[2] + " =" in people.stderr
    assert (
        json.loads(command("config", "production.events=77", "--json").stdout)["settings"]["production"]["events"] == 77
    )


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

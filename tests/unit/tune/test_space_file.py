"""Reading `space.toml`: what it says, and one clear line for what is wrong with it."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest

from ringflow.base.config import preset_names
from ringflow.base.errors import SettingsError
from ringflow.train.settings import TrainSettings
from ringflow.tune import space_file
from ringflow.tune.parameter import Choice, Range
from ringflow.tune.space_file import parse_space, read_space, space_path

RATE = "['optimizer.rate']\ntype = 'float'\n"
LAYERS = "['model.layers']\ntype = 'int'\n"
BACKBONE = "['model.backbone']\ntype = 'choice'\nvalues = ['attention', 'graph']\n"
BINS = "['model.graph.bin_size']\ntype = 'int'\nlow = 32\nhigh = 256\n"


def error_of(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        parse_space(text, where="space.toml")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("space.toml: ")
    return message.removeprefix("space.toml: ")


def test_the_space_that_the_module_shows(tmp_path: Path) -> None:
    shown = (space_file.__doc__ or "").split("\n\n", 1)[1].rsplit("\n\n", 1)[0]
    path = tmp_path / "space.toml"
    path.write_text(shown, encoding="utf-8")
    assert read_space(path).parameters == (
        Range("optimizer.rate", 1e-4, 1e-2, log=True),
        Range("model.width", 64, 256, whole=True, step=16),
        Choice("model.backbone", ("attention", "graph")),
        Range("model.graph.bin_size", 32, 256, whole=True, log=True, when={"model.backbone": ("graph",)}),
    )


def test_names_need_no_quotes() -> None:
    text = "[model.backbone]\ntype='choice'\nvalues=['graph', 'kernel']\n[model.graph.bin_size]\ntype='int'\nlow=1\nhigh=9\n"
    (backbone, bins) = parse_space(text + "when = { model.backbone = ['graph'] }\n").parameters
    assert (backbone.name, bins.name) == ("model.backbone", "model.graph.bin_size")
    assert bins.when == {"model.backbone": ("graph",)}


def test_whole_numbers_for_a_setting_that_is_any_number() -> None:
    (clip,) = parse_space("['optimizer.clip']\ntype = 'int'\nlow = 0\nhigh = 4\n").parameters
    assert clip.values(None) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the space is empty"),
        ("x", "not a TOML file"),
        ("rate = 3", 'rate = 3 is no parameter; write ["rate"] and its type'),
        (RATE.replace("rate", "rat"), "unknown setting 'optimizer.rat'; did you mean \"optimizer.rate\""),
        (RATE.replace("optimizer.", ""), "unknown setting 'rate'; did you mean \"optimizer.rate\"?"),
        (
            "['model']\ntype = 'int'",
            "'model' is a section of the settings; name one of its fields, as in model.backbone",
        ),
        ("['zzz']\ntype = 'int'", "unknown setting 'zzz'; `ringflow config --train` shows all settings"),
        ("['optimizer.rate']\nlow = 1", 'optimizer.rate has no type; write type = "float" or "int" or "choice"'),
        ("['optimizer.rate']", "optimizer.rate has no type"),
        (RATE.replace("float", "flaot"), "optimizer.rate has the unknown type 'flaot'; write type = \"float\""),
        ("['optimizer.rate']\ntype = ['float']", "optimizer.rate has the unknown type ['float']"),
        (RATE + "low = 1\nhihg = 2", "'hihg' means nothing for type 'float'; there are low, high, log, step, when"),
        (RATE + "low = 1", "optimizer.rate has no high; a parameter of type 'float' needs low and high"),
        (RATE + "low = '1'\nhigh = 2", "low = '1' must be a finite number"),
        (RATE + "low = true\nhigh = 2", "low = True must be a finite number"),
        (RATE + "low = 1\nhigh = inf", "high = inf must be a finite number"),
        (RATE + "low = 2\nhigh = 1", "low 2 is above high 1; swap them"),
        (RATE + "low = 1\nhigh = 1", "nothing to search; set optimizer.rate=1 instead"),
        (RATE + "low = 0\nhigh = 1\nlog = true", "low 0 has no logarithm"),
        (RATE + "low = 1\nhigh = 2\nlog = 1", "log = 1 must be true or false"),
        (RATE + "low = 1\nhigh = 2\nlog = true\nstep = 0.1", "log and step exclude each other"),
        (RATE + "low = 1\nhigh = 2\nstep = 0", "step 0 must be above 0 and at most high - low = 1"),
        (RATE + "low = 0.0\nhigh = 1.0", "optimizer.rate=0.0: input should be greater than 0"),
        (LAYERS + "low = -1\nhigh = 6", "model.layers=-1: input should be greater than or equal to 0"),
        (LAYERS + "low = 1.5\nhigh = 6", "low = 1.5 must be a whole number"),
        (LAYERS.replace("int", "float") + "low = 1\nhigh = 2", 'model.layers is a whole number; write type = "int"'),
        ("['model.dropout']\ntype='float'\nlow=0.0\nhigh=1.0", "model.dropout=1.0: input should be less than 1"),
        ("['model.head_width']\ntype='float'\nlow=4\nhigh=8", "model.head_width is a whole number"),
        ("['model.backbone']\ntype='int'\nlow=1\nhigh=2", 'model.backbone is one of "attention", "kernel"'),
        ("['optimizer.betas']\ntype='float'\nlow=0.1\nhigh=0.9", "optimizer.betas is not a number"),
        ("['profile']\ntype='int'\nlow=0\nhigh=1", "profile is not a number"),
        (BACKBONE.replace("graph", "grahp"), "model.backbone=grahp: input should be 'attention', 'kernel', 'graph' or"),
        (LAYERS.replace("int", "choice") + "values = [2, '3']", "model.layers=3: input should be a valid integer"),
        (LAYERS.replace("int", "choice"), "a choice needs values = [...] with at least one value"),
        (LAYERS.replace("int", "choice") + "values = []", "a choice needs values"),
        (LAYERS.replace("int", "choice") + "values = [2, 3, 2]", "2 is among the values twice"),
        (LAYERS.replace("int", "choice") + "values = [2024-01-01]", "2024-01-01 is no value of a setting"),
        (BACKBONE + BINS + "when = 'graph'", "when = 'graph' must be a table, as in when = {"),
        (BACKBONE + BINS + "when = {'model.backbone' = 2024-01-01}", "2024-01-01 is no value of a setting"),
        (BACKBONE + BINS + "when = {'model.backbone' = 'kernel'}", "'kernel', a value that it never has"),
        (BINS + "when = {'model.backbone' = 'graph'}", "'model.backbone', which is not in the space"),
        (BACKBONE + BACKBONE, "not a TOML file"),
        (BACKBONE + BACKBONE.replace("'model.backbone'", "model.backbone"), "model.backbone is in the space twice"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(text: str, expected: str) -> None:
    assert expected in error_of(text)


def test_what_depends_on_other_settings_is_left_to_the_points() -> None:
    parse_space("['model.heads']\ntype = 'int'\nlow = 1\nhigh = 7\n")  # 7 does not divide the width of today


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.toml: cannot be read: No such file"):
        read_space(tmp_path / "nothing.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match=r"binary\.toml: not a TOML file"):
        read_space(tmp_path / "binary.toml")


def test_spaces_that_are_shipped_go_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("training", "network"):
        space = read_space(space_path(name))
        for preset in preset_names() if name == "training" else ["clic_tiny"]:
            settings = TrainSettings.resolve(preset)
            values = {
                parameter.name: reduce(getattr, parameter.name.split("."), settings) for parameter in space.parameters
            }
            assert space.holds(space.build(lambda parameter, values=values: values[parameter.name])), (name, preset)
    Path("own.toml").write_text(BACKBONE)
    assert space_path("own.toml") == Path("own.toml")
    with pytest.raises(SettingsError, match=r"no space 'trainig'; give a TOML file, or one .*network, training"):
        space_path("trainig")

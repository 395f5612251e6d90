"""Spaces: ranges and points, conditions, grids, what the settings refuse, and one clear line for what is wrong in a file."""

from __future__ import annotations

import math
from functools import reduce
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import ringflow.tune.space as space_module
from ringflow.base.config import preset_names
from ringflow.base.errors import SettingsError
from ringflow.train.settings import TrainSettings
from ringflow.tune.space import Choice, Parameter, Range, Space, parse_space, read_space, space_path, with_values

RATE = Range("optimizer.rate", 1e-4, 1e-2, log=True)
LAYERS = Range("model.layers", 2, 6, whole=True)
BACKBONE = Choice("model.backbone", ("attention", "graph", "kernel"))
BINS = Range("model.graph.bin_size", 32, 256, whole=True, log=True, when={"model.backbone": "graph"})
FEATURES = Range("model.kernel.features", 16, 64, whole=True, step=16, when={"model.backbone": ["kernel"]})
SPACE = Space([BINS, RATE, FEATURES, LAYERS, BACKBONE])


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    whole, log = draw(st.booleans()), draw(st.booleans())
    decimals = st.floats(1e-3 if log else -1e3, 1e3).map(lambda number: round(number, 4))
    numbers = st.integers(1 if log else -1000, 1000) if whole else decimals
    low, high = sorted([draw(numbers), draw(numbers)])
    assume(high - low > 1e-3)
    step = None
    if not log and draw(st.booleans()):
        step = draw(st.integers(1, high - low) if whole else st.floats((high - low) / 50, high - low))
        step = step if whole else max(round(step - 5e-5, 4), 1e-4)
    return Range("x", low, high, whole, log, step)


@given(ranges(), st.integers(2, 9))
def test_a_grid_of_a_range_is_ordered_of_its_kind_and_has_its_ends(parameter: Range, steps: int) -> None:
    values = parameter.values(steps)
    assert values == sorted(set(values))
    assert len(values) <= steps
    assert values[0] == pytest.approx(parameter.low, rel=1e-9)
    assert values[-1] == pytest.approx(parameter.nearest(parameter.high), rel=1e-3, abs=1e-9)
    for value in values:
        assert parameter.holds(value)
        assert isinstance(value, int if parameter.whole else float)
        assert parameter.nearest(value) == pytest.approx(value, rel=1e-3, abs=1e-9)
        assert parameter.distribution._contains(parameter.distribution.to_internal_repr(value))


def test_numbers_are_short_enough_to_read() -> None:
    assert RATE.nearest(10 ** (-4 + 2 * 0.3)) == 0.0003981
    assert Range("x", 0.0, 0.5).nearest(0.5 / 3) == 0.1667
    assert Range("x", 1000.0, 1000.1).nearest(1000.05) == 1000.05
    assert Range("x", 0.1, 0.5, step=0.1).values(None) == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_grid_multiplies_only_what_is_active() -> None:
    points = list(SPACE.grid(3))
    assert len(points) == 3 * 3 * (1 + 3 + 3)
    assert all(SPACE.holds(point) for point in points)
    assert len({tuple(point.items()) for point in points}) == len(points)
    assert {point["model.layers"] for point in points} == {2, 4, 6}
    space = Space([LAYERS, BACKBONE, FEATURES])
    assert space.size == 5 * 3 * 4
    assert len(list(space.grid(None))) == 5 * (2 + 4)
    assert SPACE.size == math.inf


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"model.backbone": "graph", "model.layers": 3},
        {"model.backbone": "attention", "model.layers": 3, "model.kernel.features": 16},
        {"model.backbone": "attention", "model.layers": 9},
        {"model.backbone": "attention", "model.layers": 3.5},
        {"model.backbone": "attention", "model.layers": True},
        {"model.backbone": "mlp", "model.layers": 3},
        {"model.backbone": "kernel", "model.layers": 3, "model.kernel.features": 20},
    ],
)
def test_points_of_another_space(wrong: dict[str, object]) -> None:
    assert not SPACE.holds({"optimizer.rate": 1e-3, **wrong})
    right = {"optimizer.rate": 1e-3, "model.backbone": "kernel", "model.layers": 3, "model.kernel.features": 32}
    assert SPACE.holds(right)


def test_a_point_becomes_the_settings_of_a_training() -> None:
    betas = Choice("optimizer.betas", ([0.9, 0.98], [0.9, 0.999]))
    space = Space([RATE, BACKBONE, BINS, betas, Choice("profile", (True, False))])
    point = {"optimizer.rate": 1e-3, "model.backbone": "graph", "model.graph.bin_size": 90, "profile": True}
    point["optimizer.betas"] = [0.9, 0.999]
    assert space.holds(point)
    settings = with_values(TrainSettings.resolve("clic_small"), point)
    assert (settings.optimizer.rate, settings.model.backbone, settings.model.graph.bin_size) == (1e-3, "graph", 90)
    assert (settings.optimizer.betas, settings.profile) == ((0.9, 0.999), True)


def test_what_the_settings_refuse_is_told() -> None:
    settings = TrainSettings.resolve("clic_small")
    space = Space([Range("model.width", 64, 256, whole=True), Range("model.heads", 1, 8, whole=True)])
    assert space.feasible({"model.width": 96, "model.heads": 8}, settings) is None
    reason = space.feasible({"model.width": 100, "model.heads": 8}, settings)
    assert reason == "model.heads=8: width 100 must be a multiple of four times heads (8), for example 96"
    assert space.feasible({"model.width": 100}, settings) is not None  # with the four heads of the settings
    assert settings == TrainSettings.resolve("clic_small")


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ([], "the space is empty; name at least one setting"),
        ([LAYERS, LAYERS], "model.layers is in the space twice"),
        ([BINS], "when names 'model.backbone', which is not in the space"),
        ([RATE, Choice("profile", (True,), {"optimizer.rate": 1e-3})], "which is any number of a range"),
        ([BACKBONE, Choice("profile", (True,), {"model.backbone": "mlp"})], "'mlp', a value that it never has"),
        ([LAYERS, Choice("profile", (True,), {"model.layers": 7})], "model.layers = 7, a value that it never has"),
        ([Choice("a", (1, 2), {"b": 1}), Choice("b", (1, 2), {"a": 1}), LAYERS], "wait for each other: a, b; remove"),
    ],
)
def test_spaces_that_make_no_sense(parameters: list[Parameter], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Space(parameters)
    assert expected in str(caught.value)


def test_a_condition_may_depend_on_a_condition() -> None:
    space = Space([Choice("c", (5, 6), {"b": 3}), Choice("b", (3, 4), {"a": 1}), Choice("a", (1, 2))])
    assert [parameter.name for parameter in space.parameters] == ["a", "b", "c"]
    assert [tuple(point.values()) for point in space.grid(None)] == [(1, 3, 5), (1, 3, 6), (1, 4), (2,)]


def test_the_space_that_the_module_shows(tmp_path: Path) -> None:
    shown = (space_module.__doc__ or "").split(":\n\n", 1)[1].rsplit("\n\n", 1)[0]
    path = tmp_path / "space.toml"
    path.write_text(shown, encoding="utf-8")
    assert read_space(path).parameters == (
        RATE,
        Range("model.width", 64, 256, whole=True, step=16),
        Choice("model.backbone", ("attention", "graph")),
        BINS,
    )


def test_names_need_no_quotes() -> None:
    text = "[model.backbone]\ntype='choice'\nvalues=['graph', 'kernel']\n[model.graph.bin_size]\ntype='int'\nlow=1\nhigh=9\n"
    (backbone, bins) = parse_space(text + "when = { model.backbone = ['graph'] }\n").parameters
    assert (backbone.name, bins.name) == ("model.backbone", "model.graph.bin_size")
    assert bins.when == {"model.backbone": ("graph",)}


RATE_TABLE = "['optimizer.rate']\ntype = 'float'\n"
LAYERS_TABLE = "['model.layers']\ntype = 'int'\n"
LAYERS_CHOICE = "['model.layers']\ntype = 'choice'\n"
BACKBONE_TABLE = "['model.backbone']\ntype = 'choice'\nvalues = ['attention', 'graph']\n"
BINS_TABLE = "['model.graph.bin_size']\ntype = 'int'\nlow = 32\nhigh = 256\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the space is empty"),
        ("x", "not a TOML file"),
        ("rate = 3", 'rate = 3 is no parameter; write ["rate"] and its type'),
        (RATE_TABLE.replace("rate", "rat"), "unknown setting 'optimizer.rat'; did you mean \"optimizer.rate\""),
        (RATE_TABLE.replace("optimizer.", ""), "unknown setting 'rate'; did you mean \"optimizer.rate\"?"),
        ("['model']\ntype = 'int'", "'model' is a section of the settings; name a field of it, as in model."),
        ("['zzz']\ntype = 'int'", "unknown setting 'zzz'; `ringflow config --train` shows all settings"),
        ("['optimizer.rate']\nlow = 1", 'write type = "float" or "int" or "choice"'),
        (RATE_TABLE.replace("float", "flaot"), "optimizer.rate has the type 'flaot'; write type = \"float\""),
        (RATE_TABLE + "low = 1\nhigh = 2\nhihg = 2", "optimizer.rate: hihg: unexpected"),
        (RATE_TABLE + "low = 1", "optimizer.rate: high: field required"),
        (RATE_TABLE + "low = '1'\nhigh = 2", "low: '1' must be a finite number"),
        (RATE_TABLE + "low = true\nhigh = 2", "low: true must be a finite number"),
        (RATE_TABLE + "low = 1\nhigh = inf", "high: inf must be a finite number"),
        (RATE_TABLE + "low = 2\nhigh = 1", "low 2 is above high 1; swap them"),
        (RATE_TABLE + "low = 1\nhigh = 1", "nothing to search; set optimizer.rate=1 instead"),
        (RATE_TABLE + "low = 0\nhigh = 1\nlog = true", "low 0 has no logarithm"),
        (RATE_TABLE + "low = 1\nhigh = 2\nlog = 1", "log: input should be a valid boolean"),
        (RATE_TABLE + "low = 1\nhigh = 2\nlog = true\nstep = 0.1", "log and step exclude each other"),
        (RATE_TABLE + "low = 1\nhigh = 2\nstep = 0", "step 0 must be above 0 and at most high - low = 1"),
        (RATE_TABLE + "low = 0.0\nhigh = 1.0", "optimizer.rate=0.0: input should be greater than 0"),
        (LAYERS_TABLE + "low = -1\nhigh = 6", "model.layers=-1: input should be greater than or equal to 0"),
        (LAYERS_TABLE + "low = 1.5\nhigh = 6", "must be whole numbers"),
        (
            LAYERS_TABLE.replace("int", "float") + "low = 1\nhigh = 2",
            "model.layers=1.0: input should be a valid integer",
        ),
        ("['model.dropout']\ntype='float'\nlow=0.0\nhigh=1.0", "model.dropout=1.0: input should be less than 1"),
        ("['model.backbone']\ntype='int'\nlow=1\nhigh=2", "model.backbone=1: input should be 'attention', 'kernel'"),
        ("['optimizer.betas']\ntype='float'\nlow=0.1\nhigh=0.9", "optimizer.betas=0.1: input should be a valid"),
        ("['profile']\ntype='int'\nlow=0\nhigh=1", "profile=0: input should be a valid boolean"),
        (
            BACKBONE_TABLE.replace("graph", "grahp"),
            "model.backbone=grahp: input should be 'attention', 'kernel', 'graph'",
        ),
        (LAYERS_CHOICE + "values = [2, '3']", "model.layers=3: input should be a valid integer"),
        (LAYERS_CHOICE, "values: tuple should have at least 1 item"),
        (LAYERS_CHOICE + "values = [2, 3, 2]", "2 is among the values twice"),
        (LAYERS_CHOICE + "values = [2024-01-01]", "2024-01-01 is no value of a setting"),
        (BACKBONE_TABLE + BINS_TABLE + "when = 'graph'", "when: it must be a table, as in when = {"),
        (BACKBONE_TABLE + BINS_TABLE + "when = {'model.backbone' = 2024-01-01}", "2024-01-01 is no value of a setting"),
        (BACKBONE_TABLE + BACKBONE_TABLE.replace("'model.backbone'", "model.backbone"), "is in the space twice"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_space(text, where="space.toml")
    message = str(caught.value)
    assert message.startswith("space.toml: ")
    assert expected in message
    assert "\n" not in message


def test_what_is_not_wrong_in_itself() -> None:
    parse_space("['model.heads']\ntype = 'int'\nlow = 1\nhigh = 7\n")  # 7 does not divide the width of today
    (clip,) = parse_space("['optimizer.clip']\ntype = 'int'\nlow = 0\nhigh = 4\n").parameters
    assert clip.values(None) == [0, 1, 2, 3, 4]


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
    Path("own.toml").write_text(BACKBONE_TABLE)
    assert space_path("own.toml") == Path("own.toml")
    with pytest.raises(SettingsError, match=r"no space 'trainig'; give a TOML file, or one .*network, training"):
        space_path("trainig")

"""Spaces: positions and points, conditions, grids, and what the settings refuse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ringflow.base.errors import SettingsError
from ringflow.train.settings import TrainSettings
from ringflow.tune.parameter import Choice, Parameter, Range
from ringflow.tune.space import Space

RATE = Range("optimizer.rate", 1e-4, 1e-2, log=True)
LAYERS = Range("model.layers", 2, 6, whole=True)
BACKBONE = Choice("model.backbone", ("attention", "graph", "kernel"))
BINS = Range("model.graph.bin_size", 32, 256, whole=True, log=True, when={"model.backbone": ("graph",)})
FEATURES = Range("model.kernel.features", 16, 64, whole=True, step=16, when={"model.backbone": ("kernel",)})
SPACE = Space([BINS, RATE, FEATURES, LAYERS, BACKBONE])
POSITION = st.floats(0.0, 1.0)
VECTOR = st.lists(POSITION, min_size=5, max_size=5).map(np.array)


@st.composite
def ranges(draw: st.DrawFn) -> Range:
    whole, log = draw(st.booleans()), draw(st.booleans())
    numbers = st.integers(1 if log else -1000, 1000) if whole else st.floats(1e-3 if log else -1e3, 1e3)
    low, high = sorted([draw(numbers), draw(numbers)])
    assume(high - low > 1e-3)
    step = None
    if not log and draw(st.booleans()):
        step = draw(st.integers(1, high - low) if whole else st.floats((high - low) / 50, high - low))
    return Range("x", low, high, whole, log, step)


@given(ranges(), POSITION)
def test_a_value_of_a_range_is_in_it_and_found_again(parameter: Range, position: float) -> None:
    value = parameter.value(position)
    assert parameter.low <= value <= parameter.high
    assert isinstance(value, int if parameter.whole else float)
    again = parameter.value(parameter.position(value))
    assert again == value if parameter.whole else again == pytest.approx(value, rel=1e-3, abs=1e-9)
    part = 1.0 / parameter.count if parameter.even else 0.0
    if parameter.even or not parameter.whole:
        assert parameter.position(value) == pytest.approx(position, abs=part / 2 + 1e-3)


@given(ranges(), st.integers(2, 9))
def test_a_grid_of_a_range_is_ordered_and_has_its_ends(parameter: Range, steps: int) -> None:
    values = parameter.values(steps)
    assert values == sorted(set(values))
    assert len(values) <= steps
    assert all(parameter.holds(value) for value in values)
    assert values[0] == pytest.approx(parameter.low, rel=1e-9)
    assert values[-1] == pytest.approx(parameter.value(1.0), rel=1e-9)


@given(VECTOR)
def test_a_point_is_found_again(vector: np.ndarray) -> None:
    point = SPACE.decode(vector)
    assert SPACE.holds(point)
    again = SPACE.decode(SPACE.encode(point))
    assert again.pop("optimizer.rate") == pytest.approx(point.pop("optimizer.rate"), rel=1e-3)
    assert again == point


@given(VECTOR)
def test_what_is_not_active_is_marked(vector: np.ndarray) -> None:
    point = SPACE.decode(vector)
    encoded = SPACE.encode(point)
    for parameter, position in zip(SPACE.parameters, encoded, strict=True):
        assert math.isnan(position) == (parameter.name not in point)
    assert ("model.graph.bin_size" in point) == (point["model.backbone"] == "graph")
    assert ("model.kernel.features" in point) == (point["model.backbone"] == "kernel")
    assert ((encoded >= 0) & (encoded <= 1) | np.isnan(encoded)).all()


def test_all_parts_of_a_range_are_equally_likely() -> None:
    rng = np.random.default_rng(1)
    points = [SPACE.sample(rng) for _ in range(3000)]
    layers = np.bincount([point["model.layers"] for point in points])[2:]
    assert len(layers) == 5
    assert layers.min() > 500
    rates = np.log10([point["optimizer.rate"] for point in points])
    assert np.histogram(rates, bins=4, range=(-4, -2))[0].min() > 650
    assert {point.get("model.kernel.features") for point in points} == {None, 16, 32, 48, 64}


def test_the_same_random_numbers_draw_the_same_point() -> None:
    assert SPACE.sample(np.random.default_rng(7)) == SPACE.sample(np.random.default_rng(7))
    assert SPACE.sample(np.random.default_rng(7)) != SPACE.sample(np.random.default_rng(8))


def test_numbers_are_short_enough_to_read() -> None:
    assert RATE.value(0.3) == 0.0003981
    assert Range("x", 0.0, 0.5).value(1 / 3) == 0.1667
    assert Range("x", 1000.0, 1000.1).value(0.5) == 1000.05
    assert Range("x", 0.1, 0.5, step=0.1).values(None) == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_a_grid_multiplies_only_what_is_active() -> None:
    points = list(SPACE.grid(3))
    assert len(points) == 3 * 3 * (1 + 3 + 3)
    assert all(SPACE.holds(point) for point in points)
    assert len({tuple(SPACE.settings_words(point)) for point in points}) == len(points)
    assert {point["model.layers"] for point in points} == {2, 4, 6}


def test_a_grid_of_all_values() -> None:
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
    space = Space([*SPACE.parameters, betas, Choice("profile", (True, False))])
    point = {**SPACE.decode(np.full(5, 0.5)), "optimizer.betas": [0.9, 0.999], "profile": True}
    assert space.holds(point)
    settings = TrainSettings.resolve("clic_small", space.settings_words(point))
    assert settings.optimizer.rate == point["optimizer.rate"] == 0.001
    assert (settings.model.backbone, settings.model.graph.bin_size) == ("graph", 90)
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
        ([RATE, Choice("profile", (True,), {"optimizer.rate": (1e-3,)})], "which is any number of a range"),
        ([BACKBONE, Choice("profile", (True,), {"model.backbone": ("mlp",)})], "'mlp', a value that it never has"),
        ([LAYERS, Choice("profile", (True,), {"model.layers": (7,)})], "model.layers = 7, a value that it never has"),
        (
            [Choice("a", (1, 2), {"b": (1,)}), Choice("b", (1, 2), {"a": (1,)}), LAYERS],
            "wait for each other: a, b; remove",
        ),
    ],
)
def test_spaces_that_make_no_sense(parameters: list[Parameter], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Space(parameters)
    assert expected in str(caught.value)


def test_a_condition_may_depend_on_a_condition() -> None:
    space = Space([Choice("c", (5, 6), {"b": (3,)}), Choice("b", (3, 4), {"a": (1,)}), Choice("a", (1, 2))])
    assert [parameter.name for parameter in space.parameters] == ["a", "b", "c"]
    assert [tuple(point.values()) for point in space.grid(None)] == [(1, 3, 5), (1, 3, 6), (1, 4), (2,)]

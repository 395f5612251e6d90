"""What every search promises, however it chooses."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from fixtures.made_up_trials import known_trial
from ringflow.base.errors import SettingsError
from ringflow.train.settings import TrainSettings
from ringflow.tune.record import TrialRecord
from ringflow.tune.schedulers import Point
from ringflow.tune.search import Search
from ringflow.tune.space import Choice, Range, Space, with_values

SETTINGS = TrainSettings.resolve("clic_small")
#: With a condition, and with points that the settings refuse: the heads must divide the width.
SPACE = Space(
    [
        Range("optimizer.rate", 1e-4, 1e-2, log=True),
        Range("model.width", 64, 256, whole=True, step=16),
        Choice("model.heads", (2, 4, 6)),
        Choice("model.backbone", ("attention", "graph")),
        Range("model.graph.bin_size", 32, 256, whole=True, log=True, when={"model.backbone": ("graph",)}),
    ]
)
SMALL = Space([Range("model.layers", 2, 4, whole=True), Choice("model.activation", ("relu", "gelu", "tanh"))])
NEVER = Space([Range("model.width", 66, 126, whole=True, step=4)])  # no multiple of four times four heads


def value_of(point: Point) -> float:
    """Something to be made small."""
    value = abs(math.log10(point["optimizer.rate"]) + 3) + point["model.width"] / 256
    return value + (abs(point["model.graph.bin_size"] - 100) / 200 if point["model.backbone"] == "graph" else 0.3)


def random_history(trials: Sequence[int], seed: int = 5) -> list[TrialRecord]:
    search = Search("random", SPACE, SETTINGS, seed=seed)
    points = [(trial, search.ask(abs(trial), [])) for trial in trials]
    return [known_trial(trial, point, value_of(point)) for trial, point in points]


EVERY = pytest.mark.parametrize(
    "name", ["grid", "random", "evolution", "tpe", "qmc", "cmaes", pytest.param("gp", marks=pytest.mark.heavy)]
)


def make(name: str, space: Space = SPACE, seed: int = 3) -> Search:
    return Search(name, space, SETTINGS, seed=seed)


def ask(name: str, trial: int, known: Sequence[TrialRecord], space: Space = SPACE, seed: int = 3) -> Point:
    point = make(name, space, seed).ask(trial, known)
    assert point is not None
    return point


@EVERY
def test_answers_with_points_that_the_settings_allow(name: str) -> None:
    search, known = make(name), []
    for trial in range(24):
        point = search.ask(trial, known)
        assert SPACE.holds(point)
        assert with_values(SETTINGS, point)
        assert all(point != other.point for other in known)
        known.append(known_trial(trial, point, value_of(point)))


@pytest.mark.parametrize("trials", [0, 3, 12])
@EVERY
def test_the_same_seed_trial_and_history_give_the_same_answer(name: str, trials: int) -> None:
    running = [known_trial(90 + trial.number, trial.point) for trial in random_history([7, 8], 6)]
    known = [*random_history(range(trials)), *running]
    search = make(name)
    first = search.ask(trials, known)
    search.ask(trials + 1, known[:-1])
    np.random.seed(1)  # noqa: NPY002
    random.seed(1)
    assert search.ask(trials, known) == first
    assert ask(name, trials, list(reversed(known))) == first


@EVERY
def test_a_question_changes_nothing(name: str) -> None:
    known = random_history(range(12))
    before = [(trial.number, dict(trial.point), trial.value) for trial in known]
    state = np.random.get_state()[1].tolist()  # noqa: NPY002
    ask(name, 12, known)
    assert [(trial.number, dict(trial.point), trial.value) for trial in known] == before
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002


@EVERY
def test_another_seed_gives_another_answer(name: str) -> None:
    assert (ask(name, 0, [], seed=3) == ask(name, 0, [], seed=4)) == (name == "grid")


@EVERY
def test_nothing_is_tried_twice_in_parallel(name: str) -> None:
    known = random_history(range(14))
    for trial in range(14, 22):
        known.append(known_trial(trial, ask(name, trial, known)))
    assert len({tuple(sorted(trial.point.items())) for trial in known}) == len(known)


@EVERY
def test_a_small_space_is_tried_once_and_then_there_is_nothing_left(name: str) -> None:
    search, known = make(name, SMALL), []
    while (point := search.ask(len(known), known)) is not None:
        known.append(known_trial(len(known), point, float(len(known) % 4)))
        assert len(known) <= 9
    assert len({tuple(trial.point.values()) for trial in known}) == 9


@EVERY
def test_a_space_without_anything_allowed_is_told(name: str) -> None:
    with pytest.raises(SettingsError, match="allowed"):
        make(name, NEVER).ask(0, [])


@EVERY
def test_values_that_say_little(name: str) -> None:
    known = random_history(range(12))
    for value in (math.nan, math.inf, -math.inf, 1e308, 2.0):
        stopped = [known_trial(trial.number, trial.point, value, state="stopped") for trial in known]
        assert SPACE.holds(ask(name, 12, stopped))
        assert SPACE.holds(ask(name, 12, [*known[:-1], stopped[-1]]))

"""Shares of settings, where the truth is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ringflow.tune.record import Reported, TrialRecord
from ringflow.tune.report import importances
from ringflow.tune.space import Choice, Range, Space

SPACE = Space(
    [
        Range("a", 0.0, 1.0),
        Range("b", 1e-3, 1.0, log=True),
        Choice("kind", ("x", "y")),
        Range("only_y", 0.0, 1.0, when={"kind": ("y",)}),
        Range("nothing", 0, 9, whole=True),
    ]
)


def trials_of(value: Callable[[dict[str, Any]], float], count: int = 300, seed: int = 1) -> list[TrialRecord]:
    rng = np.random.default_rng(seed)
    trials = []
    for number in range(count):
        point = SPACE.sample(rng)
        said = Reported(100, value(point), {}, 1, 1.0, "stop")
        trials.append(TrialRecord(number, point, 0.0, "complete", reports=[said]))
    return trials


def test_a_setting_that_explains_all_has_nearly_all() -> None:
    shares = importances(SPACE, trials_of(lambda point: 5.0 + point["a"]))
    assert next(iter(shares)) == "a"
    assert shares["a"] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) == {parameter.name for parameter in SPACE.parameters}


def test_what_matters_more_has_more_and_conditions_count() -> None:
    found = importances(SPACE, trials_of(lambda point: 2 * point["a"] + np.log10(point["b"]) / 3, 600))
    assert found["a"] > found["b"] > found["nothing"]
    found = importances(SPACE, trials_of(lambda point: -3 * point["only_y"] if point["kind"] == "y" else 0.0, 600))
    assert found["only_y"] + found["kind"] > 0.8


def test_diverged_and_stopped_trials_count() -> None:
    trials = trials_of(lambda point: float("nan") if point["a"] > 0.3 else point["a"])
    for trial in trials[::2]:
        trial.state = "stopped"
    assert importances(SPACE, trials)["a"] > 0.8


def test_few_trials_and_equal_trials_tell_nothing() -> None:
    assert importances(SPACE, trials_of(lambda point: point["a"], 7)) == {}
    assert importances(SPACE, [TrialRecord(n, SPACE.sample(np.random.default_rng(n)), 0.0) for n in range(20)]) == {}
    assert set(importances(SPACE, trials_of(lambda point: 1.0, 30)).values()) == {0.0}

"""Shares of settings, where the truth is known."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ringflow.base.errors import FailureError
from ringflow.tune.parameter import Choice, Range
from ringflow.tune.record import Reported, TrialRecord
from ringflow.tune.report.importance import find_importances, importances
from ringflow.tune.space import Space

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

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


def test_a_setting_that_explains_all_has_all() -> None:
    shares = importances(SPACE, trials_of(lambda point: 5.0 + point["a"]))
    assert next(iter(shares)) == "a"
    assert shares["a"] > 0.97
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) == {parameter.name for parameter in SPACE.parameters}


def test_shares_follow_the_variances() -> None:
    # A score presses bad values together; these stay on its straight side but for the upper half, alike for both.
    found = find_importances(SPACE, trials_of(lambda point: 2 * point["a"] + np.log10(point["b"]) / 3, 600))
    assert found is not None
    # Variances 4/12 and 1/12: shares of 0.8 and 0.2.
    assert found.shares["a"] == pytest.approx(0.8, abs=0.08)
    assert found.shares["b"] == pytest.approx(0.2, abs=0.08)
    assert found.shares["nothing"] < 0.03
    assert found.explained > 0.9
    assert found.trials == 600


def test_a_conditional_setting_counts_where_it_is_active_and_its_choice_with_it() -> None:
    found = importances(SPACE, trials_of(lambda point: 3 * point["only_y"] if point["kind"] == "y" else 1.5, 600))
    assert found["only_y"] > 0.25
    assert found["kind"] > 0.25
    assert found["a"] + found["b"] + found["nothing"] < 0.1


def test_diverged_and_stopped_trials_count() -> None:
    trials = trials_of(lambda point: float("nan") if point["a"] > 0.7 else 1.0)
    for trial in trials[::2]:
        trial.state = "stopped"
    assert importances(SPACE, trials)["a"] > 0.95


def test_few_trials_and_equal_trials_tell_nothing() -> None:
    assert importances(SPACE, trials_of(lambda point: point["a"], 7)) == {}
    assert importances(SPACE, [TrialRecord(n, SPACE.sample(np.random.default_rng(n)), 0.0) for n in range(20)]) == {}
    assert set(importances(SPACE, trials_of(lambda point: 1.0, 30)).values()) == {0.0}


def test_the_same_trials_give_the_same_shares() -> None:
    trials = trials_of(lambda point: point["a"] * point["b"], 60)
    assert importances(SPACE, trials) == importances(SPACE, trials)


def test_very_many_trials_are_thinned_and_the_best_stay() -> None:
    found = find_importances(SPACE, trials_of(lambda point: point["a"], 1500))
    assert found is not None
    assert found.trials == 1000
    assert found.shares["a"] > 0.97


def test_without_scikit_learn_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(FailureError, match=r"sklearn is not installed; pip install 'ringflow\[tune\]'"):
        importances(SPACE, trials_of(lambda point: point["a"], 20))

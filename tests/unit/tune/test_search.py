"""Searches: grids, what is installed, what they learn from stopped trials and earlier studies."""

from __future__ import annotations

import functools
import math
import sys

import numpy as np
import pytest

from fixtures.made_up_trials import known_trial
from ringflow.base.errors import FailureError, SettingsError, UsageError
from ringflow.train.settings import TrainSettings
from ringflow.tune.record import TrialRecord
from ringflow.tune.schedulers import Point
from ringflow.tune.search import SEARCHES, Search, aligned
from ringflow.tune.space import Choice, Range, Space

SETTINGS = TrainSettings.resolve("clic_small")
SPACE = Space(
    [
        Range("optimizer.rate", 1e-5, 1e-1, log=True),
        Range("model.dropout", 0.0, 0.5),
        Choice("model.backbone", ("attention", "graph")),
        Range("model.graph.bin_size", 8, 512, whole=True, log=True, when={"model.backbone": ("graph",)}),
    ]
)
#: Studies that are compared, as many as take no longer than the others.
STUDIES = {"evolution": 12, "tpe": 8, "gp": 3}
TRIALS = 36


def test_an_unknown_search_names_those_there_are() -> None:
    with pytest.raises(UsageError, match="no search is called 'tpo'; choose from grid, random, evolution, tpe, gp"):
        Search("tpo", SPACE, SETTINGS)
    with pytest.raises(UsageError, match="cmaes makes one objective small; use tpe, gp or evolution"):
        Search("cmaes", SPACE, SETTINGS, objectives=("loss", "cpu_ms"))


@pytest.mark.parametrize(("name", "package"), [("tpe", "optuna"), ("cmaes", "cmaes")])
def test_what_is_not_installed_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, name: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FailureError, match=rf"^{package} is not installed; pip install 'ringflow\[tune\]'$"):
        Search(name, SPACE, SETTINGS)


def test_a_grid_goes_through_all_combinations_that_are_allowed() -> None:
    space = Space([Range("model.width", 64, 192, whole=True, step=16), Choice("model.heads", (2, 3, 4))])
    search = Search("grid", space, SETTINGS, grid_steps=9)
    known = [known_trial(-1, {"model.width": 64, "model.heads": 2}, 1.0)]  # of an earlier study
    while (point := search.ask(len(known), known)) and len(known) < 100:
        known.append(known_trial(len(known), point))
    expected = [(width, heads) for width in range(64, 193, 16) for heads in (2, 3, 4) if width % (4 * heads) == 0]
    assert [tuple(trial.point.values()) for trial in known] == expected
    with pytest.raises(SettingsError, match="no point of the grid of 2 values per range is allowed"):
        Search("grid", Space([Range("model.width", 66, 126, whole=True)]), SETTINGS, grid_steps=2).ask(0, [])


def test_one_allowed_point_of_many_is_found() -> None:
    space = Space([Range("model.width", 65, 95, whole=True)])  # of which 80 alone is a multiple of four heads of four
    for name in set(SEARCHES) - {"cmaes"}:
        search = Search(name, space, SETTINGS, grid_steps=31)
        assert search.ask(0, []) == {"model.width": 80}
        assert search.ask(1, [known_trial(0, {"model.width": 80}, 1.0)]) is None


def test_a_large_space_without_anything_allowed_says_why() -> None:
    space = Space([Range("optimizer.rate", 1e-4, 1e-2), Choice("model.width", (65, 67))])
    expected = r"no point of the space is allowed: model\.heads=4: width 6[57] must be"
    with pytest.raises(SettingsError, match=expected):
        Search("random", space, SETTINGS).ask(0, [])


def truth(point: Point) -> float:
    """A bowl whose bottom, at 0, is with `graph` and bins of 64; `attention` comes to 0.4 at best."""
    value = 0.5 * (math.log10(point["optimizer.rate"]) + 2.5) ** 2 + 8 * (point["model.dropout"] - 0.15) ** 2
    if point["model.backbone"] == "attention":
        return value + 0.4
    return value + 0.05 * math.log2(point["model.graph.bin_size"] / 64) ** 2


def best_of_study(name: str, seed: int) -> float:
    """The lowest true value that a study with noise comes to."""
    search, noise = Search(name, SPACE, SETTINGS, seed=seed), np.random.default_rng([seed, 1])
    known: list[TrialRecord] = []
    for trial in range(TRIALS):
        point = search.ask(trial, known)
        value = truth(point) + 0.03 * noise.standard_normal()
        known.append(known_trial(trial, point, value, notes=search.notes))
    return min(truth(trial.point) for trial in known)


@functools.cache
def random_search() -> tuple[float, float]:
    """What random search comes to: mean and standard deviation of studies."""
    best = [best_of_study("random", seed) for seed in range(40)]
    return float(np.mean(best)), float(np.std(best))


@pytest.mark.parametrize("name", ["evolution", "tpe", pytest.param("gp", marks=pytest.mark.heavy)])
def test_beats_random_search(name: str) -> None:
    mean, deviation = random_search()
    best = [best_of_study(name, seed) for seed in range(STUDIES[name])]
    # Random search would be as good as this in one case of twenty.
    assert np.mean(best) < mean - 1.64 * deviation / math.sqrt(len(best))


def history(trials: range, resource: int, good: float) -> list[TrialRecord]:
    """Stopped trials that say where the good rates are, and nothing else."""
    search = Search("random", SPACE, SETTINGS, seed=11)
    points = [search.ask(abs(trial), []) for trial in trials]
    distances = [abs(math.log10(point["optimizer.rate"]) - good) for point in points]
    return [
        known_trial(trial, point, 1.0 + distance, resource=resource, state="stopped")
        for trial, point, distance in zip(trials, points, distances, strict=True)
    ]


def distance_of_asked(name: str, known: list[TrialRecord], good: float) -> float:
    """How far from the good rate a search looks, as powers of ten; 1.4 or more if it does not know."""
    search = Search(name, SPACE, SETTINGS, seed=2)
    rates = [search.ask(trial, known)["optimizer.rate"] for trial in range(100, 107)]
    return float(np.median(np.abs(np.log10(rates) - good)))


@pytest.mark.parametrize("name", STUDIES)
def test_stopped_trials_tell_where_to_look(name: str) -> None:
    good = -4.2
    stopped = history(range(25), 10, good)
    assert distance_of_asked(name, stopped, good) < 0.7
    lived = [known_trial(30, {**stopped[0].point, "optimizer.rate": 10**good, "model.dropout": 0.2}, 0.4)]
    assert distance_of_asked(name, [*stopped, *lived], good) < 0.7


@pytest.mark.parametrize("name", STUDIES)
def test_an_earlier_study_tells_where_to_look(name: str) -> None:
    good = -4.2
    assert distance_of_asked(name, history(range(-25, 0), 10, good), good) < 0.7


def test_values_of_an_earlier_study_come_onto_the_scale_of_this_one() -> None:
    first = [known_trial(number - 3, {}, value) for number, value in enumerate((30.0, 10.0, 20.0))]
    assert [trial.value for trial in aligned(first)] == [2.0, 0.0, 1.0]
    own = [known_trial(number, {}, value) for number, value in enumerate((4.0, 3.0, 5.0))]
    assert [trial.value for trial in aligned(first, own)] == [5.0, 3.0, 4.0]
    diverged = known_trial(-4, {}, math.nan)
    assert math.isnan(aligned([diverged, *first])[0].value or 0.0)


def test_asking_in_a_large_study_takes_as_long_as_in_a_small_one() -> None:
    """TPE is shown some of the trials, those that it calls good among them."""
    many = history(range(700), 10, -4.2)
    search = Search("tpe", SPACE, SETTINGS)
    assert len(search._study_of(many).get_trials(deepcopy=False)) <= 250
    assert distance_of_asked("tpe", many, -4.2) < 0.5


def test_several_objectives_are_searched_along_their_front() -> None:
    """The first wants few, the second many layers."""
    space = Space([Range("model.layers", 1, 12, whole=True), Range("model.dropout", 0.0, 0.5)])
    for name in ("tpe", "evolution"):
        search, known = Search(name, space, SETTINGS, objectives=("loss", "cpu_ms")), list[TrialRecord]()
        for trial in range(30):
            point = search.ask(trial, known)
            layers, dropout = point["model.layers"], point["model.dropout"]
            known.append(known_trial(trial, point, layers + dropout, notes=search.notes, cpu_ms=12.0 - layers))
        tried = {trial.point["model.layers"] for trial in known[15:]}
        assert min(tried) <= 3, name
        assert max(tried) >= 10, name

"""Searches learn: they beat random search, and stopped trials and earlier studies tell them where to look."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from ringflow.train.settings import TrainSettings
from ringflow.tune.parameter import Choice, Range
from ringflow.tune.schedulers import Finished, Point, Search
from ringflow.tune.search import make_search
from ringflow.tune.search.domain import Domain
from ringflow.tune.search.forest import RandomForest
from ringflow.tune.search.gp import GaussianProcess
from ringflow.tune.search.surrogate import expected_improvement, features_of
from ringflow.tune.space import Space

SETTINGS = TrainSettings.resolve("clic_small")
SPACE = Space(
    [
        Range("optimizer.rate", 1e-5, 1e-1, log=True),
        Range("model.dropout", 0.0, 0.5),
        Choice("model.backbone", ("attention", "graph")),
        Range("model.graph.bin_size", 8, 512, whole=True, log=True, when={"model.backbone": ("graph",)}),
    ]
)
LEARNING = ["evolution", "tpe", "gp", "forest"]
#: Studies that are compared, as many as take no longer than the others.
STUDIES = {"evolution": 16, "tpe": 8, "gp": 3, "forest": 5}
TRIALS = 36


def truth(point: Point) -> float:
    """A bowl whose bottom, at 0, is with `graph` and bins of 64; `attention` comes to 0.4 at best."""
    value = 0.5 * (math.log10(point["optimizer.rate"]) + 2.5) ** 2 + 8 * (point["model.dropout"] - 0.15) ** 2
    if point["model.backbone"] == "attention":
        return value + 0.4
    return value + 0.05 * math.log2(point["model.graph.bin_size"] / 64) ** 2


def best_of_study(name: str, seed: int) -> float:
    """The lowest true value that a study with noise comes to."""
    search, noise = make_search(name, SPACE, SETTINGS, seed=seed), np.random.default_rng([seed, 1])
    known: list[Finished] = []
    for trial in range(TRIALS):
        point = search.ask(trial, known)
        known.append(Finished(trial, point, truth(point) + 0.03 * noise.standard_normal(), 1000, True))
    return min(truth(trial.point) for trial in known)


@functools.cache
def random_search() -> tuple[float, float]:
    """What random search comes to: mean and standard deviation of studies."""
    best = [best_of_study("random", seed) for seed in range(40)]
    return float(np.mean(best)), float(np.std(best))


@pytest.mark.parametrize("name", LEARNING)
def test_beats_random_search(name: str) -> None:
    mean, deviation = random_search()
    best = [best_of_study(name, seed) for seed in range(STUDIES[name])]
    # Random search would be as good as this in one case of twenty.
    assert np.mean(best) < mean - 1.64 * deviation / math.sqrt(len(best))


def history(trials: range, resource: int, good: float) -> list[Finished]:
    """Stopped trials that say where the good rates are, and nothing else."""
    search = make_search("random", SPACE, SETTINGS, seed=11)
    points = [search.ask(abs(trial), []) for trial in trials]
    distances = [abs(math.log10(point["optimizer.rate"]) - good) for point in points]
    return [
        Finished(trial, point, 1.0 + distance, resource)
        for trial, point, distance in zip(trials, points, distances, strict=True)
    ]


def distance_of_asked(name: str, known: list[Finished], good: float) -> float:
    """How far from the good rate a search looks, as powers of ten."""
    search: Search = make_search(name, SPACE, SETTINGS, seed=2)
    rates = [search.ask(trial, known)["optimizer.rate"] for trial in range(100, 106)]
    return float(np.median(np.abs(np.log10(rates) - good)))


@pytest.mark.parametrize("name", LEARNING)
def test_stopped_trials_tell_where_to_look(name: str) -> None:
    for good in (-4.2, -1.8):
        assert distance_of_asked(name, history(range(25), 10, good), good) < 0.6


@pytest.mark.parametrize("name", LEARNING)
def test_stopped_trials_count_beside_those_that_lived(name: str) -> None:
    good = -4.2
    stopped = history(range(25), 10, good)
    lived = [Finished(30, {**stopped[0].point, "optimizer.rate": 10**good, "model.dropout": 0.2}, 0.4, 1000, True)]
    assert distance_of_asked(name, [*stopped, *lived], good) < 0.6


@pytest.mark.parametrize("name", LEARNING)
def test_an_earlier_study_tells_where_to_look(name: str) -> None:
    good = -4.2
    assert distance_of_asked(name, history(range(-25, 0), 10, good), good) < 0.6
    # Longer trials of this study, which all came to less, say the same in their way: two scales, not one.
    longer = [Finished(t.trial + 60, t.point, t.value - 0.99, 1000, True) for t in history(range(-12, 0), 1, good)]
    assert distance_of_asked(name, [*history(range(-25, 0), 10, good), *longer], good) < 0.6


@pytest.mark.parametrize("name", ["tpe", "gp", "forest"])
def test_nobody_is_sent_where_somebody_is(name: str) -> None:
    good, search = -3.0, make_search(name, SPACE, SETTINGS, seed=2)
    known = history(range(25), 10, good)

    def share_near(known: list[Finished]) -> float:
        rates = [search.ask(trial, known)["optimizer.rate"] for trial in range(100, 110)]
        return float(np.mean(np.abs(np.log10(rates) - good) < 0.3))

    there = [SPACE.sample(np.random.default_rng(number)) for number in range(12)]
    rates = 10.0 ** np.linspace(good - 0.2, good + 0.2, 12)
    running = [
        Finished(50 + number, {**point, "optimizer.rate": float(rate)}, None)
        for number, (point, rate) in enumerate(zip(there, rates, strict=True))
    ]
    assert share_near([*known, *running]) < 0.7 * share_near(known)


def test_expected_improvement() -> None:
    sure = expected_improvement(np.array([0.0, 2.0]), np.array([0.0, 0.0]), best=1.0)
    assert sure == pytest.approx([1.0, 0.0])
    unsure = expected_improvement(np.array([1.0, 1.0]), np.array([1.0, 2.0]), best=1.0)
    assert unsure == pytest.approx(np.array([1.0, 2.0]) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("model", [GaussianProcess, RandomForest])
def test_a_model_is_less_sure_where_it_saw_nothing(model: type[GaussianProcess | RandomForest]) -> None:
    rng = np.random.default_rng(3)
    seen = np.concatenate([rng.uniform(0.0, 0.35, (30, 1)), rng.uniform(0.65, 1.0, (30, 1))])
    scores = np.where(seen[:, 0] < 0.5, -1.0, 1.0) + 0.05 * rng.standard_normal(60)
    fitted = model()
    fitted.fit(seen, scores, seed=1)
    mean, deviation = fitted.predict(np.array([[0.2], [0.5], [0.8]]))
    assert mean[[0, 2]] == pytest.approx([-1.0, 1.0], abs=0.15)
    assert deviation[1] > 1.5 * max(deviation[0], deviation[2])


def test_columns_of_a_model() -> None:
    graph = {"optimizer.rate": 1e-3, "model.dropout": 0.0, "model.backbone": "graph", "model.graph.bin_size": 512}
    attention = {"optimizer.rate": 1e-1, "model.dropout": 0.5, "model.backbone": "attention"}
    vectors = np.array([SPACE.encode(graph), SPACE.encode(attention)])
    assert features_of(SPACE, vectors) == pytest.approx(np.array([[0.5, 0, 0, 1, 1], [1, 1, 1, 0, 0.5]]), abs=0.01)


def test_mutation_stays_near_and_inside() -> None:
    domain, rng = Domain(SPACE, SETTINGS, 1), np.random.default_rng(1)
    parent = SPACE.encode({"optimizer.rate": 1e-1, "model.dropout": 0.25, "model.backbone": "attention"})
    children = np.array([domain.mutate(parent, rng, width=0.05, rate=0.3) for _ in range(400)])
    assert children.min() >= 0
    assert children.max() <= 1
    moved = np.abs(children - parent)[:, :3]
    assert (moved > 0).any(axis=1).all()
    assert np.quantile(moved[:, 1], 0.9) < 0.15
    assert np.isnan(parent[3])
    assert np.ptp(children[:, 3]) > 0.9  # what the parent had no value for may be anything

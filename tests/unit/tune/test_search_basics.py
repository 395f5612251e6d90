"""Making a search, its history, grids, and spaces that the settings mostly refuse."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from ringflow.base.errors import FailureError, SettingsError, UsageError
from ringflow.train.settings import TrainSettings
from ringflow.tune.parameter import Choice, Range
from ringflow.tune.schedulers import Finished
from ringflow.tune.search import SEARCHES, make_search
from ringflow.tune.search.domain import Domain
from ringflow.tune.search.history import read_history
from ringflow.tune.space import Space

SETTINGS = TrainSettings.resolve("clic_small")
LAYERS = Range("model.layers", 0, 100, whole=True)
SPACE = Space([LAYERS])


def trials(values: list[float | None], first: int = 0) -> list[Finished]:
    """Trials whose number is what they tried."""
    return [Finished(first + row, {"model.layers": row}, value, 10) for row, value in enumerate(values)]


def test_an_unknown_search_names_those_there_are() -> None:
    with pytest.raises(
        UsageError, match="no search is called 'tpo'; choose from grid, random, evolution, tpe, gp, forest"
    ):
        make_search("tpo", SPACE, SETTINGS)
    with pytest.raises(UsageError, match="seed of a search cannot be -1"):
        make_search("random", SPACE, SETTINGS, seed=-1)
    with pytest.raises(UsageError, match="a grid of 0 values per range is empty"):
        make_search("grid", SPACE, SETTINGS, grid_steps=0)


def test_what_is_not_installed_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ["optuna", "sklearn", "sklearn.ensemble", "sklearn.gaussian_process", "sklearn.exceptions"]:
        monkeypatch.setitem(sys.modules, module, None)
    for name, package in [("tpe", "optuna"), ("gp", "sklearn"), ("forest", "sklearn")]:
        with pytest.raises(FailureError, match=rf"^{package} is not installed; pip install 'ringflow\[tune\]'$"):
            make_search(name, SPACE, SETTINGS)
    for name in ("grid", "random", "evolution"):
        assert SPACE.holds(make_search(name, SPACE, SETTINGS).ask(0, []) or {})


def test_scores_are_values_on_a_scale_of_the_study() -> None:
    history = read_history(SPACE, trials([3.0, 1.0, None, 2.0, math.nan, 1e9]), most=100)
    # The median of those that did not diverge is 2.5, the best is 1.5 below.
    assert history.scores == pytest.approx([math.tanh(1 / 3), -1.0, -1 / 3, 1.0, 1.0])
    assert SPACE.decode(history.pending[0]) == {"model.layers": 2}


def test_every_study_has_its_own_scale() -> None:
    earlier, later = trials([30.0, 10.0, 20.0], first=-3), trials([3.0, 1.0, 2.0])
    scores = read_history(SPACE, [*later, *earlier], most=100).scores
    assert scores.tolist() == pytest.approx([math.tanh(1), -1, 0] * 2)


def test_a_long_history_is_cut_to_the_good_and_the_new() -> None:
    values = [float(value) for value in range(50)]
    kept = read_history(SPACE, trials(values), most=10)
    assert [SPACE.decode(vector)["model.layers"] for vector in kept.vectors] == [0, 1, 2, 3, 4, 45, 46, 47, 48, 49]
    assert kept.scores.min() == read_history(SPACE, trials(values), most=100).scores.min()


def test_equal_or_missing_values_have_equal_scores() -> None:
    assert read_history(SPACE, trials([2.0] * 4), most=9).scores.tolist() == [0.0] * 4
    assert read_history(SPACE, trials([math.inf, math.nan]), most=9).scores.tolist() == [1.0, 1.0]
    assert len(read_history(SPACE, [], most=9)) == 0


def test_a_grid_goes_through_all_combinations_that_are_allowed() -> None:
    space = Space([Range("model.width", 64, 192, whole=True, step=16), Choice("model.heads", (2, 3, 4))])
    search = make_search("grid", space, SETTINGS, grid_steps=9)
    known = [Finished(-1, {"model.width": 64, "model.heads": 2}, 1.0, 10, True)]  # of an earlier study
    while (point := search.ask(len(known), known)) and len(known) < 100:
        known.append(Finished(len(known), point, None))
    expected = [(width, heads) for width in range(64, 193, 16) for heads in (2, 3, 4) if width % (4 * heads) == 0]
    assert [tuple(trial.point.values()) for trial in known] == expected


def test_a_grid_that_is_refused_as_a_whole() -> None:
    space = Space([Range("model.width", 66, 126, whole=True)])
    with pytest.raises(SettingsError, match="no point of the grid of 2 values per range is allowed"):
        make_search("grid", space, SETTINGS, grid_steps=2).ask(0, [])


def test_one_allowed_point_of_many_is_found() -> None:
    space = Space([Range("model.width", 65, 95, whole=True)])  # of which 80 alone is a multiple of four heads of four
    for name in SEARCHES:
        search = make_search(name, space, SETTINGS, grid_steps=31)
        assert search.ask(0, []) == {"model.width": 80}
        assert search.ask(1, [Finished(0, {"model.width": 80}, 1.0)]) is None


def test_a_large_space_without_anything_allowed_says_why() -> None:
    space = Space([Range("optimizer.rate", 1e-4, 1e-2), Choice("model.width", (65, 67))])
    with pytest.raises(
        SettingsError, match=r"no point of the space is allowed, see model\.heads=4: width 6[57] must be"
    ):
        make_search("random", space, SETTINGS).ask(0, [])


def test_the_first_points_are_far_from_each_other() -> None:
    space = Space([Range("optimizer.rate", 1e-4, 1e-2), Range("model.dropout", 0.0, 0.5)])
    domain = Domain(space, SETTINGS, 1)

    def nearest(spread: bool) -> float:
        known: list[Finished] = []
        for trial in range(8):
            point = (domain.spread if spread else domain.draw)(known, domain.rng(trial))
            known.append(Finished(trial, point or {}, None))
        vectors = np.array([space.encode(trial.point) for trial in known])
        apart = np.sqrt(((vectors[:, None] - vectors[None]) ** 2).sum(axis=-1)) + 9 * np.eye(8)
        return float(apart.min())

    assert nearest(spread=True) > max(0.2, 2 * nearest(spread=False))


@pytest.mark.parametrize(("known", "begins"), [(11, True), (12, False)])
def test_tpe_begins_with_two_trials_per_parameter(known: int, begins: bool) -> None:
    names = ("optimizer.rate", "optimizer.weight_decay", "optimizer.warmup", "model.dropout", "loss.jet", "loss.label")
    domain = Domain(Space([Range(name, 0.01, 0.5) for name in names]), SETTINGS, 3)
    tried = [Finished(number, domain.space.sample(domain.rng(number)), 1.0 + number, 10) for number in range(known)]
    asked = make_search("tpe", domain.space, SETTINGS, seed=3).ask(known, tried)
    assert (asked == domain.spread(tried, domain.rng(known))) is begins


def test_another_process_answers_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    code = """
import json
from ringflow.train.settings import TrainSettings
from ringflow.tune.schedulers import Finished
from ringflow.tune.parameter import Choice, Range
from ringflow.tune.search import make_search
from ringflow.tune.space import Space
graph = {"model.backbone": ("graph",)}
space = Space([Range("optimizer.rate", 1e-4, 1e-2), Choice("model.backbone", ("graph", "mlp")),
               Range("model.graph.bin_size", 8, 99, whole=True, when=graph),
               Range("model.graph.hashes", 1, 9, whole=True, when=graph)])
first = make_search("random", space, TrainSettings(), seed=1)
known = [Finished(trial, first.ask(trial, []), trial * 7 % 11) for trial in range(15)]
print(json.dumps([make_search(name, space, TrainSettings()).ask(20, known) for name in ("evolution", "tpe", "forest")]))
"""
    exec(code, {})
    here = capsys.readouterr().out
    there = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    assert (there.stdout, there.stderr) == (here, "")
    assert len(json.loads(here)) == 3

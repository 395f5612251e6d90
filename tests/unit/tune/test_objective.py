"""What is made small, and several objectives as one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ringflow.base.errors import UsageError
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.tune.objective import extras_of, measure_extras, values_of
from ringflow.tune.scalar import scalarised
from ringflow.tune.schedulers import Finished


def test_values_are_named_as_people_say_them() -> None:
    figures = {"loss": 2.0, "jet_iqr_over_median": 0.05, "cpu_ms": None}
    assert values_of(figures, ["jets", "loss"]) == [0.05, 2.0]
    assert math.isnan(values_of(figures, ["cpu_ms"])[0])
    with pytest.raises(UsageError, match=r"no figure 'jet'.*jets"):
        values_of(figures, ["jet"])


def test_costs_of_a_network_are_measured(tmp_path: Path) -> None:
    assert extras_of(["loss", "parameters"]) == ("parameters",)
    assert measure_extras((), tmp_path) == {}
    costs = []
    for layers in (1, 8):
        model = Model(ModelSettings(width=64, layers=layers, heads=2, hidden=64))
        save_model(tmp_path / "last.safetensors", model, card={})
        costs.append(measure_extras(("cpu_ms", "parameters"), tmp_path))
        assert costs[-1]["parameters"] == model.num_parameters
    assert 0 < costs[0]["cpu_ms"] < costs[1]["cpu_ms"]


def _known(*values: float | None) -> list[Finished]:
    return [Finished(number, {"a": number}, value) for number, value in enumerate(values)]


def test_one_objective_stays_as_it_is() -> None:
    known = _known(1.0, None, math.nan)
    assert scalarised(known, (1, 2)) == known


def test_every_point_of_a_front_is_the_best_for_some_question() -> None:
    """Also of a hollow front, where a weighted sum would only find the ends; of an earlier study as of this one."""
    front = {0: (0.0, 1.0), 1: (0.8, 0.8), 2: (1.0, 0.0), 3: (2.0, 2.0)}
    running = Finished(4, {}, None)
    for first in (0, -9):
        known = [*(Finished(first + trial, {}, 1.0, values=values) for trial, values in front.items()), running]
        found = set()
        for question in range(40):
            values = {trial.trial - first: trial.value for trial in scalarised(known, (1, question))}
            assert values.pop(4 - first) is None
            told = {trial: value for trial, value in values.items() if value is not None}
            found.add(min(told, key=lambda trial: told[trial]))
            assert max(told, key=lambda trial: told[trial]) == 3
        assert found == {0, 1, 2}


def test_earlier_studies_are_weighed_like_this_one_but_not_against_it() -> None:
    front = [(0.0, 1.0), (0.8, 0.8), (1.0, 0.0), (2.0, 2.0)]
    own = [Finished(number, {}, 1.0, values=values) for number, values in enumerate(front)]
    earlier = [Finished(number - 4, {}, 1.0, values=(10 * a, 10 * b)) for number, (a, b) in enumerate(front)]
    both = [trial.value for trial in scalarised([*earlier, *own], (1, 7))]
    assert both[:4] == both[4:]
    assert len(set(both)) > 1

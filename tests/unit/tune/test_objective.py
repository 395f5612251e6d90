"""What is made small."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ringflow.base.errors import UsageError
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.tune.record import extras_of, measure_extras, values_of


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

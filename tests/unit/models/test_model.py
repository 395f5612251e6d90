"""The network as a whole: names, sizes and what it takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pydantic
import pytest
import torch

from ringflow.elements.batch import random_elements
from ringflow.models.attention import AttentionMixer
from ringflow.models.graph import GraphMixer
from ringflow.models.kernel import KernelMixer
from ringflow.models.model import MIXERS, Model
from ringflow.models.settings import BackboneName, ModelSettings


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]):
    page = Path(__file__).parents[3] / "docs" / "explanation" / "models.md"
    [example] = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    exec(compile(example, str(page), "exec"), {})
    assert " 155 tensor(" in capsys.readouterr().out  # a fresh network calls every element a particle


def test_every_backbone_of_the_settings_exists():
    assert set(MIXERS) == set(get_args(BackboneName))


@pytest.mark.parametrize(
    ("backbone", "mixer"),
    [("attention", AttentionMixer), ("kernel", KernelMixer), ("graph", GraphMixer), ("mlp", type(None))],
)
def test_a_backbone_is_made_of_its_mixers(backbone: str, mixer: type):
    model = Model(ModelSettings.model_validate({"backbone": backbone, "width": 16, "heads": 2, "layers": 3}))
    assert [type(block.mixer) for block in model.blocks] == [mixer] * 3


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_clusters_or_hits(calorimeter: str):
    model = Model(ModelSettings.model_validate({"calorimeter": calorimeter, "width": 16, "heads": 2, "layers": 1}))
    assert model.kinds == ("track", calorimeter)
    assert len(model.predict(random_elements([3, 4], calorimeter)).particle_N) == 7


def test_parameters_are_counted():
    model = Model(ModelSettings(backbone="mlp", width=16, heads=2, layers=0))
    inputs = 2 * len(model.embedding.mean_F) + 3
    embedding = inputs * 16 + 16 + 16 * 16 + 16
    heads = 32 * 32 + 32 + 32 * 16 + 16
    assert model.num_parameters == embedding + 2 * 16 + heads


def test_the_same_seed_makes_the_same_network():
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(Model(ModelSettings(backbone="kernel", width=16, heads=2, layers=1)).state_dict())
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(pydantic.ValidationError, match=r"heads\n.*width 20 must be .* four times heads \(2\), .* 16"):
        ModelSettings(width=20, heads=2)
    with pytest.raises(pydantic.ValidationError, match="width 20 must be a multiple"):
        ModelSettings(width=20)  # by the heads it has unless told

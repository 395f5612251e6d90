"""What matters least is left out, and what remains is an ordinary network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.attention import Block
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.recipes.prune import Importance, importance, prune
from ringflow.train.loss import losses
from ringflow.train.settings import LossSettings

HEADS, HIDDEN, LAYERS = 4, 24, 2


def network(backbone: str = "attention", bin_size: int = 8) -> Model:
    torch.manual_seed(3)
    given = {"backbone": backbone, "width": 32, "heads": HEADS, "hidden": HIDDEN, "layers": LAYERS}
    return Model(ModelSettings.model_validate({**given, "graph": {"bin_size": bin_size}})).eval()


@pytest.fixture
def batch(events: Callable[..., ElementBatch]) -> ElementBatch:
    return events()


def silenced(model: Model, heads: list[int], channels: list[int]) -> Model:
    """The network with some heads and channels that nobody hears."""
    width = model.settings.width_of_head
    with torch.no_grad():
        for block in model.blocks:
            assert isinstance(block, Block)
            block.feed_forward[2].weight[:, channels] = 0.0
            for head in heads if block.mixer else []:
                block.mixer.get_submodule("to_out").weight[:, head * width : (head + 1) * width] = 0.0
    return model


@pytest.mark.parametrize(
    ("backbone", "bin_size", "heads"),
    [
        ("attention", 8, HEADS - 1),
        ("kernel", 8, HEADS - 1),
        ("graph", 8, HEADS),  # of several bins: a head that is silent still says who sits with whom
        ("graph", 512, HEADS - 1),
        ("mlp", 8, HEADS),
    ],
)
def test_what_nobody_hears_can_go(backbone: str, bin_size: int, heads: int, batch: ElementBatch):
    model = silenced(network(backbone, bin_size), [1], [0, 5, 6, 23])
    found = importance(model, [batch], LossSettings())
    smaller = prune(model, found, heads=heads, hidden=HIDDEN - 4)
    assert (smaller.settings.heads, smaller.settings.hidden, smaller.settings.width) == (heads, HIDDEN - 4, 32)
    for got, expected in zip(smaller.predict(batch), model.predict(batch), strict=True):
        torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


def test_the_measure_is_the_change_of_the_loss(batch: ElementBatch):
    """Against finite differences: a channel a little weaker in one element changes the loss by its share."""
    settings = LossSettings(jet=0.0)
    found = importance(network(), [batch], settings)
    model, fine = network().double(), doubled(batch)
    weakened: list[int] = []

    def weaken(layer: torch.nn.Module, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        value = given[0].clone()
        value[weakened, 7] *= 0.999
        return (value,)

    def loss() -> float:
        with torch.no_grad():
            return float(losses(model.predict(fine), fine, settings)["total"])

    model.blocks[1].feed_forward[2].register_forward_pre_hook(weaken)
    before, change = loss(), 0.0
    for row in range(batch.num_elements):
        weakened[:] = [row]
        change += abs(loss() - before) / 0.001
    assert change == pytest.approx(float(found.channels_LC[1, 7]), rel=0.02)


def doubled(batch: ElementBatch) -> ElementBatch:
    return replace(
        batch,
        features_NF=batch.features_NF.double(),
        position_N2=batch.position_N2.double(),
        reference_N4=batch.reference_N4.double(),
    )


def test_a_network_stays_as_it_was(batch: ElementBatch):
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    importance(model, [batch], LossSettings())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(layer._forward_pre_hooks for layer in model.modules())
    torch.testing.assert_close(model.state_dict(), before, atol=0.0, rtol=0.0)


def test_a_pruned_network_is_an_ordinary_one(tmp_path: Path, batch: ElementBatch):
    found = Importance(torch.rand(LAYERS, HEADS), torch.rand(LAYERS, HIDDEN))
    smaller = prune(network(), found, heads=1, hidden=8)
    save_model(tmp_path / "small.safetensors", smaller)
    again = load_model(tmp_path / "small.safetensors").model
    assert again.settings.head_width == 8
    assert again.num_parameters < network().num_parameters
    torch.testing.assert_close(again.predict(batch).class_NC, smaller.predict(batch).class_NC)


@pytest.mark.parametrize(("heads", "hidden"), [(0, 8), (5, 8), (2, 0), (2, 25)])
def test_more_than_there_is_cannot_be_kept(heads: int, hidden: int):
    found = Importance(torch.rand(LAYERS, HEADS), torch.rand(LAYERS, HIDDEN))
    with pytest.raises(UsageError, match="cannot keep"):
        prune(network(), found, heads=heads, hidden=hidden)

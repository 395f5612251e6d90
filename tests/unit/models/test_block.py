"""The layer all backbones share."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from ringflow.models.attention import ACTIVATIONS, AttentionMixer, Block, Layout
from ringflow.models.settings import Activation, ModelSettings

LAYOUT = Layout(torch.tensor([0, 5], dtype=torch.int32), torch.zeros(5, dtype=torch.int64), 5)
ROTARY = torch.ones(5, 8), torch.zeros(5, 8)


def test_every_activation_of_the_settings_exists():
    assert set(ACTIVATIONS) == set(get_args(Activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_takes_every_activation(activation: str):
    settings = ModelSettings.model_validate({"width": 16, "heads": 2, "hidden": 24, "activation": activation})
    x = torch.randn(5, 16)
    assert Block(settings, None)(x, ROTARY, LAYOUT).isfinite().all()


def test_a_layer_adds_to_what_was_there():
    settings = ModelSettings(width=16, heads=2, hidden=24)
    block = Block(settings, AttentionMixer(settings))
    x = torch.randn(5, 16)
    with torch.no_grad():
        for layer in (block.feed_forward[2], block.mixer.to_out):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)
    assert torch.equal(block(x, ROTARY, LAYOUT), x)


def test_dropout_acts_in_training_only():
    block, x = Block(ModelSettings(width=16, heads=2, dropout=0.5), None), torch.randn(5, 16)
    assert not torch.equal(block(x, ROTARY, LAYOUT), block(x, ROTARY, LAYOUT))
    block.eval()
    assert torch.equal(block(x, ROTARY, LAYOUT), block(x, ROTARY, LAYOUT))

"""What a fresh network says, and how the outputs are cut."""

from __future__ import annotations

import torch

from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.models.model import CHARGES, MOMENTUM, Heads
from ringflow.models.settings import ModelSettings


def test_a_fresh_network_trusts_the_detector():
    heads = Heads(ModelSettings(width=16, heads=2))
    prediction = heads(torch.randn(5, 16), torch.randn(5, 16))
    assert [tuple(part.shape) for part in prediction] == [(5,), (5, len(PARTICLE_CLASSES) - 1), (5, 3), (5, 5)]
    assert all(not part.any() for part in prediction)
    assert CHARGES == (-1, 0, 1)
    assert MOMENTUM == ("log_pt", "log_energy", "d_eta", "sin_d_phi", "cos_d_phi")


def test_outputs_are_cut_in_their_order():
    heads = Heads(ModelSettings(width=16, heads=2))
    with torch.no_grad():
        heads.out.bias.copy_(torch.arange(16.0))
    prediction = heads(torch.zeros(1, 16), torch.zeros(1, 16))
    assert prediction.particle_N.tolist() == [0.0]
    assert prediction.class_NC.tolist() == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]]
    assert prediction.charge_N3.tolist() == [[8.0, 9.0, 10.0]]
    assert prediction.momentum_N5.tolist() == [[11.0, 12.0, 13.0, 14.0, 15.0]]


def test_backbone_and_element_are_both_heard_and_the_result_is_full_precision():
    heads = Heads(ModelSettings(width=16, heads=2))
    torch.nn.init.normal_(heads.out.weight)
    x, embedded = torch.randn(2, 4, 16)
    before = heads(x, embedded).class_NC
    assert not torch.allclose(heads(x + 1.0, embedded).class_NC, before)
    assert not torch.allclose(heads(x, embedded + 1.0).class_NC, before)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert heads(x, embedded).class_NC.dtype == torch.float32

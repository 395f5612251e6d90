"""Turns of the position: products know distances only."""

from __future__ import annotations

import pytest
import torch

from ringflow.models.attention import Layout, RotaryPositions, from_leader, turn, turn_back

WIDTH = 16


@pytest.fixture
def rotary() -> RotaryPositions:
    return RotaryPositions(WIDTH, finest=0.013)


def vectors(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 2, WIDTH, generator=torch.Generator().manual_seed(1))


def products(rotary: RotaryPositions, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    turned = turn(x, *rotary(position))
    return torch.einsum("nhe,mhe->hnm", turned, turned)


def positions(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(2))


def test_products_depend_on_distances_only(rotary: RotaryPositions):
    x, position = vectors(), positions()
    moved = products(rotary, x, position + torch.tensor([0.7, -2.1]))
    assert torch.allclose(moved, products(rotary, x, position), atol=1e-3)
    assert not torch.allclose(products(rotary, x, 1.1 * position), products(rotary, x, position), atol=0.1)


def test_once_around_is_nothing(rotary: RotaryPositions):
    x, position = vectors(), positions()
    around = position.clone()
    around[2, 1] += 2 * torch.pi
    assert torch.allclose(turn(x, *rotary(around)), turn(x, *rotary(position)), atol=1e-3)


def test_azimuth_has_whole_frequencies_from_one_to_the_finest(rotary: RotaryPositions):
    eta, phi = rotary.frequency_P2[: WIDTH // 4, 0], rotary.frequency_P2[WIDTH // 4 :, 1]
    assert torch.equal(phi, phi.round())
    assert phi[0] == eta[0] == 0  # content without a position
    assert phi[1] == eta[1] == 1
    assert phi[-1] == 77
    assert eta[-1] == pytest.approx(1 / 0.013, rel=1e-5)


def test_turning_keeps_lengths_and_can_be_undone(rotary: RotaryPositions):
    x, angles = vectors(), rotary(positions())
    turned = turn(x, *angles)
    assert torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), atol=1e-5)
    assert torch.allclose(turn_back(turned, *angles), x, atol=1e-5)
    assert not torch.allclose(turned, x, atol=0.1)


def test_a_pair_turns_by_its_angle():
    rotary = RotaryPositions(8, finest=0.5)
    x = torch.zeros(1, 1, 8)
    x[0, 0, 3] = 1.0  # second pair of azimuth: frequency 1; its partner is 4 places on
    turned = turn(x, *rotary(torch.tensor([[0.0, 0.3]])))[0, 0]
    assert turned[3] == pytest.approx(float(torch.tensor(0.3).cos()))
    assert turned[7] == pytest.approx(float(torch.tensor(0.3).sin()))


def test_angles_keep_full_precision_in_autocast(rotary: RotaryPositions):
    position = positions()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cosine, sine = rotary(position)
    exact_cosine, exact_sine = rotary(position)
    assert torch.equal(cosine, exact_cosine)
    assert torch.equal(sine, exact_sine)


def layout_of(counts: list[int]) -> Layout:
    numbers = torch.tensor(counts)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), numbers.cumsum(0)])
    return Layout(offsets.int(), torch.repeat_interleave(torch.arange(len(counts)), numbers), max(counts))


@pytest.mark.parametrize("counts", [[6], [2, 0, 4]])
def test_azimuth_from_the_leader_keeps_products_and_forgets_the_turn(rotary: RotaryPositions, counts: list[int]):
    x, position, layout = vectors(), positions(), layout_of(counts)
    score = torch.tensor([0.3, 0.1, 0.2, 0.9, -0.5, 0.4])
    plain, relative = turn(x, *rotary(position)), turn(x, *from_leader(rotary(position), score, layout))
    later = turn(x, *from_leader(rotary(position + torch.tensor([0.0, 1.7])), score, layout))
    assert torch.allclose(relative, later, atol=1e-3)
    assert not torch.allclose(plain, turn(x, *rotary(position + torch.tensor([0.0, 1.7]))), atol=0.1)
    for event in range(len(counts)):
        mine = layout.event_N == event
        before, after = (torch.einsum("nhe,mhe->hnm", part[mine], part[mine]) for part in (plain, relative))
        assert torch.allclose(before, after, atol=1e-4)


def test_the_leader_itself_has_no_azimuth(rotary: RotaryPositions):
    score = torch.tensor([0.3, 0.1, 0.2, 0.9, -0.5, 0.4])
    cosine, sine = from_leader(rotary(positions()), score, layout_of([2, 0, 4]))
    in_azimuth = torch.arange(WIDTH) % (WIDTH // 2) >= WIDTH // 4
    for leader in (0, 3):
        assert torch.allclose(cosine[leader, in_azimuth], torch.ones(WIDTH // 2))
        assert torch.allclose(sine[leader, in_azimuth], torch.zeros(WIDTH // 2), atol=1e-5)

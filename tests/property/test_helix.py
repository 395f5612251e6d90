"""Helices: round trips and crossings for any particle."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringflow.elements.helix import Helix
from ringflow.event.particles import BENDING

FIELD = 4.0
momentum = st.floats(0.05, 200.0)
position = st.floats(-400.0, 400.0)
angle = st.floats(-math.pi, math.pi)
slope = st.floats(-5.0, 5.0)
charge = st.sampled_from([-1.0, 0.0, 1.0])


def helix_of(x: float, y: float, z: float, pt: float, phi: float, tan_lambda: float, q: float) -> Helix:
    values = (x, y, z, pt * math.cos(phi), pt * math.sin(phi), pt * tan_lambda, q)
    return Helix.of(*(torch.tensor([value], dtype=torch.float64) for value in values), FIELD)


def near(value: float):
    return pytest.approx(value, abs=1e-5, rel=1e-8)


def number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


@given(position, position, position, momentum, angle, slope, charge, st.floats(0.1, 3000.0))
def test_forth_and_back_returns_to_the_start(x, y, z, pt, phi, tan_lambda, q, path):
    helix = helix_of(x, y, z, pt, phi, tan_lambda, q)
    end = [float(value) for value in helix.position(number(path))]
    direction = helix.direction(number(path))
    back = [-float(component) for component in direction]
    scale = pt * math.sqrt(1.0 + tan_lambda**2)
    values = (*end, *(scale * component for component in back), -q)
    returned = Helix.of(*(number(value) for value in values), FIELD).position(number(path))
    for start, again in zip((x, y, z), returned, strict=True):
        assert float(again) == near(start)


@given(position, position, position, momentum, angle, slope, charge, st.floats(600.0, 2500.0))
def test_first_crossing_of_a_cylinder_is_on_it_and_is_the_first(x, y, z, pt, phi, tan_lambda, q, radius):
    helix = helix_of(x, y, z, pt, phi, tan_lambda, q)
    path = helix.to_cylinder(radius)
    if not torch.isfinite(path):
        bend = pt / (BENDING * FIELD)
        assert q != 0.0
        centre = math.hypot(x - math.sin(phi) / float(helix.turn), y + math.cos(phi) / float(helix.turn))
        assert centre + bend < radius + 1e-6  # the whole circle lies inside
        return
    px, py, _ = helix.position(path)
    assert math.hypot(float(px), float(py)) == near(radius)
    before = torch.linspace(0.0, 0.999, 50, dtype=torch.float64) * path
    bx, by, _ = helix.position(before)
    assert bool((torch.hypot(bx, by) < radius + 1e-4).all())


@given(position, position, position, momentum, angle, slope, charge)
def test_perigee_is_nearest_to_the_beam(x, y, z, pt, phi, tan_lambda, q):
    helix = helix_of(x, y, z, pt, phi, tan_lambda, q)
    d0, _, _ = helix.perigee()
    half_turn = math.pi * pt / (BENDING * FIELD) if q else 1000.0
    around = torch.linspace(-half_turn, half_turn, 2001, dtype=torch.float64)
    px, py, _ = helix.position(around)
    assert abs(float(d0)) <= float(torch.hypot(px, py).min()) + 1e-5


@given(position, position, momentum, angle, slope, charge, angle)
def test_turning_a_helix_turns_its_points(x, y, pt, phi, tan_lambda, q, turn):
    straight = helix_of(x, y, 0.0, pt, phi, tan_lambda, q)
    cos, sin = math.cos(turn), math.sin(turn)
    turned = helix_of(cos * x - sin * y, sin * x + cos * y, 0.0, pt, phi + turn, tan_lambda, q)
    path = number(700.0)
    px, py, pz = (float(value) for value in straight.position(path))
    qx, qy, qz = (float(value) for value in turned.position(path))
    assert (qx, qy, qz) == (near(cos * px - sin * py), near(sin * px + cos * py), near(pz))

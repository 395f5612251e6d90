"""The detector files that ship: what every real detector keeps to, and what is published of each."""

from __future__ import annotations

import math

import pytest

from ringflow.baseline.rules import load_constants
from ringflow.sim.geometry import DETECTORS, DetectorGeometry, detector_names, load_detector


@pytest.fixture(params=detector_names())
def geometry(request: pytest.FixtureRequest) -> DetectorGeometry:
    return load_detector(request.param)


@pytest.mark.parametrize(
    ("name", "field", "face", "sides", "x0", "interaction_lengths"),
    [
        ("clic", 4.0, 1500.0, 12, 22.0, 8.5),
        ("cld", 2.0, 2150.0, 12, 22.0, 6.5),
        ("ild", 3.5, 1804.8, 8, 24.0, 7.0),
    ],
)
def test_published_dimensions(name: str, field: float, face: float, sides: int, x0: float, interaction_lengths: float):
    geometry = load_detector(name)
    assert (geometry.name, geometry.field, geometry.face_radius, geometry.sides) == (name, field, face, sides)
    assert geometry.ecal.layers * geometry.ecal.x0_per_layer == pytest.approx(x0, rel=0.1)
    depth = sum(part.layers * part.lambda_per_layer for part in (geometry.ecal, geometry.hcal))
    assert depth == pytest.approx(interaction_lengths, rel=0.1)


def test_volumes_lie_behind_each_other(geometry: DetectorGeometry):
    radius, half_length = geometry.tracker_cylinder
    ecal, hcal, coil, yoke = geometry.ecal, geometry.hcal, geometry.coil.barrel, geometry.yoke
    barrel = [radius, *(edge for part in (ecal, hcal) for edge in (part.barrel.inner, part.barrel.inner + part.depth))]
    assert [*barrel, coil.inner, coil.outer, yoke.barrel.inner] == sorted(
        [*barrel, coil.inner, coil.outer, yoke.barrel.inner]
    )
    # The corners of the polygon stay within the coil.
    assert (hcal.barrel.inner + hcal.depth) / math.cos(math.pi / (2 * geometry.sides)) < coil.inner
    endcap = [half_length]
    endcap += [edge for part in (ecal, hcal) for edge in (part.endcap.inner, part.endcap.inner + part.depth)]
    assert [*endcap, yoke.endcap.inner] == sorted([*endcap, yoke.endcap.inner])


def test_muons_leave_a_hit_in_every_layer(geometry: DetectorGeometry):
    for part in (geometry.ecal, geometry.hcal, geometry.yoke):
        assert part.threshold < 0.6 * part.mip


def test_rules_have_the_constants_of_this_file(geometry: DetectorGeometry):
    constants = load_constants(geometry.name)
    assert (constants.detector, constants.field, constants.face_radius) == (
        geometry.name,
        geometry.field,
        geometry.face_radius,
    )
    assert constants.hadron.energy == geometry.calibration.hadronic_energy
    assert constants.hadron.factor == geometry.calibration.hadronic_factor


def test_files_give_their_sources(geometry: DetectorGeometry):
    text = (DETECTORS / f"{geometry.name}.toml").read_text(encoding="utf-8")
    assert "after k4geo" in text
    assert geometry.published is None or "arXiv:" in geometry.published.source

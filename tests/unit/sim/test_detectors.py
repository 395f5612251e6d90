"""The detector files that ship: what every real detector keeps to, and what is published of each."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from ringflow.base.errors import RingflowError
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
        ("sid", 5.0, 1264.0, 12, 26.0, 6.0),
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


def test_the_ecal_leaves_no_crack_seen_from_the_collision(geometry: DetectorGeometry):
    barrel, endcap = geometry.ecal.barrel, geometry.ecal.endcap
    slope = np.linspace(0.0, 0.99 * endcap.inner / endcap.r_min, 2001)
    in_barrel = barrel.inner * slope <= barrel.half_length
    assert np.all(in_barrel | (endcap.inner <= endcap.r_max * slope))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("inner = 1500.0", "inner = -1500.0"), "ecal.barrel.inner=-1500.0: input should be greater than 0"),
        (("pitch = 5.05", "pich = 5.05"), "unknown setting 'ecal.pich'; did you mean 'ecal.pitch'"),
        ((r"\[coil\]", "[coil"), "not a TOML file"),
        ((r"(?s)\[coil\].*?\n\n", ""), "missing setting 'coil'"),
        (("layers = 40", 'layers = "many"'), "ecal.layers=many: input should be a valid integer"),
        (
            ("inner = 1740.0", "inner = 1640.0"),
            "hcal lies in the barrel from 1640 .* the ecal in front of it ends at 1702 mm",
        ),
        (
            ("inner = 2539.0", "inner = 2339.0"),
            "hcal lies in the endcap from 2339 .* the ecal in front of it ends at 2509 mm",
        ),
        (
            (r"\[1486.0, ", "[1586.0, "),
            "ecal lies in the barrel from 1500 .* the tracker in front of it ends at 1586 mm",
        ),
        (
            ("inner = 3400.0", "inner = 3200.0"),
            "coil lies in the barrel from 3200 .* the hcal in front of it ends at 3330 mm",
        ),
        (("outer = 4250.0", "outer = 3300.0"), "coil.barrel=.*inner and outer must rise, not 3400, 3300"),
        (("r_min = 410.0", "r_min = 2410.0"), "ecal.endcap=.*r_min and r_max must rise, not 2410, 1700"),
        ((r"\[160.0, 33.0,", "[160.0, 133.0,"), "tracker.disks=.*the radii of a disk must rise, not 133, 102"),
        ((r"\[1486.0, ", "[-1486.0, "), "tracker.barrel.9.0=-1486.0: input should be greater than 0"),
        (("0.016, 1]", "0.016, -1]"), "tracker.barrel.9.3=-1: input should be greater than or equal to 0"),
        (
            (r"(?s)efficiency = \[\n.*?\n\]", "efficiency = []"),
            r"tracker.efficiency=\[\]: list should have at least 1 item",
        ),
        (("eta_max = 0.45, a", "eta_max = 1.45, a"), "tracker.resolution=.*eta_max must rise, not 1.45, 0.88"),
        (('"d0", 0.8', '"d0", -0.8'), "tracker.correlations=.*no errors are correlated like this"),
        (('name = "clic"', 'name = ""'), "name=: string should have at least 1 character"),
    ],
)
def test_detectors_that_cannot_be_are_refused_in_one_line(wrong: tuple[str, str], message: str, tmp_path: Path):
    text = (DETECTORS / "clic.toml").read_text(encoding="utf-8")
    changed = re.sub(wrong[0], wrong[1], text, count=1)
    assert changed != text
    (tmp_path / "mine.toml").write_text(changed)
    with pytest.raises(RingflowError, match=f"mine.toml: .*{message}") as told:
        load_detector(str(tmp_path / "mine.toml"))
    assert "\n" not in str(told.value)


def test_files_of_detectors_are_read_anew_and_missed(tmp_path: Path):
    mine = tmp_path / "mine.toml"
    for field in (1.5, 2.5):
        text = (DETECTORS / "clic.toml").read_text(encoding="utf-8")
        mine.write_text(text.replace("field = 4.0", f"field = {field}"))
        assert load_detector(str(mine)).field == field
    with pytest.raises(RingflowError, match=r"there is no file 'cilc\.toml': .*known are cld, clic"):
        load_detector("cilc.toml")

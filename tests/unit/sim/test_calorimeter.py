"""Depth tables, showers, cells and hits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringflow.event.schema import SUBSYSTEMS
from ringflow.sim.calorimeter import CellTable, read_out
from ringflow.sim.flight import Draw
from ringflow.sim.geometry import load_detector
from ringflow.sim.shower import INTERACTION, MILLIMETRES, RADIATION, DepthTable, Spots

CPU = torch.device("cpu")
CLIC = load_detector("clic")
DEPTH = DepthTable(CLIC, CPU)
IDEAL = CLIC.without()
CELLS = CellTable(IDEAL, CPU)


def test_material_of_the_barrel_is_that_of_the_geometry():
    face = torch.tensor([0])
    ecal, hcal = CLIC.ecal, CLIC.hcal
    behind_ecal = torch.tensor([ecal.depth])
    assert DEPTH.convert(behind_ecal, face, MILLIMETRES, RADIATION).item() == pytest.approx(22.0, rel=2e-3)
    assert DEPTH.convert(behind_ecal, face, MILLIMETRES, INTERACTION).item() == pytest.approx(1.0, rel=2e-3)
    behind_hcal = torch.tensor([hcal.barrel.inner - ecal.barrel.inner + hcal.depth])
    assert DEPTH.convert(behind_hcal, face, MILLIMETRES, INTERACTION).item() == pytest.approx(8.5, rel=2e-3)


def spots_at(points: list[tuple[float, float, float]], energy: list[float], particle: list[int]) -> Spots:
    x, y, z = (torch.tensor(column) for column in zip(*points, strict=True))
    return Spots(torch.tensor(particle), x, y, z, torch.zeros(len(points)), torch.tensor(energy))


def hits_of(spots: Spots, particles: int = 4):
    return read_out(
        [spots], torch.zeros(particles, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), CELLS, Draw(1, CPU)
    )


@pytest.mark.parametrize(
    ("point", "subsystem"),
    [
        ((1600.0, 0.0, 100.0), "ecal_barrel"),
        ((0.0, 1000.0, 2400.0), "ecal_endcap"),
        ((0.0, -2000.0, 100.0), "hcal_barrel"),
        ((300.0, 100.0, -3000.0), "hcal_endcap"),
        ((5000.0, 0.0, 0.0), "yoke_barrel"),
        ((0.0, 2000.0, 5000.0), "yoke_endcap"),
    ],
)
def test_spot_becomes_a_hit_in_its_own_cell(point: tuple[float, float, float], subsystem: str):
    hits, links = hits_of(spots_at([point], [1.0], [2]))
    assert len(hits) == 1
    number = SUBSYSTEMS.index(subsystem)
    assert hits.subsystem.tolist() == [number]
    part = CLIC.calorimeter(subsystem)
    distance = np.abs(np.array([hits.x.item(), hits.y.item(), hits.z.item()]) - point)
    assert np.all(distance <= max(part.cell, part.pitch))
    assert links.particle.tolist() == [2]
    behind = 1.0 if subsystem.startswith("ecal") else CLIC.calibration.hcal_scale
    assert hits.energy.item() == pytest.approx(CLIC.calibration.em_scale * behind)


def test_spots_of_one_cell_add_up_and_keep_their_particles():
    point = (1600.0, 0.0, 101.0)
    hits, links = hits_of(spots_at([point] * 3 + [(1600.0, 0.0, 501.0)], [0.1, 0.2, 0.4, 1.0], [1, 3, 1, 0]))
    scale = CLIC.calibration.em_scale
    assert sorted(hits.energy.tolist()) == pytest.approx([0.7 * scale, 1.0 * scale])
    left = {int(p): float(e) for p, e in zip(links.particle, links.energy, strict=True)}
    assert left == pytest.approx({0: scale, 1: 0.5 * scale, 3: 0.2 * scale})


def test_threshold_applies_to_the_sum_of_a_cell():
    threshold = CLIC.ecal.threshold
    point = (1600.0, 0.0, 101.0)
    assert len(hits_of(spots_at([point], [0.9 * threshold], [0]))[0]) == 0
    assert len(hits_of(spots_at([point, point], [0.6 * threshold, 0.6 * threshold], [0, 1]))[0]) == 1


def test_minimum_ionising_spot_takes_the_energy_of_its_layer():
    hits, _ = hits_of(spots_at([(1600.0, 0.0, 1.0), (2000.0, 0.0, 1.0)], [-1.0, -1.0], [0, 0]))
    calibration = CLIC.calibration
    expected = [CLIC.ecal.mip * calibration.em_scale, CLIC.hcal.mip * calibration.em_scale * calibration.hcal_scale]
    assert hits.energy.tolist() == pytest.approx(expected)


def around(radius: float, count: int = 20_000) -> list[tuple[float, float, float]]:
    """Points around the barrel, so far behind the middle of a side."""
    phi = torch.linspace(-torch.pi, torch.pi, count + 1)[:-1].double()
    normal = torch.round(phi / (2 * torch.pi / CLIC.sides)) * (2 * torch.pi / CLIC.sides)
    across = radius / torch.cos(phi - normal)
    points = torch.stack([across * torch.cos(phi), across * torch.sin(phi), torch.full_like(phi, 1.0)], dim=1)
    return [tuple(point) for point in points.tolist()]


def test_neighbouring_cells_stay_apart_around_the_barrel():
    """Every azimuth falls into exactly one cell of its flat side, also at the seams."""
    distance = CLIC.ecal.barrel.inner + 0.5 * CLIC.ecal.pitch
    points = around(distance)
    hits, _ = hits_of(spots_at(points, [1.0] * len(points), [0] * len(points)))
    of_side = int(2 * distance * np.tan(np.pi / CLIC.sides) / CLIC.ecal.cell)
    assert len(hits) == of_side * CLIC.sides
    phi = np.arctan2(hits.y.numpy(), hits.x.numpy())
    normal = np.round(phi / (2 * np.pi / CLIC.sides)) * (2 * np.pi / CLIC.sides)
    assert np.hypot(hits.x.numpy(), hits.y.numpy()) * np.cos(phi - normal) == pytest.approx(distance, rel=1e-5)
    along = np.sort(distance * np.tan((phi - normal)[np.abs(normal) < 1e-6]))
    assert np.diff(along) == pytest.approx(CLIC.ecal.cell, rel=1e-3)


def only(effect: str, **more: float) -> CellTable:
    """Cells of a detector with nothing wrong in its ECAL but one effect."""
    changed = IDEAL.ecal.model_copy(update={effect: getattr(CLIC.ecal, effect)} | more)
    return CellTable(IDEAL.model_copy(update={"ecal": changed}), CPU)


def seen_by(table: CellTable, points: list[tuple[float, float, float]]) -> np.ndarray:
    """Energy of the hits of one spot of 1 GeV per point."""
    none = torch.zeros(1, dtype=torch.int64)
    hits, _ = read_out([spots_at(points, [1.0] * len(points), [0] * len(points))], none, none, table, Draw(1, CPU))
    return hits.energy.numpy() / CLIC.calibration.em_scale


IN_FIRST_LAYER = CLIC.ecal.barrel.inner + 0.5 * CLIC.ecal.pitch


def test_gaps_between_modules_take_their_share():
    points = around(IN_FIRST_LAYER)
    assert seen_by(CELLS, points).sum() == pytest.approx(len(points))
    # Points are even in azimuth: of a side, what its two half gaps cover.
    edge = np.tan(np.pi / CLIC.sides)
    lost = 1.0 - np.arctan(edge - 0.5 * CLIC.ecal.gap / IN_FIRST_LAYER) / (np.pi / CLIC.sides)
    assert 0.005 < lost < 0.02
    assert 1.0 - seen_by(only("gap"), points).sum() / len(points) == pytest.approx(lost, rel=0.05)


def test_dead_cells_are_the_same_in_every_event_and_as_many_as_said():
    points = around(IN_FIRST_LAYER)
    seen = [seen_by(only("dead", dead=0.2), points) for _ in range(2)]
    assert 1.0 - seen[0].sum() / len(points) == pytest.approx(0.2, abs=0.03)
    np.testing.assert_array_equal(*seen)


def test_cells_have_scales_of_their_own():
    seen = seen_by(only("intercalibration"), around(IN_FIRST_LAYER, 1000))
    scale = seen / np.round(seen)  # by how many points fell into the cell
    assert scale.std() == pytest.approx(CLIC.ecal.intercalibration, rel=0.15)


def test_noise_belongs_to_nobody_and_is_as_much_as_said():
    events = 50
    nothing = spots_at([(0.0, 0.0, 0.0)], [1.0], [0])
    event_of, first_of = (torch.zeros(count, dtype=torch.int64) for count in (1, events))
    hits, links = read_out([nothing], event_of, first_of, CellTable(CLIC, CPU), Draw(1, CPU))
    assert len(links.hit) == 0
    expected = CLIC.ecal.noise_hits + CLIC.hcal.noise_hits + CLIC.yoke.noise_hits
    assert len(hits) / events == pytest.approx(expected, rel=0.08)  # some fall into dead or weak cells
    assert set(hits.subsystem.tolist()) == set(range(6))

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
CELLS = CellTable(CLIC, CPU)


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
    assert hits.energy.item() == pytest.approx(CLIC.calibration.em_scale)


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
    expected = [CLIC.ecal.mip * CLIC.calibration.em_scale, CLIC.hcal.mip * CLIC.calibration.em_scale]
    assert hits.energy.tolist() == pytest.approx(expected)


def test_neighbouring_cells_stay_apart_around_the_barrel():
    """Every azimuth falls into exactly one cell, also at the seam."""
    phi = torch.linspace(-torch.pi, torch.pi, 20_001)[:-1]
    radius = CLIC.ecal.barrel.inner + 0.5 * CLIC.ecal.pitch
    points = list(
        zip((radius * torch.cos(phi)).tolist(), (radius * torch.sin(phi)).tolist(), [1.0] * len(phi), strict=True)
    )
    hits, _ = hits_of(spots_at(points, [1.0] * len(phi), [0] * len(phi)))
    cells = int(2 * np.pi * radius / CLIC.ecal.cell)
    assert len(hits) == cells
    found = np.sort(np.arctan2(hits.y.numpy(), hits.x.numpy()))
    assert np.diff(found) == pytest.approx(2 * np.pi / cells, rel=1e-2)

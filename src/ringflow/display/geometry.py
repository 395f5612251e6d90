"""What is drawn around an event, and lines in space: helices of charged particles and straight lines of neutral ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ringflow.base.errors import UsageError
from ringflow.sim.flight import Helix
from ringflow.sim.geometry import CalorimeterGeometry, load_detector

Floats = npt.NDArray[np.float64]

#: Radius and half length that lines are drawn to where the detector is not known: about those of all of them.
_USUAL_FACE = (1500.0, 2300.0)
#: Pieces of the most bent line; a number with many divisors, because straighter lines use every nth point.
_PIECES = 96
_STRIDES = (48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
#: Largest turn from one point to the next, in radians.
_TURN_PER_PIECE = 0.14
#: A particle that never meets the calorimeter is followed for so many turns.
_TURNS = 1.5
#: Length of a line that starts behind the calorimeter face, in mm.
_STUB = 200.0


@dataclass(frozen=True)
class Outline:
    """Cylinders (mm) of a detector, its field (tesla), and the face of its calorimeter, which lines are drawn to."""

    name: str
    field: float
    face_radius: float
    face_z: float
    parts: list[dict[str, Any]]


def outline(detector: str, field: float | None = None) -> Outline:
    """The outline of a detector that we know by name; of another one only a tracker of the usual size."""
    try:
        geometry = load_detector(detector)
    except UsageError:
        radius, z = _USUAL_FACE
        return Outline(detector, field or 0.0, radius, z, [_cylinder("tracker", radius, radius, -z, z)])
    parts = [_cylinder("tracker", r, r, -z, z) for r, z, _, shown in geometry.tracker.barrel if shown]
    parts += [_cylinder("tracker", row[1], row[2], row[0], row[0], mirrored=True) for row in geometry.tracker.disks]
    for system in ("ecal", "hcal", "yoke"):
        shape: CalorimeterGeometry = getattr(geometry, system)
        inner, z, cap = shape.barrel.inner, shape.barrel.half_length, shape.endcap
        parts.append(_cylinder(system, inner, inner + shape.depth, -z, z))
        parts.append(_cylinder(system, cap.r_min, cap.r_max, cap.inner, cap.inner + shape.depth, mirrored=True))
    coil, z = geometry.coil.barrel, geometry.hcal.barrel.half_length
    parts.append(_cylinder("coil", coil.inner, coil.outer, -z, z))
    return Outline(detector, field or geometry.field, geometry.face_radius, geometry.face_z, parts)


def _cylinder(
    system: str, r_min: float, r_max: float, z_min: float, z_max: float, *, mirrored: bool = False
) -> dict[str, Any]:
    """A hollow cylinder; `both_ends` asks for its mirror image at negative z too."""
    return {"system": system, "r_min": r_min, "r_max": r_max, "z_min": z_min, "z_max": z_max, "both_ends": mirrored}


def helices(start: Floats, momentum: Floats, charge: Floats, outline: Outline) -> list[Floats]:
    """Points along every particle's way, from rows of x, y, z (mm) and px, py, pz (GeV), to the calorimeter face."""
    if not len(start):
        return []
    x, y, z = torch.from_numpy(start.T.copy())
    px, py, pz = torch.from_numpy(momentum.T.copy())
    helix = Helix.of(x, y, z, px, py, pz, torch.from_numpy(charge.astype(np.float64)), outline.field)
    forward = torch.where(helix.tan_lambda >= 0.0, outline.face_z, -outline.face_z)
    path = torch.minimum(helix.to_cylinder(outline.face_radius), helix.to_plane(forward))
    turns = _TURNS * 2.0 * torch.pi / helix.turn.abs().clamp_min(1e-12)
    path = torch.minimum(path, turns)
    inside = (torch.hypot(helix.x, helix.y) < outline.face_radius) & (helix.z.abs() < outline.face_z)
    cos_lambda = torch.rsqrt(1.0 + helix.tan_lambda**2)
    path = torch.where(inside & torch.isfinite(path), path, _STUB * cos_lambda)
    steps = torch.linspace(0.0, 1.0, _PIECES + 1, dtype=torch.float64)[:, None] * path[None, :]
    points = torch.stack(helix.position(steps), dim=2).numpy()  # [point, particle, (x, y, z)]
    turned = (helix.turn.abs() * path).numpy()
    return [points[:: _stride(turned[row]), row] for row in range(len(start))]


def _stride(turned: float) -> int:
    return next((stride for stride in _STRIDES if turned * stride / _PIECES <= _TURN_PER_PIECE), 1)


def to_places(lines: list[Floats], ends: Floats) -> list[Floats]:
    """The same lines, but straight from their start to a place, wherever that is given (rows that are not NaN)."""
    known = np.asarray(np.isfinite(ends).all(axis=1))
    return [np.linspace(line[0], ends[row], 3) if known[row] else line for row, line in enumerate(lines)]


def perigee(d0: Floats, z0: Floats, phi: Floats) -> Floats:
    """Point of closest approach to the beam axis, rows of x, y, z."""
    return np.stack([d0 * np.sin(phi), -d0 * np.cos(phi), z0], axis=1)

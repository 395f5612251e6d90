"""Lines in space: the helix of a charged particle and the straight line of a neutral one, up to the calorimeter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ringflow.display.outline import Outline
from ringflow.sim.flight import Helix

Floats = npt.NDArray[np.float64]

#: Pieces of the most bent line; a number with many divisors, because straighter lines use every nth point.
_PIECES = 96
_STRIDES = (48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
#: Largest turn from one point to the next, in radians.
_TURN_PER_PIECE = 0.14
#: A particle that never meets the calorimeter is followed for so many turns.
_TURNS = 1.5
#: Length of a line that starts behind the calorimeter face, in mm.
_STUB = 200.0


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


def to_places(lines: list[Floats], ends: Floats) -> list[Floats]:
    """The same lines, but straight from their start to a place, wherever that is given (rows that are not NaN)."""
    known = [bool(np.isfinite(end).all()) for end in ends]
    return [
        np.linspace(line[0], end, 3) if has_end else line for line, end, has_end in zip(lines, ends, known, strict=True)
    ]


def perigee(d0: Floats, z0: Floats, phi: Floats) -> Floats:
    """Point of closest approach to the beam axis, rows of x, y, z."""
    return np.stack([d0 * np.sin(phi), -d0 * np.cos(phi), z0], axis=1)


def _stride(turned: float) -> int:
    return next((stride for stride in _STRIDES if turned * stride / _PIECES <= _TURN_PER_PIECE), 1)

"""Helices in a solenoid field: where they go, and where they meet cylinders, flat sides and planes.

Paths are transverse lengths in mm (of the projection onto the xy plane). All functions are elementwise over tensors of
particles; straight lines (neutral particles) are helices of no curvature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.elements.shapes import normal_of_side
from ringflow.elements.tables import ColumnTable
from ringflow.event.particles import BENDING

Vector = tuple[Tensor, Tensor, Tensor]

#: Below this curvature times distance a path counts as straight; the sagitta is then under a nanometre in a detector.
_STRAIGHT = 1e-9
_TWO_PI = 2.0 * torch.pi
#: How far in front of its beginning (mm) a helix still counts: as far as a piece of a shower has its centre before the face.
_IN_FRONT = 50.0


@dataclass(frozen=True)
class Helix(ColumnTable):
    """Position, direction and signed turning rate (rad per mm of transverse path)."""

    x: Tensor
    y: Tensor
    z: Tensor
    phi: Tensor
    tan_lambda: Tensor
    turn: Tensor

    @classmethod
    def of(
        cls, x: Tensor, y: Tensor, z: Tensor, px: Tensor, py: Tensor, pz: Tensor, charge: Tensor, field: float
    ) -> Helix:
        """Helix of particles in a field along +z; positive charges turn clockwise seen from +z."""
        pt = torch.hypot(px, py).clamp_min(1e-9)
        return cls(x, y, z, torch.atan2(py, px), pz / pt, -BENDING * charge * field / pt)

    def position(self, path: Tensor) -> Vector:
        """Point after a transverse path."""
        half_turn = 0.5 * self.turn * path
        chord = path * torch.sinc(half_turn / torch.pi)
        middle = self.phi + half_turn
        return self.x + chord * torch.cos(middle), self.y + chord * torch.sin(middle), self.z + path * self.tan_lambda

    def direction(self, path: Tensor) -> Vector:
        """Unit vector of the momentum after a transverse path."""
        azimuth = self.phi + self.turn * path
        cos_lambda = torch.rsqrt(1.0 + self.tan_lambda**2)
        return cos_lambda * torch.cos(azimuth), cos_lambda * torch.sin(azimuth), cos_lambda * self.tan_lambda

    def length(self, path: Tensor) -> Tensor:
        """Length in space of a transverse path."""
        return path * torch.sqrt(1.0 + self.tan_lambda**2)

    def distance(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Distance of points from the helices, each from its own, within half a turn of where it begins; what lies in front of
        that is as far as it is from there."""
        cosine, sine = torch.cos(self.phi), torch.sin(self.phi)
        ahead = (x - self.x) * cosine + (y - self.y) * sine
        left = (y - self.y) * cosine - (x - self.x) * sine
        rise = z - self.z
        # Without a difference of large radii, so that nearly straight tracks are exact too.
        to_centre = 1.0 - self.turn * left
        square = ahead**2 + left**2
        across = (self.turn * square - 2.0 * left) / (1.0 + torch.hypot(to_centre, self.turn * ahead))
        turn = torch.where(self.turn.abs() < _STRAIGHT, _STRAIGHT, self.turn)
        path = torch.atan2(turn.abs() * ahead, to_centre) / turn.abs()
        slant = torch.rsqrt(1.0 + self.tan_lambda**2)
        near = torch.hypot(across, (rise - path * self.tan_lambda) * slant)
        return torch.where(path > -_IN_FRONT * slant, near, torch.sqrt(square + rise**2))

    def to_cylinder(self, radius: float | Tensor) -> Tensor:
        """Shortest path forward to a cylinder around the beam axis; infinite if it is never met."""
        along = self.x * torch.cos(self.phi) + self.y * torch.sin(self.phi)
        discriminant = along**2 - (self.x**2 + self.y**2 - radius**2)
        root = torch.sqrt(discriminant.clamp_min(0.0))
        straight = torch.where(-along - root > 1e-6, -along - root, -along + root)
        straight = torch.where((discriminant >= 0.0) & (straight > 1e-6), straight, torch.inf)

        turn = torch.where(self.turn.abs() < _STRAIGHT, _STRAIGHT, self.turn)
        centre_x = self.x - torch.sin(self.phi) / turn
        centre_y = self.y + torch.cos(self.phi) / turn
        centre = torch.hypot(centre_x, centre_y).clamp_min(1e-9)
        bend = 1.0 / turn.abs()
        cosine = (radius**2 - centre**2 - bend**2) / (2.0 * centre * bend)
        half_angle = torch.acos(cosine.clamp(-1.0, 1.0))
        start = self.phi - 0.5 * torch.pi * turn.sign()
        axis = torch.atan2(centre_y, centre_x)
        candidates = [
            torch.remainder((axis + side * half_angle - start) * turn.sign(), _TWO_PI) for side in (-1.0, 1.0)
        ]
        # A start on the cylinder itself is not a crossing.
        first, second = (torch.where(angle * bend < 1e-6, _TWO_PI, angle) for angle in candidates)
        curved = torch.where(cosine.abs() <= 1.0, torch.minimum(first, second) * bend, torch.inf)
        return torch.where(self.turn.abs() < _STRAIGHT, straight, curved)

    def to_side(self, distance: float, normal: Tensor) -> Tensor:
        """Path forward to a plane along the beam, at a distance from the axis and with a normal at an azimuth; infinite if
        it is never met."""
        away = distance - (self.x * torch.cos(normal) + self.y * torch.sin(normal))
        angle = self.phi - normal
        slope = torch.cos(angle)
        straight = torch.where(slope > 1e-9, away / slope.clamp_min(1e-9), torch.inf)

        turn = torch.where(self.turn.abs() < _STRAIGHT, _STRAIGHT, self.turn)
        sine = torch.sin(angle) + turn * away  # of the angle against the normal at the plane
        first = torch.asin(sine.clamp(-1.0, 1.0))
        turned = (torch.remainder((end - angle) * turn.sign(), _TWO_PI) for end in (first, torch.pi - first))
        curved = torch.where(sine.abs() <= 1.0, torch.minimum(*turned) / turn.abs(), torch.inf)
        path = torch.where(self.turn.abs() < _STRAIGHT, straight, curved)
        return torch.where(path > 1e-6, path, torch.inf)

    def to_sides(self, distance: float, sides: int) -> Tensor:
        """Path forward from inside a barrel of flat sides to the first of them; infinite if none is met."""
        path = torch.full_like(self.x, torch.inf)
        # The side met is that below the cylinder inside of all sides, or that below the one around their edges.
        for radius in (distance, distance / math.cos(math.pi / sides)):
            reached = self.to_cylinder(radius)
            x, y, _ = self.position(torch.where(reached.isfinite(), reached, 0.0))
            normal = normal_of_side(x, y, sides)
            to_side = self.to_side(distance, normal)
            x, y, _ = self.position(torch.where(to_side.isfinite(), to_side, 0.0))
            on_side = (y * torch.cos(normal) - x * torch.sin(normal)).abs() <= distance * math.tan(
                math.pi / sides
            ) + 1e-6
            path = torch.minimum(path, torch.where(reached.isfinite() & on_side, to_side, torch.inf))
        return path

    def to_plane(self, z: float | Tensor) -> Tensor:
        """Path forward to a plane across the beam; infinite if it flies away from it."""
        path = (z - self.z) / torch.where(self.tan_lambda == 0.0, 1e-30, self.tan_lambda)
        return torch.where(path > 1e-6, path, torch.inf)

    def to_faces(
        self, radius: float, sides: int, half_length: float, endcaps: Sequence[tuple[float, float, float]]
    ) -> tuple[Tensor, Tensor]:
        """Path forward from inside to a barrel, round if it has no sides, else to the first of some endcaps (|z|, smallest and
        largest radius) that is met, and which it is, 0 for the barrel; infinite if none is."""
        barrel = self.to_sides(radius, sides) if sides else self.to_cylinder(radius)
        z = self.z + torch.where(barrel.isfinite(), barrel, 0.0) * self.tan_lambda
        path = torch.where(barrel.isfinite() & (z.abs() <= half_length), barrel, torch.inf)
        face = torch.where(path.isfinite(), 0, len(endcaps))
        for number, (plane, r_min, r_max) in enumerate(endcaps, 1):
            there = self.to_plane(plane * self.tan_lambda.sign())
            x, y, _ = self.position(torch.where(there.isfinite(), there, 0.0))
            r = torch.hypot(x, y)
            meets = path.isinf() & there.isfinite() & (r >= r_min) & (r <= r_max)
            path, face = torch.where(meets, there, path), torch.where(meets, number, face)
        return path, face

    def perigee(self) -> Vector:
        """Signed d0, z0 and azimuth at the point of closest approach to the beam axis."""
        along = self.x * torch.cos(self.phi) + self.y * torch.sin(self.phi)
        across = self.x * torch.sin(self.phi) - self.y * torch.cos(self.phi)
        # Turning angle back to the perigee; atan2 keeps it small and right for straight lines too.
        angle = torch.atan2(self.turn * along, 1.0 - self.turn * across)
        straight = self.turn.abs() < _STRAIGHT
        path = torch.where(straight, -along, -angle / torch.where(straight, 1.0, self.turn))
        x, y, z = self.position(path)
        azimuth = self.phi + self.turn * path
        return (
            x * torch.sin(azimuth) - y * torch.cos(azimuth),
            z,
            torch.remainder(azimuth + torch.pi, _TWO_PI) - torch.pi,
        )

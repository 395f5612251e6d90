"""What a cluster looks like: energies per calorimeter, position, widths, start and depth, from its hits.

The first columns serve the rules. The finer ones (front, parts, peak, slopes) let a network see a photon inside a shower
of a hadron, and a shower that does not point to the origin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ringflow.elements.tables import group_minimum, group_sum, group_winner
from ringflow.event.particles import SPEED_OF_LIGHT

Columns = dict[str, Tensor]


class Face(NamedTuple):
    """Where the calorimeter begins: distance of the sides of its barrel from the axis, |z| of its endcaps (mm), and how many
    sides the barrel has, 0 for a round one."""

    radius: float
    z: float
    sides: int = 0

    def depth(self, x: Tensor, y: Tensor, z: Tensor, in_barrel: Tensor) -> Tensor:
        """How far behind the face points of barrel and endcaps lie (mm)."""
        across = torch.hypot(x, y)
        if self.sides:
            across = across * torch.cos(torch.atan2(y, x) - normal_of_side(x, y, self.sides))
        return torch.where(in_barrel, across - self.radius, z.abs() - self.z)


#: Layers of the electromagnetic calorimeter that count as its front.
FRONT_LAYERS = 10
#: Distance (mm) from the line through the strongest hit within which energy belongs to the peak: about a Moliere radius.
PEAK_RADIUS = 15.0
#: Hits so near (ns) to the arrival of light from the collision tell the time of a cluster.
PROMPT = 3.0


def normal_of_side(x: Tensor, y: Tensor, sides: int) -> Tensor:
    """Azimuth of the normal of the side of a barrel above points; one side looks along x."""
    step = 2.0 * math.pi / sides
    return torch.round(torch.atan2(y, x) / step) * step


def cluster_columns(hits: Columns, label: Tensor, count: int, face: Face, layer_offset: Sequence[int]) -> Columns:
    """Columns of the `cluster` collection from hit columns (`energy`, `x`, ..., `subsystem`) and the cluster of each hit.

    `layer_offset` says, per subsystem, how many layers lie in front of it, so that layers count through the whole calorimeter.
    """
    inside = torch.nonzero(label >= 0).squeeze(1)
    of = label.index_select(0, inside)

    def summed(values: Tensor) -> Tensor:
        return group_sum(values, of, count)

    def at_hits(values: Tensor) -> Tensor:
        return values.index_select(0, of)

    energy, x, y, z, time = (hits[name].index_select(0, inside) for name in ("energy", "x", "y", "z", "time"))
    subsystem = hits["subsystem"].index_select(0, inside)
    in_ecal, in_hcal = subsystem < 2, (subsystem == 2) | (subsystem == 3)
    in_front = torch.as_tensor(layer_offset, device=of.device).index_select(0, subsystem)
    layer = hits["layer"].index_select(0, inside) + in_front
    depth = face.depth(x, y, z, (subsystem & 1) == 0)
    total = summed(energy)
    weight = energy / at_hits(total)

    centre_x, centre_y, centre_z = (summed(weight * values) for values in (x, y, z))
    radius = torch.hypot(centre_x, centre_y).clamp_min(1e-6)
    distance = torch.hypot(radius, centre_z)
    dx, dy, dz = x - at_hits(centre_x), y - at_hits(centre_y), z - at_hits(centre_z)
    # Along and across the line from the origin.
    axis = [at_hits(centre / distance) for centre in (centre_x, centre_y, centre_z)]
    along = dx * axis[0] + dy * axis[1] + dz * axis[2]
    across2 = (dx.square() + dy.square() + dz.square() - along.square()).clamp_min(0.0)
    # Neutrons come tens of nanoseconds late: a mean over all hits would be theirs.
    late = time - torch.sqrt(x.square() + y.square() + z.square()) / SPEED_OF_LIGHT
    prompt = (late.abs() < PROMPT).to(energy.dtype)
    prompt = torch.where(at_hits(summed(weight * prompt)) > 0.0, prompt, 1.0)
    columns = {
        "energy": total,
        "ecal_energy": summed(energy * in_ecal),
        "hcal_energy": summed(energy * in_hcal),
        "muon_energy": summed(energy * (subsystem > 3)),
        "x": centre_x,
        "y": centre_y,
        "z": centre_z,
        "eta": torch.asinh(centre_z / radius),
        "phi": torch.atan2(centre_y, centre_x),
        "num_hits": torch.bincount(of, minlength=count),
        "width_along": torch.sqrt(summed(weight * along.square())),
        "width_across": torch.sqrt(summed(weight * across2)),
        "start_layer": group_minimum(layer, of, count),
        "mean_depth": summed(weight * depth),
        "time": summed(weight * prompt * time) / summed(weight * prompt),
        "front_energy": summed(energy * (in_ecal & (layer < FRONT_LAYERS))),
    }

    # Centre and width of what lies in one calorimeter.
    for name, part in (("ecal", in_ecal), ("hcal", in_hcal)):
        scale = torch.where(columns[f"{name}_energy"] > 0, columns[f"{name}_energy"], total)
        columns[f"{name}_width"] = torch.sqrt(summed(energy * part * across2) / scale)
        if name == "ecal":
            for direction, values in (("x", x), ("y", y), ("z", z)):
                mean = summed(energy * part * values) / scale
                columns[f"ecal_{direction}"] = torch.where(columns["ecal_energy"] > 0, mean, columns[direction])

    # The strongest hit, of the electromagnetic calorimeter if there is one, and the energy around the line through it.
    score = torch.where(in_ecal, energy + energy.max(), energy) if len(energy) else energy
    strongest = group_winner(score, of, count)
    peak = [values[strongest] for values in (x, y, z)]
    length = torch.sqrt(peak[0].square() + peak[1].square() + peak[2].square()).clamp_min(1e-6)
    to_peak = [at_hits(value / length) for value in peak]
    along_peak = x * to_peak[0] + y * to_peak[1] + z * to_peak[2]
    near = in_ecal & (x.square() + y.square() + z.square() - along_peak.square() < PEAK_RADIUS**2)
    columns |= dict(zip(("peak_x", "peak_y", "peak_z"), peak, strict=True))
    columns["peak_energy"] = summed(energy * near)

    # How the transverse offset of the hits grows along the line from the origin: zero for a shower that points there.
    flat = radius * distance
    in_azimuth = (-centre_y / radius, centre_x / radius, torch.zeros_like(centre_z))
    in_polar = (centre_x * centre_z / flat, centre_y * centre_z / flat, -radius / distance)
    spread = summed(weight * along.square()).clamp_min(1.0)
    for name, (tx, ty, tz) in (("slope_phi", in_azimuth), ("slope_theta", in_polar)):
        across = torch.stack([at_hits(tx) * dx, at_hits(ty) * dy, at_hits(tz) * dz]).sum(0)
        columns[name] = summed(weight * along * across) / spread
    return columns


def hadronic_scale(energy: Tensor, points: Sequence[float], factors: Sequence[float]) -> Tensor:
    """Energy at the hadronic scale: a factor that is piecewise linear in the logarithm of the energy."""
    knots = torch.log(torch.as_tensor(points, dtype=energy.dtype, device=energy.device))
    values = torch.as_tensor(factors, dtype=energy.dtype, device=energy.device)
    if len(knots) == 1:
        return energy * values[0]
    place = torch.log(energy.clamp_min(1e-6)).clamp(knots[0], knots[-1])
    upper = torch.searchsorted(knots, place).clamp(1, len(knots) - 1)
    share = (place - knots[upper - 1]) / (knots[upper] - knots[upper - 1])
    return energy * torch.lerp(values[upper - 1], values[upper], share)

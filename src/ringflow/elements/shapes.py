"""What a cluster looks like: energies per calorimeter, position, widths, start and depth, from its hits.

The first columns serve the rules. The finer ones (front, parts, peak, slopes) let a network see a photon inside a shower
of a hadron, and a shower that does not point to the origin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.elements.tables import group_minimum, group_sum, group_winner

Columns = dict[str, Tensor]

#: Layers of the electromagnetic calorimeter that count as its front.
FRONT_LAYERS = 10
#: Distance (mm) from the line through the strongest hit within which energy belongs to the peak: about a Moliere radius.
PEAK_RADIUS = 15.0


def cluster_columns(
    hits: Columns, label: Tensor, count: int, face_radius: float, face_z: float, layer_offset: Sequence[int]
) -> Columns:
    """Columns of the `cluster` collection from hit columns (`energy`, `x`, ..., `subsystem`) and the cluster of each hit.

    `layer_offset` says, per subsystem, how many layers lie in front of it, so that layers count through the whole calorimeter.
    """
    inside = torch.nonzero(label >= 0).squeeze(1)
    of = label.index_select(0, inside)
    energy, x, y, z, time = (hits[name].index_select(0, inside) for name in ("energy", "x", "y", "z", "time"))
    subsystem = hits["subsystem"].index_select(0, inside)
    total = group_sum(energy, of, count)
    weight = energy / total.index_select(0, of)

    def mean(values: Tensor) -> Tensor:
        return group_sum(weight * values, of, count)

    position = [mean(x), mean(y), mean(z)]
    radius = torch.hypot(position[0], position[1]).clamp_min(1e-6)
    distance = torch.hypot(radius, position[2])
    offset = [value - centre.index_select(0, of) for value, centre in zip((x, y, z), position, strict=True)]
    axis = [(centre / distance).index_select(0, of) for centre in position]
    along = offset[0] * axis[0] + offset[1] * axis[1] + offset[2] * axis[2]
    length2 = offset[0].square() + offset[1].square() + offset[2].square()
    across2 = (length2 - along.square()).clamp_min(0.0)

    in_barrel = (subsystem & 1) == 0
    depth = torch.where(in_barrel, torch.hypot(x, y) - face_radius, z.abs() - face_z)
    in_front = torch.as_tensor(layer_offset, device=of.device).index_select(0, subsystem)
    layer = hits["layer"].index_select(0, inside) + in_front
    seen = _Hits(of, count, energy, (x, y, z), subsystem < 2, (subsystem == 2) | (subsystem == 3))
    return {
        "energy": total,
        "ecal_energy": group_sum(energy * (subsystem < 2), of, count),
        "hcal_energy": group_sum(energy * ((subsystem == 2) | (subsystem == 3)), of, count),
        "muon_energy": group_sum(energy * (subsystem > 3), of, count),
        "x": position[0],
        "y": position[1],
        "z": position[2],
        "eta": torch.asinh(position[2] / radius),
        "phi": torch.atan2(position[1], position[0]),
        "num_hits": torch.bincount(of, minlength=count),
        "width_along": torch.sqrt(mean(along.square())),
        "width_across": torch.sqrt(mean(across2)),
        "start_layer": group_minimum(layer, of, count),
        "mean_depth": mean(depth),
        "time": mean(time),
        "front_energy": group_sum(energy * ((subsystem < 2) & (layer < FRONT_LAYERS)), of, count),
        **_parts(seen, position, total, across2),
        **_peak(seen),
        **_slopes(seen, position, weight, offset, along),
    }


@dataclass(frozen=True)
class _Hits:
    """Hits that belong to a cluster."""

    of: Tensor
    count: int
    energy: Tensor
    position: tuple[Tensor, Tensor, Tensor]
    in_ecal: Tensor
    in_hcal: Tensor


def _parts(hits: _Hits, centre: Sequence[Tensor], total: Tensor, across2: Tensor) -> Columns:
    """Centre and width of what lies in one calorimeter."""
    columns = {}
    for name, part in (("ecal", hits.in_ecal), ("hcal", hits.in_hcal)):
        energy = hits.energy * part
        in_part = group_sum(energy, hits.of, hits.count)
        present = in_part > 0
        scale = torch.where(present, in_part, total)
        columns[f"{name}_width"] = torch.sqrt(group_sum(energy * across2, hits.of, hits.count) / scale)
        if name == "ecal":
            for axis, values, whole in zip("xyz", hits.position, centre, strict=True):
                mean = group_sum(energy * values, hits.of, hits.count) / scale
                columns[f"ecal_{axis}"] = torch.where(present, mean, whole)
    return columns


def _peak(hits: _Hits) -> Columns:
    """The strongest hit, of the electromagnetic calorimeter if there is one, and the energy around the line through it."""
    score = torch.where(hits.in_ecal, hits.energy + hits.energy.max(), hits.energy) if len(hits.energy) else hits.energy
    strongest = group_winner(score, hits.of, hits.count)
    peak = [values[strongest] for values in hits.position]
    length = torch.sqrt(peak[0].square() + peak[1].square() + peak[2].square()).clamp_min(1e-6)
    axis = [(value / length).index_select(0, hits.of) for value in peak]
    x, y, z = hits.position
    along = x * axis[0] + y * axis[1] + z * axis[2]
    across2 = x.square() + y.square() + z.square() - along.square()
    near = hits.in_ecal & (across2 < PEAK_RADIUS**2)
    columns = {f"peak_{name}": value for name, value in zip("xyz", peak, strict=True)}
    return {**columns, "peak_energy": group_sum(hits.energy * near, hits.of, hits.count)}


def _slopes(hits: _Hits, centre: Sequence[Tensor], weight: Tensor, offset: Sequence[Tensor], along: Tensor) -> Columns:
    """How the transverse offset of the hits grows along the line from the origin: zero for a shower that points there."""
    x, y, z = centre
    radius = torch.hypot(x, y).clamp_min(1e-6)
    distance = torch.hypot(radius, z)
    in_azimuth = (-y / radius, x / radius, torch.zeros_like(z))
    in_polar = (x * z / (radius * distance), y * z / (radius * distance), -radius / distance)
    spread = group_sum(weight * along.square(), hits.of, hits.count).clamp_min(1.0)

    def slope(direction: Sequence[Tensor]) -> Tensor:
        parts = (part.index_select(0, hits.of) * value for part, value in zip(direction, offset, strict=True))
        across = torch.stack(list(parts)).sum(0)
        return group_sum(weight * along * across, hits.of, hits.count) / spread

    return {"slope_phi": slope(in_azimuth), "slope_theta": slope(in_polar)}


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

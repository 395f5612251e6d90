"""What a cluster looks like: energies per calorimeter, position, widths, start and depth, from its hits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ringflow.elements.grouping import group_minimum, group_sum

Columns = dict[str, Tensor]


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
    }


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

"""Energy spots: sub-showers and ionising tracks sampled as points with an energy and a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.depth import INTERACTION, MILLIMETRES, RADIATION, DepthTable
from ringflow.sim.draw import Draw
from ringflow.sim.flight import orthogonal_frame
from ringflow.sim.geometry import DetectorGeometry
from ringflow.sim.helix import Helix
from ringflow.sim.shower import Arrival, Ionisation, SubShowers, profile, start_quantity
from ringflow.sim.table import Table

#: Largest lateral distance of a spot, as the quantile of its profile: the tails of the formula reach to infinity.
_LATERAL_QUANTILE = 0.985


@dataclass(frozen=True)
class Spots(Table):
    """Points of energy. An energy below zero stands for that many minimum-ionising particles, scaled where it lands."""

    particle: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    time: Tensor
    energy: Tensor


def sample_showers(
    sub: SubShowers, arrival: Arrival, table: DepthTable, geometry: DetectorGeometry, draw: Draw, chunk: int
) -> Iterator[Spots]:
    """Spots of all sub-showers, about `chunk` of them at a time so that the work stays in the processor's cache."""
    model = geometry.shower
    face = arrival.face[sub.arrival]
    shape, inverse_rate, maximum = profile(sub, model, draw)
    before = start_quantity(sub, face, table)
    rate = _spots_per_gev(sub, face, table, geometry)
    count = draw.poisson(sub.energy * rate).to(torch.int64)
    size = _lateral_scale(sub, face, table, geometry)
    columns = torch.stack([shape, inverse_rate, maximum, before, 1.0 / rate, size], dim=1)
    if chunk <= 0:
        yield _sample(sub, arrival, columns, count, table, geometry, draw)
        return
    bounds = _cut(count, chunk)
    for first, last in bounds:
        part = slice(first, last)
        piece = SubShowers(*(getattr(sub, name)[part] for name in SubShowers.__dataclass_fields__))
        yield _sample(piece, arrival, columns[part], count[part], table, geometry, draw)


def _cut(count: Tensor, chunk: int) -> list[tuple[int, int]]:
    """Ranges of sub-showers with about `chunk` spots each."""
    piece = torch.div(count.cumsum(0), chunk, rounding_mode="floor")
    _, sizes = torch.unique_consecutive(piece, return_counts=True)
    edges = [0, *sizes.cumsum(0).tolist()]
    return list(zip(edges[:-1], edges[1:], strict=True))


def _spots_per_gev(sub: SubShowers, face: Tensor, table: DepthTable, geometry: DetectorGeometry) -> Tensor:
    """The density of spots sets the sampling fluctuations: it belongs to the calorimeter in which a sub-shower starts."""
    parts = (geometry.ecal, geometry.hcal, geometry.yoke, geometry.hcal)
    em = torch.tensor([part.em_spots_per_gev for part in parts], device=face.device)
    hadronic = torch.tensor([part.hadronic_spots_per_gev for part in parts], device=face.device)
    where = table.calorimeter_at(sub.depth, face)
    return torch.where(sub.is_em, em[where], hadronic[where])


def _lateral_scale(sub: SubShowers, face: Tensor, table: DepthTable, geometry: DetectorGeometry) -> Tensor:
    """Moliere radius of the calorimeter a sub-shower starts in, or the size of the hadronic component."""
    parts = (geometry.ecal, geometry.hcal, geometry.yoke, geometry.hcal)
    moliere = torch.tensor([part.moliere_radius for part in parts], device=face.device)
    return torch.where(sub.is_em, moliere[table.calorimeter_at(sub.depth, face)], geometry.shower.lateral_size)


def _sample(
    sub: SubShowers,
    arrival: Arrival,
    columns: Tensor,
    count: Tensor,
    table: DepthTable,
    geometry: DetectorGeometry,
    draw: Draw,
) -> Spots:
    of = torch.repeat_interleave(torch.arange(len(count), device=count.device), count)
    shape, inverse_rate, maximum, before, mean_energy, size = columns[of].unbind(1)
    is_em, start_depth = sub.is_em[of], sub.depth[of]
    at = sub.arrival[of]
    face, cosine = arrival.face[at], arrival.cosine[at]

    along = draw.gamma(shape) * inverse_rate
    amount = before + along * cosine
    depth_em = table.convert(amount, face, RADIATION, MILLIMETRES)
    depth = torch.where(is_em, depth_em, table.convert(amount, face, INTERACTION, MILLIMETRES))
    travel = (depth - start_depth) / cosine

    radius = _radius(along / maximum, torch.log(sub.energy.clamp_min(0.1))[of], is_em, size, geometry.shower.atomic_number, draw)
    azimuth = 2.0 * math.pi * draw.uniform(radius)
    dx, dy, dz = sub.dx[of], sub.dy[of], sub.dz[of]
    first, second = orthogonal_frame(dx, dy, dz)
    u, v = radius * torch.cos(azimuth), radius * torch.sin(azimuth)
    x = sub.x[of] + travel * dx + u * first[0] + v * second[0]
    y = sub.y[of] + travel * dy + u * first[1] + v * second[1]
    z = sub.z[of] + travel * dz + u * first[2] + v * second[2]

    late = torch.where(is_em, 0.0, geometry.shower.late_time) * draw.exponential(travel)
    time = arrival.time[at] + depth / (cosine * SPEED_OF_LIGHT) + late
    return Spots(arrival.particle[at], x, y, z, time, mean_energy * draw.exponential(travel))


def _radius(tau: Tensor, log_e: Tensor, is_em: Tensor, size: Tensor, z: float, draw: Draw) -> Tensor:
    """Distance from the axis, from a core and a tail of the form 2 r R^2 / (r^2 + R^2)^2 each."""
    tau = tau.clamp_max(5.0)
    core = 0.0251 + 0.00319 * log_e + (0.1162 - 0.000381 * z) * tau
    tail = (0.659 - 0.00309 * z) * (torch.exp(-2.59 * (tau - 0.645)) + torch.exp((0.3585 + 0.0421 * log_e) * (tau - 0.645)))
    argument = (0.401 + 0.00187 * z - tau) / (1.313 - 0.0686 * log_e)
    in_core = (2.632 - 0.00094 * z) * torch.exp(argument - torch.exp(argument))
    scale = torch.where(draw.uniform(tau) < in_core, core, tail)
    quantile = _LATERAL_QUANTILE * draw.uniform(tau)
    return torch.where(is_em, scale, 1.0) * size * torch.sqrt(quantile / (1.0 - quantile))


def sample_ionisation(
    stretch: Ionisation, arrival: Arrival, helix: Helix, table: DepthTable, geometry: DetectorGeometry, draw: Draw
) -> Spots:
    """Minimum-ionising spots along helices, one per layer crossed."""
    at = arrival.take(stretch.arrival)
    of, start, step = _layers_crossed(stretch, at, table, geometry)
    travelled = start + draw.uniform(start) * step
    inside = travelled < stretch.length[of]
    of, travelled = of[inside], travelled[inside]
    path = helix.take(stretch.arrival[of])
    transverse = travelled / path.length(torch.ones_like(path.x))
    x, y, z = (value.to(torch.float32) for value in path.position(transverse))
    time = at.time[of] + travelled / SPEED_OF_LIGHT
    # A Moyal variate is close to the Landau straggling of a thin layer; mean one, most probable value 0.85.
    straggling = 0.85 - 0.118 * torch.log(draw.normal(travelled) ** 2 + 1e-12)
    return Spots(at.particle[of], x, y, z, time, -straggling.clamp(0.05, 10.0))


def _layers_crossed(
    stretch: Ionisation, at: Arrival, table: DepthTable, geometry: DetectorGeometry
) -> tuple[Tensor, Tensor, Tensor]:
    """One row per layer each stretch may cross: the stretch, the length to the front of the layer, and its thickness (mm)."""
    rows, starts, steps = [], [], []
    for kind, part in enumerate((geometry.ecal, geometry.hcal, geometry.yoke)):
        slabs = table.calorimeter == kind
        front = (slabs * table.breakpoints[MILLIMETRES]).sum(1)[at.face] / at.cosine
        of = torch.nonzero(slabs.any(1)[at.face] & (stretch.length > front)).squeeze(1)
        layer = torch.arange(part.layers, device=front.device, dtype=torch.float32).repeat(len(of))
        rows.append(of.repeat_interleave(part.layers))
        steps.append((part.pitch / at.cosine)[rows[-1]])
        starts.append(front[rows[-1]] + layer * steps[-1])
    return torch.cat(rows), torch.cat(starts), torch.cat(steps)

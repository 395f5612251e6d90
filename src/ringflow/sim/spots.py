"""Energy spots: sub-showers and ionising tracks sampled as points with an energy and a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.depth import INTERACTION, MILLIMETRES, RADIATION, DepthTable
from ringflow.sim.draw import Draw
from ringflow.sim.flight import orthogonal_frame
from ringflow.sim.geometry import DetectorGeometry
from ringflow.sim.helix import Helix
from ringflow.sim.shower import Arrival, Ionisation, SubShowers, em_profile, hadronic_profile
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
    """Spots of all sub-showers, electromagnetic ones first, about `chunk` at a time (0: all) to stay in a processor's cache."""
    for is_em in (True, False):
        part = sub.take(sub.is_em == is_em)
        recipe = _Recipe.of(part, is_em, arrival, table, geometry, draw)
        for first, last in _cut(recipe.count, chunk):
            piece = _Recipe(*(getattr(recipe, name)[first:last] for name in _Recipe.__dataclass_fields__))
            yield _sample(piece, is_em, table, geometry, draw)


def _cut(count: Tensor, chunk: int) -> list[tuple[int, int]]:
    """Ranges of sub-showers with about `chunk` spots each."""
    if chunk <= 0 or len(count) == 0:
        return [(0, len(count))]
    piece = torch.div(count.cumsum(0), chunk, rounding_mode="floor")
    _, sizes = torch.unique_consecutive(piece, return_counts=True)
    edges = [0, *sizes.cumsum(0).tolist()]
    return list(pairwise(edges))


@dataclass(frozen=True)
class _Recipe(Table):
    """Everything the spots of a sub-shower are drawn from."""

    count: Tensor
    particle: Tensor
    face: Tensor
    cosine: Tensor
    time: Tensor
    shape: Tensor  # of the gamma profile along the axis
    inverse_rate: Tensor  # in X0 or lambda
    maximum: Tensor  # depth of the maximum, X0
    before: Tensor  # material in front of the start, in X0 or lambda
    depth: Tensor  # of the start behind the face, mm
    mean_energy: Tensor  # of a spot
    size: Tensor  # lateral, mm
    log_energy: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    dx: Tensor
    dy: Tensor
    dz: Tensor

    @classmethod
    def of(
        cls, sub: SubShowers, is_em: bool, arrival: Arrival, table: DepthTable, geometry: DetectorGeometry, draw: Draw
    ) -> _Recipe:
        """Profiles, densities and sizes; density and size belong to the calorimeter in which a sub-shower starts."""
        at = arrival.take(sub.arrival)
        shape, inverse_rate, maximum = em_profile(sub, geometry.shower, draw) if is_em else hadronic_profile(sub)
        parts = (geometry.ecal, geometry.hcal, geometry.yoke, geometry.hcal)
        density = "em_spots_per_gev" if is_em else "hadronic_spots_per_gev"
        where = table.calorimeter_at(sub.depth, at.face)
        rate = torch.tensor([getattr(part, density) for part in parts], device=where.device)[where]
        moliere = torch.tensor([part.moliere_radius for part in parts], device=where.device)[where]
        size = moliere if is_em else torch.full_like(moliere, geometry.shower.lateral_size)
        before = table.convert(sub.depth, at.face, MILLIMETRES, RADIATION if is_em else INTERACTION)
        return cls(
            count=draw.poisson(sub.energy * rate).to(torch.int64),
            particle=at.particle,
            face=at.face,
            cosine=at.cosine,
            time=at.time,
            shape=shape,
            inverse_rate=inverse_rate,
            maximum=maximum,
            before=before,
            depth=sub.depth,
            mean_energy=1.0 / rate,
            size=size,
            log_energy=torch.log(sub.energy.clamp_min(0.1)),
            **{name: getattr(sub, name) for name in ("x", "y", "z", "dx", "dy", "dz")},
        )


def _sample(recipe: _Recipe, is_em: bool, table: DepthTable, geometry: DetectorGeometry, draw: Draw) -> Spots:
    of = torch.repeat_interleave(torch.arange(len(recipe), device=draw.device), recipe.count)
    spot = recipe.take(of)
    along = draw.fast_gamma(spot.shape) * spot.inverse_rate
    if not is_em:
        # Slow fragments and neutrons of a nuclear break-up also go backwards.
        model = geometry.shower
        back = -model.backscatter_length * draw.exponential(along)
        along = torch.where(draw.uniform(along) < model.backscatter_fraction, back, along)
    amount = spot.before + along * spot.cosine
    depth = table.convert(amount, spot.face, RADIATION if is_em else INTERACTION, MILLIMETRES)
    travel = (depth - spot.depth) / spot.cosine

    scale = (
        _em_scale(along / spot.maximum, spot.log_energy, geometry.shower.atomic_number, draw) * spot.size
        if is_em
        else spot.size
    )
    quantile = _LATERAL_QUANTILE * draw.uniform(along)
    radius = scale * torch.sqrt(quantile / (1.0 - quantile))
    azimuth = 2.0 * math.pi * draw.uniform(radius)
    u, v = radius * torch.cos(azimuth), radius * torch.sin(azimuth)
    first, second = orthogonal_frame(spot.dx, spot.dy, spot.dz)
    x = spot.x + travel * spot.dx + u * first[0] + v * second[0]
    y = spot.y + travel * spot.dy + u * first[1] + v * second[1]
    z = spot.z + travel * spot.dz + u * first[2] + v * second[2]

    time = spot.time + depth / (spot.cosine * SPEED_OF_LIGHT)
    if not is_em:
        time = time + geometry.shower.late_time * draw.exponential(travel)
    return Spots(spot.particle, x, y, z, time, spot.mean_energy * draw.exponential(travel))


def _em_scale(tau: Tensor, log_e: Tensor, z: float, draw: Draw) -> Tensor:
    """Size, in Moliere radii, of the core or the tail of the lateral profile 2 r R^2 / (r^2 + R^2)^2 [Grindhammer, Peters]."""
    tau = tau.clamp_max(5.0)
    core = 0.0251 + 0.00319 * log_e + (0.1162 - 0.000381 * z) * tau
    tail = (0.659 - 0.00309 * z) * (
        torch.exp(-2.59 * (tau - 0.645)) + torch.exp((0.3585 + 0.0421 * log_e) * (tau - 0.645))
    )
    argument = (0.401 + 0.00187 * z - tau) / (1.313 - 0.0686 * log_e)
    in_core = (2.632 - 0.00094 * z) * torch.exp(argument - torch.exp(argument))
    return torch.where(draw.uniform(tau) < in_core, core, tail)


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

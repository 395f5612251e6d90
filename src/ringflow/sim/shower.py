"""Showers: what a particle that enters the calorimeter leaves there, as sub-showers to be sampled as energy spots.

Electromagnetic profiles after Grindhammer and Peters [hep-ex/0001020], hadronic after Bock et al. [NIM 186 (1981) 533] with a
fluctuating electromagnetic fraction [Gabriel et al., Groom]. A hadronic shower is a handful of sub-showers, each
electromagnetic (neutral pions) or hadronic, with an energy, a start and a direction of its own: the lumps that clustering
splits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.sim.depth import INTERACTION, LOSS, MILLIMETRES, DepthTable
from ringflow.sim.draw import Draw
from ringflow.sim.flight import Flight, orthogonal_frame
from ringflow.sim.geometry import DetectorGeometry, ShowerModel
from ringflow.sim.helix import Helix
from ringflow.sim.species import SpeciesTable
from ringflow.sim.table import Table
from ringflow.sim.transport import BARREL_FACE

_GRAZING = 0.2
_MOST_SUBSHOWERS = 16
_FRACTION_EXPONENT = -0.18  # mean electromagnetic fraction is 1 - E^this
_SOFTEST_SHOWER = 0.002  # GeV; less is left as ionisation


@dataclass(frozen=True)
class Arrival(Table):
    """Particles at the calorimeter face, in single precision: where, whereto, when, and how much energy they can leave."""

    particle: Tensor
    face: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    time: Tensor
    dx: Tensor
    dy: Tensor
    dz: Tensor
    cosine: Tensor  # of the direction against the normal of the face
    energy: Tensor  # available to the calorimeter
    kinetic: Tensor  # what ionisation can take
    is_em: Tensor
    is_muon: Tensor
    is_charged: Tensor


@dataclass(frozen=True)
class SubShowers(Table):
    """Pieces of showers, each a gamma profile along an axis."""

    arrival: Tensor
    is_em: Tensor
    energy: Tensor  # visible, GeV
    x: Tensor
    y: Tensor
    z: Tensor
    dx: Tensor
    dy: Tensor
    dz: Tensor
    depth: Tensor  # of the start behind the face, mm


@dataclass(frozen=True)
class Ionisation(Table):
    """Stretches along which a charged particle ionises, from the face to a length in space."""

    arrival: Tensor
    length: Tensor


def arrive(entry: Flight, face: Tensor, species: SpeciesTable) -> Arrival:
    """Describe the particles at the face. Nucleons can leave their kinetic energy, antinucleons also annihilate."""
    kind = entry.species
    mass, energy = species.mass[kind], entry.energy(species)
    length = entry.momentum.clamp_min(1e-9)
    direction = [component / length for component in (entry.px, entry.py, entry.pz)]
    radius = torch.hypot(entry.x, entry.y).clamp_min(1e-9)
    radial = (entry.x * direction[0] + entry.y * direction[1]) / radius
    cosine = torch.where(face == BARREL_FACE, radial, direction[2].abs()).clamp_min(_GRAZING)

    def single(value: Tensor) -> Tensor:
        return value.to(torch.float32)

    return Arrival(
        particle=entry.particle,
        face=face,
        x=single(entry.x),
        y=single(entry.y),
        z=single(entry.z),
        time=single(entry.time),
        dx=single(direction[0]),
        dy=single(direction[1]),
        dz=single(direction[2]),
        cosine=single(cosine),
        energy=single(energy - mass * species.baryon[kind]),
        kinetic=single(energy - mass),
        is_em=species.is_photon[kind] | species.is_electron[kind],
        is_muon=species.is_muon[kind],
        is_charged=species.charge[kind] != 0,
    )


def develop(
    arrival: Arrival, helix: Helix, table: DepthTable, geometry: DetectorGeometry, draw: Draw
) -> tuple[SubShowers, Ionisation]:
    """Start every shower: electromagnetic ones at the face, hadronic ones after an interaction length or so."""
    electromagnetic = torch.nonzero(arrival.is_em).squeeze(1)
    tracks_or_hadrons = torch.nonzero(~arrival.is_em).squeeze(1)
    others = arrival.take(tracks_or_hadrons)

    # Slant depth of the first interaction; muons never interact.
    wait = torch.where(others.is_muon, torch.inf, draw.exponential(others.energy))
    deepest = table.end[MILLIMETRES]
    interaction_lengths = (wait * others.cosine).clamp_max(table.end[INTERACTION])
    depth = table.convert(interaction_lengths, others.face, INTERACTION, MILLIMETRES)
    range_depth = table.convert(others.kinetic * others.cosine, others.face, LOSS, MILLIMETRES)
    stops = others.is_charged & (range_depth < depth)
    end = torch.where(stops, range_depth, depth).clamp_max(deepest)
    length = end / others.cosine
    lost = table.convert(end, others.face, MILLIMETRES, LOSS) / others.cosine
    remaining = others.energy - torch.where(others.is_charged, lost, 0.0)
    showers = ~others.is_muon & ~stops & (remaining > _SOFTEST_SHOWER) & (end < deepest - 2.0)

    stretches = Ionisation(tracks_or_hadrons[others.is_charged], length[others.is_charged])

    rows = tracks_or_hadrons[showers]
    curved = helix.take(rows)
    path = length[showers] / curved.length(torch.ones_like(curved.x))
    start = [value.to(torch.float32) for value in (*curved.position(path), *curved.direction(path))]
    hadronic = _split_hadronic(
        rows, remaining[showers], start, end[showers], others.take(showers), table, geometry.shower, draw
    )
    return SubShowers.join([_electromagnetic(arrival, electromagnetic, geometry.shower, draw), hadronic]), stretches


def _electromagnetic(arrival: Arrival, rows: Tensor, model: ShowerModel, draw: Draw) -> SubShowers:
    at = arrival.take(rows)
    energy = at.energy * (1.0 + model.em_constant_term * draw.normal(at.energy)).clamp_min(0.0)
    none = torch.zeros_like(energy)
    return SubShowers(
        rows, torch.ones_like(rows, dtype=torch.bool), energy, at.x, at.y, at.z, at.dx, at.dy, at.dz, none
    )


def _split_hadronic(
    rows: Tensor,
    energy: Tensor,
    start: list[Tensor],
    depth: Tensor,
    arrival: Arrival,
    table: DepthTable,
    model: ShowerModel,
    draw: Draw,
) -> SubShowers:
    """Sub-showers of hadronic showers that start at `start` (position and direction)."""
    mean = model.subshower_base + model.subshower_log * torch.log1p(energy)
    count = (1.0 + draw.poisson(mean - 1.0)).clamp_max(_MOST_SUBSHOWERS).to(torch.int64)
    of = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), count)
    weight = draw.exponential(energy[of])
    total = torch.zeros_like(energy).index_add_(0, of, weight)
    share = energy[of] * weight / total[of]

    fraction = (1.0 - energy.clamp_min(1.0) ** _FRACTION_EXPONENT)[of]
    is_em = draw.uniform(share) < fraction
    # Binding energy and neutrons make the hadronic part of a shower invisible by an amount that varies from shower to shower.
    spread = torch.hypot(model.intrinsic_noise / energy, torch.full_like(energy, model.intrinsic_constant))
    shape = spread.clamp_max(model.intrinsic_maximum) ** -2
    intrinsic = (draw.gamma(shape) / shape)[of]
    visible = share * intrinsic * torch.where(is_em, 1.0, model.hadronic_response)

    later = draw.exponential(share) * model.late_start_length * (draw.uniform(share) < model.late_start_fraction)
    cosine, face = arrival.cosine[of], arrival.face[of]
    begin = table.convert(
        table.convert(depth[of], face, MILLIMETRES, INTERACTION) + later * cosine, face, INTERACTION, MILLIMETRES
    )
    travel = (begin - depth[of]) / cosine
    x, y, z, dx, dy, dz = (value[of] for value in start)
    angle = (draw.exponential(share) * model.transverse_kick / share.clamp_min(0.05)).clamp_max(0.8)
    azimuth = 2.0 * torch.pi * draw.uniform(share)
    first, second = orthogonal_frame(dx, dy, dz)
    u, v, w = torch.sin(angle) * torch.cos(azimuth), torch.sin(angle) * torch.sin(azimuth), torch.cos(angle)
    ax, ay, az = (w * a + u * b + v * c for a, b, c in zip((dx, dy, dz), first, second, strict=True))
    return SubShowers(
        arrival=rows[of],
        is_em=is_em,
        energy=visible,
        x=x + travel * ax,
        y=y + travel * ay,
        z=z + travel * az,
        dx=ax,
        dy=ay,
        dz=az,
        depth=begin,
    )


def em_profile(sub: SubShowers, model: ShowerModel, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Shape and inverse rate of the gamma profile in X0, fluctuating from shower to shower, and the depth of its maximum."""
    log_y = torch.log((sub.energy / model.critical_energy).clamp_min(8.0))
    z = model.atomic_number
    mean_t, sigma_t = torch.log(log_y - 0.812), 1.0 / (-1.4 + 1.26 * log_y)
    mean_a, sigma_a = torch.log(0.81 + (0.458 + 2.26 / z) * log_y), 1.0 / (-0.58 + 0.86 * log_y)
    correlation = (0.705 - 0.023 * log_y).clamp(0.0, 1.0)
    first, second = draw.normal(log_y), draw.normal(log_y)
    plus, minus = torch.sqrt(0.5 * (1.0 + correlation)), torch.sqrt(0.5 * (1.0 - correlation))
    maximum = torch.exp(mean_t + sigma_t * (plus * first + minus * second))
    alpha = torch.exp(mean_a + sigma_a * (plus * first - minus * second)).clamp_min(1.05)
    return alpha, maximum / (alpha - 1.0), maximum


def hadronic_profile(sub: SubShowers) -> tuple[Tensor, Tensor, Tensor]:
    """Shape and inverse rate of the gamma profile in interaction lengths, and the depth of its maximum."""
    log_e = torch.log(sub.energy.clamp_min(1.0))
    shape, inverse_rate = 0.6165 + 0.3183 * log_e, 1.0 / (0.9099 - 0.0237 * log_e)
    return shape, inverse_rate, (shape - 1.0).clamp_min(0.0) * inverse_rate

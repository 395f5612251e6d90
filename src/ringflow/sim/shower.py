"""Showers: what a particle that enters the calorimeter leaves there, as points with an energy and a time.

Electromagnetic profiles after Grindhammer and Peters [hep-ex/0001020], hadronic after Bock et al. [NIM 186 (1981) 533] with a
fluctuating electromagnetic fraction [Gabriel et al., Groom]. A hadronic shower is a handful of sub-showers, each
electromagnetic (neutral pions) or hadronic, with an energy, a start and a direction of its own: the lumps that clustering
splits. The calorimeter behind a face is a stack of slabs (ECAL, gap, HCAL, coil, yoke), so that radiation lengths, interaction
lengths and energy loss are piecewise linear in depth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ringflow.elements.helix import Helix, Vector
from ringflow.elements.shapes import normal_of_side
from ringflow.elements.tables import ColumnTable
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.flight import Draw, Flight, SpeciesTable, orthogonal_frame, tilted
from ringflow.sim.geometry import DetectorGeometry, ShowerModel
from ringflow.sim.tracker import BARREL_FACE

#: Quantities that can be converted into each other.
MILLIMETRES, RADIATION, INTERACTION, LOSS = range(4)

_PER_LAYER = ("x0_per_layer", "lambda_per_layer", "loss_per_layer")
Slab = tuple[float, float, tuple[float, ...], int]

#: Air is given a trace of material, so that every quantity grows strictly with depth and can be inverted.
_AIR = 1e-7

_DEAD = 3
#: Steps of the even tables that stand for the exact breakpoints: an index instead of a search, exact but at the kinks.
_STEPS = 8192


class DepthTable:
    """Depth tables of three faces (barrel, endcap, hadronic endcap alone), even in each quantity."""

    def __init__(self, geometry: DetectorGeometry, device: torch.device) -> None:
        parts, coil = (geometry.ecal, geometry.hcal, geometry.yoke), geometry.coil
        barrel, endcap = [], []
        for kind, part in enumerate(parts):
            material = tuple(part.layers * getattr(part, name) for name in _PER_LAYER)
            barrel.append((part.barrel.inner, part.depth, material, kind))
            endcap.append((part.endcap.inner, part.depth, material, kind))
        material = (coil.radiation_lengths, coil.interaction_lengths, coil.loss)
        barrel.insert(2, (coil.barrel.inner, coil.barrel.outer - coil.barrel.inner, material, _DEAD))
        stacks = [_stack(barrel), _stack(endcap), _stack(endcap[1:])]
        longest = max(len(points) for points, _ in stacks)
        rows, kinds = [], []
        for points, calorimeters in stacks:
            # Beyond the last slab there is air for ever; padding keeps the tables rectangular.
            padding = [tuple(v + 1.0 * (k + 1) for v in points[-1]) for k in range(longest + 1 - len(points))]
            rows.append([*points, *padding])
            kinds.append([*calorimeters, *[_DEAD] * (longest + 1 - len(calorimeters))])
        breakpoints = np.array(rows, dtype=np.float64).transpose(2, 0, 1)
        self.end: list[float] = breakpoints.max(axis=(1, 2)).tolist()  # largest value of each quantity
        steps = [np.linspace(0.0, end, _STEPS) for end in self.end]
        even = [
            [
                np.concatenate([np.interp(at, *face) for face in zip(known, wanted, strict=True)])
                for wanted in breakpoints
            ]
            for at, known in zip(steps, breakpoints, strict=True)
        ]
        self.breakpoints = torch.as_tensor(breakpoints, dtype=torch.float32, device=device)  # [quantity, face, point]
        self.calorimeter = torch.tensor(
            kinds, device=device
        )  # [face, slab]: 0 ECAL, 1 HCAL, 2 yoke, 3 nothing sensitive
        # [source quantity, target quantity, face * step]
        self._even: Tensor = torch.as_tensor(np.array(even), dtype=torch.float32, device=device)
        self._per_unit: list[float] = [(_STEPS - 1) / end for end in self.end]

    def convert(self, value: Tensor, face: Tensor, source: int, target: int) -> Tensor:
        """Depth given as one quantity, read as another; beyond the end there is nothing, and the end is returned."""
        place = (value * self._per_unit[source]).clamp(0.0, _STEPS - 1.001)
        step = place.to(torch.int64)
        share = place - step
        low = face * _STEPS + step
        table = self._even[source, target]
        below = table.index_select(0, low)
        return below + share * (table.index_select(0, low + 1) - below)

    def calorimeter_at(self, depth: Tensor, face: Tensor) -> Tensor:
        """Which calorimeter a depth in mm lies in."""
        slab = (depth.unsqueeze(1) >= self.breakpoints[MILLIMETRES][face]).sum(1) - 1
        return self.calorimeter[face, slab.clamp(0, self.calorimeter.shape[1] - 1)]


def _stack(slabs: list[Slab]) -> tuple[list[tuple[float, ...]], list[int]]:
    """Breakpoints (mm, X0, lambda, GeV) of slabs given as (start, thickness, material, kind), and what lies between them."""
    points: list[tuple[float, ...]] = [(0.0, 0.0, 0.0, 0.0)]
    kinds: list[int] = []
    for inner, thickness, material, kind in slabs:
        gap = inner - slabs[0][0] - points[-1][0]
        for size, amount, what in ((gap, (0.0, 0.0, 0.0), _DEAD), (thickness, material, kind)):
            if size > 1e-3:
                points.append(tuple(a + b + _AIR * size for a, b in zip(points[-1], (size, *amount), strict=True)))
                kinds.append(what)
    return points, kinds


_GRAZING = 0.2
_MOST_SUBSHOWERS = 16
_LEAST_WEIGHT = 1e-12
_FRACTION_EXPONENT = -0.18  # mean electromagnetic fraction is 1 - E^this
_SOFTEST_SHOWER = 0.002  # GeV; less is left as ionisation


@dataclass(frozen=True)
class Arrival(ColumnTable):
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
class SubShowers(ColumnTable):
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


def arrive(entry: Flight, face: Tensor, species: SpeciesTable, sides: int) -> Arrival:
    """Describe the particles at the face. Nucleons can leave their kinetic energy, antinucleons also annihilate."""
    kind = entry.species
    mass, energy = species.mass[kind], entry.energy(species)
    length = entry.momentum.clamp_min(1e-9)
    dx, dy, dz = (component / length for component in (entry.px, entry.py, entry.pz))
    normal = normal_of_side(entry.x, entry.y, sides)
    cosine = torch.where(face == BARREL_FACE, dx * torch.cos(normal) + dy * torch.sin(normal), dz.abs()).clamp_min(
        _GRAZING
    )
    available = energy - mass * species.baryon[kind]
    numbers = (entry.x, entry.y, entry.z, entry.time, dx, dy, dz, cosine, available, energy - mass)
    flags = (species.is_photon[kind] | species.is_electron[kind], species.is_muon[kind], species.charge[kind] != 0)
    return Arrival(*[entry.particle, face, *(values.to(torch.float32) for values in numbers), *flags])


def develop(
    arrival: Arrival, helix: Helix, table: DepthTable, model: ShowerModel, sides: int, draw: Draw
) -> tuple[SubShowers, Tensor, Tensor]:
    """Start every shower: electromagnetic ones at the face, hadronic ones after an interaction length or so.

    Returns with them the charged arrivals that ionise, and for what length in space behind the face.
    """
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

    rows = tracks_or_hadrons[showers]
    curved = helix.take(rows)
    path = length[showers] / curved.length(torch.ones_like(curved.x))
    start = [value.to(torch.float32) for value in (*curved.position(path), *curved.direction(path))]
    begins = SubShowers(*[rows, arrival.is_em[rows], remaining[showers], *start, end[showers]])
    hadronic = _split_hadronic(begins, others.take(showers), table, model, sides, draw)

    at = arrival.take(electromagnetic)
    energy = _sampled(at.energy, model, draw)
    at_face = torch.zeros_like(energy)
    direct = SubShowers(electromagnetic, at.is_em, energy, at.x, at.y, at.z, at.dx, at.dy, at.dz, at_face)
    charged = others.is_charged
    return SubShowers.join([direct, hadronic]), tracks_or_hadrons[charged], length[charged]


def _sampled(energy: Tensor, model: ShowerModel, draw: Draw) -> Tensor:
    """Energy of electromagnetic showers as sampled: what fluctuates in all layers together, beside the number of spots."""
    spread = torch.hypot(
        model.em_sampling / energy.clamp_min(1e-3).sqrt(), torch.full_like(energy, model.em_constant_term)
    )
    shape = spread.clamp(1e-3, 1.0) ** -2
    return energy * draw.gamma(shape) / shape


def _split_hadronic(
    showers: SubShowers, arrival: Arrival, table: DepthTable, model: ShowerModel, sides: int, draw: Draw
) -> SubShowers:
    """Sub-showers of whole hadronic showers."""
    energy = showers.energy
    mean = model.subshower_base + model.subshower_log * torch.log1p(energy)
    count = (1.0 + draw.poisson(mean - 1.0)).clamp_max(_MOST_SUBSHOWERS).to(torch.int64)
    of = torch.repeat_interleave(torch.arange(len(energy), device=energy.device), count)
    # One may come out as 0 exactly; alone it would have no share of anything.
    weight = draw.exponential(energy[of]).clamp_min(_LEAST_WEIGHT)
    total = torch.zeros_like(energy).index_add_(0, of, weight)
    share = energy[of] * weight / total[of]

    fraction = (1.0 - energy.clamp_min(1.0) ** _FRACTION_EXPONENT)[of]
    is_em = draw.uniform(share) < fraction
    # Binding energy and neutrons make the hadronic part of a shower invisible by an amount that varies from shower to shower;
    # the electromagnetic part is seen as it is.
    spread = torch.hypot(model.intrinsic_noise / energy, torch.full_like(energy, model.intrinsic_constant))
    shape = spread.clamp_max(model.intrinsic_maximum) ** -2
    intrinsic = (draw.gamma(shape) / shape)[of]
    visible = share * torch.where(is_em, 1.0, model.hadronic_response * intrinsic)

    later = draw.exponential(share) * model.late_start_length * (draw.uniform(share) < model.late_start_fraction)
    if model.soft_energy > 0.0:
        later = later * _reach_of_soft(share, model)
    whole, cosine, face = showers.take(of), arrival.cosine[of], arrival.face[of]
    before = table.convert(whole.depth, face, MILLIMETRES, INTERACTION)
    begin = table.convert(before + later * cosine, face, INTERACTION, MILLIMETRES)
    travel = (begin - whole.depth) / cosine
    angle = (draw.exponential(share) * model.transverse_kick / share.clamp_min(0.05)).clamp_max(0.8)
    dx, dy, dz = tilted((whole.dx, whole.dy, whole.dz), angle, draw)
    at = (whole.x + travel * dx, whole.y + travel * dy, whole.z + travel * dz)
    if model.stray_fraction > 0.0:
        # Soft secondaries also leave through the face; the field, or a straight way across, brings them back to it elsewhere.
        astray = draw.uniform(share) < model.stray_fraction * torch.exp(-share / model.stray_energy)
        there = _elsewhere(arrival.take(of), model.stray_reach * draw.exponential(share), sides, draw)
        x, y, z = (torch.where(astray, other, here) for other, here in zip(there, at, strict=True))
        at = (x, y, z)
        begin = torch.where(astray, 0.0, begin)
    return SubShowers(whole.arrival, is_em, visible, *at, dx, dy, dz, begin)


def _elsewhere(arrival: Arrival, distance: Tensor, sides: int, draw: Draw) -> Vector:
    """Points on the plane of the face at a distance from where particles enter, in any direction."""
    azimuth = 2.0 * math.pi * draw.uniform(distance)
    u, v = distance * torch.cos(azimuth), distance * torch.sin(azimuth)
    normal = normal_of_side(arrival.x, arrival.y, sides)
    barrel = arrival.face == BARREL_FACE
    return (
        arrival.x + torch.where(barrel, -u * torch.sin(normal), u),
        arrival.y + torch.where(barrel, u * torch.cos(normal), v),
        arrival.z + torch.where(barrel, v, 0.0),
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


def _reach_of_soft(energy: Tensor, model: ShowerModel) -> Tensor:
    """Length of hadronic sub-showers as a share of the parametrised one, which was measured from 10 GeV on: soft hadrons break
    up nuclei whose fragments stay, instead of making others that go on."""
    return -torch.expm1(-energy / model.soft_energy)


def hadronic_profile(sub: SubShowers, model: ShowerModel) -> tuple[Tensor, Tensor, Tensor]:
    """Shape and inverse rate of the gamma profile in interaction lengths, and the depth of its maximum."""
    log_e = torch.log(sub.energy.clamp_min(1.0))
    shape, inverse_rate = 0.6165 + 0.3183 * log_e, 1.0 / (0.9099 - 0.0237 * log_e)
    if model.soft_energy > 0.0:
        inverse_rate = inverse_rate * _reach_of_soft(sub.energy, model)
    return shape, inverse_rate, (shape - 1.0).clamp_min(0.0) * inverse_rate


#: Largest lateral distance of a spot, as the quantile of its profile: the tails of the formula reach to infinity.
_LATERAL_QUANTILE = 0.985


@dataclass(frozen=True)
class Spots(ColumnTable):
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
        recipe = _recipe(part, is_em, arrival.take(part.arrival), table, geometry, draw)
        for first, last in _cut(recipe["count"], chunk):
            of = torch.arange(first, last, device=draw.device).repeat_interleave(recipe["count"][first:last])
            spot = {name: column.index_select(0, of) for name, column in recipe.items() if name != "count"}
            yield _sample(spot, is_em, table, geometry, draw)


def _cut(count: Tensor, chunk: int) -> list[tuple[int, int]]:
    """Ranges of sub-showers with about `chunk` spots each."""
    if chunk <= 0 or len(count) == 0:
        return [(0, len(count))]
    piece = torch.div(count.cumsum(0), chunk, rounding_mode="floor")
    _, sizes = torch.unique_consecutive(piece, return_counts=True)
    return list(pairwise([0, *sizes.cumsum(0).tolist()]))


def _recipe(
    sub: SubShowers, is_em: bool, at: Arrival, table: DepthTable, geometry: DetectorGeometry, draw: Draw
) -> dict[str, Tensor]:
    """Everything the spots of sub-showers are drawn from; density and size belong to the calorimeter in which one starts."""
    shape, inverse_rate, maximum = (
        em_profile(sub, geometry.shower, draw) if is_em else hadronic_profile(sub, geometry.shower)
    )
    parts = (geometry.ecal, geometry.hcal, geometry.yoke, geometry.hcal)
    density = "em_spots_per_gev" if is_em else "hadronic_spots_per_gev"
    where = table.calorimeter_at(sub.depth, at.face)
    rate = torch.tensor([getattr(part, density) for part in parts], device=where.device)[where]
    moliere = torch.tensor([part.moliere_radius for part in parts], device=where.device)[where]
    return {
        "count": draw.poisson(sub.energy * rate).to(torch.int64),
        "shape": shape,  # of the gamma profile along the axis
        "inverse_rate": inverse_rate,  # in X0 or lambda
        "maximum": maximum,  # depth of the maximum, X0
        "before": table.convert(sub.depth, at.face, MILLIMETRES, RADIATION if is_em else INTERACTION),
        "mean_energy": 1.0 / rate,  # of a spot
        "size": moliere if is_em else torch.full_like(moliere, geometry.shower.lateral_size),  # lateral, mm
        "log_energy": torch.log(sub.energy.clamp_min(0.1)),
        **{name: getattr(at, name) for name in ("particle", "face", "cosine", "time")},
        **{name: getattr(sub, name) for name in ("depth", "x", "y", "z", "dx", "dy", "dz")},
    }


def _sample(spot: dict[str, Tensor], is_em: bool, table: DepthTable, geometry: DetectorGeometry, draw: Draw) -> Spots:
    """Points drawn from the recipe of each."""
    model, cosine = geometry.shower, spot["cosine"]
    along = draw.fast_gamma(spot["shape"]) * spot["inverse_rate"]
    if not is_em:
        # Slow fragments and neutrons of a nuclear break-up also go backwards.
        back = -model.backscatter_length * draw.exponential(along)
        along = torch.where(draw.uniform(along) < model.backscatter_fraction, back, along)
    amount = spot["before"] + along * cosine
    depth = table.convert(amount, spot["face"], RADIATION if is_em else INTERACTION, MILLIMETRES)
    travel = (depth - spot["depth"]) / cosine

    scale = spot["size"]
    if is_em:
        scale = _em_scale(along / spot["maximum"], spot["log_energy"], model.atomic_number, draw) * scale
    quantile = _LATERAL_QUANTILE * draw.uniform(along)
    radius = scale * torch.sqrt(quantile / (1.0 - quantile))
    if not is_em:
        # Neutrons wander off before they are caught, and come late.
        neutron = draw.uniform(along) < model.neutron_fraction
        radius = torch.where(neutron, radius + model.neutron_reach * draw.exponential(along), radius)
    azimuth = 2.0 * math.pi * draw.uniform(radius)
    u, v = radius * torch.cos(azimuth), radius * torch.sin(azimuth)
    axis = (spot["dx"], spot["dy"], spot["dz"])
    start = (spot["x"], spot["y"], spot["z"])
    x, y, z = (
        begin + travel * along_axis + u * first + v * second
        for begin, along_axis, first, second in zip(start, axis, *orthogonal_frame(*axis), strict=True)
    )
    time = spot["time"] + depth / (cosine * SPEED_OF_LIGHT)
    if not is_em:
        first, last = model.neutron_time
        time = torch.where(neutron, time + first + (last - first) * draw.uniform(time), time)
    # A spot is a piece of a shower in one layer: counting hits tells about as much as summing them up, and no more.
    return Spots(spot["particle"], x, y, z, time, spot["mean_energy"] * (0.5 + draw.uniform(travel)))


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
    row: Tensor,
    length: Tensor,
    arrival: Arrival,
    helix: Helix,
    table: DepthTable,
    geometry: DetectorGeometry,
    draw: Draw,
) -> Spots:
    """Minimum-ionising spots along the helices of some arrivals, for a length each, one per layer crossed."""
    at = arrival.take(row)
    rows, starts, steps = [], [], []
    for kind, part in enumerate((geometry.ecal, geometry.hcal, geometry.yoke)):
        slabs = table.calorimeter == kind
        front = (slabs * table.breakpoints[MILLIMETRES]).sum(1)[at.face] / at.cosine
        crossing = torch.nonzero(slabs.any(1)[at.face] & (length > front)).squeeze(1)
        layer = torch.arange(part.layers, device=front.device, dtype=torch.float32).repeat(len(crossing))
        rows.append(crossing.repeat_interleave(part.layers))
        steps.append((part.pitch / at.cosine)[rows[-1]])
        starts.append(front[rows[-1]] + layer * steps[-1])
    of, start, step = torch.cat(rows), torch.cat(starts), torch.cat(steps)
    travelled = start + draw.uniform(start) * step
    inside = travelled < length[of]
    of, travelled = of[inside], travelled[inside]
    path = helix.take(row[of])
    transverse = travelled / path.length(torch.ones_like(path.x))
    x, y, z = (value.to(torch.float32) for value in path.position(transverse))
    time = at.time[of] + travelled / SPEED_OF_LIGHT
    # A Moyal variate is close to the Landau straggling of a thin layer; mean one, most probable value 0.85.
    straggling = 0.85 - 0.118 * torch.log(draw.normal(travelled) ** 2 + 1e-12)
    return Spots(at.particle[of], x, y, z, time, -straggling.clamp(0.05, 10.0))

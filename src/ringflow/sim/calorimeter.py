"""Cells and hits: energy spots fall into the cells of the calorimeters, cells above threshold become hits.

Every hit knows how much each particle left in it. A cell is a 64-bit key of event, subsystem, side, layer and two indices;
one sort of the keys finds the spots that share a cell. Barrels have flat sides, modules have gaps between them, cells have
scales of their own, some are dead, and some answer without a particle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ringflow.base.errors import UsageError
from ringflow.elements.clustering import CalorimeterHits
from ringflow.elements.tables import group_sum
from ringflow.event.schema import SUBSYSTEMS
from ringflow.sim.flight import Draw
from ringflow.sim.geometry import CalorimeterGeometry, DetectorGeometry
from ringflow.sim.shower import Spots

#: Bits of a key, from the lowest: particle in the event, two cell indices, layer, side, subsystem; the event is above them.
_PARTICLE_BITS, _INDEX_BITS, _LAYER_BITS, _SIDE_BITS, _SUBSYSTEM_BITS = 14, 13, 7, 1, 3
_BELOW_SUBSYSTEM = 2 * _INDEX_BITS + _LAYER_BITS + _SIDE_BITS  # bits of a cell below its subsystem
_KEY_BITS = (_SUBSYSTEM_BITS, _SIDE_BITS, _LAYER_BITS, _INDEX_BITS, _INDEX_BITS, _PARTICLE_BITS)
_HALF_RANGE = 1 << (_INDEX_BITS - 1)
#: Bins of the tables that find a calorimeter from a radius or |z|; boundaries are exact to this.
_BINS_PER_MM = 4
_NOBODY = (1 << _PARTICLE_BITS) - 1  # in the place of a particle, for noise
MOST_PARTICLES = _NOBODY
#: Energy of noise above the threshold, in units of it, on average; and when it comes (ns).
_NOISE_EXCESS, _NOISE_TIME = 0.3, 100.0
#: Scales of cells that are drawn per subsystem; a detector has more cells, which share them.
_OWN_SCALES = 1 << 18
MOST_EVENTS = 1 << (63 - sum(_KEY_BITS))


class CellTable:
    """Numbers of the sensitive volumes in the order of SUBSYSTEMS."""

    def __init__(self, geometry: DetectorGeometry, device: torch.device) -> None:
        parts = [(geometry.calorimeter(name), name.endswith("barrel")) for name in SUBSYSTEMS]
        self.sides, self.half_side = geometry.sides, math.tan(math.pi / geometry.sides)
        for part, _ in parts:
            around = 2.0 * geometry.sides * self.half_side * (part.barrel.inner + part.depth)
            widest = max(around, 2.0 * part.barrel.half_length, 2.0 * part.endcap.r_max)
            # A side has one of them at least, and their numbers fit into their bits.
            most, least = 2.0 * self.half_side * part.barrel.inner, widest / (2 * _HALF_RANGE - 2 - 2 * geometry.sides)
            if not least <= part.cell <= most:
                raise UsageError(f"cells of {part.cell:g} mm are not possible here; give {least:.3g} to {most:.3g} mm")

        def column(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32, device=device)

        def of(attribute: str) -> Tensor:
            return column(getattr(part, attribute) for part, _ in parts)

        self.inner = column(part.barrel.inner if barrel else part.endcap.inner for part, barrel in parts)
        self.pitch, self.cell, self.mip, self.time_resolution = map(of, ("pitch", "cell", "mip", "time_resolution"))
        self.layers = of("layers").to(torch.int64)
        # The same cells are off in every event, on every machine.
        draw = torch.Generator().manual_seed(1)
        scales, alive = torch.empty(2, len(parts), _OWN_SCALES).uniform_(generator=draw)
        spread, dead = of("intercalibration").cpu().unsqueeze(1), of("dead").cpu().unsqueeze(1)
        self.own_scale = ((1.0 + math.sqrt(12.0) * spread * (scales - 0.5)) * (alive >= dead)).flatten().to(device)
        self.gap = column([*(part.gap for part, _ in parts), 0.0])
        behind = geometry.calibration.hcal_scale
        relative = column(1.0 if name.startswith("ecal") else behind for name in SUBSYSTEMS)
        self.scale = geometry.calibration.em_scale * relative
        self.threshold = of("threshold") * self.scale
        # Noise of a calorimeter falls into barrel and endcaps by their cells.
        self.noise = column(
            part.noise_hits * (share if barrel else 1.0 - share)
            for (part, barrel), share in zip(parts, map(_barrel_share, (part for part, _ in parts)), strict=True)
        )
        # Length of a ring of modules, and where along the beam the gap next to the middle lies.
        self.ring = column([*(2.0 * part.barrel.half_length / part.barrel.rings for part, _ in parts), 1.0])
        self.middle = column([*(0.5 * (part.barrel.rings % 2) for part, _ in parts), 0.0]) * self.ring
        # Inner radius of endcaps, 0 of barrels; outer radius of endcaps, half length of barrels. One more entry stands for
        # "nowhere": nothing is ever inside it.
        self.low = column([*(0.0 if barrel else part.endcap.r_min for part, barrel in parts), 0.0])
        self.high = column(
            [*(part.barrel.half_length if barrel else part.endcap.r_max for part, barrel in parts), -1.0]
        )
        # Which barrel or endcap covers each bin of radius or |z|; past the last subsystem where there is none.
        outer = self.inner + of("depth")
        bins = torch.arange(int(float(outer.max()) * _BINS_PER_MM) + 2, device=device) / _BINS_PER_MM
        self.at = torch.full((2, len(bins)), len(SUBSYSTEMS), dtype=torch.int64, device=device)
        for number in range(len(SUBSYSTEMS)):
            self.at[number % 2, (bins >= self.inner[number]) & (bins < outer[number])] = number

    def of_layers(self, subsystem: Tensor, layer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Distance of the middle of layers, width of their cells, and how many cells a side of a barrel has."""
        inner, pitch, cell = (column.index_select(0, subsystem) for column in (self.inner, self.pitch, self.cell))
        middle = inner + (layer + 0.5) * pitch
        return middle, cell, (2.0 * self.half_side * middle / cell).floor().clamp_min(1.0)

    def side(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which side of a barrel points lie above, their distance from the axis across it, and where they are along it."""
        radius, azimuth = torch.hypot(x, y), torch.atan2(y, x)
        turns = azimuth * (self.sides / (2.0 * math.pi))
        nearest = torch.round(turns)
        angle = (turns - nearest) * (2.0 * math.pi / self.sides)
        number = torch.where(nearest < 0, nearest + self.sides, nearest)
        return number, radius * torch.cos(angle), radius * torch.sin(angle)

    def locate(self, across: Tensor, radius: Tensor, height: Tensor) -> Tensor:
        """Subsystem of points given by their distance across the sides of the barrel, their radius and |z|; past the last one
        between the calorimeters."""
        last = self.at.shape[1] - 1
        barrel, endcap = (
            at.index_select(0, (place * _BINS_PER_MM).to(torch.int64).clamp_max(last))
            for at, place in zip(self.at, (across, height), strict=True)
        )
        in_barrel = height < self.high.index_select(0, barrel)
        in_endcap = (radius >= self.low.index_select(0, endcap)) & (radius < self.high.index_select(0, endcap))
        return torch.where(in_barrel, barrel, torch.where(in_endcap, endcap, len(SUBSYSTEMS)))


@dataclass(frozen=True)
class MeasuredHits(CalorimeterHits):
    """Hits in order of event, subsystem and layer; `event` counts within the block."""

    time: Tensor


class HitLinks(NamedTuple):
    """How much a particle (counted over the block) left in a hit."""

    hit: Tensor
    particle: Tensor
    energy: Tensor


def read_out(
    spots: Iterable[Spots], event_of: Tensor, first_of: Tensor, table: CellTable, draw: Draw
) -> tuple[MeasuredHits, HitLinks]:
    """Hits above threshold; `event_of` gives the event of a particle, `first_of` the first particle of an event."""
    deposits = [_deposit(part, event_of, first_of, table) for part in spots]
    deposits += _noise(len(first_of), table, draw)
    key, deposit, deposit_time = (torch.cat(column) for column in zip(*deposits, strict=True))
    key, order = torch.sort(key)
    links, link_of = torch.unique_consecutive(key, return_inverse=True)
    link_energy = group_sum(deposit.index_select(0, order), link_of, len(links))
    link_time = group_sum(deposit_time.index_select(0, order), link_of, len(links))

    cells, hit_of = torch.unique_consecutive(links >> _PARTICLE_BITS, return_inverse=True)
    own_scale = _scale_of_cells(cells, table)
    link_energy, link_time = (values * own_scale.index_select(0, hit_of) for values in (link_energy, link_time))
    energy = group_sum(link_energy, hit_of, len(cells))
    time = group_sum(link_time, hit_of, len(cells)) / energy.clamp_min(1e-12)
    subsystem = (cells >> _BELOW_SUBSYSTEM) & ((1 << _SUBSYSTEM_BITS) - 1)
    above = energy > table.threshold.index_select(0, subsystem)
    number = torch.cumsum(above, 0) - 1
    seen = torch.nonzero(above).squeeze(1)
    time = time.index_select(0, seen)
    time = time + table.time_resolution.index_select(0, subsystem.index_select(0, seen)) * draw.normal(time)
    hits = _decode(cells.index_select(0, seen), energy.index_select(0, seen), time, table)

    of_someone = (links & _NOBODY) != _NOBODY
    kept = torch.nonzero(above.index_select(0, hit_of) & of_someone).squeeze(1)
    hit = number.index_select(0, hit_of.index_select(0, kept))
    first = first_of.index_select(0, hits.event.index_select(0, hit))
    local = links.index_select(0, kept) & _NOBODY
    return hits, HitLinks(hit, first + local, link_energy.index_select(0, kept))


def _barrel_share(part: CalorimeterGeometry) -> float:
    """Share of the cells of a calorimeter that its barrel has."""
    barrel = 2.0 * math.pi * (part.barrel.inner + 0.5 * part.depth) * 2.0 * part.barrel.half_length
    endcaps = 2.0 * math.pi * (part.endcap.r_max**2 - part.endcap.r_min**2)
    return barrel / (barrel + endcaps)


def _deposit(spots: Spots, event_of: Tensor, first_of: Tensor, table: CellTable) -> tuple[Tensor, Tensor, Tensor]:
    """Cell keys of spots that land in a sensitive volume, with their energy, and that times their time."""
    side_of, across, along = table.side(spots.x, spots.y)
    radius, height = torch.hypot(spots.x, spots.y), spots.z.abs()
    subsystem = table.locate(across, radius, height)
    barrel = (subsystem & 1) == 0
    # Modules of a barrel end at the edges of its sides and between rings, those of an endcap between quarters.
    ring, middle, gap = (column.index_select(0, subsystem) for column in (table.ring, table.middle, table.gap))
    from_middle = spots.z - middle
    between_rings = (from_middle - torch.round(from_middle / ring) * ring).abs()
    from_edge = torch.minimum(
        torch.where(barrel, across * table.half_side - along.abs(), spots.x.abs()),
        torch.where(barrel, between_rings, spots.y.abs()),
    )
    inside = torch.nonzero((subsystem < len(SUBSYSTEMS)) & (from_edge >= 0.5 * gap)).squeeze(1)
    spots, subsystem = spots.take(inside), subsystem.index_select(0, inside)
    side_of, across, along, height, barrel = (
        column.index_select(0, inside) for column in (side_of, across, along, height, barrel)
    )
    inner, pitch = table.inner.index_select(0, subsystem), table.pitch.index_select(0, subsystem)
    layer = ((torch.where(barrel, across, height) - inner) / pitch).to(torch.int64)
    layer = torch.minimum(layer, table.layers.index_select(0, subsystem) - 1)

    _, cell, of_side = table.of_layers(subsystem, layer)
    place = ((along / cell + 0.5 * of_side).floor().clamp_min(0.0)).minimum(of_side - 1.0)
    first = torch.where(barrel, side_of * of_side + place, (spots.x / cell).floor() + _HALF_RANGE)
    second = (torch.where(barrel, spots.z, spots.y) / cell).floor() + _HALF_RANGE
    endcap_side = (~barrel & (spots.z > 0)).to(torch.int64)

    event = event_of.index_select(0, spots.particle)
    local = spots.particle - first_of.index_select(0, event)
    key = _key(event, subsystem, endcap_side, layer, first.long(), second.long(), local)
    energy = torch.where(spots.energy < 0.0, -spots.energy * table.mip.index_select(0, subsystem), spots.energy)
    energy = energy * table.scale.index_select(0, subsystem)
    return key, energy, energy * spots.time


def _key(event: Tensor, *values: Tensor) -> Tensor:
    """Subsystem, side, layer, two indices and particle in the bits of one number."""
    key = event
    for bits, value in zip(_KEY_BITS, values, strict=True):
        key = (key << bits) + value
    return key


def _noise(num_events: int, table: CellTable, draw: Draw) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Cells anywhere that answer to nobody: their keys, energies, and these times their times."""
    if not bool((table.noise > 0).any()) or num_events == 0:
        return []
    device = table.noise.device
    counts = draw.poisson(table.noise.repeat(num_events)).to(torch.int64)
    pair = torch.arange(len(counts), device=device).repeat_interleave(counts)
    event, subsystem = torch.div(pair, len(SUBSYSTEMS), rounding_mode="floor"), pair % len(SUBSYSTEMS)

    def uniform() -> Tensor:
        return draw.uniform(pair.to(torch.float32))

    layer = (uniform() * table.layers.index_select(0, subsystem)).to(torch.int64)
    barrel = (subsystem & 1) == 0
    _, cell, of_side = table.of_layers(subsystem, layer)
    low, high = (column.index_select(0, subsystem) for column in (table.low, table.high))
    radius, azimuth = torch.sqrt(low**2 + (high**2 - low**2) * uniform()), 2.0 * math.pi * uniform()
    u, v = radius * torch.cos(azimuth), radius * torch.sin(azimuth)
    along = high * (2.0 * uniform() - 1.0)
    first = torch.where(barrel, (uniform() * table.sides * of_side).floor(), (u / cell).floor() + _HALF_RANGE)
    second = (torch.where(barrel, along, v) / cell).floor() + _HALF_RANGE
    side = (~barrel & (uniform() < 0.5)).to(torch.int64)
    key = _key(event, subsystem, side, layer, first.long(), second.long(), torch.full_like(layer, _NOBODY))
    energy = table.threshold.index_select(0, subsystem) * (1.001 + _NOISE_EXCESS * draw.exponential(u))
    time = _NOISE_TIME * uniform()
    return [(key, energy, energy * time)]


def _scale_of_cells(cells: Tensor, table: CellTable) -> Tensor:
    """Scale of cells, the same in every event, zero of the dead ones: read from a table of drawn ones, at the hash of the
    cell [multiplicative hashing, Knuth]."""
    own = cells & ((1 << (_BELOW_SUBSYSTEM + _SUBSYSTEM_BITS)) - 1)
    place = ((own * 0x9E3779B97F4A7C1) >> 24) & (_OWN_SCALES - 1)
    scales: Tensor = table.own_scale
    return scales.index_select(0, (own >> _BELOW_SUBSYSTEM) * _OWN_SCALES + place)


def _decode(cells: Tensor, energy: Tensor, time: Tensor, table: CellTable) -> MeasuredHits:
    """Positions of the cells behind the keys (without the particle)."""
    fields = []
    rest = cells
    for bits in reversed(_KEY_BITS[:-1]):
        fields.append(rest & ((1 << bits) - 1))
        rest = rest >> bits
    second, first, layer, side, subsystem = fields
    barrel = (subsystem & 1) == 0
    middle, cell, of_side = table.of_layers(subsystem, layer)
    number = torch.div(first, of_side, rounding_mode="floor")
    along_side = (first - number * of_side + 0.5 - 0.5 * of_side) * cell
    azimuth = number * (2.0 * math.pi / table.sides)
    along_first = (first - _HALF_RANGE + 0.5) * cell
    along_second = (second - _HALF_RANGE + 0.5) * cell
    cosine, sine = torch.cos(azimuth), torch.sin(azimuth)
    x = torch.where(barrel, middle * cosine - along_side * sine, along_first)
    y = torch.where(barrel, middle * sine + along_side * cosine, along_second)
    z = torch.where(barrel, along_second, middle * (2.0 * side - 1.0))
    return MeasuredHits(rest, energy, x, y, z, subsystem, layer, time)

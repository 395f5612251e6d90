"""Cells and hits: energy spots fall into the cells of the calorimeters, cells above threshold become hits.

Every hit knows how much each particle left in it. A cell is a 64-bit key of event, subsystem, side, layer and two indices; one
sort of the keys finds the spots that share a cell.
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
from ringflow.sim.geometry import DetectorGeometry
from ringflow.sim.shower import Spots

#: Bits of a key, from the lowest: particle in the event, two cell indices, layer, side, subsystem; the event is above them.
_PARTICLE_BITS, _INDEX_BITS, _LAYER_BITS, _SIDE_BITS, _SUBSYSTEM_BITS = 14, 13, 7, 1, 3
_BELOW_SUBSYSTEM = 2 * _INDEX_BITS + _LAYER_BITS + _SIDE_BITS  # bits of a cell below its subsystem
_KEY_BITS = (_SUBSYSTEM_BITS, _SIDE_BITS, _LAYER_BITS, _INDEX_BITS, _INDEX_BITS, _PARTICLE_BITS)
_HALF_RANGE = 1 << (_INDEX_BITS - 1)
#: Bins of the tables that find a calorimeter from a radius or |z|; boundaries are exact to this.
_BINS_PER_MM = 4
MOST_PARTICLES = 1 << _PARTICLE_BITS
MOST_EVENTS = 1 << (63 - sum(_KEY_BITS))


class CellTable:
    """Numbers of the sensitive volumes in the order of SUBSYSTEMS."""

    def __init__(self, geometry: DetectorGeometry, device: torch.device) -> None:
        parts = [(geometry.calorimeter(name), name.endswith("barrel")) for name in SUBSYSTEMS]
        for part, _ in parts:
            around = 2.0 * math.pi * part.barrel.inner
            widest = max(around + 2.0 * math.pi * part.depth, 2.0 * part.barrel.half_length, 2.0 * part.endcap.r_max)
            # One of them goes around at least, and their numbers fit into their bits.
            if not (least := widest / (2 * _HALF_RANGE - 2)) <= part.cell <= around:
                raise UsageError(
                    f"cells of {part.cell:g} mm are not possible here; give {least:.3g} to {around:.3g} mm"
                )

        def column(values: Iterable[float]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.float32, device=device)

        def of(attribute: str) -> Tensor:
            return column(getattr(part, attribute) for part, _ in parts)

        self.inner = column(part.barrel.inner if barrel else part.endcap.inner for part, barrel in parts)
        self.pitch, self.cell, self.mip, self.time_resolution = map(of, ("pitch", "cell", "mip", "time_resolution"))
        self.layers = of("layers").to(torch.int64)
        self.scale = geometry.calibration.em_scale
        self.threshold = of("threshold") * self.scale
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
        """Distance of the middle of layers, width of their cells, and how many cells go around in a barrel."""
        inner, pitch, cell = (column.index_select(0, subsystem) for column in (self.inner, self.pitch, self.cell))
        middle = inner + (layer + 0.5) * pitch
        return middle, cell, (2.0 * math.pi * middle / cell).floor()

    def locate(self, radius: Tensor, height: Tensor) -> Tensor:
        """Subsystem of points given by radius and |z|; past the last one between the calorimeters."""
        last = self.at.shape[1] - 1
        barrel, endcap = (
            at.index_select(0, (place * _BINS_PER_MM).to(torch.int64).clamp_max(last))
            for at, place in zip(self.at, (radius, height), strict=True)
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
    key, deposit, deposit_time = (torch.cat(column) for column in zip(*deposits, strict=True))
    key, order = torch.sort(key)
    links, link_of = torch.unique_consecutive(key, return_inverse=True)
    link_energy = group_sum(deposit.index_select(0, order), link_of, len(links))
    link_time = group_sum(deposit_time.index_select(0, order), link_of, len(links))

    cells, hit_of = torch.unique_consecutive(links >> _PARTICLE_BITS, return_inverse=True)
    energy = group_sum(link_energy, hit_of, len(cells))
    time = group_sum(link_time, hit_of, len(cells)) / energy.clamp_min(1e-12)
    subsystem = (cells >> _BELOW_SUBSYSTEM) & ((1 << _SUBSYSTEM_BITS) - 1)
    above = energy > table.threshold.index_select(0, subsystem)
    number = torch.cumsum(above, 0) - 1
    seen = torch.nonzero(above).squeeze(1)
    time = time.index_select(0, seen)
    time = time + table.time_resolution.index_select(0, subsystem.index_select(0, seen)) * draw.normal(time)
    hits = _decode(cells.index_select(0, seen), energy.index_select(0, seen), time, table)

    kept = torch.nonzero(above.index_select(0, hit_of)).squeeze(1)
    hit = number.index_select(0, hit_of.index_select(0, kept))
    first = first_of.index_select(0, hits.event.index_select(0, hit))
    local = links.index_select(0, kept) & (MOST_PARTICLES - 1)
    return hits, HitLinks(hit, first + local, link_energy.index_select(0, kept))


def _deposit(spots: Spots, event_of: Tensor, first_of: Tensor, table: CellTable) -> tuple[Tensor, Tensor, Tensor]:
    """Cell keys of spots that land in a sensitive volume, with their energy, and that times their time."""
    radius = torch.hypot(spots.x, spots.y)
    height = spots.z.abs()
    subsystem = table.locate(radius, height)
    inside = torch.nonzero(subsystem < len(SUBSYSTEMS)).squeeze(1)
    spots, subsystem = spots.take(inside), subsystem.index_select(0, inside)
    radius, height = radius.index_select(0, inside), height.index_select(0, inside)
    x, y, z = spots.x, spots.y, spots.z
    barrel = (subsystem & 1) == 0
    inner, pitch = table.inner.index_select(0, subsystem), table.pitch.index_select(0, subsystem)
    layer = ((torch.where(barrel, radius, height) - inner) / pitch).to(torch.int64)
    layer = torch.minimum(layer, table.layers.index_select(0, subsystem) - 1)

    _, cell, around = table.of_layers(subsystem, layer)
    turn = torch.atan2(y, x) / (2.0 * math.pi) + 0.5
    first = torch.where(barrel, (turn * around).floor().clamp_max(around - 1.0), (x / cell).floor() + _HALF_RANGE)
    second = (torch.where(barrel, z, y) / cell).floor() + _HALF_RANGE
    side = (~barrel & (z > 0)).to(torch.int64)

    event = event_of.index_select(0, spots.particle)
    local = spots.particle - first_of.index_select(0, event)
    key = event
    for bits, value in zip(_KEY_BITS, (subsystem, side, layer, first.long(), second.long(), local), strict=True):
        key = (key << bits) + value
    energy = torch.where(spots.energy < 0.0, -spots.energy * table.mip.index_select(0, subsystem), spots.energy)
    energy = energy * table.scale
    return key, energy, energy * spots.time


def _decode(cells: Tensor, energy: Tensor, time: Tensor, table: CellTable) -> MeasuredHits:
    """Positions of the cells behind the keys (without the particle)."""
    fields = []
    rest = cells
    for bits in reversed(_KEY_BITS[:-1]):
        fields.append(rest & ((1 << bits) - 1))
        rest = rest >> bits
    second, first, layer, side, subsystem = fields
    barrel = (subsystem & 1) == 0
    middle, cell, around = table.of_layers(subsystem, layer)
    azimuth = ((first + 0.5) / around - 0.5) * (2.0 * math.pi)
    along_first = (first - _HALF_RANGE + 0.5) * cell
    along_second = (second - _HALF_RANGE + 0.5) * cell
    x = torch.where(barrel, middle * torch.cos(azimuth), along_first)
    y = torch.where(barrel, middle * torch.sin(azimuth), along_second)
    z = torch.where(barrel, along_second, middle * (2.0 * side - 1.0))
    return MeasuredHits(rest, energy, x, y, z, subsystem, layer, time)

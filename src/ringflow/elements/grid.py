"""Projective towers: every calorimeter hit falls into a tower that points to the collision, in a grid of its calorimeter.

Barrel towers are cells in azimuth and z/r, endcap towers in x/z and y/z; at the front of the calorimeter they are squares of
the given size. A dense map from tower to a number makes neighbours a matter of adding an offset, on CPU and GPU alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

#: Towers kept free around every grid, so that windows never leave it; also the overlap of the barrel with itself in azimuth.
PAD = 8

#: Fields of a grid that are columns over the subsystems.
_COLUMNS = 10

#: Calorimeters in depth order; a hit's subsystem code is 2 * calorimeter + (1 in the endcap).
ECAL, HCAL, YOKE = range(3)


@dataclass(frozen=True)
class Calorimeter:
    """Front of a calorimeter as a grid sees it: barrel radius and half length, endcap |z| and outer radius, tower size (mm)."""

    radius: float
    half_length: float
    z: float
    r_max: float
    tower: float


@dataclass(frozen=True)
class TowerGrid:
    """Numbering of the towers of one event; tensors are indexed by subsystem."""

    scale_first: Tensor  # towers per radian (barrel) or per unit of x/z
    scale_second: Tensor
    half_first: Tensor  # shift that makes indices start at PAD
    half_second: Tensor
    last_first: Tensor
    last_second: Tensor
    stride: Tensor
    start: Tensor
    plane: Tensor  # towers of one endcap
    turns: Tensor  # towers around the barrel, 0 in endcaps
    tower_size: tuple[float, ...]  # per calorimeter, mm
    size: int

    @classmethod
    def of(cls, calorimeters: tuple[Calorimeter, Calorimeter, Calorimeter], device: torch.device) -> TowerGrid:
        """Lay out the grids of all calorimeters one after the other."""
        columns: dict[str, list[float]] = {field.name: [] for field in fields(cls)[:_COLUMNS]}
        start = 0
        for part in calorimeters:
            around = max(int(2.0 * math.pi * part.radius / part.tower), 2 * PAD)
            half_z = math.ceil(part.half_length / part.tower) + 1
            stride = 2 * (half_z + PAD)
            scales = (around / (2.0 * math.pi), part.radius / part.tower)
            barrel = (*scales, around / 2.0, half_z, around - 1, 2 * half_z - 1, stride, start, 0, around)
            start += (around + 2 * PAD) * stride
            half = math.ceil(part.r_max / part.tower) + 1
            stride = 2 * (half + PAD)
            scales = (part.z / part.tower, part.z / part.tower)
            endcap = (*scales, half, half, 2 * half - 1, 2 * half - 1, stride, start, stride**2, 0)
            start += 2 * stride**2
            for row in (barrel, endcap):
                for column, value in zip(columns.values(), row, strict=True):
                    column.append(value)

        def tensor(name: str) -> Tensor:
            dtype = torch.float32 if name.startswith(("scale", "half")) else torch.int64
            return torch.tensor(columns[name], dtype=dtype, device=device)

        return cls(
            **{name: tensor(name) for name in columns},
            tower_size=tuple(part.tower for part in calorimeters),
            size=start,
        )

    def locate(self, subsystem: Tensor, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Tower number of points, and its twin in the overlap of the barrel with itself (the same number if it has none)."""

        def of(column: Tensor) -> Tensor:
            return column.index_select(0, subsystem)

        barrel = (subsystem & 1) == 0
        distance = torch.where(barrel, torch.hypot(x, y), z.abs()).clamp_min(1.0)
        first = torch.where(barrel, torch.atan2(y, x), x / distance) * of(self.scale_first)
        second = torch.where(barrel, z, y) / distance * of(self.scale_second)
        # Indices stay within the grid; the last azimuth of the barrel may round up to a full turn.
        i = (first + of(self.half_first)).to(torch.int64)
        j = (second + of(self.half_second)).to(torch.int64)
        i = torch.minimum(i.clamp_min_(0), of(self.last_first))
        j = torch.minimum(j.clamp_min_(0), of(self.last_second))
        around, stride = of(self.turns), of(self.stride)
        shift = around * ((i < PAD).to(torch.int64) - (i >= around - PAD).to(torch.int64))
        place = of(self.start) + torch.where(z > 0, of(self.plane), 0) + PAD + j + (i + PAD) * stride
        return place, place + torch.where(barrel, shift, 0) * stride

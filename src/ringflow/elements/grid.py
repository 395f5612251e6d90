"""Projective towers: every calorimeter hit falls into a tower that points to the collision, in a grid of its calorimeter.

Barrel towers are cells in azimuth and z/r, endcap towers in x/z and y/z; at the front of the calorimeter they are squares of the
given size. A dense map from tower to a number makes neighbours a matter of adding an offset, on CPU and GPU alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Towers kept free around every grid, so that windows never leave it; also the overlap of the barrel with itself in azimuth.
PAD = 8

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
    stride: Tensor
    start: Tensor
    plane: Tensor  # towers of one endcap
    turns: Tensor  # towers around the barrel, 0 in endcaps
    tower_size: tuple[float, ...]  # per calorimeter, mm
    size: int

    @classmethod
    def of(cls, calorimeters: tuple[Calorimeter, Calorimeter, Calorimeter], device: torch.device) -> TowerGrid:
        """Lay out the grids of all calorimeters one after the other."""
        rows: list[tuple[float, ...]] = []
        start = 0
        for part in calorimeters:
            around = max(int(2.0 * math.pi * part.radius / part.tower), 2 * PAD)
            half_z = math.ceil(part.half_length / part.tower) + 1
            stride = 2 * (half_z + PAD)
            rows.append((around / (2.0 * math.pi), part.radius / part.tower, around / 2.0, half_z, stride, start, 0, around))
            start += (around + 2 * PAD) * stride
            half = math.ceil(part.r_max / part.tower) + 1
            stride = 2 * (half + PAD)
            plane = stride * stride
            rows.append((part.z / part.tower, part.z / part.tower, half, half, stride, start, plane, 0))
            start += 2 * plane
        columns = list(zip(*rows, strict=True))
        floats = [torch.tensor(column, dtype=torch.float32, device=device) for column in columns[:4]]
        whole = [torch.tensor(column, dtype=torch.int64, device=device) for column in columns[4:8]]
        return cls(*floats, *whole, tuple(part.tower for part in calorimeters), start)

    def locate(self, subsystem: Tensor, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Tower number of points, and its twin in the overlap of the barrel with itself (the same number if it has none)."""
        first, second = self.coordinates(subsystem, x, y, z)
        low, high = self.half_first[subsystem], self.half_second[subsystem]
        i = (first + low).floor().to(torch.int64)
        j = (second + high).floor().to(torch.int64).clamp(0, None)
        around = self.turns[subsystem]
        barrel = around > 0
        i = torch.where(barrel, i % around.clamp_min(1), i.clamp_min(0))
        j = torch.minimum(j, (2.0 * high).to(torch.int64) - 1)
        i = torch.where(barrel, i, torch.minimum(i, (2.0 * low).to(torch.int64) - 1))
        twin = torch.where(barrel & (i < PAD), i + around, torch.where(barrel & (i >= around - PAD), i - around, i))
        base = self.start[subsystem] + torch.where(z > 0, self.plane[subsystem], 0) + PAD + j
        stride = self.stride[subsystem]
        return base + (i + PAD) * stride, base + (twin + PAD) * stride

    def coordinates(self, subsystem: Tensor, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Position in units of towers: azimuth and z/r in the barrel, x/z and y/z in the endcaps."""
        barrel = (subsystem & 1) == 0
        radius = torch.hypot(x, y).clamp_min(1.0)
        height = z.abs().clamp_min(1.0)
        first = torch.where(barrel, torch.atan2(y, x), x / height) * self.scale_first[subsystem]
        second = torch.where(barrel, z / radius, y / height) * self.scale_second[subsystem]
        return first, second

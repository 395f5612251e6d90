"""Material behind each calorimeter face: depth in mm against radiation lengths, interaction lengths and energy loss.

The calorimeter behind a face is a stack of slabs (ECAL, gap, HCAL, coil, yoke), so each quantity is piecewise linear in depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.sim.geometry import CalorimeterGeometry, DetectorGeometry

#: Quantities that can be converted into each other.
MILLIMETRES, RADIATION, INTERACTION, LOSS = range(4)

#: Air is given a trace of material, so that every quantity grows strictly with depth and can be inverted.
_AIR = 1e-7

_SENSITIVE = {"ecal": 0, "hcal": 1, "yoke": 2}
_DEAD = 3


@dataclass(frozen=True)
class DepthTable:
    """Breakpoints as [quantity, face, breakpoint], and which calorimeter lies between two of them as [face, slab]."""

    breakpoints: Tensor
    calorimeter: Tensor  # 0 ECAL, 1 HCAL, 2 yoke, 3 nothing sensitive

    @classmethod
    def of(cls, geometry: DetectorGeometry, device: torch.device) -> DepthTable:
        """Tables for the barrel face, the endcap face and the face of the hadronic endcap alone."""
        ecal, hcal, coil, yoke = geometry.ecal, geometry.hcal, geometry.coil, geometry.yoke
        material = (coil.radiation_lengths, coil.interaction_lengths, coil.loss)
        barrel = [
            (ecal.barrel.inner, ecal.depth, _material(ecal), "ecal"),
            (hcal.barrel.inner, hcal.depth, _material(hcal), "hcal"),
            (coil.barrel.inner, coil.barrel.outer - coil.barrel.inner, material, "coil"),
            (yoke.barrel.inner, yoke.depth, _material(yoke), "yoke"),
        ]
        endcap = [
            (part.endcap.inner, part.depth, _material(part), name)
            for part, name in ((ecal, "ecal"), (hcal, "hcal"), (yoke, "yoke"))
        ]
        stacks = [_stack(barrel), _stack(endcap), _stack(endcap[1:])]
        longest = max(len(points) for points, _ in stacks)
        rows, kinds = [], []
        for points, calorimeters in stacks:
            last = points[-1]
            # Beyond the last slab there is air for ever; padding keeps the tables rectangular.
            padding = [tuple(v + 1.0 * (k + 1) for v in last) for k in range(longest + 1 - len(points))]
            rows.append([*points, *padding])
            kinds.append([*calorimeters, *[_DEAD] * (longest + 1 - len(calorimeters))])
        table = torch.tensor(rows, dtype=torch.float32, device=device).permute(2, 0, 1).contiguous()
        return cls(table, torch.tensor(kinds, device=device))

    def convert(self, value: Tensor, face: Tensor, source: int, target: int) -> Tensor:
        """Depth given as one quantity (any shape), read as another."""
        known, wanted = self.breakpoints[source], self.breakpoints[target]
        slab = self._slab(value, face, known)
        width = known.shape[1]
        low = face * width + slab
        known, wanted = known.reshape(-1), wanted.reshape(-1)
        x0, y0 = known[low], wanted[low]
        slope = ((wanted[1:] - wanted[:-1]) / (known[1:] - known[:-1]))[low]
        return y0 + (value - x0) * slope

    def calorimeter_at(self, depth: Tensor, face: Tensor) -> Tensor:
        """Which calorimeter a depth in mm lies in."""
        return self.calorimeter[face, self._slab(depth, face, self.breakpoints[MILLIMETRES])]

    @staticmethod
    def _slab(value: Tensor, face: Tensor, known: Tensor) -> Tensor:
        width = known.shape[1]
        # Faces are laid one behind the other on one axis, so that a single search serves all of them.
        span = float(known.max()) + 1.0
        axis = (known + span * torch.arange(len(known), device=known.device, dtype=known.dtype).unsqueeze(1)).reshape(-1)
        place = torch.searchsorted(axis, value.clamp(0.0, span - 0.5) + span * face, right=True) - 1
        return (place - face * width).clamp(0, width - 2)


def _material(part: CalorimeterGeometry) -> tuple[float, float, float]:
    return part.layers * part.x0_per_layer, part.layers * part.lambda_per_layer, part.layers * part.loss_per_layer


Slab = tuple[float, float, tuple[float, float, float], str]


def _stack(slabs: list[Slab]) -> tuple[list[tuple[float, ...]], list[int]]:
    """Breakpoints (mm, X0, lambda, GeV) of slabs given as (start, thickness, material, name), and what lies between them."""
    start = slabs[0][0]
    points: list[tuple[float, ...]] = [(0.0, 0.0, 0.0, 0.0)]
    kinds: list[int] = []

    def extend(thickness: float, material: tuple[float, float, float], name: str) -> None:
        points.append(tuple(a + b + _AIR * thickness for a, b in zip(points[-1], (thickness, *material), strict=True)))
        kinds.append(_SENSITIVE.get(name, _DEAD))

    for inner, thickness, material, name in slabs:
        gap = inner - start - points[-1][0]
        if gap > 1e-3:
            extend(gap, (0.0, 0.0, 0.0), "air")
        extend(thickness, material, name)
    return points, kinds

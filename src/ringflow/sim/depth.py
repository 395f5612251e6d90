"""Material behind each calorimeter face: depth in mm against radiation lengths, interaction lengths and energy loss.

The calorimeter behind a face is a stack of slabs (ECAL, gap, HCAL, coil, yoke), so each quantity is piecewise linear in depth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ringflow.sim.geometry import CalorimeterGeometry, DetectorGeometry

#: Quantities that can be converted into each other.
MILLIMETRES, RADIATION, INTERACTION, LOSS = range(4)
_QUANTITIES = 4

#: Air is given a trace of material, so that every quantity grows strictly with depth and can be inverted.
_AIR = 1e-7

_SENSITIVE = {"ecal": 0, "hcal": 1, "yoke": 2}
_DEAD = 3
#: Steps of the even tables that stand for the exact breakpoints: an index instead of a search, exact but at the kinks.
_STEPS = 8192


@dataclass(frozen=True)
class DepthTable:
    """Depth tables of the three faces, even in each quantity."""

    breakpoints: Tensor  # [quantity, face, breakpoint]
    calorimeter: Tensor  # [face, slab]: 0 ECAL, 1 HCAL, 2 yoke, 3 nothing sensitive
    even: Tensor  # [source quantity, target quantity, face * step]
    per_unit: tuple[float, ...]  # steps per unit of each quantity
    end: tuple[float, ...]  # largest value of each quantity

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
            # Beyond the last slab there is air for ever; padding keeps the tables rectangular.
            padding = [tuple(v + 1.0 * (k + 1) for v in points[-1]) for k in range(longest + 1 - len(points))]
            rows.append([*points, *padding])
            kinds.append([*calorimeters, *[_DEAD] * (longest + 1 - len(calorimeters))])
        breakpoints = np.array(rows, dtype=np.float64).transpose(2, 0, 1)
        end = breakpoints.max(axis=(1, 2))
        even = np.array([[_even(breakpoints, s, t, end[s]) for t in range(_QUANTITIES)] for s in range(_QUANTITIES)])
        return cls(
            torch.as_tensor(breakpoints, dtype=torch.float32, device=device),
            torch.tensor(kinds, device=device),
            torch.as_tensor(even.reshape(_QUANTITIES, _QUANTITIES, -1), dtype=torch.float32, device=device),
            tuple(float((_STEPS - 1) / value) for value in end),
            tuple(float(value) for value in end),
        )

    def convert(self, value: Tensor, face: Tensor, source: int, target: int) -> Tensor:
        """Depth given as one quantity, read as another; beyond the end there is nothing, and the end is returned."""
        place = (value * self.per_unit[source]).clamp(0.0, _STEPS - 1.001)
        step = place.to(torch.int64)
        share = place - step
        low = face * _STEPS + step
        table = self.even[source, target]
        below = table.index_select(0, low)
        return below + share * (table.index_select(0, low + 1) - below)

    def calorimeter_at(self, depth: Tensor, face: Tensor) -> Tensor:
        """Which calorimeter a depth in mm lies in."""
        slab = (depth.unsqueeze(1) >= self.breakpoints[MILLIMETRES][face]).sum(1) - 1
        return self.calorimeter[face, slab.clamp(0, self.calorimeter.shape[1] - 1)]


def _even(breakpoints: npt.NDArray[np.float64], source: int, target: int, end: float) -> npt.NDArray[np.float64]:
    """The piecewise linear function of each face at even steps of the source quantity."""
    at = np.linspace(0.0, end, _STEPS)
    return np.array(
        [np.interp(at, known, wanted) for known, wanted in zip(breakpoints[source], breakpoints[target], strict=True)]
    )


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

"""Events that nobody measured, to time and to test networks with."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringflow.elements.batch import KINDS, TRACK, ElementBatch
from ringflow.elements.features import FEATURES


def random_elements(counts: Sequence[int], calorimeter: str = "cluster", seed: int = 0) -> ElementBatch:
    """Events of so many elements each, tracks and calorimeter objects in turn, with features of ordinary size."""
    rows = sum(counts)
    generator = torch.Generator().manual_seed(seed)
    kind = torch.where(torch.arange(rows) % 2 == 0, TRACK, KINDS.index(calorimeter))
    of_track, of_calorimeter = len(FEATURES["track"]), len(FEATURES[calorimeter])
    features = torch.randn(rows, of_track + of_calorimeter, generator=generator)
    features[kind == TRACK, of_track:] = torch.nan
    features[kind != TRACK, :of_track] = torch.nan
    position = (torch.rand(rows, 2, generator=generator) - 0.5) * torch.tensor([5.0, 2 * torch.pi])
    pt = 10.0 * torch.rand(rows, generator=generator) + 0.1
    reference = torch.stack([pt, position[:, 0], position[:, 1], pt * torch.cosh(position[:, 0])], dim=1)
    charge = torch.where(kind == TRACK, 1, 0)
    offsets = torch.tensor([0, *counts]).cumsum(0)
    return ElementBatch(kind, features, position, reference, charge, offsets)

"""Make packed elements of the collections of a block, from numpy columns or from tensors of the simulation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ringflow.base.errors import DatasetError
from ringflow.elements.batch import KINDS, TRACK, ElementBatch, ElementTargets
from ringflow.elements.features import FEATURES, Columns, direction, feature_names, features_of, needed_columns
from ringflow.event.block import EventBlock
from ringflow.event.particles import properties

_PION_MASS = properties(211).mass
_MOMENTUM = ("px", "py", "pz", "energy")


def from_block(block: EventBlock, calorimeter: str = "cluster", *, with_targets: bool = False) -> ElementBatch:
    """Elements of a block of numpy columns: tracks and `calorimeter` objects (`cluster` or `hit`)."""
    names = ["track", calorimeter, *([target_collection(calorimeter)] if with_targets else [])]
    present = {name: tuple(block[name].columns) if name in block else () for name in names}
    wanted = needed_columns(("track", calorimeter), present)
    if with_targets:
        wanted[names[-1]] = _present_target_columns(calorimeter, present[names[-1]])
    columns, counts = {}, {}
    for name in names:
        part = block[name]
        columns[name] = {column: torch.from_numpy(np.ascontiguousarray(part[column])) for column in wanted[name]}
        counts[name] = torch.from_numpy(part.counts)
    return build(columns, counts, calorimeter, with_targets=with_targets)


def build(
    columns: Mapping[str, Columns], counts: Mapping[str, Tensor], calorimeter: str, *, with_targets: bool
) -> ElementBatch:
    """Elements from flat columns per collection and objects per event; indices of targets count within the event."""
    kinds = ("track", calorimeter)
    offsets = _offsets(sum(counts[kind] for kind in kinds))  # type: ignore[arg-type]
    total = int(offsets[-1])
    device = offsets.device
    features = torch.full((total, len(feature_names(kinds))), torch.nan, device=device)
    kind_of = torch.zeros(total, dtype=torch.int64, device=device)
    position = torch.zeros(total, 2, device=device)
    reference = torch.zeros(total, 4, device=device)
    charge = torch.zeros(total, dtype=torch.int64, device=device)
    first, first_feature = offsets[:-1], 0
    for kind in kinds:
        rows = _rows(first, counts[kind])
        last_feature = first_feature + len(FEATURES[kind])
        features[rows, first_feature:last_feature] = features_of(kind, columns[kind])
        kind_of[rows] = KINDS.index(kind)
        position[rows], reference[rows] = kinematics(kind, columns[kind])
        if KINDS.index(kind) == TRACK:
            charge[rows] = columns[kind]["charge"].long()
        first, first_feature = first + counts[kind], last_feature
    targets = None
    if with_targets:
        name = target_collection(calorimeter)
        targets = _targets(columns[name], counts[name], counts["track"], offsets, calorimeter, total)
    return ElementBatch(kind_of, features, position, reference, charge, offsets, targets)


def target_collection(calorimeter: str) -> str:
    """Collection that holds the truth on these elements."""
    return "target" if calorimeter == "cluster" else "hit_target"


def target_columns(calorimeter: str) -> tuple[str, ...]:
    """Columns of that collection that are needed."""
    return ("label", "charge", *_MOMENTUM, "track", calorimeter)


def _present_target_columns(calorimeter: str, present: Sequence[str]) -> tuple[str, ...]:
    if lacking := next((name for name in target_columns(calorimeter) if name not in present), None):
        raise DatasetError(
            f"the {target_collection(calorimeter)} collection has no column {lacking!r}; give events with truth"
        )
    return target_columns(calorimeter)


def _offsets(counts: Tensor) -> Tensor:
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _rows(first: Tensor, counts: Tensor) -> Tensor:
    """Row of every object, when those of event b start at `first[b]`."""
    start = torch.repeat_interleave(first - _offsets(counts)[:-1], counts)
    return start + torch.arange(len(start), device=start.device)


def kinematics(kind: str, columns: Columns) -> tuple[Tensor, Tensor]:
    """Where an element is (eta, phi), and what was measured (pt, eta, phi, energy)."""
    if kind == "track":
        pt, eta, phi = (columns[name].float() for name in ("pt", "eta", "phi"))
        energy = torch.sqrt((pt * torch.cosh(eta)).square() + _PION_MASS**2)
        place = direction(*(columns[f"calo_{axis}"] for axis in "xyz"))
        return torch.stack(place, dim=1).float(), torch.stack([pt, eta, phi, energy], dim=1)
    eta, phi = (angle.float() for angle in direction(*(columns[axis] for axis in "xyz")))
    energy = columns["energy"].float()
    return torch.stack([eta, phi], dim=1), torch.stack([energy / torch.cosh(eta), eta, phi, energy], dim=1)


def _targets(
    columns: Columns, counts: Tensor, num_tracks: Tensor, offsets: Tensor, calorimeter: str, total: int
) -> ElementTargets:
    event = torch.repeat_interleave(torch.arange(len(counts), device=offsets.device), counts)
    track, element = columns["track"].long(), columns[calorimeter].long()
    row = offsets[event] + torch.where(track >= 0, track, num_tracks[event] + element)
    label = torch.zeros(total, dtype=torch.int64, device=offsets.device)
    charge = torch.zeros_like(label)
    momentum = torch.zeros(total, 4, device=offsets.device)
    label[row] = columns["label"].long()
    charge[row] = columns["charge"].long()
    momentum[row] = torch.stack([columns[name].float() for name in _MOMENTUM], dim=1)
    return ElementTargets(label, charge, momentum)

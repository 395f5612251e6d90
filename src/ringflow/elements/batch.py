"""Elements of many events packed one after the other, as a network takes them: no padding, one table of rows.

They are made of the collections of a block, from numpy columns or from tensors of the simulation.
Letters of tensor names: B event, N element (over all events of the batch), F feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ringflow.base.errors import DatasetError
from ringflow.elements.features import FEATURES, Columns, direction, feature_names, features_of, needed_columns
from ringflow.elements.tables import ColumnTable
from ringflow.event.block import EventBlock
from ringflow.event.particles import properties

#: What an element can be, in the order of the codes in `ElementBatch.kind_N`.
KINDS = ("track", "cluster", "hit")
TRACK, CLUSTER, HIT = range(3)

#: Label of rows that only fill up a batch; they are part of no event's loss.
PADDING = -1

#: Columns of a batch with one entry per element.
_COLUMNS = ("kind_N", "features_NF", "position_N2", "reference_N4", "charge_N")
_PION_MASS = properties(211).mass
_MOMENTUM = ("px", "py", "pz", "energy")


@dataclass(frozen=True)
class ElementTargets(ColumnTable):
    """The truth assigned to every element; label 0 where it is not the primary element of a particle."""

    label_N: Tensor  # int64, see PARTICLE_CLASSES; PADDING for rows that fill up a batch
    charge_N: Tensor  # int64
    momentum_N4: Tensor  # px, py, pz, energy in GeV


@dataclass(frozen=True)
class ElementBatch:
    """Elements of B events, on one device."""

    kind_N: Tensor  # int64, index into KINDS
    features_NF: Tensor  # float32, NaN where a detector does not provide the feature or it is of another kind
    position_N2: Tensor  # eta and phi of where the element is in the calorimeter
    reference_N4: Tensor  # pt, eta, phi and energy as measured: what a prediction is relative to
    charge_N: Tensor  # int64, as measured; 0 for a cluster
    offsets_B: Tensor  # int64, B + 1 numbers: event b is rows offsets_B[b] to offsets_B[b + 1]
    targets: ElementTargets | None = None

    @property
    def num_events(self) -> int:
        """B."""
        return len(self.offsets_B) - 1

    @property
    def num_elements(self) -> int:
        """N."""
        return len(self.kind_N)

    @property
    def counts_B(self) -> Tensor:
        """Elements per event."""
        return self.offsets_B.diff()

    @property
    def event_N(self) -> Tensor:
        """Number of the event of each element."""
        events = torch.arange(self.num_events, device=self.offsets_B.device)
        return torch.repeat_interleave(events, self.counts_B, output_size=self.num_elements)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> ElementBatch:
        """The same on another device."""
        move = partial(Tensor.to, device=device, non_blocking=non_blocking)
        return replace(self._each(move), offsets_B=move(self.offsets_B))

    def take(self, events: Tensor) -> ElementBatch:
        """Chosen events in the given order."""
        events = events.to(self.offsets_B.device)
        counts = self.counts_B[events]
        offsets = _offsets(counts)
        total = int(offsets[-1])
        rows = torch.repeat_interleave(self.offsets_B[events] - offsets[:-1], counts, output_size=total)
        return self.rows(rows + torch.arange(total, device=rows.device), offsets)

    def rows(self, index: Tensor, offsets: Tensor) -> ElementBatch:
        """Chosen rows, as events with these offsets."""
        return replace(self._each(lambda column: column[index]), offsets_B=offsets)

    def _each(self, change: Callable[[Tensor], Tensor]) -> ElementBatch:
        """The same with a change to every column and to those of the targets."""
        targets = self.targets
        if targets is not None:
            targets = ElementTargets(*(change(getattr(targets, field.name)) for field in fields(targets)))
        columns = {name: change(getattr(self, name)) for name in _COLUMNS}
        return replace(self, **columns, targets=targets)


def join(batches: Sequence[ElementBatch]) -> ElementBatch:
    """Batches one after the other, all with or all without targets."""
    joined = {name: torch.cat([getattr(batch, name) for batch in batches]) for name in _COLUMNS}
    counts = torch.cat([batch.counts_B for batch in batches])
    given = [batch.targets for batch in batches if batch.targets is not None]
    return ElementBatch(**joined, offsets_B=_offsets(counts), targets=ElementTargets.join(given) if given else None)


def from_block(block: EventBlock, calorimeter: str = "cluster", *, with_targets: bool = False) -> ElementBatch:
    """Elements of a block of numpy columns: tracks and `calorimeter` objects (`cluster` or `hit`)."""
    names = ["track", calorimeter, *([target_collection(calorimeter)] if with_targets else [])]
    present = {name: tuple(block[name].columns) if name in block else () for name in names}
    wanted = needed_columns(("track", calorimeter), present)
    if with_targets:
        truth = wanted[names[-1]] = target_columns(calorimeter)
        if lacking := next((name for name in truth if name not in present[names[-1]]), None):
            raise DatasetError(f"the {names[-1]} collection has no column {lacking!r}; give events with truth")
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

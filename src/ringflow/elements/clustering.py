"""Clusters from calorimeter hits: density-based, in projective towers, then linked in depth.

Every hit falls into a tower that points to the collision, in a grid of its calorimeter. Barrel towers are cells in azimuth and
z/r, endcap towers in x/z and y/z; at the front of the calorimeter they are squares of the given size. A dense map from tower
to a number makes neighbours a matter of adding an offset, on CPU and GPU alike.

Within a calorimeter every tower points to a denser neighbour, the densest of its surroundings are seeds, and following the
pointers gives pre-clusters: showers closer than about two towers merge, lumpy ones split. Small pre-clusters join a larger
neighbour; hadronic pre-clusters join the electromagnetic one they continue, yoke ones the hadronic one. Towers point to the
collision and soft tracks do not: where tracks are given and the settings say so, the pieces along the helix of one are put
together as long as their energy is not above its momentum, as particle flow does it.
Towers are a tensor program throughout; the cost is linear in the number of hits, and in pairs of a piece and a track.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ringflow.base.errors import UsageError
from ringflow.elements.helix import Helix
from ringflow.elements.settings import ClusteringSettings, each
from ringflow.elements.tables import ColumnTable, group_minimum, group_sum, group_winner

#: Towers kept free around every grid, so that windows never leave it; also the overlap of the barrel with itself in azimuth.
PAD = 8

#: Of one event; real detectors have a million.
_MOST_TOWERS = 1 << 26

#: Calorimeters in depth order; a hit's subsystem code is 2 * calorimeter + (1 in the endcap).
ECAL, HCAL, YOKE = range(3)

#: Front of a calorimeter as a grid sees it: barrel radius and half length, endcap |z| and outer radius (mm).
Front = tuple[float, float, float, float]


class TowerGrid:
    """Numbering of the towers of one event, the grids of all calorimeters one after the other; columns are by subsystem."""

    def __init__(self, fronts: Sequence[Front], tower_size: Sequence[float], device: torch.device) -> None:
        scales, halves, lasts, steps = [], [], [], []
        start = 0
        for (radius, half_length, z, r_max), tower in zip(fronts, tower_size, strict=True):
            around = max(int(2.0 * math.pi * radius / tower), 2 * PAD)
            half_z = math.ceil(half_length / tower) + 1
            half = math.ceil(r_max / tower) + 1
            stride, plane = 2 * (half_z + PAD), (2 * (half + PAD)) ** 2
            scales += [(around / (2.0 * math.pi), radius / tower), (z / tower, z / tower)]
            halves += [(around / 2.0, half_z), (half, half)]
            lasts += [(around - 1, 2 * half_z - 1), (2 * half - 1, 2 * half - 1)]
            in_endcap = start + (around + 2 * PAD) * stride
            steps += [(stride, start, 0, around), (2 * (half + PAD), in_endcap, plane, 0)]
            start = in_endcap + 2 * plane

        def columns(rows: Sequence[tuple[float, ...]], dtype: torch.dtype) -> tuple[Tensor, ...]:
            return torch.tensor(rows, dtype=dtype, device=device).T.contiguous().unbind()

        if start > _MOST_TOWERS:
            sizes = ", ".join(f"{size:g}" for size in tower_size)
            raise UsageError(
                f"a calorimeter has {start:,} towers of {sizes} mm; give larger ones, {_MOST_TOWERS:,} fit"
            )

        # Towers per radian (barrel) or per unit of x/z, and the shifts that make indices start at PAD.
        self.scale_first, self.scale_second = columns(scales, torch.float32)
        self.half_first, self.half_second = columns(halves, torch.float32)
        self.last_first, self.last_second = columns(lasts, torch.int64)
        # `plane` is the towers of one endcap, `turns` those around the barrel, 0 in endcaps.
        self.stride, self.start, self.plane, self.turns = columns(steps, torch.int64)
        self.size = start

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


#: Entries of the dense tower map held at a time; on a CPU few enough to stay near the caches.
_MAP_ENTRIES_CPU, _MAP_ENTRIES_GPU = 1 << 24, 1 << 30
_NOWHERE = -1
#: Layers that make the front of a pre-cluster: tracks bend, so what lies before it is looked for there, not at its centre.
_FRONT_LAYERS = 4

_Points = tuple[Tensor, Tensor, Tensor]

#: What is at most outside the ECAL of a piece that is in the ECAL alone, and in how many layers a photon has begun.
_ECAL_ALONE, _PHOTON_LAYERS = 0.1, 10
#: Energy resolution of hadrons by which momentum is compared with energy, GeV^(1/2) [Thomson, NIM A 611 (2009) 25].
_HADRON_RESOLUTION = 0.6


@dataclass(frozen=True)
class CalorimeterHits(ColumnTable):
    """What clustering needs of hits, in order of event."""

    event: Tensor
    energy: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    subsystem: Tensor
    layer: Tensor


@dataclass(frozen=True)
class TrackPaths(Helix):
    """How tracks go on behind the calorimeter face, in order of event, and their momentum in GeV."""

    event: Tensor
    momentum: Tensor


class _Towers(NamedTuple):
    """Occupied towers: their place in the map, subsystem and energy."""

    place: Tensor
    subsystem: Tensor
    energy: Tensor


class _PreClusters(NamedTuple):
    """Pre-clusters: event in the chunk, first layer, energy, centre of all hits and of the first few layers, ECAL hits in the
    rear."""

    event: Tensor
    subsystem: Tensor
    first_layer: Tensor
    energy: Tensor
    centre: _Points
    front: _Points
    rear_hits: Tensor


class Clusterer:
    """Clusters hits on one device; keeps its tower map between calls, since filling it anew costs more than using it."""

    def __init__(self, fronts: Sequence[Front], settings: ClusteringSettings, device: torch.device) -> None:
        self._tower_size = (settings.ecal_tower, settings.hcal_tower, settings.yoke_tower)
        self._grid = grid = TowerGrid(fronts, self._tower_size, device)
        self._events_at_a_time = max(1, (_MAP_ENTRIES_CPU if device.type == "cpu" else _MAP_ENTRIES_GPU) // grid.size)
        self._map = torch.full((0,), _NOWHERE, dtype=torch.int32, device=device)
        self._settle(settings)
        self._inner = _window(1, device)[1:]
        ring = _window(2, device)
        self._outer = ring[ring.abs().amax(1) == 2]

    def with_settings(self, settings: ClusteringSettings, num_events: int) -> Clusterer:
        """Another one with the same towers; both use one tower map, so that they never may at the same time."""
        self._reserve(num_events)
        other = copy(self)
        other._settle(settings)
        return other

    def _settle(self, settings: ClusteringSettings) -> None:
        self._settings = settings
        self._fragment_energy, self._min_energy, self._follow_distance = (
            torch.tensor(each(value), device=self._map.device)
            for value in (settings.fragment_energy, settings.min_energy, settings.follow_distance)
        )

    def _reserve(self, num_events: int) -> int:
        """Make the tower map large enough; returns how many events fit into it at a time."""
        step = min(self._events_at_a_time, max(num_events, 1))
        if len(self._map) < step * self._grid.size:
            self._map = torch.full((step * self._grid.size,), _NOWHERE, dtype=torch.int32, device=self._map.device)
        return step

    @property
    def follows_tracks(self) -> bool:
        """Whether tracks play a part."""
        return max(each(self._settings.follow_distance)) > 0.0

    def cluster(
        self, hits: CalorimeterHits, num_events: int, tracks: TrackPaths | None = None
    ) -> tuple[Tensor, Tensor]:
        """Cluster of each hit (-1 if none), counted over all events in order, and the event of each cluster."""
        step = self._reserve(num_events)
        starts = torch.arange(0, num_events + step, step, device=hits.event.device)
        edges = torch.searchsorted(hits.event, starts).tolist()
        if tracks is None or not self.follows_tracks:
            followed: list[TrackPaths | None] = [None] * (len(edges) - 1)
        else:
            followed = [tracks.part(*part) for part in pairwise(torch.searchsorted(tracks.event, starts).tolist())]
        labels, events, found = [hits.event[:0]], [hits.event[:0]], 0
        for number, (first, last) in enumerate(pairwise(edges)):
            if first == last:
                continue
            label, event = self._cluster_chunk(hits.part(first, last), number * step, followed[number])
            labels.append(torch.where(label >= 0, label + found, _NOWHERE))
            events.append(event)
            found += len(event)
        return torch.cat(labels), torch.cat(events)

    def _cluster_chunk(
        self, hits: CalorimeterHits, first_event: int, tracks: TrackPaths | None
    ) -> tuple[Tensor, Tensor]:
        tower, towers, twin = self._fill(hits, first_event)
        seeds, pre_of_tower = torch.unique(self._climb(towers), return_inverse=True)
        label = pre_of_tower.index_select(0, tower)
        pre = _describe(hits, label, towers.subsystem[seeds], first_event, self._settings.rear_layer)
        owner = self._join(pre, pre_of_tower)
        if tracks is not None and len(tracks) > 0:
            owner = self._follow(pre, owner, tracks, first_event)
        self._map[towers.place] = _NOWHERE
        self._map[twin] = _NOWHERE
        return self._number(hits, owner.index_select(0, label), pre.subsystem // 2)

    def _fill(self, hits: CalorimeterHits, first_event: int) -> tuple[Tensor, _Towers, Tensor]:
        """Write the occupied towers into the map; returns the tower of each hit, the towers, and the places of their twins."""
        place, twin = self._grid.locate(hits.subsystem, hits.x, hits.y, hits.z)
        shift = (hits.event - first_event) * self._grid.size
        place, twin = place + shift, twin + shift
        order = torch.arange(len(place), device=place.device, dtype=torch.int32)
        self._map[place] = order  # one hit stands for its tower
        written = self._map.index_select(0, place)
        first = torch.nonzero(written == order).squeeze(1)
        numbers = torch.empty_like(order)
        numbers[first] = torch.arange(len(first), device=place.device, dtype=torch.int32)
        tower = numbers.index_select(0, written).long()
        place, twin = place[first], twin[first]
        identity = torch.arange(len(first), device=place.device, dtype=torch.int32)
        self._map[twin] = identity
        self._map[place] = identity
        energy = group_sum(hits.energy, tower, len(first))
        return tower, _Towers(place, hits.subsystem[first], energy), twin

    def _neighbours(self, place: Tensor, stride: Tensor, steps: Tensor) -> Tensor:
        """Towers at given steps from places, as [step, place]; -1 where there is none."""
        index = place + steps[:, :1] * stride + steps[:, 1:]
        return self._map.index_select(0, index.reshape(-1)).reshape(index.shape).long()

    def _climb(self, towers: _Towers) -> Tensor:
        """Seed of each tower, reached by always going to the densest tower of the inner, else of the outer surroundings."""
        stride = self._grid.stride[towers.subsystem]
        own = torch.arange(len(towers.place), device=stride.device)
        near = self._neighbours(towers.place, stride, self._inner)
        weight = torch.where(self._inner.abs().sum(1) == 2, 0.25, 0.5).unsqueeze(1)
        absent = towers.energy.new_zeros(1)  # number -1 is the last entry
        density = towers.energy + (weight * torch.cat([towers.energy, absent])[near]).sum(0)
        # Ranks instead of densities: no ties, so that no two towers can point at each other.
        of_rank = torch.argsort(density, stable=True)
        rank = torch.empty_like(own)
        rank[of_rank] = own
        ranks = torch.cat([rank, rank.new_full((1,), _NOWHERE)])
        best = ranks[near].amax(0)
        # Only tops of the inner surroundings need to look further.
        tops = torch.nonzero(best < rank).squeeze(1)
        further = self._neighbours(towers.place[tops], stride[tops], self._outer)
        best[tops] = ranks[further].amax(0)
        parent = torch.where(best > rank, of_rank[best.clamp_min(0)], own)
        for _ in range(10):  # pointer jumping follows 2^10 steps
            parent = parent.index_select(0, parent)
        return parent

    def _join(self, pre: _PreClusters, pre_of_tower: Tensor) -> Tensor:
        """For each pre-cluster the pre-cluster it becomes part of."""
        settings = self._settings
        own = torch.arange(len(pre.energy), device=pre.energy.device)
        owner = own.clone()
        calorimeter = pre.subsystem // 2
        continues = pre.rear_hits >= 2
        # What goes through the ECAL is a minimum-ionising track, however little it leaves.
        small = (pre.energy < self._fragment_energy[calorimeter]) & ~continues

        def candidates(accepted: Tensor) -> Tensor:
            # By tower; number -1, no tower, is the last entry.
            return torch.cat([torch.where(accepted[pre_of_tower], pre_of_tower, _NOWHERE), nowhere])

        nowhere = pre_of_tower.new_full((1,), _NOWHERE)
        large = candidates(~small)
        for kind in (ECAL, HCAL, YOKE):
            rows = torch.nonzero(small & (calorimeter == kind)).squeeze(1)
            owner[rows] = self._nearest(rows, kind, each(settings.fragment_distance)[kind], large, pre, pre.centre)
        for kind, front, accepted in ((HCAL, ECAL, continues), (YOKE, HCAL, torch.ones_like(small))):
            rows = torch.nonzero((calorimeter == kind) & (owner == own)).squeeze(1)
            owner[rows] = self._nearest(rows, front, settings.link_distance, candidates(accepted), pre, pre.front)
        for _ in range(4):
            owner = owner[owner]
        return owner

    def _follow(self, pre: _PreClusters, owner: Tensor, tracks: TrackPaths, first_event: int) -> Tensor:
        """Put together what lies along the same track; `owner` as it is returned."""
        piece = torch.nonzero(owner == torch.arange(len(owner), device=owner.device)).squeeze(1)
        in_ecal = pre.energy * (pre.subsystem // 2 == ECAL)
        energy, ecal, *centre = (
            group_sum(values, owner, len(owner)).index_select(0, piece)
            for values in (pre.energy, in_ecal, *(pre.energy * place for place in pre.centre))
        )
        x, y, z = (place / energy for place in centre)
        begins = pre.subsystem.index_select(0, piece) // 2
        late = pre.first_layer.index_select(0, piece) >= _PHOTON_LAYERS
        hadronic = late | (ecal < (1.0 - _ECAL_ALONE) * energy)
        calorimeter = torch.where((begins == ECAL) & hadronic, HCAL, begins)

        # Pairs of a piece and a track of its event; of each piece the nearest.
        event = pre.event.index_select(0, piece)
        first, behind = (torch.searchsorted(tracks.event, event + first_event, right=right) for right in (False, True))
        count = behind - first
        of = torch.arange(len(piece), device=piece.device).repeat_interleave(count)
        number = torch.arange(len(of), device=piece.device) + (first - count.cumsum(0) + count)[of]
        away = tracks.take(number).distance(x[of], y[of], z[of])
        pair = group_winner(-away, of, len(piece))
        away = torch.cat([away, away.new_full((1,), torch.inf)])  # without any track, number -1 is the last entry
        # A fragment is taken for no photon, so it may be further away.
        fragment = (calorimeter == ECAL) & (energy < self._fragment_energy[ECAL])
        distance = torch.where(fragment, each(self._settings.fragment_distance)[ECAL], 0.0)
        reach = torch.maximum(self._follow_distance[calorimeter], distance)
        near = torch.nonzero(away[pair] < reach).squeeze(1)
        track, away = number[pair[near]], away[pair[near]]

        order = torch.argsort(away, stable=True)
        order = order[torch.argsort(track[order], stable=True)]
        near, track = near[order], track[order]
        sums = torch.cumsum(energy[near].double(), 0)
        begin = torch.searchsorted(track, track)
        before = torch.cat([sums.new_zeros(1), sums])[begin]
        momentum = tracks.momentum[track]
        spread = _HADRON_RESOLUTION * momentum.sqrt()
        fits = sums - before <= momentum + self._settings.follow_excess * spread
        owner[piece[near[fits]]] = piece[near[begin[fits]]]
        return owner[owner]

    def _nearest(
        self, rows: Tensor, calorimeter: int, distance: float, candidate: Tensor, pre: _PreClusters, points: _Points
    ) -> Tensor:
        """Candidate (given by tower) nearest to the points of `rows` in a calorimeter; itself if none is near."""
        grid = self._grid
        target = 2 * calorimeter + pre.subsystem[rows] % 2
        place, _ = grid.locate(target, *(component[rows] for component in points))
        reach = min(round(distance / self._tower_size[calorimeter]), PAD - 2)
        steps = _window(reach, rows.device)
        tower = self._neighbours(place + pre.event[rows] * grid.size, grid.stride[target], steps)
        other = candidate[tower]
        good = (other >= 0) & (other != rows)
        # Steps are in order of distance, so the first good one is the nearest.
        first = torch.where(good, torch.arange(len(steps), device=rows.device).unsqueeze(1), len(steps)).amin(0)
        nearest = other.gather(0, first.clamp_max(len(steps) - 1).unsqueeze(0)).squeeze(0)
        return torch.where(first < len(steps), nearest, rows)

    def _number(self, hits: CalorimeterHits, label: Tensor, calorimeter: Tensor) -> tuple[Tensor, Tensor]:
        """Drop what is too small for the calorimeter it begins in, number the rest in order of event and falling energy."""
        count = len(calorimeter)
        energy = group_sum(hits.energy, label, count)
        size = torch.bincount(label, minlength=count)
        event = torch.zeros(count, dtype=torch.int64, device=label.device)
        event[label] = hits.event
        kept = torch.nonzero((energy >= self._min_energy[calorimeter]) & (size >= self._settings.min_hits)).squeeze(1)
        order = kept[torch.argsort(energy[kept], descending=True, stable=True)]
        order = order[torch.argsort(event[order], stable=True)]
        number = torch.full((count,), _NOWHERE, dtype=torch.int64, device=label.device)
        number[order] = torch.arange(len(order), device=label.device)
        return number.index_select(0, label), event[order]


def _describe(
    hits: CalorimeterHits, label: Tensor, subsystem: Tensor, first_event: int, rear_layer: int
) -> _PreClusters:
    count = len(subsystem)
    first_layer = group_minimum(hits.layer, label, count)
    in_front = hits.layer < first_layer.index_select(0, label) + _FRONT_LAYERS

    def centre(weight: Tensor) -> _Points:
        total = group_sum(weight, label, count)
        x, y, z = (group_sum(weight * value, label, count) / total for value in (hits.x, hits.y, hits.z))
        return x, y, z

    event = torch.zeros(count, dtype=torch.int64, device=label.device)
    event[label] = hits.event - first_event
    energy, rear = group_sum(hits.energy, label, count), label[(hits.subsystem < 2) & (hits.layer >= rear_layer)]
    fronts = centre(hits.energy * in_front)
    rear_hits = torch.bincount(rear, minlength=count)
    return _PreClusters(event, subsystem, first_layer, energy, centre(hits.energy), fronts, rear_hits)


def _window(reach: int, device: torch.device) -> Tensor:
    """Steps (i, j) of a square window in order of distance, the centre first."""
    side = range(-reach, reach + 1)
    steps = sorted(((i, j) for i in side for j in side), key=lambda step: (step[0] ** 2 + step[1] ** 2, step))
    return torch.tensor(steps, device=device)

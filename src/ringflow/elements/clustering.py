"""Clusters from calorimeter hits: density-based, in projective towers, then linked in depth.

Within a calorimeter every tower points to a denser neighbour, the densest of its surroundings are seeds, and following the
pointers gives pre-clusters: showers closer than about two towers merge, lumpy ones split. Small pre-clusters join a larger
neighbour; hadronic pre-clusters join the electromagnetic one they continue, yoke ones the hadronic one.
Towers are a tensor program throughout; the cost is linear in the number of hits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.elements.grid import ECAL, HCAL, YOKE, TowerGrid
from ringflow.elements.settings import ClusteringSettings

#: Entries of the dense tower map held at a time; on a CPU few enough to stay near the caches.
_MAP_ENTRIES_CPU, _MAP_ENTRIES_GPU = 1 << 23, 1 << 30


@dataclass(frozen=True)
class CalorimeterHits:
    """What clustering needs of hits, in order of event."""

    event: Tensor
    energy: Tensor
    x: Tensor
    y: Tensor
    z: Tensor
    subsystem: Tensor
    layer: Tensor


def cluster_hits(hits: CalorimeterHits, num_events: int, grid: TowerGrid, settings: ClusteringSettings) -> tuple[Tensor, Tensor]:
    """Cluster of each hit (-1 if none), counted over all events in order, and the event of each cluster."""
    entries = _MAP_ENTRIES_GPU if hits.energy.is_cuda else _MAP_ENTRIES_CPU
    at_a_time = max(1, entries // grid.size)
    tower_map = torch.full((min(at_a_time, num_events) * grid.size,), -1, dtype=torch.int32, device=hits.energy.device)
    edges = torch.searchsorted(hits.event, torch.arange(0, num_events + at_a_time, at_a_time, device=hits.event.device)).tolist()
    labels, events, found = [], [], 0
    for number, (first, last) in enumerate(zip(edges[:-1], edges[1:], strict=True)):
        part = CalorimeterHits(*(getattr(hits, name)[first:last] for name in CalorimeterHits.__dataclass_fields__))
        label, event = _cluster_chunk(part, number * at_a_time, grid, settings, tower_map)
        labels.append(torch.where(label >= 0, label + found, -1))
        events.append(event)
        found += len(event)
    return torch.cat(labels), torch.cat(events)


def _cluster_chunk(
    hits: CalorimeterHits, first_event: int, grid: TowerGrid, settings: ClusteringSettings, tower_map: Tensor
) -> tuple[Tensor, Tensor]:
    tower, tower_of, twin_of = _towers(hits, first_event, grid, tower_map)
    energy = _sum(hits.energy, tower, len(tower_of))
    kind = _sum(hits.subsystem.to(torch.float32), tower, len(tower_of)) / _sum(torch.ones_like(hits.energy), tower, len(tower_of))
    subsystem = kind.round().to(torch.int64)
    seed_of_tower = _climb(energy, tower_of, grid.stride[subsystem], tower_map)
    seeds, pre = torch.unique(seed_of_tower, return_inverse=True)
    label = pre[tower]

    joined = _join_in_depth(hits, label, subsystem[seeds], first_event, pre, grid, settings, tower_map)
    tower_map[tower_of] = -1
    tower_map[twin_of] = -1
    return _number(hits, joined[label], settings)


def _towers(hits: CalorimeterHits, first_event: int, grid: TowerGrid, tower_map: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Occupied towers: which one each hit is in, and where they and their twins stand in the map, which then holds them."""
    place, twin = grid.locate(hits.subsystem, hits.x, hits.y, hits.z)
    shift = (hits.event - first_event) * grid.size
    place, twin = place + shift, twin + shift
    order = torch.arange(len(place), device=place.device, dtype=torch.int32)
    # The first hit of a tower stands for it, so that the numbering does not depend on the order of writing.
    tower_map.index_reduce_(0, place, order, "amax", include_self=True)
    first = tower_map[place] == order
    numbers = (torch.cumsum(first, 0) - 1).to(torch.int32)
    tower = numbers[tower_map[place].long()].long()
    tower_of, twin_of = place[first], twin[first]
    identity = torch.arange(len(tower_of), device=place.device, dtype=torch.int32)
    tower_map[twin_of] = identity
    tower_map[tower_of] = identity
    return tower, tower_of, twin_of


def _climb(energy: Tensor, place: Tensor, stride: Tensor, tower_map: Tensor) -> Tensor:
    """Seed of each tower, reached by always going to the densest tower of the inner, else of the outer surroundings."""
    own = torch.arange(len(energy), device=energy.device)
    padded = torch.cat([energy, energy.new_zeros(1)])  # towers that are not there have number -1 and no energy
    density = energy.clone()
    near = {}
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            if i or j:
                near[i, j] = tower_map[place + i * stride + j].long()
                density += (0.25 if i and j else 0.5) * padded[near[i, j]]
    # The tower number breaks ties, which makes the order total and loops impossible.
    rank = torch.empty_like(own)
    rank[torch.argsort(density, stable=True)] = own
    ranks = torch.cat([rank, rank.new_full((1,), -1)])
    best = torch.stack([ranks[other] for other in near.values()]).amax(0)
    outer = [(i, j) for i in range(-2, 3) for j in range(-2, 3) if max(abs(i), abs(j)) == 2]
    best_outer = torch.stack([ranks[tower_map[place + i * stride + j].long()] for i, j in outer]).amax(0)
    best = torch.where(best > rank, best, best_outer)
    of_rank = torch.empty_like(own)
    of_rank[rank] = own
    parent = torch.where(best > rank, of_rank[best.clamp_min(0)], own)
    for _ in range(10):  # pointer jumping: 2^10 steps
        parent = parent[parent]
    return parent


def _join_in_depth(
    hits: CalorimeterHits,
    label: Tensor,
    subsystem: Tensor,
    first_event: int,
    pre: Tensor,
    grid: TowerGrid,
    settings: ClusteringSettings,
    tower_map: Tensor,
) -> Tensor:
    """For each pre-cluster the pre-cluster it becomes part of."""
    count = len(subsystem)
    energy = _sum(hits.energy, label, count)
    x, y, z = (_sum(hits.energy * value, label, count) / energy.clamp_min(1e-9) for value in (hits.x, hits.y, hits.z))
    event = torch.zeros(count, dtype=torch.int64, device=label.device)
    event[label] = hits.event - first_event
    rear = _sum(((hits.subsystem < 2) & (hits.layer >= settings.rear_layer)).to(torch.float32), label, count)
    calorimeter = subsystem // 2
    continues = rear >= 2.0
    owner = torch.arange(count, device=label.device)

    def nearest(rows: Tensor, grid_of: Tensor, distance: float, accept: Tensor) -> Tensor:
        """Accepted pre-cluster nearest to the centres of `rows` in the towers of another calorimeter; -1 if none is near."""
        target = 2 * grid_of + subsystem[rows] % 2
        place, _ = grid.locate(target, x[rows], y[rows], z[rows])
        place = place + event[rows] * grid.size
        stride = grid.stride[target]
        reach = min(int(distance / float(grid.tower[2 * int(grid_of[0])])) if len(rows) else 0, 6)
        found = torch.full_like(rows, -1)
        steps = sorted(((i, j) for i in range(-reach, reach + 1) for j in range(-reach, reach + 1)), key=lambda s: s[0] ** 2 + s[1] ** 2)
        for i, j in steps:
            tower = tower_map[place + i * stride + j].long()
            other = torch.where(tower >= 0, pre[tower.clamp_min(0)], -1)
            good = (other >= 0) & accept[other.clamp_min(0)] & (other != rows) & (found < 0)
            found = torch.where(good, other, found)
        return found

    small = energy < settings.fragment_energy
    for kind in (ECAL, HCAL, YOKE):
        rows = torch.nonzero(small & (calorimeter == kind)).squeeze(1)
        same = nearest(rows, torch.full_like(rows, kind), settings.fragment_distance, ~small)
        owner[rows] = torch.where(same >= 0, same, rows)
    for kind, below, accept in ((HCAL, ECAL, continues), (YOKE, HCAL, torch.ones_like(small))):
        rows = torch.nonzero((calorimeter == kind) & (owner == torch.arange(count, device=label.device))).squeeze(1)
        front = nearest(rows, torch.full_like(rows, below), settings.link_distance, accept)
        owner[rows] = torch.where(front >= 0, front, rows)
    for _ in range(4):
        owner = owner[owner]
    return owner


def _number(hits: CalorimeterHits, label: Tensor, settings: ClusteringSettings) -> tuple[Tensor, Tensor]:
    """Drop what is too small and number the rest in order of event and falling energy."""
    count = int(label.max()) + 1 if len(label) else 0
    energy = _sum(hits.energy, label, count)
    size = _sum(torch.ones_like(hits.energy), label, count)
    event = torch.zeros(count, dtype=torch.int64, device=label.device)
    event[label] = hits.event
    kept = torch.nonzero((energy >= settings.min_energy) & (size >= settings.min_hits)).squeeze(1)
    order = kept[torch.argsort(energy[kept], descending=True, stable=True)]
    order = order[torch.argsort(event[order], stable=True)]
    number = torch.full((count,), -1, dtype=torch.int64, device=label.device)
    number[order] = torch.arange(len(order), device=label.device)
    return number[label], event[order]


def _sum(values: Tensor, group: Tensor, groups: int) -> Tensor:
    return torch.zeros(groups, dtype=values.dtype, device=values.device).index_add_(0, group, values)

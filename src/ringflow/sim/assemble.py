"""Between generator and schema: particles as tensors on the way in, truth collections and indices per event on the way out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ringflow.base.errors import FailureError
from ringflow.elements.grouping import group_sum
from ringflow.elements.truth import Targets, TruthInput, assign_targets
from ringflow.event.schema import COLLECTIONS
from ringflow.sim.calorimeter import MOST_EVENTS, MOST_PARTICLES, HitLinks
from ringflow.sim.flight import Flight
from ringflow.sim.generated import GeneratedEvents
from ringflow.sim.species import SpeciesTable


@dataclass(frozen=True)
class SimulatedCollection:
    """Columns of a collection as tensors, and the event (counted in the block) of each row."""

    event: Tensor
    columns: dict[str, Tensor]


@dataclass(frozen=True)
class Generated:
    """Generator particles of a block on the device."""

    columns: dict[str, Tensor]
    momentum: Tensor  # [particle, (px, py, pz, energy)]
    label: Tensor
    event_of: Tensor
    first_of: Tensor
    num_events: int
    species: SpeciesTable
    primaries: Flight

    @classmethod
    def of(cls, events: GeneratedEvents, device: torch.device) -> Generated:
        """Move a block to the device; neutrinos stay in the list but do not fly."""
        if len(events.counts) and events.counts.max() >= MOST_PARTICLES:
            worst = int(events.event_number[events.counts.argmax()])
            raise FailureError(
                f"event {worst} has {events.counts.max()} particles; at most {MOST_PARTICLES - 1} can be simulated"
            )
        if len(events.counts) > MOST_EVENTS:
            raise FailureError(f"a block of {len(events.counts)} events is too large; at most {MOST_EVENTS} fit")
        species = SpeciesTable.of(events.pdg, device)

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, device=device)

        names = ("pdg", "px", "py", "pz", "energy", "x", "y", "z", "time", "interaction")
        columns = {name: tensor(getattr(events, name)) for name in names}
        counts = tensor(events.counts)
        kind = species.rows(columns["pdg"].long())
        columns["charge"] = species.charge[kind]
        numbers = torch.arange(len(kind), device=device)
        flying = ~species.is_invisible[kind]
        moving = {name: columns[name] for name in ("x", "y", "z", "time", "px", "py", "pz")}
        primaries = Flight(particle=numbers, species=kind, root=torch.full_like(numbers, -1), **moving).take(flying)
        return cls(
            columns=columns,
            momentum=torch.stack([columns[name] for name in ("px", "py", "pz", "energy")], dim=1),
            label=species.label[kind],
            event_of=torch.repeat_interleave(torch.arange(len(counts), device=device), counts),
            first_of=torch.cumsum(counts, 0) - counts,
            num_events=len(counts),
            species=species,
            primaries=primaries,
        )


def particles_and_targets(
    generated: Generated,
    tracks: dict[str, Tensor],
    cluster_of_hit: Tensor,
    num_clusters: int,
    links: HitLinks,
    num_hits: int,
) -> dict[str, SimulatedCollection]:
    """Collections `particle`, `target`, `hit_target`, `cluster_link` and `hit_link`; indices count over the block."""
    quality = tracks["num_hits"] * 1e6 + tracks["pt"].clamp_max(1e5)
    cluster_links = _cluster_links(links, cluster_of_hit, num_clusters, len(generated.label))

    def truth(link: HitLinks, num_elements: int) -> Targets:
        return assign_targets(
            TruthInput(
                generated.label,
                generated.columns["charge"],
                generated.momentum,
                tracks["particle"],
                quality,
                link.hit,
                link.particle,
                link.energy,
                num_elements,
            )
        )

    on_clusters, on_hits = truth(cluster_links, num_clusters), truth(links, num_hits)
    particles = {
        **generated.columns,
        "label": on_clusters.particle_label,
        "calo_energy": on_hits.particle_energy,
        "target": on_clusters.target_of,
        "hit_target": on_hits.target_of,
    }
    event_of = generated.event_of

    def link_collection(name: str, link: HitLinks) -> SimulatedCollection:
        return SimulatedCollection(
            event_of[link.particle], {name: link.hit, "particle": link.particle, "energy": link.energy}
        )

    return {
        "particle": SimulatedCollection(event_of, particles),
        "target": _target_collection(on_clusters, event_of, "cluster"),
        "hit_target": _target_collection(on_hits, event_of, "hit"),
        "cluster_link": link_collection("cluster", cluster_links),
        "hit_link": link_collection("hit", links),
    }


def _cluster_links(links: HitLinks, cluster_of_hit: Tensor, num_clusters: int, num_particles: int) -> HitLinks:
    """What each particle left in each cluster."""
    cluster = cluster_of_hit[links.hit]
    inside = cluster >= 0
    key = cluster[inside] * num_particles + links.particle[inside]
    pairs, of = torch.unique(key, return_inverse=True)
    energy = group_sum(links.energy[inside], of, len(pairs))
    return HitLinks(
        torch.div(pairs, max(num_particles, 1), rounding_mode="floor"), pairs % max(num_particles, 1), energy
    )


def _target_collection(targets: Targets, event_of: Tensor, element: str) -> SimulatedCollection:
    columns = {
        "label": targets.label,
        "charge": targets.charge,
        **{name: targets.momentum[:, column] for column, name in enumerate(("px", "py", "pz", "energy"))},
        "track": targets.track,
        element: targets.element,
        "num_particles": targets.num_particles,
    }
    return SimulatedCollection(event_of[targets.owner], columns)


def place(collections: dict[str, SimulatedCollection], num_events: int) -> dict[str, SimulatedCollection]:
    """Turn indices that count over the block into indices that count within the event."""
    first = {}
    for name, part in collections.items():
        counts = torch.bincount(part.event, minlength=num_events)
        first[name] = torch.cumsum(counts, 0) - counts
    placed = {}
    for name, part in collections.items():
        columns = dict(part.columns)
        for column in COLLECTIONS[name]:
            if column.points_to is not None:
                index = columns[column.name]
                columns[column.name] = torch.where(index >= 0, index - first[column.points_to][part.event], -1)
        placed[name] = SimulatedCollection(part.event, columns)
    return placed

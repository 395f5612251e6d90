"""The detector: collisions in, measured events with their truth out, as a tensor program over a block of events.

The same code runs on a CPU and on a GPU. `Detector.simulate` keeps everything as tensors on the device,
`simulate_block` returns numpy columns in the order of the schema.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ringflow.base.errors import FailureError
from ringflow.elements.clustering import Calorimeter, Clusterer, TowerGrid
from ringflow.elements.shapes import cluster_columns, hadronic_scale
from ringflow.elements.tables import group_sum
from ringflow.elements.truth import Targets, TruthInput, assign_targets
from ringflow.event.block import EventBlock, cast
from ringflow.event.schema import COLLECTIONS, SUBSYSTEMS
from ringflow.sim.calorimeter import MOST_EVENTS, MOST_PARTICLES, CellTable, HitLinks, Hits, read_out
from ringflow.sim.flight import Draw, Flight, SpeciesTable
from ringflow.sim.generator import GeneratedEvents
from ringflow.sim.geometry import CalorimeterGeometry, DetectorGeometry
from ringflow.sim.shower import DepthTable, arrive, develop, sample_ionisation, sample_showers
from ringflow.sim.tracker import TrackerOutput, measure_tracks, track_through


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


#: Spots sampled at a time on a CPU, so that the columns stay in its cache; a GPU takes all at once.
_SPOTS_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class SimulatedEvents:
    """A simulated block on its device."""

    event_number: npt.NDArray[np.int64]
    collections: dict[str, SimulatedCollection]


class Detector:
    """A detector on a device, with its look-up tables."""

    def __init__(self, geometry: DetectorGeometry, device: str = "cpu") -> None:
        self.geometry = geometry
        self.device = torch.device(device)
        size = geometry.clustering
        fronts = (
            _front(geometry.ecal, size.ecal_tower),
            _front(geometry.hcal, size.hcal_tower),
            _front(geometry.yoke, size.yoke_tower),
        )
        in_front = {"ecal": 0, "hcal": geometry.ecal.layers, "yoke": geometry.ecal.layers + geometry.hcal.layers}
        self._clusterer = Clusterer(TowerGrid.of(fronts, self.device), size)
        self._layer_offset = [in_front[name.split("_")[0]] for name in SUBSYSTEMS]
        self._depth = DepthTable.of(geometry, self.device)
        self._cells = CellTable.of(geometry, self.device)

    @torch.no_grad()
    def simulate(self, events: GeneratedEvents, seed: int) -> SimulatedEvents:
        """Measure a block of events."""
        draw = Draw(seed, self.device)
        generated = Generated.of(events, self.device)
        flown = track_through(generated.primaries, generated.species, self.geometry, draw)
        tracks = measure_tracks(flown, generated.species, self.geometry, draw)
        hits, links = self._calorimeters(flown, generated, draw)
        hit_columns, clusters, cluster_event = self._clusters(hits, len(events))
        collections = {
            "track": SimulatedCollection(generated.event_of[tracks["particle"]], tracks),
            "cluster": SimulatedCollection(cluster_event, clusters),
            "hit": SimulatedCollection(hits.event, hit_columns),
            **particles_and_targets(generated, tracks, hit_columns["cluster"], len(cluster_event), links, len(hits)),
        }
        return SimulatedEvents(events.event_number, place(collections, generated.num_events))

    def simulate_block(self, generated: GeneratedEvents, seed: int) -> EventBlock:
        """Measure a block of events and bring it to numpy, in schema order and dtypes."""
        simulated = self.simulate(generated, seed)
        collections = {
            name: cast(
                name,
                torch.bincount(part.event, minlength=len(generated)).cpu().numpy(),
                {column: values.cpu().numpy() for column, values in part.columns.items()},
            )
            for name, part in simulated.collections.items()
        }
        return EventBlock(generated.event_number, collections)

    def _calorimeters(self, flown: TrackerOutput, generated: Generated, draw: Draw) -> tuple[Hits, HitLinks]:
        geometry, table = self.geometry, self._depth
        arrival = arrive(flown.entry, flown.face, generated.species)
        helix = flown.entry.helix(generated.species, geometry.field)
        sub, stretches = develop(arrival, helix, table, geometry, draw)
        ionisation = sample_ionisation(stretches, arrival, helix, table, geometry, draw)
        at_a_time = 0 if self.device.type != "cpu" else _SPOTS_AT_A_TIME
        showers = sample_showers(sub, arrival, table, geometry, draw, at_a_time)
        return read_out([ionisation, *showers], generated.event_of, generated.first_of, self._cells, draw)

    def _clusters(self, hits: Hits, num_events: int) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        geometry = self.geometry
        columns = {field.name: getattr(hits, field.name) for field in fields(hits) if field.name != "event"}
        label, cluster_event = self._clusterer.cluster(hits, num_events)
        clusters = cluster_columns(
            columns, label, len(cluster_event), geometry.face_radius, geometry.face_z, self._layer_offset
        )
        calibration = geometry.calibration
        clusters["energy_hadronic"] = hadronic_scale(
            clusters["energy"], calibration.hadronic_energy, calibration.hadronic_factor
        )
        return {**columns, "cluster": label}, clusters, cluster_event


def _front(part: CalorimeterGeometry, tower: float) -> Calorimeter:
    return Calorimeter(part.barrel.inner, part.barrel.half_length, part.endcap.inner, part.endcap.r_max, tower)

"""The detector: collisions in, measured events with their truth out, as a tensor program over a block of events.

The same code runs on a CPU and on a GPU. `Detector.simulate` keeps everything as tensors on the device,
`simulate_block` returns numpy columns in the order of the schema.
"""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from ringflow.base.errors import FailureError
from ringflow.elements.clustering import Clusterer, TrackPaths
from ringflow.elements.shapes import Face, cluster_columns, hadronic_scale
from ringflow.elements.tables import group_sum
from ringflow.elements.truth import TruthInput, assign_targets
from ringflow.event.block import EventBlock, cast
from ringflow.event.particles import BENDING
from ringflow.event.schema import COLLECTIONS, SUBSYSTEMS
from ringflow.sim.calorimeter import MOST_EVENTS, MOST_PARTICLES, CellTable, HitLinks, MeasuredHits, read_out
from ringflow.sim.flight import Draw, Flight, SpeciesTable
from ringflow.sim.generator import GeneratedEvents
from ringflow.sim.geometry import DetectorGeometry
from ringflow.sim.shower import DepthTable, arrive, develop, sample_ionisation, sample_showers
from ringflow.sim.tracker import measure_tracks, track_through
from ringflow.sim.variation import varied

#: Spots sampled at a time on a CPU, so that the columns stay in its cache; a GPU takes all at once.
_SPOTS_AT_A_TIME = 1 << 16
_FLOWN = ("px", "py", "pz", "x", "y", "z", "time")

Columns = dict[str, Tensor]


class SimulatedCollection(NamedTuple):
    """Columns of a collection as tensors, and the event (counted in the block) of each row."""

    event: Tensor
    columns: Columns


Collections = dict[str, SimulatedCollection]


class Detector:
    """A detector on a device, with its look-up tables."""

    def __init__(self, geometry: DetectorGeometry, device: str = "cpu") -> None:
        """Where the geometry varies, every block that is simulated has a detector of its own."""
        self.geometry = geometry
        self.device = torch.device(device)
        in_front = {"ecal": 0, "hcal": geometry.ecal.layers, "yoke": geometry.ecal.layers + geometry.hcal.layers}
        fronts = [
            (part.barrel.inner, part.barrel.half_length, part.endcap.inner, part.endcap.r_max)
            for part in (geometry.ecal, geometry.hcal, geometry.yoke)
        ]
        self._clusterer = Clusterer(fronts, geometry.clustering, self.device)
        self._layer_offset = [in_front[name.split("_")[0]] for name in SUBSYSTEMS]
        self._depth = DepthTable(geometry, self.device)
        self._cells = CellTable(geometry, self.device)

    @torch.no_grad()
    def simulate(self, events: GeneratedEvents, seed: int) -> Collections:
        """Measure a block of events."""
        if self.geometry.variation is not None:
            own = Detector(varied(self.geometry, seed), str(self.device))
            own._clusterer = self._clusterer.with_settings(own.geometry.clustering, len(events))
            return own.simulate(events, seed)
        draw = Draw(seed, self.device)
        generated = _Generated(events, self.device)
        flown = track_through(generated.primaries, generated.species, self.geometry, draw)
        tracks, track_event = measure_tracks(flown, generated.species, self.geometry, generated.event_of, draw)
        arrival = arrive(flown.entry, flown.face, generated.species, self.geometry.sides)
        helix = flown.entry.helix(generated.species, self.geometry.field)
        sub, charged, length = develop(arrival, helix, self._depth, self.geometry.shower, self.geometry.sides, draw)
        ionisation = sample_ionisation(charged, length, arrival, helix, self._depth, self.geometry, draw)
        at_a_time = 0 if self.device.type != "cpu" else _SPOTS_AT_A_TIME
        showers = sample_showers(sub, arrival, self._depth, self.geometry, draw, at_a_time)
        hits, links = read_out([ionisation, *showers], generated.event_of, generated.first_of, self._cells, draw)
        paths = _paths(tracks, track_event, self.geometry.field) if self._clusterer.follows_tracks else None
        hit_columns, clusters, cluster_event = self._clusters(hits, len(events), paths, draw)
        collections = {
            "track": SimulatedCollection(track_event, tracks),
            "cluster": SimulatedCollection(cluster_event, clusters),
            "hit": SimulatedCollection(hits.event, hit_columns),
            **_truth(generated, tracks, hit_columns["cluster"], len(cluster_event), links, len(hits)),
        }
        return _within_events(collections, len(events))

    def simulate_block(self, generated: GeneratedEvents, seed: int) -> EventBlock:
        """Measure a block of events and bring it to numpy, in schema order and dtypes."""
        collections = {}
        for name, (event, columns) in self.simulate(generated, seed).items():
            counts = torch.bincount(event, minlength=len(generated)).cpu().numpy()
            collections[name] = cast(name, counts, {key: values.cpu().numpy() for key, values in columns.items()})
        return EventBlock(generated.event_number, collections)

    def _clusters(
        self, hits: MeasuredHits, num_events: int, paths: TrackPaths | None, draw: Draw
    ) -> tuple[Columns, Columns, Tensor]:
        """Columns of hits and clusters, and the event of each cluster."""
        geometry, calibration = self.geometry, self.geometry.calibration
        columns = {field.name: getattr(hits, field.name) for field in fields(hits) if field.name != "event"}
        label, cluster_event = self._clusterer.cluster(hits, num_events, paths)
        face = Face(geometry.face_radius, geometry.face_z, geometry.sides)
        clusters = cluster_columns(columns, label, len(cluster_event), face, self._layer_offset)
        clusters["time"] = clusters["time"] + geometry.clustering.time_floor * draw.normal(clusters["time"])
        clusters["energy_hadronic"] = hadronic_scale(
            clusters["energy"], calibration.hadronic_energy, calibration.hadronic_factor
        )
        return {**columns, "cluster": label}, clusters, cluster_event


def _paths(tracks: Columns, event: Tensor, field: float) -> TrackPaths:
    """Tracks behind the calorimeter face, of those that meet it."""
    of = torch.nonzero(tracks["reaches_calo"]).squeeze(1)
    at = {name: values.index_select(0, of) for name, values in tracks.items()}
    dx, dy, dz = (at[f"calo_d{axis}"] for axis in "xyz")
    columns = {
        **{axis: at[f"calo_{axis}"] for axis in "xyz"},
        "phi": torch.atan2(dy, dx),
        "tan_lambda": dz / torch.hypot(dx, dy).clamp_min(1e-6),
        "turn": -BENDING * field * at["charge"] / at["pt"],
        "momentum": at["pt"] * torch.cosh(at["eta"]),
    }
    single = {name: values.to(torch.float32) for name, values in columns.items()}
    return TrackPaths(event=event.index_select(0, of), **single)


class _Generated:
    """Generator particles of a block on the device; neutrinos stay in the list but do not fly."""

    def __init__(self, events: GeneratedEvents, device: torch.device) -> None:
        most = events.counts.max(initial=0)
        if most >= MOST_PARTICLES:
            worst = int(events.event_number[events.counts.argmax()])
            raise FailureError(f"event {worst} has {most} particles; at most {MOST_PARTICLES - 1} can be simulated")
        if len(events) > MOST_EVENTS:
            raise FailureError(f"a block of {len(events)} events is too large; at most {MOST_EVENTS} fit")
        self.species = species = SpeciesTable(events.pdg, device)
        names = ("pdg", "energy", "interaction", *_FLOWN)
        self.columns = {name: torch.as_tensor(getattr(events, name), device=device) for name in names}
        kind = torch.searchsorted(species.number, self.columns["pdg"].long())
        self.columns["charge"] = species.charge[kind]
        self.label = species.label[kind]
        numbers = torch.arange(len(kind), device=device)
        flown = {name: self.columns[name] for name in _FLOWN}
        primaries = Flight(particle=numbers, species=kind, root=torch.full_like(numbers, -1), **flown)
        self.primaries = primaries.take(~species.is_invisible[kind])
        counts = torch.as_tensor(events.counts, device=device)
        self.event_of = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
        self.first_of = torch.cumsum(counts, 0) - counts


def _truth(
    generated: _Generated, tracks: Columns, cluster_of_hit: Tensor, num_clusters: int, links: HitLinks, num_hits: int
) -> Collections:
    """Collections `particle`, `target`, `hit_target`, `cluster_link` and `hit_link`; indices count over the block."""
    event_of, columns = generated.event_of, generated.columns
    momentum = torch.stack([columns[name] for name in ("px", "py", "pz", "energy")], dim=1)
    quality = tracks["num_hits"] * 1e6 + tracks["pt"].clamp_max(1e5)
    of_particles = (generated.label, columns["charge"], momentum, tracks["particle"], quality)
    cluster_links = _cluster_links(links, cluster_of_hit, len(generated.label))
    targets, collections = {}, {}
    for element, link, count in (("cluster", cluster_links, num_clusters), ("hit", links, num_hits)):
        found = targets[element] = assign_targets(TruthInput(*of_particles, *link, count), element)
        name = "target" if element == "cluster" else "hit_target"
        collections[name] = SimulatedCollection(event_of[found.owner], found.columns)
        linked = {element: link.hit, "particle": link.particle, "energy": link.energy}
        collections[f"{element}_link"] = SimulatedCollection(event_of[link.particle], linked)
    particles = {
        **columns,
        "label": targets["cluster"].particle_label,
        "calo_energy": targets["hit"].particle_energy,
        "target": targets["cluster"].target_of,
        "hit_target": targets["hit"].target_of,
    }
    return {"particle": SimulatedCollection(event_of, particles), **collections}


def _cluster_links(links: HitLinks, cluster_of_hit: Tensor, num_particles: int) -> HitLinks:
    """What each particle left in each cluster."""
    cluster = cluster_of_hit[links.hit]
    inside = cluster >= 0
    pairs, of = torch.unique(cluster[inside] * num_particles + links.particle[inside], return_inverse=True)
    energy = group_sum(links.energy[inside], of, len(pairs))
    base = max(num_particles, 1)
    return HitLinks(torch.div(pairs, base, rounding_mode="floor"), pairs % base, energy)


def _within_events(collections: Collections, num_events: int) -> Collections:
    """Turn indices that count over the block into indices that count within the event."""
    first = {}
    for name, part in collections.items():
        counts = torch.bincount(part.event, minlength=num_events)
        first[name] = torch.cumsum(counts, 0) - counts
    for name, (event, columns) in collections.items():
        for column in COLLECTIONS[name]:
            if column.points_to is not None:
                index = columns[column.name]
                columns[column.name] = torch.where(index >= 0, index - first[column.points_to][event], -1)
    return collections

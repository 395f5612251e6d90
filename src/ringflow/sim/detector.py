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

from ringflow.elements.clustering import CalorimeterHits, Clusterer
from ringflow.elements.grid import Calorimeter, TowerGrid
from ringflow.elements.shapes import cluster_columns, hadronic_scale
from ringflow.event.block import EventBlock, cast
from ringflow.event.schema import SUBSYSTEMS
from ringflow.sim.assemble import Generated, SimulatedCollection, particles_and_targets, place
from ringflow.sim.calorimeter import CellTable, HitLinks, Hits, read_out
from ringflow.sim.depth import DepthTable
from ringflow.sim.draw import Draw
from ringflow.sim.generated import GeneratedEvents
from ringflow.sim.geometry import CalorimeterGeometry, DetectorGeometry
from ringflow.sim.shower import arrive, develop
from ringflow.sim.spots import sample_ionisation, sample_showers
from ringflow.sim.tracker import TrackerOutput, track_through
from ringflow.sim.tracks import measure_tracks

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
        seen = CalorimeterHits(hits.event, hits.energy, hits.x, hits.y, hits.z, hits.subsystem, hits.layer)
        label, cluster_event = self._clusterer.cluster(seen, num_events)
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

"""The tracker: follow every particle and what it turns into until the calorimeter, then measure the tracks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.decay import decay
from ringflow.sim.draw import Draw
from ringflow.sim.flight import Flight
from ringflow.sim.geometry import DetectorGeometry
from ringflow.sim.helix import Helix
from ringflow.sim.interact import break_up, convert, radiate
from ringflow.sim.species import SpeciesTable
from ringflow.sim.transport import CALORIMETER, DECAY, INTERACTION, Ends, fly

_MOST_GENERATIONS = 5
#: Secondaries below this momentum are absorbed on the spot.
_SOFTEST_SECONDARY = 0.003


@dataclass(frozen=True)
class TrackerOutput:
    """Every flight of every generation with its end, and the rows that reach the calorimeter."""

    flights: Flight
    helices: Helix
    ends: Ends
    entry: Flight  # the same at the calorimeter face
    entry_row: Tensor  # row in `flights` of each entry
    face: Tensor  # which face it is


def track_through(primaries: Flight, species: SpeciesTable, geometry: DetectorGeometry, draw: Draw) -> TrackerOutput:
    """Fly all particles, generation by generation, until nothing interacts or decays any more."""
    generation = primaries
    flights: list[Flight] = []
    helices: list[Helix] = []
    all_ends: list[Ends] = []
    next_row = 0
    for depth in range(_MOST_GENERATIONS):
        rows = torch.arange(next_row, next_row + len(generation), device=draw.device)
        generation = replace(generation, root=torch.where(generation.root < 0, rows, generation.root))
        helix = generation.helix(species, geometry.field)
        ends = fly(generation, helix, species, geometry, draw, last=depth == _MOST_GENERATIONS - 1)
        flights.append(generation)
        helices.append(helix)
        all_ends.append(ends)
        next_row += len(generation)
        generation = _next_generation(generation, helix, ends, species, draw)
        if len(generation) == 0:
            break
    flight, helix, ends = Flight.join(flights), Helix.join(helices), Ends.join(all_ends)
    entry_row = torch.nonzero(ends.kind == CALORIMETER).squeeze(1)
    entry = moved(flight.take(entry_row), helix.take(entry_row), ends.path[entry_row], species)
    return TrackerOutput(flight, helix, ends, entry, entry_row, ends.face[entry_row])


def moved(flight: Flight, helix: Helix, path: Tensor, species: SpeciesTable) -> Flight:
    """The same particles after a transverse path: position, direction and time of flight."""
    x, y, z = helix.position(path)
    dx, dy, dz = helix.direction(path)
    momentum = flight.momentum
    velocity = SPEED_OF_LIGHT * momentum / flight.energy(species)
    time = flight.time + helix.length(path) / velocity.clamp_min(1e-3)
    return replace(flight, x=x, y=y, z=z, time=time, px=momentum * dx, py=momentum * dy, pz=momentum * dz)


def _next_generation(flight: Flight, helix: Helix, ends: Ends, species: SpeciesTable, draw: Draw) -> Flight:
    changed = torch.nonzero((ends.kind == INTERACTION) | (ends.kind == DECAY)).squeeze(1)
    at_end = moved(flight.take(changed), helix.take(changed), ends.path[changed], species)
    decays = ends.kind[changed] == DECAY
    kind = at_end.species
    made = [
        convert(at_end.take(~decays & species.is_photon[kind]), species, draw),
        radiate(at_end.take(~decays & species.is_electron[kind]), species, draw),
        break_up(at_end.take(~decays & species.is_hadron[kind]), species, draw),
        decay(at_end.take(decays), species, draw),
    ]
    together = Flight.join(made)
    return together.take(together.momentum > _SOFTEST_SECONDARY)

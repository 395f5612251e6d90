"""Events from a HepMC3 file, brought to the definition of a final state that the samples obey.

Short-lived particles decay inside the tracker cylinder and nowhere else: a decay outside is undone, a missing one is made.
Pions, charged kaons, K0L, muons and neutrons are left to the detector, so that their decays are undone wherever they are.
Cost on one core: about 1 ms per event of 60 final particles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import FailureError, InputFileError
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.generated import GeneratedEvents
from ringflow.sim.hepmc_file import HepMCFile
from ringflow.sim.pythia import COLUMNS, Columns, Cylinder
from ringflow.sim.short_lived import Decayer

_FINAL, _DECAYED = 1, 2  # HepMC status codes
_LEFT_TO_DETECTOR = (13, 211, 321, 130, 2112)
_PARTONS = (1, 2, 3, 4, 5, 6, 21)


class HepMCGenerator:
    """The events of a file, numbered from 0; event weights are not used."""

    def __init__(self, path: Path, seed: int, cylinder: Cylinder) -> None:
        self._file = HepMCFile(path)
        self._seed = seed
        self._cylinder = cylinder

    @property
    def num_available(self) -> int:
        """Events in the file."""
        return len(self._file)

    @cached_property
    def _decayer(self) -> Decayer:
        return Decayer(self._cylinder)

    def generate(self, start: int, count: int) -> GeneratedEvents:
        """Events number `start` to `start + count - 1`, fewer at the end of the file."""
        numbers = np.arange(start, max(start, min(start + count, len(self._file))), dtype=np.int64)
        events = [self._event(int(number)) for number in numbers]
        counts = np.array([len(event["pdg"]) for event in events], dtype=np.int64)
        columns = {key: np.concatenate([event[key] for event in events] or [np.zeros(0)]) for key in COLUMNS}
        columns["pdg"] = columns["pdg"].astype(np.int32)
        return GeneratedEvents(numbers, counts, **columns, interaction=np.zeros(counts.sum(), dtype=np.int16))

    def describe(self) -> Mapping[str, object]:
        """The file, its hash, and what decays the particles it left undecayed."""
        return {
            "kind": "hepmc",
            "file": self._file.path.name,
            "sha256": self._file.sha256(),
            "events": len(self._file),
            "seed": self._seed,
            "pyhepmc": version("pyhepmc"),
            "pythia8mc": version("pythia8mc"),
        }

    def _event(self, number: int) -> Columns:
        where = f"{self._file.path}: event {number}"
        particles, settled = final_state(_History.of(self._file.read(number)), self._cylinder, where)
        decayer = self._decayer
        try:
            return decayer.decay(particles, settled, ("hepmc", self._seed, number))
        except FailureError as error:
            raise InputFileError(f"{where}: {error}") from None


@dataclass(frozen=True)
class _History:
    """All particles of an event, and the vertices they begin and end at; vertex 0 stands for "none"."""

    pdg: npt.NDArray[np.int32]
    status: npt.NDArray[np.int32]
    momentum: npt.NDArray[np.float64]  # px, py, pz, energy (GeV)
    born: npt.NDArray[np.int64]
    died: npt.NDArray[np.int64]
    places: npt.NDArray[np.float64]  # x, y, z, ct of every vertex (mm), of the event itself for vertex 0

    @classmethod
    def of(cls, event: Any) -> _History:
        """Take a `pyhepmc.GenEvent` apart."""
        from pyhepmc import GenEventData, Units

        event.set_units(Units.GEV, Units.MM)
        particles, vertices, data = event.numpy.particles, event.numpy.vertices, GenEventData()
        event.write_data(data)
        # A link goes from a particle (above 0) to the vertex where it ends (below 0), or from a vertex to a new particle.
        source, target = np.asarray(data.links1, dtype=np.int64), np.asarray(data.links2, dtype=np.int64)
        born, died = np.zeros((2, len(particles.pid)), dtype=np.int64)
        born[target[target > 0] - 1] = -source[target > 0]
        died[source[source > 0] - 1] = -target[source > 0]
        places = np.empty((len(vertices.id) + 1, 4))
        places[0] = tuple(event.event_pos())
        # A vertex without a position of its own answers with that of its ancestors. The vertices come in no order.
        places[-vertices.id] = np.stack([vertices.x, vertices.y, vertices.z, vertices.t], axis=1)
        momentum = np.stack([particles.px, particles.py, particles.pz, particles.e])
        return cls(particles.pid, particles.status, momentum, born, died, places)


def final_state(history: _History, cylinder: Cylinder, where: str) -> tuple[Columns, npt.NDArray[np.bool_]]:
    """Columns of the particles that leave the generator, and which of them are known to decay outside the cylinder."""
    status, born = history.status, history.born
    beyond = _beyond_generator(history, cylinder)
    whole = beyond[history.died] & ~beyond[born]
    final = ((status == _FINAL) & ~beyond[born]) | whole
    x, y, z, ct = history.places[born[final]].T
    values = (history.pdg[final], *history.momentum[:, final], x, y, z, ct / SPEED_OF_LIGHT)
    columns = dict(zip(COLUMNS, values, strict=True))
    if np.any(whole & ~np.isin(status, (_FINAL, _DECAYED))):
        raise InputFileError(f"{where} collides outside the tracker; check the positions and their unit")
    if not final.any():
        raise InputFileError(f"{where} holds no final particles; check that they have status 1")
    if not all(np.isfinite(column).all() for column in values):
        raise InputFileError(f"{where} holds momenta or positions that are not finite; check how the file was made")
    if partons := sorted(set(np.abs(columns["pdg"]).tolist()) & set(_PARTONS)):
        raise InputFileError(f"{where} ends with quarks or gluons (PDG {partons[0]}); hadronise the events first")
    return columns, (whole & (status == _DECAYED))[final]


def _beyond_generator(history: _History, cylinder: Cylinder) -> npt.NDArray[np.bool_]:
    """Vertices that are the detector's to make: outside the cylinder, the end of a long-lived particle, or after such."""
    born, died, places = history.born, history.died, history.places
    beyond = ~cylinder.contains(places[:, 0], places[:, 1], places[:, 2])
    # A file may go on behind a final particle, with what a detector simulation made of it.
    beyond[died[history.status == _FINAL]] = True
    beyond |= _decays_of_long_lived(history)
    beyond[0] = False
    before = 0
    while beyond.sum() > before:
        before = int(beyond.sum())
        beyond[died[beyond[born]]] = True
        beyond[0] = False
    return beyond


def _decays_of_long_lived(history: _History) -> npt.NDArray[np.bool_]:
    num_vertices = len(history.places)
    decayed = history.status == _DECAYED
    mother = np.zeros(num_vertices, dtype=np.int64)
    mother[history.died[decayed]] = history.pdg[decayed]
    # A particle that comes out again only changed its momentum.
    comes_out_again = np.zeros(num_vertices, dtype=bool)
    comes_out_again[history.born[history.pdg == mother[history.born]]] = True
    is_decay = np.bincount(history.died, minlength=num_vertices) == 1
    decays: npt.NDArray[np.bool_] = is_decay & np.isin(np.abs(mother), _LEFT_TO_DETECTOR) & ~comes_out_again
    return decays

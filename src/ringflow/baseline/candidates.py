"""Candidates gathered event by event and turned into a collection."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ringflow.event.block import Collection, cast
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON

Array = npt.NDArray[np.float64]

#: Mass a candidate of each class is given: pion, long-lived kaon, electron, muon.
MASS = np.zeros(8)
MASS[[CHARGED_HADRON, NEUTRAL_HADRON, ELECTRON, MUON]] = (0.13957, 0.49761, 0.000511, 0.10566)

_COLUMNS = ("label", "charge", "px", "py", "pz", "energy", "track", "cluster")


class CandidateList:
    """Collects candidates; `end_event` closes an event, `collection` gives all of them."""

    def __init__(self) -> None:
        self._rows: list[Array] = []
        self._counts: list[int] = []
        self._in_event = 0

    def add_tracks(
        self,
        pt_eta_phi: Array,
        charge: npt.NDArray[np.int64],
        label: npt.NDArray[np.int64],
        cluster: npt.NDArray[np.int64],
        kept: npt.NDArray[np.bool_],
    ) -> None:
        """Charged particles with the momenta of the tracks of an event that are kept."""
        pt, eta, phi = pt_eta_phi.T
        px, py, pz = pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)
        energy = np.sqrt((pt * np.cosh(eta)) ** 2 + MASS[label] ** 2)
        columns = (label, charge, px, py, pz, energy, np.arange(len(pt)), cluster)
        self._add(*(column[kept] for column in columns))

    def add_neutrals(
        self,
        label: Sequence[float] | Array,
        energy: Sequence[float] | Array,
        position: Array,
        cluster: Sequence[float] | Array,
    ) -> None:
        """Neutral particles that come straight from the collision point to a position."""
        energies = np.asarray(energy, dtype=np.float64)
        momentum = np.sqrt(
            np.maximum(energies**2 - MASS[np.asarray(label, dtype=np.int64)] ** 2, (0.5 * energies) ** 2)
        )
        direction = position / np.linalg.norm(position, axis=1, keepdims=True)
        px, py, pz = (momentum[:, None] * direction).T
        none = np.zeros(len(energies))
        self._add(np.asarray(label), none, px, py, pz, energies, none - 1, np.asarray(cluster))

    def _add(self, *columns: npt.NDArray[np.generic]) -> None:
        self._rows.append(np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1))
        self._in_event += len(columns[0])

    def end_event(self) -> None:
        """Everything added since the last call is one event."""
        self._counts.append(self._in_event)
        self._in_event = 0

    def collection(self) -> Collection:
        """All candidates."""
        table = np.concatenate(self._rows) if self._rows else np.zeros((0, len(_COLUMNS)))
        columns = {name: table[:, index] for index, name in enumerate(_COLUMNS)}
        return cast("candidate", np.array(self._counts, dtype=np.int64), columns)

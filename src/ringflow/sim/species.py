"""Kinds of particles that fly through the detector: a small table per block, addressed by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ringflow.event.particles import INVISIBLE, label_of, lookup
from ringflow.sim.decay_table import CHANNELS

#: What interactions and decays in the tracker make; always in the table.
SECONDARIES = (22, 11, -11, 13, -13, 111, 211, -211, 2112, 2212)

_NUCLEONS_AND_HYPERONS = 1000  # hadrons above this PDG number carry baryon number


@dataclass(frozen=True)
class SpeciesTable:
    """Properties of the kinds of particles in a block, one row per kind."""

    pdg: tuple[int, ...]
    number: Tensor  # the PDG numbers again, rising
    label: Tensor
    charge: Tensor
    mass: Tensor
    ctau: Tensor  # mm; infinite where we know no decay
    is_photon: Tensor
    is_electron: Tensor
    is_muon: Tensor
    is_invisible: Tensor
    baryon: Tensor  # +1, -1 or 0

    @classmethod
    def of(cls, present: np.ndarray, device: torch.device) -> SpeciesTable:
        """Table for the PDG numbers of a block and everything they may turn into."""
        kinds = np.unique(np.concatenate([np.unique(present), SECONDARIES])).astype(np.int64)
        code = np.abs(kinds)
        decays = np.array([int(kind) in CHANNELS for kind in code])
        ctau = np.where(decays, lookup(kinds, "ctau"), np.inf)
        is_baryon = (code > _NUCLEONS_AND_HYPERONS) & (code // 1000 % 10 > 0) & (code < 10**6)

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, device=device)

        return cls(
            pdg=tuple(int(kind) for kind in kinds),
            number=tensor(kinds),
            label=tensor(label_of(kinds)),
            charge=tensor(lookup(kinds, "charge")),
            mass=tensor(lookup(kinds, "mass")),
            ctau=tensor(ctau),
            is_photon=tensor(code == 22),
            is_electron=tensor(code == 11),
            is_muon=tensor(code == 13),
            is_invisible=tensor(np.isin(code, INVISIBLE)),
            baryon=tensor(np.where(is_baryon, np.sign(kinds), 0).astype(np.float64)),
        )

    def row(self, pdg: int) -> int:
        """Row of a PDG number."""
        return self.pdg.index(pdg)

    def rows(self, pdg: Tensor) -> Tensor:
        """Rows of PDG numbers."""
        return torch.searchsorted(self.number, pdg)

    @property
    def is_hadron(self) -> Tensor:
        """Everything that showers hadronically."""
        return ~(self.is_photon | self.is_electron | self.is_muon | self.is_invisible)

"""Truth: the particles a perfect reconstruction would return, each assigned to one primary element.

1. Start from the stable generator particles without neutrinos, and what each left in which element.
2. Visible is what left a track, or more than 10 % of its energy in the elements, or is charged and left more than 0.5 GeV
   there.
3. Labels are charged hadron, neutral hadron, photon, electron and muon. Without a track nothing tells a charge: a charged
   hadron or muon is then a neutral hadron, an electron a photon.
4. Electrons and muons below 1 GeV of transverse momentum are hadrons: charged with a track, neutral without.
5. Particles without a track that left (nearly) all in one single element are merged into one, labelled as the most energetic.
6. In order of falling energy every particle takes its best track, else the element where it left most; if that is taken, it is
   merged into the owner, never dropped.
7. The four-momenta of the targets sum to those of the visible particles exactly, because every visible particle is added to
   exactly one target.

An element is a track or, depending on the links given, a cluster or a hit: the same definition serves both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ringflow.elements.tables import group_sum, group_winner
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.event.particles import (
    CHARGED_HADRON,
    ELECTRON,
    MUON,
    NEUTRAL_HADRON,
    NONE,
    PHOTON,
    label_of,
    lookup,
)

VISIBLE_SHARE = 0.1  # of the energy, left in the elements
VISIBLE_CHARGED_ENERGY = 0.5  # GeV
LEPTON_PT = 1.0  # GeV; softer leptons count as hadrons
SINGLE_ELEMENT_SHARE = 0.9  # of what a particle left, to count as left in one element


class TruthInput(NamedTuple):
    """Particles, tracks and calorimeter links of a block of events; all indices count over the block."""

    label: Tensor  # class by PDG number, NONE for neutrinos
    charge: Tensor
    momentum: Tensor  # [particle, (px, py, pz, energy)], double precision
    track_particle: Tensor  # -1: of nobody
    track_quality: Tensor  # the highest is the best track of a particle
    link_element: Tensor
    link_particle: Tensor
    link_energy: Tensor
    num_elements: int


class Targets(NamedTuple):
    """Columns of the collection of targets in the order of their owners, and what is known of each particle."""

    columns: dict[str, Tensor]  # indices as they were given
    owner: Tensor
    target_of: Tensor  # which target carries each particle, -1 if it is not visible
    particle_label: Tensor
    particle_energy: Tensor  # left in the elements


def assign_targets(event: TruthInput, element: str) -> Targets:
    """Apply the definition above to a block of events, on tracks and elements of a kind."""
    num = len(event.label)
    energy = event.momentum[:, 3]
    left = group_sum(event.link_energy.double(), event.link_particle, num)
    of_someone = torch.nonzero(event.track_particle >= 0).squeeze(1)
    best_track = group_winner(event.track_quality[of_someone].double(), event.track_particle[of_someone], num)
    has_track = best_track >= 0
    if len(of_someone):
        best_track = torch.where(has_track, of_someone[best_track.clamp_min(0)], -1)
    best_link = group_winner(event.link_energy.double(), event.link_particle, num)
    has_link = best_link >= 0
    best_element = (
        torch.where(has_link, event.link_element[best_link.clamp_min(0)], -1) if len(event.link_element) else best_link
    )

    charged = event.charge != 0
    enough = (left > VISIBLE_SHARE * energy) | (charged & (left > VISIBLE_CHARGED_ENERGY))
    visible = (event.label != NONE) & (has_track | (enough & has_link))
    label = torch.where(visible, _label(event, has_track), NONE)

    owner_of = torch.where(visible & has_track, torch.arange(num, device=energy.device), -1)
    trackless = torch.nonzero(visible & ~has_track).squeeze(1)
    owner_of[trackless] = _owners(trackless, best_element, best_link, left, event, energy)

    owner, target = torch.unique(owner_of[visible], return_inverse=True)
    target_of = torch.full_like(owner_of, -1)
    target_of[visible] = target
    momentum = torch.zeros((len(owner), 4), dtype=torch.float64, device=energy.device)
    momentum.index_add_(0, target, event.momentum[visible])
    columns = {
        "label": label[owner],
        "charge": torch.where(has_track[owner], event.charge[owner], 0),
        **dict(zip(("px", "py", "pz", "energy"), momentum.unbind(1), strict=True)),
        "track": best_track[owner],
        element: torch.where(has_track[owner], -1, best_element[owner]),
        "num_particles": torch.bincount(target, minlength=len(owner)),
    }
    return Targets(columns, owner, target_of, label, left)


def _label(event: TruthInput, has_track: Tensor) -> Tensor:
    """Points 3 and 4."""
    label = event.label.to(torch.int64)
    pt = torch.hypot(event.momentum[:, 0], event.momentum[:, 1])
    is_lepton = (label == ELECTRON) | (label == MUON)
    hadron = torch.where(has_track, CHARGED_HADRON, NEUTRAL_HADRON)
    without_track = torch.where((label == CHARGED_HADRON) | (label == MUON), NEUTRAL_HADRON, label)
    without_track = torch.where(label == ELECTRON, PHOTON, without_track)
    label = torch.where(has_track, label, without_track)
    return torch.where(is_lepton & (pt < LEPTON_PT), hadron, label)


def _owners(
    rows: Tensor, best_element: Tensor, best_link: Tensor, left: Tensor, event: TruthInput, energy: Tensor
) -> Tensor:
    """Points 5 and 6 for particles without a track: who owns the element each of them wants."""
    element = best_element[rows]
    single = event.link_energy[best_link[rows]] >= SINGLE_ELEMENT_SHARE * left[rows]
    of_row = energy[rows]
    # Those that cannot be told apart claim their element together, in the name of the most energetic one.
    together = group_sum(torch.where(single, of_row, 0.0), element, event.num_elements)
    leader = group_winner(torch.where(single, of_row, -1.0), element, event.num_elements)[element]
    is_leader = single & (leader == torch.arange(len(rows), device=rows.device))
    claim = torch.where(is_leader, together[element], torch.where(single, -1.0, of_row))
    winner = group_winner(claim, element, event.num_elements)
    return rows[winner[element]]


#: Columns that `targets_from_links` needs of a collection, beside those of its links.
NEEDED_FOR_TARGETS = {"particle": ("pdg", "px", "py", "pz", "energy"), "track": ("particle",)}


def targets_from_links(block: EventBlock, element: str) -> tuple[Collection, dict[str, npt.NDArray[Any]]]:
    """Targets of a block of numpy columns on tracks and `element`s (`cluster` or `hit`), and the columns its particles get.

    What left a track is in `track.particle`, what left how much where in `cluster_link` or `hit_link`; several links of a pair
    are one, and links of nobody or nowhere count for nothing. Charges are those of the particles, else those of their kind.
    """
    particles, links = block["particle"], block[f"{element}_link"]
    where, who = _over_block(block, f"{element}_link", element), _over_block(block, f"{element}_link", "particle")
    linked = (where >= 0) & (who >= 0)
    pairs, pair = np.unique(np.stack([where, who])[:, linked], axis=1, return_inverse=True)
    left = np.bincount(pair.ravel(), links["energy"][linked], minlength=pairs.shape[1])
    track_particle, quality = np.zeros(0, dtype=np.int64), np.zeros(0)
    if "track" in block:
        tracks, track_particle = block["track"], _over_block(block, "track", "particle")
        nothing = np.zeros(len(tracks))
        pt, hits = (tracks.columns.get(name, nothing).astype(np.float64) for name in ("pt", "num_hits"))
        quality = hits * 1e6 + np.minimum(pt, 1e5)  # as in the simulation: hits first
    charge = particles.columns.get("charge")
    made = assign_targets(
        TruthInput(
            label=torch.from_numpy(label_of(particles["pdg"]).astype(np.int64)),
            charge=torch.from_numpy(
                lookup(particles["pdg"], "charge") if charge is None else charge.astype(np.float64)
            ),
            momentum=torch.from_numpy(
                np.stack([particles[name].astype(np.float64) for name in ("px", "py", "pz", "energy")], axis=1)
            ),
            track_particle=torch.from_numpy(track_particle),
            track_quality=torch.from_numpy(quality),
            link_element=torch.from_numpy(pairs[0]),
            link_particle=torch.from_numpy(pairs[1]),
            link_energy=torch.from_numpy(left),
            num_elements=len(block[element]),
        ),
        element,
    )
    event = np.repeat(np.arange(len(block)), particles.counts)
    of_target = event[made.owner.numpy()]
    counts = np.bincount(of_target, minlength=len(block)).astype(np.int64)
    columns = {key: column.numpy() for key, column in made.columns.items()}
    for kind in ("track", element):
        start = block[kind].offsets[of_target] if kind in block else 0
        columns[kind] = np.where(columns[kind] >= 0, columns[kind] - start, -1)
    name = "target" if element == "cluster" else "hit_target"
    targets = cast(name, counts, columns)
    target_of = made.target_of.numpy()
    own = np.where(target_of >= 0, target_of - targets.offsets[event], -1)
    found = {"label": made.particle_label.numpy(), "calo_energy": made.particle_energy.numpy(), name: own}
    return targets, cast("particle", particles.counts, found).columns


def _over_block(block: EventBlock, collection: str, column: str) -> npt.NDArray[np.int64]:
    """Indices that count over the block, of a column named like the collection that its indices within the event count in."""
    part = block[collection]
    index = part[column].astype(np.int64)
    return np.where(index >= 0, index + np.repeat(block[column].offsets[:-1], part.counts), -1)

"""Truth of an EDM4hep file: generator particles, what each left where, and targets by the definition of the simulation.

Simulated secondaries are traced back to the generator particle they descend from. A particle that lives for less than a metre
and decayed before the calorimeter stands for its products, as in the simulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringflow.data.edm4hep.podio import Array, Objects, PodioBlock, References, Rows, spread
from ringflow.data.edm4hep.profile import Profile, TruthSource
from ringflow.event.particles import label_of, lookup

Columns = dict[str, Array]

_STABLE = 1  # generator status
_OVERLAY_BIT = 23  # of the simulator status
_SHORT_LIVED = 1000.0  # mm, c tau; pions, kaons, muons, neutrons and K0L live longer
_NO_CHARGE = 8  # charges beyond are not charges: some files mark unknown ones so
_LONGEST_CHAIN = 200


@dataclass(frozen=True)
class Links:
    """Who left how much where; rows of elements and of particles."""

    element: Rows
    particle: Rows
    energy: npt.NDArray[np.float64]


@dataclass(frozen=True)
class Particles:
    """The particles of the truth: their columns, and which of them every particle of the file belongs to (-1: none)."""

    all: Objects
    event: Rows
    columns: Columns
    belongs_to: Rows

    def __len__(self) -> int:
        return len(self.event)


def read_particles(block: PodioBlock, source: TruthSource, profile: Profile) -> Particles:
    """Stable generator particles, neutrinos included."""
    everything = block.objects([source.particles], "PDG")
    pdg = block.need(everything, "PDG").astype(np.int64)
    parent = _first_parent(block, everything)
    is_true = _final_state(block, everything, pdg, parent, profile)
    rows = np.flatnonzero(is_true)
    number = np.full(len(pdg), -1, np.int64)
    number[rows] = np.arange(len(rows))
    px, py, pz = (part[rows] for part in block.three(everything, "momentum"))
    x, y, z = (part[rows] for part in block.three(everything, "vertex"))
    mass = block.need(everything, "mass").astype(np.float64)[rows]
    charge = block.need(everything, "charge").astype(np.float64)[rows]
    charge = np.where(np.abs(charge) > _NO_CHARGE, lookup(pdg[rows], "charge"), charge)
    status = block.column(everything, "simulatorStatus")
    overlaid = np.zeros(len(rows)) if status is None else (status[rows].astype(np.int64) >> _OVERLAY_BIT) & 1
    columns: Columns = {
        "pdg": pdg[rows],
        "px": px,
        "py": py,
        "pz": pz,
        "energy": np.sqrt(px**2 + py**2 + pz**2 + np.clip(mass, 0.0, None) ** 2),
        "charge": np.rint(charge),
        "x": x,
        "y": y,
        "z": z,
        "time": block.need(everything, "time").astype(np.float64)[rows] * (source.time_unit or 1.0),
        "interaction": overlaid,
    }
    return Particles(everything, everything.event[rows], columns, number[_ancestor(is_true, parent)])


def _first_parent(block: PodioBlock, particles: Objects) -> Rows:
    parent = np.full(len(particles), -1, np.int64)
    if (references := block.relation(particles, "parents")) is not None and len(references.owner):
        owner, first = np.unique(references.owner, return_index=True)
        parent[owner] = particles.locate(references)[first]
    return parent


def _final_state(block: PodioBlock, particles: Objects, pdg: Rows, parent: Rows, profile: Profile) -> Array:
    """Which particles are the truth: stable ones, or the products of those that decayed on the way."""
    is_true: Array = np.asarray(block.need(particles, "generatorStatus") == _STABLE)
    x, y, z = block.three(particles, "endpoint")
    has_products = np.zeros(len(pdg), bool)
    has_products[parent[parent >= 0]] = True
    decays = has_products & (lookup(pdg, "ctau") < _SHORT_LIVED)
    decays &= (np.hypot(x, y) < profile.face_radius) & (np.abs(z) < profile.face_z)
    for _ in range(_LONGEST_CHAIN):
        decaying = is_true & decays
        if not decaying.any():
            break
        is_true = (is_true & ~decaying) | ((parent >= 0) & decaying[parent])
    return is_true


def _ancestor(is_true: Array, parent: Rows) -> Rows:
    """Row of the first of a particle and its ancestors that belongs to the truth; the last row reached if none does."""
    row = np.arange(len(parent))
    for _ in range(_LONGEST_CHAIN):
        climbs = ~is_true[row] & (parent[row] >= 0)
        if not climbs.any():
            break
        row = np.where(climbs, parent[row], row)
    return row


def _read_links(block: PodioBlock, names: Iterable[str | None]) -> tuple[Array, References, References] | None:
    """Weight and both ends of the links of those collections that the file has."""
    present = [name for name in names if name is not None and block.file.has(name)]
    if not present:
        return None
    links = block.objects(present, "weight")
    start, end = block.reference(links, "from", "rec"), block.reference(links, "to", "sim")
    return None if start is None or end is None else (block.need(links, "weight").astype(np.float64), start, end)


def linked(
    block: PodioBlock, collection: str | None, elements: Objects, particles: Particles, energy: Array
) -> Links | None:
    """Links from elements to particles, in whichever direction the file stores them."""
    found = _read_links(block, [collection])
    if found is None:
        return None
    weight, start, end = found
    element, particle = elements.locate(start), particles.all.locate(end)
    if len(weight) and not np.any((element >= 0) & (particle >= 0)):
        element, particle = elements.locate(end), particles.all.locate(start)
    return shared(element, particle, weight, particles, energy)


def shared(element: Rows, particle: Rows, weight: Array, particles: Particles, energy: Array) -> Links:
    """The energy of each element, divided among the particles linked to it by weight; by their energy if no link weighs."""
    truth = np.where(particle >= 0, particles.belongs_to[particle], -1) if len(particle) else particle
    good = (element >= 0) & (truth >= 0)
    element, truth, weight = element[good], truth[good], np.clip(weight[good], 0.0, None)
    total = np.bincount(element, weight, minlength=len(energy))[element]
    weight = np.where(total > 0.0, weight, particles.columns["energy"][truth])
    return _merge(element, truth, weight, particles, energy)


def _merge(element: Rows, truth: Rows, weight: Array, particles: Particles, energy: Array) -> Links:
    """One link per pair, with the energy of the element in proportion to the weights."""
    key, pair = np.unique(element * max(len(particles), 1) + truth, return_inverse=True)
    weight = np.bincount(pair, weight, minlength=len(key)) if len(key) else np.zeros(0)
    element, truth = key // max(len(particles), 1), key % max(len(particles), 1)
    total = np.bincount(element, weight, minlength=len(energy))[element]
    share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0.0)
    return Links(element, truth, share * energy[element])


def through_simulated_hits(
    block: PodioBlock, source: TruthSource, hits: Objects, particles: Particles, energy: Array
) -> Links | None:
    """Links of hits by way of the simulated hits they were made of, and the contributions to those."""
    names = [name for name in source.simulated_hits or () if block.file.has(name)]
    parts = [name for name in source.contributions or () if block.file.has(name)]
    found = _read_links(block, source.simulated_hit_links or ())
    if not (names and parts) or found is None:
        return None
    simulated, contributions = block.objects(names, "energy"), block.objects(parts, "energy")
    held, who = block.relation(simulated, "contributions"), block.reference(contributions, "particle")
    if held is None or who is None:
        return None
    hit_of = np.full(len(simulated), -1, np.int64)
    hit, made_of = hits.locate(found[1]), simulated.locate(found[2])
    both = (hit >= 0) & (made_of >= 0)
    hit_of[made_of[both]] = hit[both]
    contribution = contributions.locate(held)
    good = contribution >= 0
    element, contribution = hit_of[held.owner[good]], contribution[good]
    particle = particles.all.locate(who)[contribution]
    return shared(element, particle, block.need(contributions, "energy")[contribution], particles, energy)


def through_candidates(
    block: PodioBlock,
    collection: str | None,
    candidates: Objects | None,
    relation: str,
    elements: Objects,
    particles: Particles,
    energy: Array,
) -> Links | None:
    """Links of the tracks or clusters of reconstructed particles, for files that link these only."""
    held = block.relation(candidates, relation) if candidates is not None else None
    found = _read_links(block, [collection])
    if candidates is None or held is None or found is None:
        return None
    weight, start, end = found
    candidate, particle = candidates.locate(start), particles.all.locate(end)
    order = np.argsort(candidate, kind="stable")
    first, last = (np.searchsorted(candidate[order], held.owner, side=side) for side in ("left", "right"))
    link = order[spread(first, last - first)]
    element = np.repeat(elements.locate(held), last - first)
    return shared(element, particle[link], weight[link], particles, energy)


def of_clusters(hit_links: Links, cluster_of: Rows, num_clusters: int, particles: Particles) -> Links:
    """What each particle left in each cluster, from what it left in the hits."""
    cluster = cluster_of[hit_links.element]
    inside = cluster >= 0
    energy = np.bincount(cluster[inside], hit_links.energy[inside], minlength=num_clusters)
    return _merge(cluster[inside], hit_links.particle[inside], hit_links.energy[inside], particles, energy)


def particles_of_tracks(links: Links, num_tracks: int) -> Rows:
    """The particle that weighs most for each track, -1 without a link."""
    particle = np.full(num_tracks, -1, np.int64)
    order = np.argsort(links.energy, kind="stable")
    particle[links.element[order]] = links.particle[order]
    return particle


def targets(
    links: Links, num_elements: int, particles: Particles, track_particle: Rows, quality: Array, element: str
) -> tuple[Columns, Columns, Rows]:
    """Columns of the target collection, those it adds to the particles, and the event of each target; rows as indices."""
    import torch

    from ringflow.elements.truth import TruthInput, assign_targets

    tracks = np.flatnonzero(track_particle >= 0)
    momentum = np.stack([particles.columns[name] for name in ("px", "py", "pz", "energy")], axis=1)
    made = assign_targets(
        TruthInput(
            label=torch.from_numpy(label_of(particles.columns["pdg"]).astype(np.int64)),
            charge=torch.from_numpy(particles.columns["charge"]),
            momentum=torch.from_numpy(momentum.astype(np.float64)),
            track_particle=torch.from_numpy(track_particle[tracks]),
            track_quality=torch.from_numpy(quality[tracks].astype(np.float64)),
            link_element=torch.from_numpy(links.element),
            link_particle=torch.from_numpy(links.particle),
            link_energy=torch.from_numpy(links.energy),
            num_elements=num_elements,
        )
    )
    columns: Columns = {name: column.numpy() for name, column in made.columns(element).items()}
    if len(tracks):
        columns["track"] = np.where(columns["track"] >= 0, tracks[columns["track"]], -1)
    of_particles = {
        "label": made.particle_label.numpy(),
        "calo_energy": made.particle_energy.numpy(),
        "target": made.target_of.numpy(),
    }
    return columns, of_particles, particles.event[made.owner.numpy()]

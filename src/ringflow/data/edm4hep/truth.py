"""Truth of an EDM4hep file: generator particles, what each left where, and targets by the definition of the simulation.

Simulated secondaries are traced back to the generator particle they descend from. A particle that lives for less than a metre
and decayed before the calorimeter stands for its products, as in the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ringflow.data.edm4hep.podio import Array, Objects, PodioBlock, References, Rows, relation_of, spread
from ringflow.data.edm4hep.profile import Profile, TruthSource
from ringflow.event.particles import label_of, lookup

Columns = dict[str, Array]

_STABLE = 1  # generator status
_OVERLAY_BIT = 23  # of the simulator status
_SHORT_LIVED = 1000.0  # mm, c tau; pions, kaons, muons, neutrons and K0L live longer
_NO_CHARGE = 8  # charges beyond are not charges: some files mark unknown ones so
_LONGEST_CHAIN = 200
_PARTICLE = {
    "pdg": "PDG",
    "px": "momentum.x",
    "py": "momentum.y",
    "pz": "momentum.z",
    "mass": "mass",
    "charge": "charge",
    "x": "vertex.x",
    "y": "vertex.y",
    "z": "vertex.z",
    "time": "time",
}


class Links(NamedTuple):
    """Who left how much where; rows of elements and of particles."""

    element: Rows
    particle: Rows
    energy: npt.NDArray[np.float64]


class Particles(NamedTuple):
    """The particles of the truth: their columns, and which of them every particle of the file belongs to (-1: none)."""

    all: Objects
    event: Rows
    columns: Columns
    belongs_to: Rows


def read_particles(everything: Objects, source: TruthSource, profile: Profile) -> Particles:
    """Stable generator particles, neutrinos included."""
    pdg, parent = everything.need("PDG"), first_of(everything.relation("parents"), everything, len(everything))
    is_true = _final_state(everything, pdg, parent, profile)
    rows = np.flatnonzero(is_true)
    number = np.full(len(pdg), -1, np.int64)
    number[rows] = np.arange(len(rows))
    columns = {name: values[rows] for name, values in everything.table(_PARTICLE).items()}
    px, py, pz, charge = (columns[name] for name in ("px", "py", "pz", "charge"))
    columns["energy"] = np.sqrt(px**2 + py**2 + pz**2 + np.clip(columns.pop("mass"), 0.0, None) ** 2)
    columns["charge"] = np.rint(np.where(np.abs(charge) > _NO_CHARGE, lookup(columns["pdg"], "charge"), charge))
    columns["time"] = columns["time"] * (source.time_unit or 1.0)
    status = everything.column("simulatorStatus")
    columns["interaction"] = np.zeros(len(rows)) if status is None else (status[rows] >> _OVERLAY_BIT) & 1
    return Particles(everything, everything.event[rows], columns, number[_ancestor(is_true, parent)])


def first_of(references: References | None, objects: Objects, owners: int) -> Rows:
    """The first of these objects that each owner refers to, -1 for none."""
    first = np.full(owners, -1, np.int64)
    if references is not None:
        row = objects.locate(references)
        owner, place = np.unique(references.owner[row >= 0], return_index=True)
        first[owner] = row[row >= 0][place]
    return first


def _final_state(particles: Objects, pdg: Rows, parent: Rows, profile: Profile) -> Array:
    """Which particles are the truth: stable ones, or the products of those that decayed on the way."""
    is_true: Array = np.asarray(particles.need("generatorStatus") == _STABLE)
    x, y, z = particles.three("endpoint")
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


def read_links(block: PodioBlock, names: Sequence[str | None]) -> tuple[Array, References, References] | None:
    """Weight and both ends of the links of those collections that the file has."""
    links = block.objects(names, "weight")
    if links is None:
        return None
    start, end = links.reference("from", "rec"), links.reference("to", "sim")
    return None if start is None or end is None else (links.need("weight"), start, end)


def linked(
    block: PodioBlock, collection: str | None, elements: Objects, particles: Particles, energy: Array
) -> Links | None:
    """Links from elements to particles, in whichever direction the file stores them."""
    found = read_links(block, [collection])
    if found is None:
        return None
    weight, start, end = found
    element, particle = elements.locate(start), particles.all.locate(end)
    if len(weight) and not np.any((element >= 0) & (particle >= 0)):
        element, particle = elements.locate(end), particles.all.locate(start)
    return _shared(element, particle, weight, particles, energy)


def _shared(element: Rows, particle: Rows, weight: Array, particles: Particles, energy: Array) -> Links:
    """The energy of each element, divided among the particles linked to it by weight; by their energy if no link weighs."""
    truth = np.where(particle >= 0, particles.belongs_to[particle], -1) if len(particle) else particle
    good = (element >= 0) & (truth >= 0)
    element, truth, weight = element[good], truth[good], np.clip(weight[good], 0.0, None)
    total = np.bincount(element, weight, minlength=len(energy))[element]
    weight = np.where(total > 0.0, weight, particles.columns["energy"][truth])
    return _merge(element, truth, weight, particles, energy)


def _merge(element: Rows, truth: Rows, weight: Array, particles: Particles, energy: Array) -> Links:
    """One link per pair, with the energy of the element in proportion to the weights."""
    size = max(len(particles.event), 1)
    key, pair = np.unique(element * size + truth, return_inverse=True)
    weight = np.bincount(pair, weight, minlength=len(key)) if len(key) else np.zeros(0)
    element, truth = key // size, key % size
    total = np.bincount(element, weight, minlength=len(energy))[element]
    share = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0.0)
    return Links(element, truth, share * energy[element])


def through_simulated_hits(
    block: PodioBlock, source: TruthSource, hits: Objects, particles: Particles, energy: Array
) -> Links | None:
    """Links of hits by way of the simulated hits they were made of, and the contributions to those."""
    simulated = block.objects(source.simulated_hits or (), "energy")
    contributions = block.objects(source.contributions or (), "energy")
    found = read_links(block, source.simulated_hit_links or ())
    if simulated is None or contributions is None or found is None:
        return None
    held, who = simulated.relation("contributions"), contributions.reference("particle")
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
    return _shared(element, particle, contributions.need("energy")[contribution], particles, energy)


def through_candidates(
    collection: str | None,
    candidates: Objects | None,
    relation: str,
    elements: Objects,
    particles: Particles,
    energy: Array,
) -> Links | None:
    """Links of the tracks or clusters of reconstructed particles, for files that link these only."""
    held = relation_of(candidates, relation)
    if candidates is None or held is None or (found := read_links(candidates.block, [collection])) is None:
        return None
    weight, start, end = found
    candidate, particle = candidates.locate(start), particles.all.locate(end)
    order = np.argsort(candidate, kind="stable")
    first, last = (np.searchsorted(candidate[order], held.owner, side=side) for side in ("left", "right"))
    link = order[spread(first, last - first)]
    element = np.repeat(elements.locate(held), last - first)
    return _shared(element, particle[link], weight[link], particles, energy)


def of_clusters(hit_links: Links, cluster_of: Rows, num_clusters: int, particles: Particles) -> Links:
    """What each particle left in each cluster, from what it left in the hits."""
    inside = cluster_of[hit_links.element] >= 0
    cluster, left = cluster_of[hit_links.element][inside], hit_links.energy[inside]
    energy = np.bincount(cluster, left, minlength=num_clusters)
    return _merge(cluster, hit_links.particle[inside], left, particles, energy)


def targets(
    links: Links, num_elements: int, particles: Particles, track_particle: Rows, quality: Array, element: str
) -> tuple[Rows, Columns, Columns]:
    """The event of each target, the columns of the target collection, and those that particles get; rows as indices."""
    import torch

    from ringflow.elements.truth import TruthInput, assign_targets

    tracks, of = np.flatnonzero(track_particle >= 0), particles.columns
    momentum = np.stack([of[name] for name in ("px", "py", "pz", "energy")], axis=1)
    made = assign_targets(
        TruthInput(
            label=torch.from_numpy(label_of(of["pdg"]).astype(np.int64)),
            charge=torch.from_numpy(of["charge"]),
            momentum=torch.from_numpy(momentum),
            track_particle=torch.from_numpy(track_particle[tracks]),
            track_quality=torch.from_numpy(quality[tracks]),
            **{f"link_{name}": torch.from_numpy(values) for name, values in links._asdict().items()},
            num_elements=num_elements,
        ),
        element,
    )
    columns: Columns = {name: column.numpy() for name, column in made.columns.items()}
    if len(tracks):
        columns["track"] = np.where(columns["track"] >= 0, tracks[columns["track"]], -1)
    name = "target" if element == "cluster" else "hit_target"
    of_particles = {"label": made.particle_label, "calo_energy": made.particle_energy, name: made.target_of}
    return particles.event[made.owner.numpy()], columns, {name: part.numpy() for name, part in of_particles.items()}

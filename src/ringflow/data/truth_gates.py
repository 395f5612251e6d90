"""The gates that compare collections with each other: links, energy sums, and the accounting of the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ringflow.data.gates import NONE, EveryValue, Limits, Values, column
from ringflow.event.block import EventBlock
from ringflow.event.schema import COLLECTIONS

#: Sums of float32 numbers, in whatever order, agree to this relative precision.
SUM_PRECISION = Limits(0, 1e-4)
#: Four-momenta are accounted for to this fraction of the visible energy of the event.
ACCOUNTING_PRECISION = Limits(0, 1e-5)
#: Energies below this (GeV) are compared as if they had it.
SMALL_ENERGY = 1e-6
#: Of its energy a visible particle left more than this in the calorimeter, or it left a track.
VISIBLE_SHARE = 0.1


def link_gates() -> Iterator[EveryValue]:
    """Indices point to something; energies are the sums of their parts."""
    yield EveryValue("indices out of range", (), NONE, _indices_out_of_range)
    for collection in ("hit", "cluster"):
        link = f"{collection}_link"
        needs = (f"{collection}_energy", f"{link}_{collection}", f"{link}_energy")
        name = f"{collection} energy against its links"
        yield EveryValue(name, needs, SUM_PRECISION, _energy_against(collection, link, collection))
    from_hits = ("cluster_energy", "hit_cluster", "hit_energy")
    yield EveryValue(
        "cluster energy against its hits", from_hits, SUM_PRECISION, _energy_against("cluster", "hit", "cluster")
    )
    from_subsystems = ("cluster_energy", "cluster_ecal_energy", "cluster_hcal_energy", "cluster_muon_energy")
    yield EveryValue("cluster energy against its subsystems", from_subsystems, SUM_PRECISION, _subsystem_sum)
    yield EveryValue("cluster hit counts that differ", ("cluster_num_hits", "hit_cluster"), NONE, _wrong_hit_counts)


def accounting_gates() -> Iterator[EveryValue]:
    """The four-momenta of the targets of an event add up to those of its visible particles.

    Visible means visible in the elements: a soft photon can leave hits that no cluster took. `label` speaks of tracks and
    clusters, and so does `target`; `hit_target` has particles of its own.
    """
    momentum = ("px", "py", "pz", "energy")
    for collection, mark in (("target", "label"), ("hit_target", "hit_target")):
        columns = (f"{part}_{column}" for part in ("particle", collection) for column in momentum)
        needs = (f"particle_{mark}", *columns)
        yield EveryValue(f"{collection} four-momentum", needs, ACCOUNTING_PRECISION, _unaccounted(collection))


def target_gates() -> Iterator[EveryValue]:
    """Every target has one primary element of its own and the particles it says it has."""
    for collection, element in (("target", "cluster"), ("hit_target", "hit")):
        needs = (f"{collection}_track", f"{collection}_{element}")
        name = f"{collection}s without exactly one element"
        yield EveryValue(name, needs, NONE, _without_one_element(collection, element))
        yield EveryValue(f"elements with two {collection}s", needs, NONE, _claimed_twice(collection, element))
        counted = (f"particle_{collection}", f"{collection}_num_particles")
        yield EveryValue(
            f"{collection}s with another number of particles", counted, NONE, _wrong_particle_counts(collection)
        )
    needs = ("particle_label", "particle_target")
    yield EveryValue("visible particles without a target", needs, NONE, _lost_on_clusters)
    needs_energy = ("particle_label", "particle_hit_target", "particle_energy", "particle_calo_energy")
    yield EveryValue("visible particles without a hit_target", needs_energy, NONE, _lost_on_hits)


def event_of(block: EventBlock, collection: str) -> Values:
    """Row of the event in the block, for every object."""
    return np.repeat(np.arange(len(block)), block[collection].counts)


def flat_index(block: EventBlock, collection: str, name: str, points_to: str) -> Values:
    """An index within the event as an index into the flat column it points to; -1 where it points nowhere."""
    index = column(block, collection, name).astype(np.int64)
    event = event_of(block, collection)
    good = (index >= 0) & (index < block[points_to].counts[event])
    return np.where(good, block[points_to].offsets[event] + index, -1)


def sum_at(index: Values, weights: Values, length: int) -> Values:
    """Sum of the weights per index; index -1 is left out."""
    return np.bincount(index[index >= 0], weights[index >= 0].astype(np.float64), minlength=length)


def _indices_out_of_range(block: EventBlock) -> Values:
    wrong = [np.zeros(0, dtype=bool)]
    for name, part in block.collections.items():
        for described in COLLECTIONS[name]:
            if described.points_to in block.collections and described.name in part.columns:
                index = column(block, name, described.name)
                limit = block[described.points_to].counts[event_of(block, name)]
                wrong.append((index < -1) | (index >= limit))
    return np.array([np.count_nonzero(part) for part in wrong])


def _energy_against(whole: str, parts: str, index_column: str) -> Callable[[EventBlock], Values]:
    """Relative difference between an energy and the sum of its parts."""

    def measure(block: EventBlock) -> Values:
        index = flat_index(block, parts, index_column, whole)
        energy = column(block, whole, "energy").astype(np.float64)
        return _relative(sum_at(index, column(block, parts, "energy"), len(energy)), energy)

    return measure


def _relative(value: Values, reference: Values) -> Values:
    return np.asarray(np.abs(value - reference) / np.maximum(np.abs(reference), SMALL_ENERGY))


def _subsystem_sum(block: EventBlock) -> Values:
    parts = [column(block, "cluster", f"{part}_energy") for part in ("ecal", "hcal", "muon")]
    total = np.asarray(np.sum(parts, axis=0, dtype=np.float64))
    return _relative(total, column(block, "cluster", "energy").astype(np.float64))


def _wrong_hit_counts(block: EventBlock) -> Values:
    index = flat_index(block, "hit", "cluster", "cluster")
    counted = np.bincount(index[index >= 0], minlength=len(block["cluster"]))
    return np.array([np.count_nonzero(counted != column(block, "cluster", "num_hits"))])


def _unaccounted(collection: str) -> Callable[[EventBlock], Values]:
    """Largest lost or invented component of the four-momentum, as a fraction of the visible energy."""

    def measure(block: EventBlock) -> Values:
        seen = column(block, "particle", "label") > 0
        if collection == "hit_target":
            seen = column(block, "particle", "hit_target") >= 0
        visible = np.where(seen, event_of(block, "particle"), -1)
        owner = event_of(block, collection)
        worst = np.zeros(len(block))
        scale = np.maximum(sum_at(visible, column(block, "particle", "energy"), len(block)), SMALL_ENERGY)
        for component in ("px", "py", "pz", "energy"):
            truth = sum_at(visible, column(block, "particle", component), len(block))
            carried = sum_at(owner, column(block, collection, component), len(block))
            worst = np.maximum(worst, np.abs(carried - truth) / scale)
        return worst

    return measure


def _without_one_element(collection: str, element: str) -> Callable[[EventBlock], Values]:
    def measure(block: EventBlock) -> Values:
        elements = [column(block, collection, kind) >= 0 for kind in ("track", element)]
        return np.array([np.count_nonzero(np.sum(elements, axis=0) != 1)])

    return measure


def _claimed_twice(collection: str, element: str) -> Callable[[EventBlock], Values]:
    def measure(block: EventBlock) -> Values:
        indices = [flat_index(block, collection, kind, kind) for kind in ("track", element) if kind in block]
        return np.array([np.count_nonzero(np.bincount(index[index >= 0]) > 1) for index in indices])

    return measure


def _wrong_particle_counts(collection: str) -> Callable[[EventBlock], Values]:
    def measure(block: EventBlock) -> Values:
        index = flat_index(block, "particle", collection, collection)
        counted = np.bincount(index[index >= 0], minlength=len(block[collection]))
        return np.array([np.count_nonzero(counted != column(block, collection, "num_particles"))])

    return measure


def _lost_on_clusters(block: EventBlock) -> Values:
    """Particles with a label and no target, or the other way round."""
    return np.array([np.sum((column(block, "particle", "label") > 0) != (column(block, "particle", "target") >= 0))])


def _lost_on_hits(block: EventBlock) -> Values:
    """Particles without a target on hits that have one on clusters, or left enough in the hits to have one."""
    enough = column(block, "particle", "calo_energy") > VISIBLE_SHARE * (1 + 1e-4) * column(block, "particle", "energy")
    visible = enough | (column(block, "particle", "label") > 0)
    return np.array([np.sum(visible & (column(block, "particle", "hit_target") < 0))])

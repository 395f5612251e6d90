"""The same generated events in full simulation and in ours: tracks, clusters, energies and photons, as a table and a record.

    ringflow simulate --hepmc ild_ttbar.hepmc3.zst --detector ild.toml --out data/fast
    python benchmarks/compare_full_simulation.py data/ild_ttbar data/fast

The events of both datasets are taken in order, and must be the same ones. Every figure is given for both and as a ratio, with
the central 68 % of a hundred resampled sets of events; the sets are the same for both, so that what events fluctuate by
together does not widen the ratio. A figure that a dataset has no columns for is a dash in the table and null in the record.

Photon candidates are those the dataset brings (of full simulation usually Pandora's), else those of the rules; the rules take
the constants of the dataset's detector unless `--constants` names others. A track's cluster is the one whose centre is nearest
to its straight line behind the calorimeter face: the same question to both simulations, whatever each of them links. Clusters
left over are those that no track has and no generated neutral particle points to: a track has the one whose centre is nearest
to its helix, in the field of the dataset's detector. A network that is not told whose they are sees neutral particles.
Cost: seconds for 25 events.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ringflow.base.errors import DatasetError, RingflowError
from ringflow.baseline.rules import load_constants, reconstruct_block
from ringflow.bench import write_record
from ringflow.data.read import Dataset
from ringflow.elements.clustering import TrackPaths
from ringflow.evaluate.bootstrap import Entries, estimate, event_weights, ratio
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.particles import BENDING, INVISIBLE, PHOTON
from ringflow.sim.geometry import load_detector
from ringflow.train.device import hardware

Floats = npt.NDArray[np.float64]

QUANTILES = (0.25, 0.50, 0.75, 0.90)
LEAST_PHOTON, LEAST_CLUSTER = 0.5, 1.0  # GeV
#: Tracks whose clusters are compared with their momentum (GeV), and how far the centre may be from the line (mm).
LEAST_MOMENTUM, MOST_DISTANCE = 1.0, 100.0
#: A track has the cluster that is nearest to its helix within so much (mm); one nearer than this (rad) to a generated neutral
#: particle of at least such a share of its energy is that particle's.
OWN_DISTANCE, NEUTRAL_ANGLE, NEUTRAL_SHARE = 250.0, 0.03, 0.2
#: Distances from the helix of the nearest track that are told apart (mm).
NEAR, FAR = 100.0, 400.0
#: Generated energies of the same event agree so well, save in so many events.
SAME_ENERGY, MOST_DIFFERENT = 0.02, 0.1


def columns_of(part: Collection, *names: str) -> Floats:
    """Columns beside each other, [object, column]."""
    return np.stack([part[name].astype(np.float64) for name in names], axis=1)


def per_event(part: Collection, values: npt.NDArray[Any] | None = None) -> Floats:
    """Sum over the objects of each event, or their number."""
    event = np.repeat(np.arange(len(part.counts)), part.counts)
    return np.bincount(event, values, len(part.counts)).astype(np.float64)


def momentum_of(tracks: Collection) -> Floats:
    """Of tracks, GeV."""
    pt, eta = columns_of(tracks, "pt", "eta").T
    momentum: Floats = pt * np.cosh(eta)
    return momentum


def energy_over_momentum(block: EventBlock) -> tuple[npt.NDArray[np.int64], Floats]:
    """Event and E/p of every track above the least momentum that meets the calorimeter and has a cluster behind that place."""
    tracks, clusters = block["track"], block["cluster"]
    momentum = momentum_of(tracks)
    face, line = columns_of(tracks, "calo_x", "calo_y", "calo_z"), columns_of(tracks, "calo_dx", "calo_dy", "calo_dz")
    centre, energy = columns_of(clusters, "x", "y", "z"), clusters["energy"]
    events, values = [], []
    for event in range(len(block)):
        mine = np.arange(*tracks.offsets[event : event + 2])
        mine = mine[(tracks["reaches_calo"][mine] > 0) & (momentum[mine] > LEAST_MOMENTUM)]
        first, last = clusters.offsets[event : event + 2]
        if first == last:
            continue
        away = centre[None, first:last] - face[mine, None]
        along = (away * line[mine, None]).sum(-1)
        across = np.sqrt(np.maximum((away**2).sum(-1) - along**2, 0.0))
        # A centre in front of the face (a shower that goes backwards) is as far as it is from the place itself.
        distance = np.where(along > 0.0, across, np.sqrt((away**2).sum(-1)))
        nearest = distance.argmin(1)
        near = distance[np.arange(len(mine)), nearest] < MOST_DISTANCE
        values.append(energy[first + nearest[near]] / momentum[mine[near]])
        events.append(np.full(int(near.sum()), event))
    return np.concatenate([np.zeros(0, np.int64), *events]), np.concatenate([np.zeros(0), *values])


def left_over(block: EventBlock, field: float) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Which clusters are left over, and how far each cluster is from the helix of the nearest track that meets the calorimeter
    (infinite where there is none)."""
    tracks, clusters, particles = block["track"], block["cluster"], block["particle"]
    face, line = columns_of(tracks, "calo_x", "calo_y", "calo_z"), columns_of(tracks, "calo_dx", "calo_dy", "calo_dz")
    turn = -BENDING * field * tracks["charge"] / tracks["pt"].astype(np.float64)
    slope = line[:, 2] / np.hypot(line[:, 0], line[:, 1])
    numbers = np.stack([momentum_of(tracks), *face.T, np.arctan2(line[:, 1], line[:, 0]), slope, turn])
    neutral = (particles["charge"] == 0) & ~np.isin(np.abs(particles["pdg"]), list(INVISIBLE))
    flight = columns_of(particles, "px", "py", "pz")
    flight /= np.maximum(np.linalg.norm(flight, axis=1, keepdims=True), 1e-9)
    centre = columns_of(clusters, "x", "y", "z")
    of_nobody, distance = np.ones(len(centre), dtype=bool), np.full(len(centre), np.inf)
    for event in range(len(block)):
        here = slice(*clusters.offsets[event : event + 2])
        if not clusters.counts[event]:
            continue
        mine = np.arange(*tracks.offsets[event : event + 2])
        mine = mine[tracks["reaches_calo"][mine] > 0]
        paths = TrackPaths(torch.zeros(len(mine), 1), *torch.from_numpy(numbers[:, mine, None]))
        away = paths.distance(*torch.from_numpy(centre[here].T[:, None])).numpy()  # [track, cluster]
        if len(mine):
            distance[here] = away.min(0)
            own = away.argmin(1)[away.min(1) < OWN_DISTANCE]
            of_nobody[here.start + own] = False
        others = np.arange(*particles.offsets[event : event + 2])
        others = others[neutral[others]]
        direction = centre[here] / np.linalg.norm(centre[here], axis=1, keepdims=True)
        near = direction @ flight[others].T > np.cos(NEUTRAL_ANGLE)
        enough = particles["energy"][others] > NEUTRAL_SHARE * clusters["energy"][here, None]
        of_nobody[here] &= ~(near & enough).any(1)
    return of_nobody, distance


def rows_of(block: EventBlock, candidates: Collection | None, field: float) -> Iterator[tuple[str, Floats | None]]:
    """Names of figures and what they are for the data and every replicate; None for what the dataset does not tell."""
    weights = event_weights(np.arange(len(block)))

    def mean(values: Floats) -> Floats:
        return ratio(weights @ values, weights.sum(1))

    def quantiles(of: npt.NDArray[Any], event: npt.NDArray[Any], fractions: tuple[float, ...]) -> Floats:
        entries = Entries()
        entries.fill(event.astype(np.int64), of.astype(np.float64))
        return entries.quantiles(fractions)

    tracks, clusters, particles = block["track"], block["cluster"], block["particle"]
    of_cluster = np.repeat(np.arange(len(block)), clusters.counts)
    yield "tracks", mean(per_event(tracks))
    momentum = momentum_of(tracks)
    yield "sum of track momenta [GeV]", mean(per_event(tracks, momentum))
    reaching = momentum * (tracks["reaches_calo"] > 0)
    yield "the same of tracks that meet the calorimeter [GeV]", mean(per_event(tracks, reaching))
    yield "clusters", mean(per_event(clusters))
    yield f"clusters above {LEAST_CLUSTER:g} GeV", mean(per_event(clusters, clusters["energy"] > LEAST_CLUSTER))
    energies = quantiles(clusters["energy"], of_cluster, QUANTILES)
    for fraction, value in zip(QUANTILES, energies, strict=True):
        yield f"cluster energy, {fraction:.0%} quantile [GeV]", value
    for name in ("ecal", "hcal"):
        yield f"sum in {name.upper()} [GeV]", mean(per_event(clusters, clusters[f"{name}_energy"]))
    hits = clusters.columns.get("num_hits")
    yield "hits per cluster, median", None if hits is None else quantiles(hits, of_cluster, (0.5,))[0]
    yield "hits in clusters", None if hits is None else mean(per_event(clusters, hits))
    event, over = energy_over_momentum(block)
    with_cluster = np.bincount(event, minlength=len(block)).astype(np.float64)
    yield f"tracks above {LEAST_MOMENTUM:g} GeV with a cluster", mean(with_cluster)
    yield "E/p of their clusters, median", quantiles(over, event, (0.5,))[0]
    free, away = left_over(block, field)
    energy, in_ecal = clusters["energy"], clusters["ecal_energy"] > 0.9 * clusters["energy"]
    yield "clusters left over", mean(per_event(clusters, free))
    yield "their energy [GeV]", mean(per_event(clusters, free * energy))
    yield f"of those above {LEAST_CLUSTER:g} GeV", mean(per_event(clusters, free & (energy > LEAST_CLUSTER)))
    yield "of those in the ECAL", mean(per_event(clusters, free & in_ecal))
    yield f"of those within {NEAR:g} mm of a track", mean(per_event(clusters, free & (away < NEAR)))
    yield f"of those {NEAR:g} to {FAR:g} mm away", mean(per_event(clusters, free & (away >= NEAR) & (away < FAR)))
    yield "of those further away", mean(per_event(clusters, free & (away >= FAR)))
    energetic = particles["energy"] > LEAST_PHOTON
    true = (particles["pdg"] == 22) & energetic
    yield f"true photons above {LEAST_PHOTON:g} GeV", mean(per_event(particles, true))
    yield "of those with a target", mean(per_event(particles, true & (particles["target"] >= 0)))
    targets = block["target"]
    of_photons = (targets["label"] == PHOTON) & (targets["energy"] > LEAST_PHOTON)
    yield f"photon targets above {LEAST_PHOTON:g} GeV", mean(per_event(targets, of_photons))
    for name, least in (("photon candidates", 0.0), (f"photon candidates above {LEAST_PHOTON:g} GeV", LEAST_PHOTON)):
        if candidates is None:
            yield name, None
        else:
            photons = (candidates["label"] == PHOTON) & (candidates["energy"] > least)
            yield name, mean(per_event(candidates, photons))


def candidates_of(block: EventBlock, detector: str) -> tuple[str, Collection | None]:
    """Whose candidates an event is given, and the candidates; None where nothing makes any."""
    if "candidate" in block:
        return "of the dataset", block["candidate"]
    try:
        return f"of the rules for {detector}", reconstruct_block(block, load_constants(detector))
    except (RingflowError, KeyError) as error:
        return f"none ({error})", None


def different_events(full: EventBlock, fast: EventBlock) -> list[int]:
    """Which events were generated with another energy; an error if they are too many to be the same events.

    A few may differ, because a simulation undoes decays that lie beyond its tracker.
    """
    if len(full) != len(fast):
        raise DatasetError(
            f"{len(full)} events of full simulation, {len(fast)} of ours; simulate all of them, and no other"
        )
    energies = [per_event(block["particle"], block["particle"]["energy"]) for block in (full, fast)]
    different = np.flatnonzero(np.abs(energies[1] - energies[0]) > SAME_ENERGY * energies[0])
    if len(different) > MOST_DIFFERENT * len(full):
        event = int(different[0])
        told = " and ".join(f"{energy[event]:.1f}" for energy in energies)
        raise DatasetError(f"event {event} was generated with {told} GeV; give the same events in the same order")
    return [int(event) for event in different]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("full", type=Path, help="dataset of full simulation, with truth")
    parser.add_argument("fast", type=Path, help="the same events from ringflow simulate --hepmc")
    parser.add_argument("--constants", help="of the rules: a detector's name or a TOML file")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "compare_full_simulation.json")
    options = parser.parse_args()
    datasets = Dataset(options.full), Dataset(options.fast)
    full, fast = (concatenate(list(dataset.events())) for dataset in datasets)
    different = different_events(full, fast)
    names = [options.constants or dataset.manifest.detector for dataset in datasets]
    whose, candidates = zip(*map(candidates_of, (full, fast), names), strict=True)
    print(f"{len(full)} events; photon candidates: {whose[0]} in full simulation, {whose[1]} in ours")
    if different:
        print(f"generated energy differs by more than {SAME_ENERGY:.0%} in {len(different)} of them: {different}")
    print()
    print("| per event | full | fast | ratio | 68 % interval |\n|---|---|---|---|---|")
    rows: list[dict[str, Any]] = []
    fields = [load_detector(dataset.manifest.detector).field for dataset in datasets]
    pairs = zip(rows_of(full, candidates[0], fields[0]), rows_of(fast, candidates[1], fields[1]), strict=True)
    for (name, reference), (_, ours) in pairs:
        both = None if reference is None or ours is None else ratio(ours, reference)
        row = {
            key: None if values is None else estimate(values)
            for key, values in (("full", reference), ("fast", ours), ("ratio", both))
        }
        rows.append({"name": name, **row})
        cells = ["-" if (cell := row[key]) is None else f"{cell['value']:.3g}" for key in ("full", "fast", "ratio")]
        interval = "-" if row["ratio"] is None else f"{row['ratio']['lo']:.3f} to {row['ratio']['hi']:.3f}"
        print(f"| {name} | {' | '.join(cells)} | {interval} |")
    record = {
        "benchmark": "compare_full_simulation",
        "events": len(full),
        "events_that_differ": different,
        "detectors": [dataset.manifest.detector for dataset in datasets],
        "samples": [dataset.manifest.sample for dataset in datasets],
        "geometry_sha256": datasets[1].manifest.provenance.get("geometry_sha256"),
        "photon_candidates": list(whose),
        "rows": rows,
        **hardware("cpu"),
    }
    print(f"\n{write_record(record, options.out)}")


if __name__ == "__main__":
    main()

"""Rule-based and perfect particle flow on guns and on hand-made situations."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ringflow.base.errors import UsageError
from ringflow.baseline.perfect import perfect_block
from ringflow.baseline.rules import (
    HadronScale,
    event_views,
    excess_neutrals,
    load_constants,
    momentum_across,
    reconstruct_block,
)
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON
from ringflow.sim.blocks import Shot, simulate_shot
from ringflow.sim.detector import Detector
from ringflow.sim.generator import make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings

CONSTANTS = load_constants("clic")
BARREL = (-0.65, 0.65)


@cache
def gun(pdg: int, energy: float, cos_theta: tuple[float, float] = BARREL, events: int = 300) -> EventBlock:
    return concatenate(list(simulate_shot(Shot("clic", (pdg,), energy, cos_theta, events, 17))))


@cache
def collisions(sample: str, events: int = 60) -> EventBlock:
    geometry = load_detector("clic")
    generator = make_generator(GeneratorSettings(sample=sample, seed=5), *geometry.tracker_cylinder)
    return Detector(geometry).simulate_block(generator.generate(0, events), 5)


def per_event(part: Collection, values: np.ndarray) -> np.ndarray:
    event = np.repeat(np.arange(len(part.counts)), part.counts)
    return np.bincount(event, weights=values, minlength=len(part.counts))


def share_with(candidates: Collection, label: int) -> float:
    return float(np.mean(per_event(candidates, candidates["label"] == label) > 0))


@pytest.mark.parametrize(("energy", "cos_theta"), [(2.0, (-0.6, 0.6)), (60.0, (-0.6, 0.6)), (20.0, (0.75, 0.95))])
def test_photons_are_identified(energy: float, cos_theta: tuple[float, float]):
    block = gun(22, energy, cos_theta)
    # A photon that converted leaves tracks: what is asked for here is the identification of showers.
    whole = block["track"].counts == 0
    candidates = reconstruct_block(block, CONSTANTS)
    found = per_event(candidates, candidates["label"] == PHOTON) > 0
    assert found[whole].mean() >= 0.9
    measured = per_event(candidates, candidates["energy"])[whole & found]
    assert np.median(measured) == pytest.approx(energy, rel=0.05)


@pytest.mark.parametrize(
    ("pdg", "energy", "label", "found"),
    [(13, 15.0, MUON, 0.9), (11, 20.0, ELECTRON, 0.8), (130, 20.0, NEUTRAL_HADRON, 0.9)],
)
def test_particles_are_identified_and_pions_are_not_taken_for_them(pdg: int, energy: float, label: int, found: float):
    candidates = reconstruct_block(gun(pdg, energy), CONSTANTS)
    assert share_with(candidates, label) > found
    if label == NEUTRAL_HADRON:
        assert np.median(per_event(candidates, candidates["energy"])) == pytest.approx(energy, rel=0.06)
    else:
        assert share_with(reconstruct_block(gun(211, energy), CONSTANTS), label) < 0.05


def test_charged_pions_are_one_particle_with_the_momentum_of_the_track():
    candidates = reconstruct_block(gun(211, 10.0), CONSTANTS)
    total = per_event(candidates, candidates["energy"])
    assert np.median(total) == pytest.approx(10.0, rel=0.01)
    # Pieces of its shower are not counted again: hardly any event has 2 GeV too much.
    assert np.mean(total > 12.0) < 0.15
    assert share_with(candidates, CHARGED_HADRON) > 0.95


#: A cluster in the HCAL: where its hits are and the energy of each.
Shower = list[tuple[float, float, float, float]]


def shower(energy: float, y: float, x: float = 1900.0, hits: int = 20) -> Shower:
    """Hits of equal energy along z around a point above the barrel."""
    return [(x, y, 4.0 * (k - 0.5 * (hits - 1)), energy / hits) for k in range(hits)]


def event(momentum: float, *clusters: Shower) -> EventBlock:
    """One event: a charged particle that flies along x, and clusters."""
    track = {"pt": momentum, "eta": 0.0, "phi": 0.0, "charge": 1, "reaches_calo": 1}
    track |= {
        "calo_x": CONSTANTS.face_radius,
        "calo_y": 0.0,
        "calo_z": 0.0,
        "calo_dx": 1.0,
        "calo_dy": 0.0,
        "calo_dz": 0.0,
    }
    hits = np.array([hit for cluster in clusters for hit in cluster])
    of = np.repeat(np.arange(len(clusters)), [len(cluster) for cluster in clusters])
    energy = np.bincount(of, hits[:, 3])
    centre = [np.bincount(of, hits[:, 3] * hits[:, k]) / energy for k in range(3)]
    none = np.zeros(len(clusters))
    cluster = {"energy": energy, **dict(zip("xyz", centre, strict=True))}
    cluster |= {"ecal_energy": none, "hcal_energy": energy, "muon_energy": none}
    hit = {**dict(zip("xyz", hits.T[:3], strict=True)), "energy": hits[:, 3], "cluster": of}
    hit |= {"subsystem": np.full(len(of), 2), "layer": np.zeros(len(of), np.int64)}

    def one(columns: dict[str, np.ndarray]) -> Collection:
        return Collection(np.array([len(next(iter(columns.values())))]), columns)

    tracks = {name: np.array([value]) for name, value in track.items()}
    return EventBlock(np.zeros(1, np.int64), {"track": one(tracks), "cluster": one(cluster), "hit": one(hit)})


def found(momentum: float, *clusters: Shower) -> tuple[int, float]:
    """Number of neutral candidates, and their energy."""
    candidates = reconstruct_block(event(momentum, *clusters), CONSTANTS)
    neutral = candidates["charge"] == 0
    assert (~neutral).sum() == 1
    return int(neutral.sum()), float(candidates["energy"][neutral].sum())


def test_a_piece_with_little_momentum_across_a_track_is_of_its_shower():
    main = shower(9.0, 0.0)
    assert found(10.0, main, shower(0.3, 250.0)) == (0, 0.0)
    # The same piece with more energy, or further away, does not come from there; if it is nearer, it may have more.
    assert found(10.0, main, shower(2.0, 250.0))[0] == 1
    assert found(10.0, main, shower(0.3, 1500.0))[0] == 1
    assert found(10.0, main, shower(2.0, 100.0)) == (0, 0.0)


def test_pieces_that_momentum_does_not_explain_stay_free():
    assert found(2.0, shower(2.0, 0.0), shower(2.0, 100.0)) == (0, 0.0)
    number, energy = found(2.0, shower(3.5, 0.0), shower(3.0, 60.0))
    assert number == 1
    # Its own energy, at the hadronic scale; not what the group has too much.
    assert energy == pytest.approx(3.2, rel=0.1)


def test_a_track_without_a_cluster_gets_pieces_that_lie_where_it_goes():
    assert found(2.0, shower(1.5, 120.0)) == (0, 0.0)
    assert found(2.0, shower(1.5, 400.0))[0] == 1
    assert found(0.5, shower(6.0, 40.0, x=2200.0, hits=3))[0] == 1  # it cannot leave so much


def test_a_piece_beside_a_larger_neutral_shower_is_of_that():
    main, neutral, piece = shower(9.0, 0.0), shower(5.0, 500.0), shower(0.4, 300.0)
    number, energy = found(10.0, main, neutral)
    assert number == 1
    assert found(10.0, main, piece) == (0, 0.0)
    number, together = found(10.0, main, neutral, piece)
    assert number == 1
    assert together > energy + 0.3


def test_an_excess_is_a_neutral_hadron_only_if_it_pulls_to_a_side():
    balanced = [*shower(10.0, 0.0), *shower(5.0, 150.0), *shower(5.0, -150.0)]
    assert found(10.0, balanced) == (0, 0.0)
    number, energy = found(10.0, [*shower(10.0, 0.0), *shower(10.0, 150.0)])
    assert number == 1
    assert energy == pytest.approx(10.0, rel=0.1)
    assert found(10.0, [*shower(10.0, 0.0), *shower(1.0, 150.0)]) == (0, 0.0)


@pytest.mark.parametrize(
    ("firm", "energy", "photons"), [(True, 11.0, 1), (False, 11.0, 0), (True, 5.0, 0), (False, 25.0, 1)]
)
def test_firm_photons_are_taken_out_of_what_tracks_explain_others_of_an_excess(firm: bool, energy: float, photons: int):
    scale = HadronScale(np.array([0.0, 5.0]), np.ones(2), 0.3, 0.6, 6.0, 3.0)
    view = next(event_views(event(10.0, shower(1.0, 0.0)), CONSTANTS.field, np.zeros(1, bool)))
    cores = np.array([[4.0, 1550.0, 60.0, 0.0]])
    made = excess_neutrals(
        view, 0, (10.0, energy, 1.9, 99.0 if energy < 20.0 else 12.0), cores, np.array([firm]), scale
    )
    assert (made[:, 0] == PHOTON).sum() == photons


def test_momentum_across_is_that_against_the_nearest_track():
    view = next(event_views(event(1e4, shower(1.0, 0.0)), CONSTANTS.field, np.zeros(1, bool)))
    cores = np.array([[4.0, 1580.0, 50.0, 0.0], [4.0, 1580.0, 0.0, 0.0], [4.0, 0.0, 1580.0, 0.0]])
    across = momentum_across(view, cores)
    assert across[0] == pytest.approx(4.0 * 50.0 / 100.0, rel=0.01)
    assert across[1] < 0.01
    assert across[2] > 100.0


def test_a_track_found_twice_is_one_candidate():
    block = collisions("zuds_91")
    tracks = block["track"]
    order = np.repeat(np.arange(len(tracks)), 2)
    columns = {name: values[order].copy() for name, values in tracks.columns.items()}
    columns["pt"][1::2] *= 1.0 + columns["sigma_pt"][1::2]
    columns["sigma_pt"][1::2] *= 1.5
    twice = EventBlock(block.event_number, {**block.collections, "track": Collection(2 * tracks.counts, columns)})
    once, both = reconstruct_block(block, CONSTANTS), reconstruct_block(twice, CONSTANTS)
    charged = [per_event(part, part["charge"] != 0) for part in (once, both)]
    np.testing.assert_array_equal(*charged)
    used = both["track"] >= 0
    assert (both["track"][used] % 2 == 0).all()
    # Without the columns that tell, every track is a particle.
    bare = {name: values for name, values in columns.items() if name != "sigma_phi"}
    blind = EventBlock(block.event_number, {**block.collections, "track": Collection(2 * tracks.counts, bare)})
    assert (reconstruct_block(blind, CONSTANTS)["charge"] != 0).sum() == 2 * len(tracks)


@pytest.mark.parametrize("sample", ["zuds_91", "ttbar"])
def test_perfect_flow_is_sharper_than_the_rules_and_both_are_unbiased(sample: str):
    block = collisions(sample)
    particles = block["particle"]
    true = per_event(particles, particles["energy"] * (particles["target"] >= 0))
    spread = {}
    for name, reconstruct in (("perfect", perfect_block), ("baseline", reconstruct_block)):
        candidates = reconstruct(block, CONSTANTS)
        ratio = per_event(candidates, candidates["energy"]) / true
        assert np.median(ratio) == pytest.approx(1.0, abs=0.05)
        low, high = np.quantile(ratio, [0.25, 0.75])
        spread[name] = high - low
    assert spread["perfect"] < 0.8 * spread["baseline"]


@pytest.mark.parametrize("reconstruct", [perfect_block, reconstruct_block])
def test_candidates_are_whole(reconstruct):
    block = collisions("ttbar")
    candidates = reconstruct(block, CONSTANTS)
    assert len(candidates.counts) == len(block)
    for column, values in candidates.columns.items():
        assert np.isfinite(values).all(), column
    p2 = sum(candidates[axis].astype(np.float64) ** 2 for axis in ("px", "py", "pz"))
    assert (candidates["energy"].astype(np.float64) ** 2 >= p2 * (1 - 1e-4)).all()
    tracks = np.repeat(block["track"].counts, candidates.counts)
    assert ((candidates["track"] >= -1) & (candidates["track"] < tracks)).all()
    used = candidates["track"] >= 0
    event = np.repeat(np.arange(len(block)), candidates.counts)
    assert len(set(zip(event[used], candidates["track"][used], strict=True))) == used.sum()


def without(block: EventBlock, *names: str) -> EventBlock:
    """The same events with nothing in these collections."""
    nothing = {
        name: Collection(
            np.zeros(len(block), dtype=np.int64), {k: values[:0] for k, values in block[name].columns.items()}
        )
        for name in names
    }
    return EventBlock(block.event_number, {**block.collections, **nothing})


@pytest.mark.parametrize("left_out", ["track", "hit", "everything"])
def test_events_in_which_something_is_missing(left_out: str):
    block = collisions("zuds_91").take(0, 5)
    if left_out == "everything":
        empty = without(block, *block.collections)
        assert perfect_block(empty, CONSTANTS).counts.tolist() == [0] * 5
        assert reconstruct_block(empty, CONSTANTS).counts.tolist() == [0] * 5
    else:
        candidates = reconstruct_block(without(block, left_out), CONSTANTS)
        assert (candidates.counts > 0).all()
        assert (share_with(candidates, CHARGED_HADRON) > 0) == (left_out != "track")


def test_data_without_hits_is_reconstructed_from_the_centres_of_clusters():
    block = collisions("zuds_91")
    coarse = EventBlock(block.event_number, {name: part for name, part in block.collections.items() if name != "hit"})
    fine, candidates = reconstruct_block(block, CONSTANTS), reconstruct_block(coarse, CONSTANTS)
    charged = [per_event(part, part["charge"] != 0) for part in (fine, candidates)]
    np.testing.assert_array_equal(*charged)
    energy = [per_event(part, part["energy"]) for part in (fine, candidates)]
    assert np.median(energy[1] / energy[0]) == pytest.approx(1.0, abs=0.1)


def test_shapes_that_data_from_outside_lacks_are_not_asked_for():
    """Photons are then told by their share in the ECAL alone: still found, and more of them."""
    block = gun(22, 20.0)
    clusters = {
        k: v for k, v in block["cluster"].columns.items() if k not in ("width_across", "mean_depth", "start_layer")
    }
    bare = EventBlock(
        block.event_number, {"track": block["track"], "cluster": Collection(block["cluster"].counts, clusters)}
    )
    candidates = reconstruct_block(bare, CONSTANTS)
    assert share_with(candidates, PHOTON) > 0.9
    assert share_with(candidates, PHOTON) >= share_with(reconstruct_block(block, CONSTANTS), PHOTON)


def test_unknown_detector():
    with pytest.raises(UsageError, match="no baseline constants for detector 'clik': did you mean 'clic'"):
        load_constants("clik")


def test_a_file_of_constants_that_is_not_there():
    with pytest.raises(
        UsageError, match=r"no file of constants at mine\.toml; ringflow calibrate --baseline --out mine\.t"
    ):
        load_constants("mine.toml")

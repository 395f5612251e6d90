"""Rule-based and perfect particle flow on guns and on hand-made situations."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ringflow.base.errors import UsageError
from ringflow.baseline.constants import load_constants
from ringflow.baseline.perfect import perfect_block
from ringflow.baseline.rules import reconstruct_block
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, PHOTON
from ringflow.sim.blocks import Shot, simulate_shot
from ringflow.sim.detector import Detector
from ringflow.sim.generator import make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings

CONSTANTS = load_constants("clic")
BARREL, DETECTOR = (-0.65, 0.65), (-0.95, 0.95)


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


@pytest.mark.parametrize("energy", [2.0, 5.0, 20.0, 60.0])
@pytest.mark.parametrize("cos_theta", [(-0.6, 0.6), (0.75, 0.95)])
def test_photons_are_identified(energy: float, cos_theta: tuple[float, float]):
    block = gun(22, energy, cos_theta)
    # A photon that converted leaves tracks: what is asked for here is the identification of showers.
    whole = block["track"].counts == 0
    candidates = reconstruct_block(block, CONSTANTS)
    found = per_event(candidates, candidates["label"] == PHOTON) > 0
    assert found[whole].mean() >= 0.9
    measured = per_event(candidates, candidates["energy"])[whole & found]
    assert np.median(measured) == pytest.approx(energy, rel=0.05)


def test_muons_are_found_by_their_trace():
    candidates = reconstruct_block(gun(13, 15.0), CONSTANTS)
    assert share_with(candidates, MUON) > 0.9
    pions = reconstruct_block(gun(211, 15.0), CONSTANTS)
    assert share_with(pions, MUON) < 0.05


def test_electrons_are_found_and_keep_their_radiation():
    block = gun(11, 20.0)
    candidates = reconstruct_block(block, CONSTANTS)
    assert share_with(candidates, ELECTRON) > 0.8
    assert share_with(reconstruct_block(gun(211, 20.0), CONSTANTS), ELECTRON) < 0.05


def test_charged_pions_are_one_particle_with_the_momentum_of_the_track():
    candidates = reconstruct_block(gun(211, 10.0), CONSTANTS)
    total = per_event(candidates, candidates["energy"])
    assert np.median(total) == pytest.approx(10.0, rel=0.01)
    # Pieces of its shower are not counted again: hardly any event has 2 GeV too much.
    assert np.mean(total > 12.0) < 0.15
    assert share_with(candidates, CHARGED_HADRON) > 0.95


def test_a_stiff_track_that_ends_in_the_tracker_is_left_out():
    block = gun(211, 10.0, BARREL, 1500)
    tracks = block["track"]
    stopped = (tracks["reaches_calo"] == 0) & (tracks["pt"] > 2.0)
    assert stopped.sum() > 10
    candidates = reconstruct_block(block, CONSTANTS)
    used = np.repeat(tracks.offsets[:-1], candidates.counts)[candidates["track"] >= 0]
    rows = used + candidates["track"][candidates["track"] >= 0]
    assert not stopped[rows].any()
    assert len(rows) == len(tracks) - stopped.sum()


def test_neutral_hadrons_are_found_at_their_energy():
    candidates = reconstruct_block(gun(130, 20.0), CONSTANTS)
    assert share_with(candidates, NEUTRAL_HADRON) > 0.9
    assert np.median(per_event(candidates, candidates["energy"])) == pytest.approx(20.0, rel=0.06)


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


def test_empty_events_have_no_candidates():
    block = collisions("ttbar").take(0, 3)
    nothing = {
        name: Collection(np.zeros(3, dtype=np.int64), {column: values[:0] for column, values in part.columns.items()})
        for name, part in block.collections.items()
    }
    empty = EventBlock(block.event_number, nothing)
    for reconstruct in (perfect_block, reconstruct_block):
        assert reconstruct(empty, CONSTANTS).counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("left_out", ["track", "hit"])
def test_events_without_tracks_or_hits(left_out: str):
    block = collisions("zuds_91").take(0, 5)
    part = block[left_out]
    gone = Collection(np.zeros(5, dtype=np.int64), {column: values[:0] for column, values in part.columns.items()})
    candidates = reconstruct_block(EventBlock(block.event_number, {**block.collections, left_out: gone}), CONSTANTS)
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


def test_unknown_detector():
    with pytest.raises(UsageError, match="no baseline constants for detector 'clik': did you mean 'clic'"):
        load_constants("clik")

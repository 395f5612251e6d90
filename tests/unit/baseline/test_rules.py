"""Rule-based and perfect particle flow on guns and on hand-made situations."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from ringflow.base.errors import UsageError
from ringflow.baseline.perfect import perfect_block
from ringflow.baseline.rules import load_constants, reconstruct_block
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


def test_a_stiff_track_that_ends_in_the_tracker_is_left_out():
    block = collisions("ttbar")
    tracks, candidates = block["track"], reconstruct_block(block, CONSTANTS)
    ends, stiff = tracks["reaches_calo"] == 0, tracks["pt"] > 2.0
    assert (ends & stiff).sum() > 10
    first = np.repeat(tracks.offsets[:-1], candidates.counts)
    has_track = candidates["track"] >= 0
    used = np.isin(np.arange(len(tracks)), first[has_track] + candidates["track"][has_track])
    assert not used[ends & stiff].any()
    assert used[~ends | (tracks["pt"] < 0.9)].all()


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
    with pytest.raises(UsageError, match=r"no file of constants at mine\.toml; ringflow calibrate --baseline --out mine\.t"):
        load_constants("mine.toml")

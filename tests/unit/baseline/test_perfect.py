"""Perfect particle flow: who is measured by what, and in which direction."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from ringflow.baseline.perfect import direction_at, perfect_block
from ringflow.baseline.rules import BENDING, load_constants
from ringflow.elements.helix import Helix
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.particles import CHARGED_HADRON
from ringflow.sim.blocks import Shot, simulate_shot
from ringflow.sim.detector import Detector
from ringflow.sim.generator import make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings

CONSTANTS = load_constants("clic")
FIELD = CONSTANTS.field


@cache
def collisions() -> EventBlock:
    geometry = load_detector("clic")
    generator = make_generator(GeneratorSettings(sample="zuds_91", seed=6), *geometry.tracker_cylinder)
    return Detector(geometry).simulate_block(generator.generate(0, 60), 6)


def turned(angle: np.ndarray) -> np.ndarray:
    return np.abs(np.remainder(angle + np.pi, 2 * np.pi) - np.pi)


def rows_of(block: EventBlock, owner: str, column: str) -> np.ndarray:
    """Where an index of an object points in the flat columns of the block; only for those that point somewhere."""
    part = block[owner]
    event = np.repeat(np.arange(len(block)), part.counts)
    there = part[column] >= 0
    return (part[column] + block[column].offsets[event])[there]


@pytest.mark.parametrize("charge", [1, -1])
def test_a_track_has_the_direction_it_was_born_with(charge: int):
    rng = np.random.default_rng(3)
    x, y, pt = rng.uniform(-300, 300, 50), rng.uniform(-300, 300, 50), rng.uniform(0.3, 20, 50)
    # Outwards, as what flies away from the collision does: the perigee lies behind.
    phi = np.arctan2(y, x) + rng.uniform(-1.0, 1.0, 50)
    turn = -BENDING * FIELD * charge / pt
    d0, _, at_perigee = Helix(*(torch.as_tensor(v) for v in (x, y, 0 * x, phi, 0 * x, turn))).perigee()
    birth, charges = np.stack([x, y], axis=1), np.full(50, charge)
    found = direction_at(birth, pt, at_perigee.numpy(), d0.numpy(), charges, FIELD, np.zeros(50, bool))
    assert turned(found - phi).max() < 1e-9
    assert turned(at_perigee.numpy() - phi).max() > 0.1


def test_a_leg_of_a_photon_has_the_direction_of_the_photon():
    rng = np.random.default_rng(4)
    phi, pt, away = rng.uniform(-3, 3, 50), rng.uniform(0.3, 20, 50), rng.uniform(30, 1200, 50)
    charge = rng.choice([-1, 1], 50)
    turn = -BENDING * FIELD * charge / pt
    at = (away * np.cos(phi), away * np.sin(phi), 0 * away, phi, 0 * away, turn)
    d0, _, at_perigee = Helix(*(torch.as_tensor(v) for v in at)).perigee()
    found = direction_at(np.zeros((50, 2)), pt, at_perigee.numpy(), d0.numpy(), charge, FIELD, np.ones(50, bool))
    assert turned(found - phi).max() < 1e-6


def test_particles_born_off_the_beam_have_their_true_direction():
    block = collisions()
    candidates, targets, tracks = perfect_block(block, CONSTANTS), block["target"], block["track"]
    has = targets["track"] >= 0
    particle = tracks["particle"][rows_of(block, "target", "track")]
    particle = particle + block["particle"].offsets[np.repeat(np.arange(len(block)), targets.counts)[has]]
    off_beam = np.hypot(block["particle"]["x"][particle], block["particle"]["y"][particle]) > 30.0
    chosen = np.flatnonzero(has)[off_beam & (targets["label"][has] == CHARGED_HADRON)]
    assert len(chosen) > 20
    true, made = (np.arctan2(part["py"], part["px"])[chosen] for part in (targets, candidates))
    assert np.median(turned(made - true)) < 0.01
    perigee = tracks["phi"][rows_of(block, "target", "track")][np.searchsorted(np.flatnonzero(has), chosen)]
    assert np.median(turned(perigee - true)) > 0.03


def test_a_converted_photon_is_measured_by_its_tracks():
    block = concatenate(list(simulate_shot(Shot("clic", (22,), 10.0, (-0.65, 0.65), 600, 17))))
    whole = np.flatnonzero((block["track"].counts == 2) & (block["target"].counts == 1))
    tracks, candidates = block["track"], perfect_block(block, CONSTANTS)
    pairs = [event for event in whole if tracks["charge"][tracks.offsets[event] : tracks.offsets[event + 1]].sum() == 0]
    assert len(pairs) > 8
    energy = candidates["energy"][candidates.offsets[pairs]]
    assert np.mean(np.abs(energy / 10.0 - 1.0) < 0.03) > 0.6  # a photon that did not convert is known to 5 %


def test_tracks_of_nobody_make_no_candidate_and_of_copies_the_best_counts():
    block = collisions()
    tracks, before = block["track"], perfect_block(block, CONSTANTS)
    # A copy of every track with a third of its momentum and a hit more, and one of nobody, in front of it.
    order = np.repeat(np.arange(len(tracks)), 3)
    columns = {name: values[order].copy() for name, values in tracks.columns.items()}
    columns["pt"][0::3] *= 0.3
    columns["num_hits"][0::3] += 1
    columns["particle"][1::3] = -1
    charged = np.isin(np.arange(len(block["target"])), np.flatnonzero(block["target"]["charge"] != 0))
    copied = EventBlock(block.event_number, {**block.collections, "track": Collection(3 * tracks.counts, columns)})
    after = perfect_block(copied, CONSTANTS)
    assert after.counts.tolist() == before.counts.tolist()
    # A few soft ones were measured so badly that a third of it is nearer the truth.
    assert np.isclose(after["px"][charged], before["px"][charged]).mean() > 0.99
    assert (after["track"][after["track"] >= 0] % 3 == 2).mean() > 0.9

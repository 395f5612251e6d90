"""The detector as a whole: conservation, symmetry, determinism."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ringflow.elements.shapes import Face, cluster_columns
from ringflow.event.block import EventBlock
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.event.schema import COLLECTIONS, SIMULATED
from ringflow.sim.blocks import BARREL, Shot, simulate_shot
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, make_generator
from ringflow.sim.geometry import detector_names, load_detector
from ringflow.sim.settings import GeneratorSettings

EVENTS = 12


def generate(sample: str, detector: str, events: int = EVENTS) -> GeneratedEvents:
    cylinder = load_detector(detector).tracker_cylinder
    return make_generator(GeneratorSettings(sample=sample, seed=3), *cylinder).generate(0, events)


@pytest.fixture(scope="module", params=detector_names())
def block(request: pytest.FixtureRequest) -> EventBlock:
    return Detector(load_detector(request.param)).simulate_block(generate("ttbar", request.param), seed=11)


def sum_by(values: np.ndarray, index: np.ndarray, size: int) -> np.ndarray:
    return np.bincount(index, weights=values.astype(np.float64), minlength=size)


def over_block(part, collection, index: str) -> np.ndarray:
    """Index within the event turned into an index over the block."""
    return part[index] + np.repeat(collection.offsets[:-1], part.counts)


def test_every_simulated_column_is_there_with_its_dtype(block: EventBlock):
    assert set(block.collections) == set(SIMULATED)
    for name, part in block.collections.items():
        assert [(c.name, c.dtype) for c in COLLECTIONS[name]] == [(k, v.dtype.name) for k, v in part.columns.items()]
        assert len(part.counts) == len(block)
        for values in part.columns.values():
            assert len(values) == len(part)
            assert np.isfinite(values).all()


def test_links_sum_to_hits_and_hits_to_clusters(block: EventBlock):
    hits, clusters = block["hit"], block["cluster"]
    links = block["hit_link"]
    linked = sum_by(links["energy"], over_block(links, hits, "hit"), len(hits))
    # Noise belongs to nobody: links make up all of the other hits.
    of_nobody = linked == 0.0
    assert of_nobody.mean() < 0.1
    with_noise = linked < hits["energy"] * (1.0 - 1e-5)
    assert with_noise[~of_nobody].mean() < 1e-3
    np.testing.assert_allclose(linked[~with_noise], hits["energy"][~with_noise], rtol=1e-5)
    inside = hits["cluster"] >= 0
    total = sum_by(hits["energy"][inside], over_block(hits, clusters, "cluster")[inside], len(clusters))
    np.testing.assert_allclose(total, clusters["energy"], rtol=1e-4)
    shares = block["cluster_link"]
    np.testing.assert_allclose(
        sum_by(shares["energy"], over_block(shares, clusters, "cluster"), len(clusters)),
        sum_by(linked[inside], over_block(hits, clusters, "cluster")[inside], len(clusters)),
        rtol=1e-4,
        atol=1e-6,
    )
    parts = clusters["ecal_energy"] + clusters["hcal_energy"] + clusters["muon_energy"]
    np.testing.assert_allclose(parts, clusters["energy"], rtol=1e-4)


@pytest.mark.parametrize("target", ["target", "hit_target"])
def test_targets_carry_the_visible_four_momentum_event_by_event(block: EventBlock, target: str):
    particles, targets = block["particle"], block[target]
    of_particle = np.repeat(np.arange(len(block)), particles.counts)
    of_target = np.repeat(np.arange(len(block)), targets.counts)
    visible = particles[target] >= 0
    for component in ("px", "py", "pz", "energy"):
        seen = sum_by(particles[component][visible], of_particle[visible], len(block))
        carried = sum_by(targets[component], of_target, len(block))
        np.testing.assert_allclose(carried, seen, rtol=1e-5, atol=1e-3)


def test_energy_of_a_hadronic_event_is_seen(block: EventBlock):
    """Tracks, photons and neutral hadrons together see what the visible particles carry: no shower is lost or doubled."""
    particles = block["particle"]
    visible = particles["target"] >= 0
    charged = visible & (particles["charge"] != 0)
    neutral = visible & ~charged
    measured = particles["calo_energy"][neutral].sum() / particles["energy"][neutral].sum()
    assert 0.85 < measured < 1.1


def test_same_seed_same_events_and_another_seed_others():
    generated = generate("qq", "clic", 6)
    detector = Detector(load_detector("clic"))
    first, again, other = (detector.simulate_block(generated, seed) for seed in (5, 5, 6))
    fresh = Detector(load_detector("clic")).simulate_block(generated, 5)
    for same in (again, fresh):
        for name, part in first.collections.items():
            for column, values in part.columns.items():
                np.testing.assert_array_equal(values, same[name][column], err_msg=f"{name}.{column}")
    assert len(first["hit"]) != len(other["hit"])


def test_what_is_told_of_clusters_follows_from_their_hits(block: EventBlock, request: pytest.FixtureRequest):
    """Every column of a cluster, from the columns of the hits alone; only its time has an error of its own."""
    geometry = load_detector(request.node.callspec.params["block"])
    hits, clusters = block["hit"], block["cluster"]
    columns = {name: torch.from_numpy(np.array(values)) for name, values in hits.columns.items()}
    columns |= {name: columns[name].long() for name in ("subsystem", "layer")}
    label = np.where(hits["cluster"] >= 0, over_block(hits, clusters, "cluster"), -1)
    layers = [0, geometry.ecal.layers, geometry.ecal.layers + geometry.hcal.layers]
    face = Face(geometry.face_radius, geometry.face_z, geometry.sides)
    again = cluster_columns(columns, torch.from_numpy(label), len(clusters), face, np.repeat(layers, 2).tolist())
    error = (again.pop("time").numpy() - clusters["time"]) / geometry.clustering.time_floor
    assert np.abs(error).max() < 6.0
    assert error.std() == pytest.approx(1.0, abs=0.1)
    for name, values in again.items():
        np.testing.assert_allclose(clusters[name], values.numpy(), rtol=2e-3, atol=2e-2, err_msg=name)


def test_time_does_not_tell_photons_from_neutral_hadrons():
    """Most hits are prompt, whatever leaves them: the time of a cluster alone is no particle identification."""
    late = {}
    for pdg in (22, 130):
        shot = Shot("clic", (pdg,), 5.0, BARREL, 150, 3)
        late[pdg] = np.concatenate([lateness(block) for block in simulate_shot(shot)])
    wins = late[130][:, None] > late[22][None, :]
    assert max(wins.mean(), 1.0 - wins.mean()) <= 0.75


def lateness(block: EventBlock) -> np.ndarray:
    """Of the strongest cluster of every event, the time behind light (ns)."""
    clusters = block["cluster"]
    of_event = np.repeat(np.arange(len(block)), clusters.counts)
    order = np.lexsort((-clusters["energy"], of_event))
    first = order[np.unique(of_event[order], return_index=True)[1]]
    distance = np.sqrt(sum(clusters[axis][first].astype(np.float64) ** 2 for axis in "xyz"))
    return clusters["time"][first] - distance / SPEED_OF_LIGHT

"""The detector as a whole: conservation, symmetry, determinism."""

from __future__ import annotations

import numpy as np
import pytest

from ringflow.event.block import EventBlock
from ringflow.event.schema import COLLECTIONS, SIMULATED
from ringflow.sim.blocks import BARREL, Shot, observe
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


def test_no_energy_is_negative(block: EventBlock):
    for name in ("hit", "cluster", "hit_link", "cluster_link", "particle", "target", "hit_target"):
        assert (block[name]["energy"] > 0).all()


def test_links_sum_to_hits_and_hits_to_clusters(block: EventBlock):
    hits, clusters = block["hit"], block["cluster"]
    links = block["hit_link"]
    linked = sum_by(links["energy"], over_block(links, hits, "hit"), len(hits))
    np.testing.assert_allclose(linked, hits["energy"], rtol=1e-5)
    inside = hits["cluster"] >= 0
    total = sum_by(hits["energy"][inside], over_block(hits, clusters, "cluster")[inside], len(clusters))
    np.testing.assert_allclose(total, clusters["energy"], rtol=1e-4)
    shares = block["cluster_link"]
    np.testing.assert_allclose(
        sum_by(shares["energy"], over_block(shares, clusters, "cluster"), len(clusters)), clusters["energy"], rtol=1e-4
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


@pytest.mark.parametrize(("pdg", "tolerance"), [(22, 0.02), (130, 0.12)])
def test_mean_response_is_the_energy(pdg: int, tolerance: float):
    """Electromagnetic showers conserve energy at the electromagnetic scale; hadronic ones lose a known part."""
    seen = observe(Shot("clic", (pdg,), 20.0, BARREL, 400, 1)).calorimeter / 20.0
    expected = {22: 1.0, 130: 0.86}[pdg]
    assert seen.mean() == pytest.approx(expected, abs=tolerance / 2)


@pytest.mark.parametrize("pdg", [22, 211])
def test_azimuth_is_no_distinction(pdg: int):
    """The same gun in eight sectors of azimuth: equal response within its own spread."""
    detector = Detector(load_detector("clic"))
    rng = np.random.default_rng(2)
    count = 1600
    phi = np.linspace(-np.pi, np.pi, count, endpoint=False)
    energy = np.full(count, 10.0)
    momentum = np.sqrt(energy**2 - {22: 0.0, 211: 0.1396}[pdg] ** 2)
    cosine = rng.uniform(-0.6, 0.6, count)
    transverse = momentum * np.sqrt(1 - cosine**2)
    generated = GeneratedEvents.at_origin(
        np.arange(count),
        np.ones(count, dtype=np.int64),
        np.full(count, pdg, dtype=np.int32),
        (transverse * np.cos(phi), transverse * np.sin(phi), momentum * cosine),
        energy,
    )
    hits = detector.simulate_block(generated, 4)["hit"]
    energy_seen = sum_by(hits["energy"], np.repeat(np.arange(count), hits.counts), count)
    sectors = energy_seen.reshape(8, -1)
    error = energy_seen.std() / np.sqrt(sectors.shape[1])
    assert np.abs(sectors.mean(1) - energy_seen.mean()).max() < 3.5 * error

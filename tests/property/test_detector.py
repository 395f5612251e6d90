"""The detector as a whole: conservation, symmetry, determinism."""

from __future__ import annotations

import numpy as np
import pytest

from ringflow.event.block import EventBlock
from ringflow.event.schema import COLLECTIONS, SIMULATED
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

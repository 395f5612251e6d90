"""Clusters: what merges, what splits, what is linked in depth, what is dropped."""

from __future__ import annotations

import math

import pytest
import torch

from ringflow.elements.clustering import CalorimeterHits, Clusterer, TrackPaths
from ringflow.elements.helix import Helix
from ringflow.elements.settings import ClusteringSettings

SETTINGS = ClusteringSettings(
    ecal_tower=10.0,
    hcal_tower=45.0,
    yoke_tower=120.0,
    fragment_energy=0.3,
    fragment_distance=50.0,
    link_distance=60.0,
    rear_layer=32,
    min_energy=0.15,
    min_hits=3,
)
FRONTS = [(1500.0, 2210.0, 2307.0, 1700.0), (1740.0, 2210.0, 2539.0, 3246.0), (4461.0, 4129.0, 4179.0, 6450.0)]
CLUSTERER = Clusterer(FRONTS, SETTINGS, torch.device("cpu"))


def shower(phi: float, theta: float, energy: float, layers: range, subsystem: int, event: int = 0, spread: float = 4.0):
    """A blob of hits around a direction, one ring of hits per layer."""
    inner, pitch = (1500.0, 5.05) if subsystem < 2 else (1740.0, 26.5)
    rows = []
    for layer in layers:
        radius = inner + (layer + 0.5) * pitch
        for step in range(6):
            shift = spread if step else 0.0
            angle = phi + shift * math.cos(step) / radius
            z = radius / math.tan(theta) + shift * math.sin(step)
            weight = 4.0 if step == 0 else 1.0
            rows.append((event, weight, radius * math.cos(angle), radius * math.sin(angle), z, subsystem, layer))
    total = sum(row[1] for row in rows)
    return [(e, energy * w / total, x, y, z, s, layer) for e, w, x, y, z, s, layer in rows]


def cluster(*parts, events: int = 1, clusterer: Clusterer = CLUSTERER, tracks: TrackPaths | None = None):
    rows = sorted((row for part in parts for row in part), key=lambda row: row[0])
    event, energy, x, y, z, subsystem, layer = (torch.tensor(column) for column in zip(*rows, strict=True))
    hits = CalorimeterHits(event, energy.float(), x.float(), y.float(), z.float(), subsystem, layer)
    label, cluster_event = clusterer.cluster(hits, events, tracks)
    return label, cluster_event, energy


FRONT = range(20)


@pytest.mark.parametrize(("distance", "clusters"), [(10.0, 1), (80.0, 2)])
def test_near_showers_merge_and_far_ones_split(distance: float, clusters: int):
    _, events, _ = cluster(shower(0.3, 1.5, 5.0, FRONT, 0), shower(0.3 + distance / 1500.0, 1.5, 4.0, FRONT, 0))
    assert len(events) == clusters


@pytest.mark.parametrize("phi", [math.pi - 1e-4, -math.pi + 1e-4, math.pi - 6 / 1500, 0.0])
def test_a_shower_on_the_seam_of_the_barrel_is_one_cluster(phi: float):
    _, events, _ = cluster(shower(phi, 1.5, 5.0, FRONT, 0, spread=14.0))
    assert len(events) == 1


def test_events_never_share_a_cluster():
    parts = [shower(0.3, 1.5, 3.0, FRONT, 0, event=number) for number in range(25)]
    label, events, _ = cluster(*parts, events=25)
    assert events.tolist() == list(range(25))
    assert label.tolist() == [number for number in range(25) for _ in range(120)]


def test_hadronic_shower_continues_the_track_in_front_of_it():
    track = shower(0.3, 1.5, 0.28, range(40), 0, spread=0.0)
    behind = shower(0.3, 1.5, 8.0, range(2, 20), 2, spread=30.0)
    label, events, _ = cluster(track, behind)
    assert len(events) == 1
    assert set(label.tolist()) == {0}


def test_track_through_the_ecal_is_no_piece_of_the_photon_beside_it():
    """However little it leaves, it continues into the hadronic shower behind it."""
    photon = shower(0.3, 1.5, 5.0, range(25), 0)
    track = shower(0.3 + 40.0 / 1500.0, 1.5, 0.28, range(40), 0, spread=0.0)
    behind = shower(0.3 + 40.0 / 1500.0, 1.5, 8.0, range(20), 2, spread=20.0)
    label, events, energy = cluster(photon, track, behind)
    assert len(events) == 2
    assert energy[label == 0].sum().item() == pytest.approx(8.28)
    assert energy[label == 1].sum().item() == pytest.approx(5.0)


def test_fragment_joins_its_neighbour_and_noise_is_dropped():
    core = shower(0.3, 1.5, 5.0, FRONT, 0)
    fragment = shower(0.3 + 40.0 / 1500.0, 1.5, 0.2, range(5, 10), 0, spread=1.0)
    noise = shower(1.5, 1.2, 0.1, range(5, 10), 0, spread=1.0)
    label, events, energy = cluster(core, fragment, noise)
    assert len(events) == 1
    assert energy[label < 0].sum().item() == pytest.approx(0.1)
    assert energy[label == 0].sum().item() == pytest.approx(5.2)


def test_clusters_are_numbered_by_falling_energy_and_the_map_is_left_clean():
    soft, hard = shower(0.3, 1.5, 1.0, FRONT, 0), shower(1.3, 1.0, 9.0, FRONT, 0)
    for _ in range(2):  # a second call on the same map must not see the first
        label, events, energy = cluster(soft, hard)
        assert len(events) == 2
        assert energy[label == 0].sum().item() == pytest.approx(9.0)


def test_no_hits_no_clusters():
    none = torch.zeros(0)
    hits = CalorimeterHits(none.long(), none, none, none, none, none.long(), none.long())
    label, events = CLUSTERER.cluster(hits, 3)
    assert len(label) == len(events) == 0


def test_each_calorimeter_may_have_limits_of_its_own():
    """What is soft and alone in the HCAL is dropped, and fragments there join from further away, than in the ECAL."""
    given = {
        "min_energy": (0.15, 0.3, 0.1),
        "fragment_distance": (50.0, 200.0, 100.0),
        "fragment_energy": (0.3, 0.5, 0.3),
    }
    own = Clusterer(FRONTS, SETTINGS.model_copy(update=given), torch.device("cpu"))
    soft = [shower(0.3, 1.5, 0.25, FRONT, subsystem) for subsystem in (0, 2)]
    assert [len(cluster(part, clusterer=CLUSTERER)[1]) for part in soft] == [1, 1]
    assert [len(cluster(part, clusterer=own)[1]) for part in soft] == [1, 0]

    for subsystem, clusters in ((0, 2), (2, 1)):
        apart = 150.0 / (1500.0 if subsystem == 0 else 1740.0)
        beside = shower(0.3, 1.5, 5.0, FRONT, subsystem), shower(0.3 + apart, 1.5, 0.29, FRONT, subsystem)
        assert len(cluster(*beside, clusterer=own)[1]) == clusters
        assert len(cluster(*beside)[1]) == 2


def track(momentum: float, phi: float, turn: float = 0.0, event: int = 0) -> TrackPaths:
    """A track that enters the barrel of the tests at right angles."""
    numbers = (1500.0 * math.cos(phi), 1500.0 * math.sin(phi), 0.0, phi, 0.0, turn)
    helix = (torch.tensor([value]) for value in numbers)
    return TrackPaths(*helix, event=torch.tensor([event]), momentum=torch.tensor([momentum]))


def along(of: TrackPaths, path: float, energy: float, layers: range, subsystem: int):
    """A shower at the place where a track is after a path."""
    x, y, _ = (float(value) for value in of.position(torch.tensor(path)))
    return shower(math.atan2(y, x), 0.5 * math.pi, energy, layers, subsystem)


FOLLOWING = Clusterer(
    FRONTS, SETTINGS.model_copy(update={"follow_distance": (30.0, 150.0, 200.0)}), torch.device("cpu")
)


@pytest.mark.parametrize("turn", [0.0, 1e-12, -2e-4, 1e-3])
def test_distance_from_a_track_is_that_from_its_helix(turn: float):
    helix = Helix(*(torch.tensor([value]) for value in (900.0, 1500.0, -70.0, 0.9, 0.6, turn)))
    for path in (1.0, 300.0, 1400.0):
        x, y, z = helix.position(torch.tensor([path]))
        dx, dy, _ = helix.direction(torch.tensor([path]))
        across = torch.hypot(dx, dy)
        for off in (-80.0, 0.0, 120.0):
            # To the side of the path, in the plane across the beam.
            beside = helix.distance(x - off * dy / across, y + off * dx / across, z)
            assert beside.item() == pytest.approx(abs(off), abs=0.05)
    behind = helix.distance(
        *(
            place - 200.0 * step
            for place, step in zip((helix.x, helix.y, helix.z), helix.direction(0.0 * x), strict=True)
        )
    )
    assert behind.item() == pytest.approx(200.0, abs=0.05)


def test_what_lies_along_a_soft_track_is_one_cluster():
    """Its path leaves the line from the collision, on which towers join; only who knows the track puts it together."""
    soft = track(4.0, 0.3, turn=1.5e-3)
    parts = along(soft, 60.0, 1.0, FRONT, 0), along(soft, 420.0, 2.5, range(4, 12), 2)
    assert len(cluster(*parts)[1]) == 2
    assert len(cluster(*parts, tracks=soft)[1]) == 2, "the settings leave tracks out"
    label, events, energy = cluster(*parts, clusterer=FOLLOWING, tracks=soft)
    assert len(events) == 1
    assert energy[label == 0].sum().item() == pytest.approx(3.5)
    elsewhere = track(4.0, 0.3, turn=1.5e-3, event=1)
    assert len(cluster(*parts, events=2, clusterer=FOLLOWING, tracks=elsewhere)[1]) == 2


def test_a_track_takes_no_more_than_its_momentum():
    weak = track(1.0, 0.3, turn=1.5e-3)
    parts = along(weak, 60.0, 1.0, FRONT, 0), along(weak, 420.0, 2.5, range(4, 12), 2)
    assert len(cluster(*parts, clusterer=FOLLOWING, tracks=weak)[1]) == 2


@pytest.mark.parametrize(("first_layer", "clusters"), [(0, 2), (12, 1)])
def test_a_photon_beside_a_track_stays_free_and_a_late_piece_does_not(first_layer: int, clusters: int):
    charged = track(8.0, 0.3)
    own = shower(0.3, 0.5 * math.pi, 3.0, FRONT, 0)
    beside = shower(0.3 + 90.0 / 1500.0, 0.5 * math.pi, 2.0, range(first_layer, first_layer + 10), 0)
    assert len(cluster(own, beside, clusterer=FOLLOWING, tracks=charged)[1]) == clusters

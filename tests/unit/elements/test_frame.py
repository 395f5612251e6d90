"""Elements relative to their detector: the same numbers for the same place in any, and nothing where nothing is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torch import Tensor

from fixtures.detectors import DETECTORS, events_in
from ringflow.elements.batch import TRACK, ElementBatch, from_block, random_elements
from ringflow.elements.features import feature_names
from ringflow.elements.frame import PROBABILITIES, Frame, FrameSettings, balance, what_is_usual
from ringflow.event.block import Collection, EventBlock
from ringflow.sim.geometry import load_detector
from ringflow.sim.tracker import frame_of

KINDS = ("track", "cluster")
NAMES = feature_names(KINDS)
#: A barrel of eight sides 1000 mm from the axis and endcaps at 2000 mm, with another density from 100 mm on.
SETTINGS = FrameSettings(
    detector="made up",
    radius=1000.0,
    half_length=1500.0,
    z=2000.0,
    sides=8,
    barrel_lengths=[(0.0, 0.0), (100.0, 1.0), (300.0, 5.0)],
    endcap_lengths=[(0.0, 0.0), (100.0, 0.5), (300.0, 4.5)],
    eta_edges=[1.0],
    hits=[10.0, 20.0],
    momenta=[1.0, 10.0],
    errors={"pt": [[0.01, 0.1], [0.02, 0.2]], "phi": [[1e-3, 1e-4], [1e-3, 1e-4]]},
)
RELATIVE = {*(f"{kind}_{place}" for kind in ("track_calo", "cluster") for place in ("radius", "z"))}


def of(batch: ElementBatch, name: str) -> Tensor:
    return batch.features_NF[:, NAMES.index(name)]


def elements(kind: int = 1, **columns: Any) -> ElementBatch:
    """Elements of one kind that have these features, and of which nothing else is known; `phi` is where they are."""
    count = len(next(iter(columns.values())))
    batch = random_elements([count])
    features = torch.full_like(batch.features_NF, torch.nan)
    position = torch.zeros_like(batch.position_N2)
    for name, values in columns.items():
        if name == "phi":
            position[:, 1] = torch.as_tensor(values)
        else:
            features[:, NAMES.index(name)] = torch.as_tensor(values, dtype=torch.float32)
    return replace(batch, kind_N=torch.full((count,), kind), features_NF=features, position_N2=position)


def seen(batch: ElementBatch, **changes: Any) -> ElementBatch:
    return Frame(SETTINGS.model_copy(update=changes), KINDS).see(batch)


def lengths_along(point: np.ndarray, settings: FrameSettings, steps: int = 20_000) -> float:
    """Interaction lengths between the face and a point, by small steps along the ray from the origin."""
    middle = (np.arange(steps) + 0.5)[:, None] / steps * point
    normals = 2.0 * np.pi * np.arange(settings.sides) / settings.sides
    across = (middle[:, :1] * np.cos(normals) + middle[:, 1:2] * np.sin(normals)).max(1)
    crossing = settings.radius * abs(point[2]) / across[-1] * steps / (steps - 0.5)
    depth, curve = (
        (across - settings.radius, settings.barrel_lengths)
        if crossing < settings.half_length
        else (np.abs(middle[:, 2]) - settings.z, settings.endcap_lengths)
    )
    x, y = np.array(curve).T
    density = np.append(np.diff(y) / np.diff(x), (y[-1] - y[-2]) / (x[-1] - x[-2]))
    density = density[np.clip(np.searchsorted(x, depth, side="right") - 1, 0, len(density) - 1)]
    # Depth along the normal becomes length along the ray: all is proportional.
    return float(np.sum(density * (depth > 0)) * np.linalg.norm(point) / steps)


@pytest.mark.parametrize("phi", [0.0, 0.3, np.pi / 8, 1.1, -2.9])
@pytest.mark.parametrize("slope", [0.0, 0.7, 1.45, 2.5, -6.0])
def test_depth_is_that_along_the_ray(phi: float, slope: float) -> None:
    radius = np.linspace(400.0, 1700.0, 14)
    z = slope * radius
    batch = seen(elements(cluster_radius=radius / 1000, cluster_z=z / 1000, phi=np.full(14, phi)))
    depth = of(batch, "cluster_radius").numpy()
    points = np.stack([radius * np.cos(phi), radius * np.sin(phi), z], axis=1)
    expected = np.array([lengths_along(point, SETTINGS) for point in points])
    behind = depth > 0.0
    assert behind.any()
    assert np.allclose(depth[behind], expected[behind], rtol=2e-3, atol=2e-3)
    assert np.all(expected[~behind] == 0.0)  # in front
    cosine = math.cos(phi - np.pi / 4 * round(phi / (np.pi / 4)))
    assert of(batch, "cluster_z").tolist() == [float(abs(slope) / cosine > 1.5)] * 14


def test_the_face_is_at_zero_and_what_lies_in_front_of_it_below() -> None:
    phi = torch.linspace(-3.0, 3.0, 41)
    side = torch.pi / 4
    radius = 1.0 / torch.cos(phi - side * torch.round(phi / side))
    batch = seen(elements(TRACK, track_calo_radius=radius, track_calo_z=0.5 * torch.ones(41), phi=phi))
    assert of(batch, "track_calo_radius").abs().max() < 1e-5
    assert of(batch, "track_calo_z").tolist() == [0.0] * 41
    batch = seen(elements(TRACK, track_calo_radius=0.9 * radius, track_calo_z=0.1 * torch.ones(41), phi=phi))
    slant = torch.hypot(0.9 * radius, torch.tensor(0.1)) / 0.9
    assert torch.allclose(of(batch, "track_calo_radius"), -slant, atol=1e-5)  # a tenth of a metre, a length there
    endcap = seen(elements(TRACK, track_calo_radius=torch.rand(9) + 0.2, track_calo_z=torch.full((9,), -2.0)))
    assert of(endcap, "track_calo_radius").tolist() == [0.0] * 9
    assert of(endcap, "track_calo_z").tolist() == [1.0] * 9
    round_one = seen(elements(TRACK, track_calo_radius=torch.ones(41), track_calo_z=torch.zeros(41), phi=phi), sides=0)
    assert of(round_one, "track_calo_radius").abs().max() < 1e-6


def test_a_turn_by_a_side_changes_nothing() -> None:
    phi = torch.rand(50) * 6.0 - 3.0
    there = {"cluster_radius": torch.rand(50) + 1.0, "cluster_z": torch.rand(50) * 3.0}
    here, turned, elsewhere = (seen(elements(**there, phi=phi + angle)) for angle in (0.0, math.pi / 4, math.pi / 8))
    assert torch.allclose(here.features_NF, turned.features_NF, atol=1e-4, equal_nan=True)
    assert not torch.allclose(here.features_NF, elsewhere.features_NF, atol=1e-2, equal_nan=True)


def test_hits_and_errors_are_compared_with_what_is_usual() -> None:
    momentum = torch.tensor([0.5, 1.0, math.sqrt(10.0), 10.0, 100.0])
    usual = torch.tensor([0.01, 0.01, math.sqrt(0.001), 0.1, 0.1])
    columns = {"track_log_p": momentum.log(), "track_num_hits": torch.ones(5), "track_log_sigma_pt": usual.log()}
    central = seen(elements(TRACK, **columns, track_eta=torch.full((5,), -0.9)))
    assert of(central, "track_log_sigma_pt").abs().max() < 1e-6
    assert of(central, "track_num_hits").tolist() == [1.0] * 5
    forward = seen(elements(TRACK, **columns, track_eta=torch.full((5,), -1.1)))
    assert torch.allclose(of(forward, "track_log_sigma_pt"), torch.full((5,), -math.log(2.0)))
    assert of(forward, "track_num_hits").tolist() == [0.5] * 5


def test_what_is_missing_stays_so_and_what_nothing_is_known_of_becomes_so() -> None:
    batch = random_elements([40, 30])
    features = batch.features_NF.clone()
    features[::3, NAMES.index("cluster_ecal_share")] = torch.nan
    features[:, NAMES.index("track_log_sigma_pt")] = torch.nan
    found = seen(replace(batch, features_NF=features), hcal_scale=1.3)
    unknown = {"track_log_sigma_theta", "track_log_sigma_d0", "track_log_sigma_z0"}  # the frame has no table of them
    for number, name in enumerate(NAMES):
        expected = torch.ones(70, dtype=torch.bool) if name in unknown else features[:, number].isnan()
        assert torch.equal(found.features_NF[:, number].isnan(), expected), name
    assert found.reference_N4.isfinite().all()
    assert seen(batch, hits=None).features_NF[:, NAMES.index("track_num_hits")].isnan().all()
    changed = RELATIVE | unknown | {"track_num_hits", "track_log_sigma_pt", "track_log_sigma_phi"}
    for name in set(NAMES) - changed:  # and all others are as they were
        assert torch.equal(of(seen(batch), name).nan_to_num(-9.0), of(batch, name).nan_to_num(-9.0)), name


def test_nothing_is_seen_of_no_element() -> None:
    for counts in ([0, 0], [1], [0, 2]):
        found = seen(random_elements(counts), ecal_scale=1.1, matched={"cluster_mean_depth": [(0.0, 0.0), (1.0, 2.0)]})
        assert found.features_NF.shape == (sum(counts), len(NAMES))
    assert what_is_usual(random_elements([0]), KINDS) == {"quantiles": {}, "balance": None}


def scaled_by_hand(block: EventBlock, **factors: float) -> EventBlock:
    """Clusters with other energies in ECAL and HCAL, as a calorimeter of another scale would have measured them."""
    columns = dict(block["cluster"].columns)
    factor = {"ecal": factors.get("ecal", 1.0), "hcal": factors.get("hcal", 1.0), "muon": 1.0}
    for part, of_part in factor.items():
        columns[f"{part}_energy"] = columns[f"{part}_energy"] * np.float32(of_part)
    for name in ("front_energy", "peak_energy"):
        columns[name] = columns[name] * np.float32(factor["ecal"])
    columns["energy"] = np.sum([columns[f"{part}_energy"] for part in factor], axis=0)
    return EventBlock(
        block.event_number, {"track": block["track"], "cluster": Collection(block["cluster"].counts, columns)}
    )


def test_scales_bring_back_what_was_measured() -> None:
    block = events_in("clic")
    right = from_block(scaled_by_hand(block))
    wrong = from_block(scaled_by_hand(block, ecal=0.9, hcal=1.0 / 1.3))
    mended = seen(wrong, ecal_scale=1.0 / 0.9, hcal_scale=1.3)
    expected = seen(right)
    assert torch.allclose(mended.reference_N4, expected.reference_N4, rtol=1e-4)
    for name in ("log_energy", "log_et", "log_hit_energy", "ecal_share", "hcal_share", "muon_share", "front_share"):
        there, back = of(expected, f"cluster_{name}"), of(mended, f"cluster_{name}")
        assert torch.allclose(there, back, atol=1e-4, equal_nan=True), name
        assert not torch.allclose(of(seen(wrong), f"cluster_{name}"), there, atol=1e-2, equal_nan=True) or name in (
            "muon_share",
        )
    is_track = right.kind_N == TRACK
    assert torch.equal(mended.reference_N4[is_track], right.reference_N4[is_track])


def test_features_follow_curves_that_go_on_at_their_ends() -> None:
    curve = [(0.0, 1.0), (1.0, 3.0), (2.0, 3.5)]
    batch = elements(cluster_mean_depth=[-1.0, 0.0, 0.25, 1.0, 1.5, 4.0])
    found = of(seen(batch, matched={"cluster_mean_depth": curve}), "cluster_mean_depth")
    assert torch.allclose(found, torch.tensor([-1.0, 1.0, 1.5, 3.0, 3.25, 4.5]))


def test_balance_finds_the_scales_of_what_is_around_isolated_tracks() -> None:
    block = events_in("clic")
    known, here = (balance(from_block(one), KINDS) for one in (block, scaled_by_hand(block, ecal=1.25, hcal=0.8)))
    assert known is not None
    assert here is not None
    assert here[0] / known[0] == pytest.approx(1 / 1.25, rel=0.03)
    assert here[1] / known[1] == pytest.approx(1 / 0.8, rel=0.03)
    assert 0.7 < min(known) < max(known) < 1.3
    assert balance(from_block(block.take(0, 2)), KINDS) is None  # too few tracks
    assert balance(from_block(block, "hit"), ("track", "hit")) is None


def test_quantiles_are_those_of_the_elements() -> None:
    batch = from_block(events_in("clic"))
    usual = what_is_usual(batch, KINDS)
    energy = from_block(events_in("clic")).features_NF[batch.kind_N != TRACK, NAMES.index("cluster_log_energy")]
    assert usual["quantiles"]["cluster_log_energy"] == pytest.approx(np.quantile(energy, PROBABILITIES), rel=1e-4)
    assert set(usual["quantiles"]) == set(NAMES)


@pytest.mark.parametrize("detector", DETECTORS)
def test_stiff_tracks_are_usual_in_all_our_detectors(detector: str) -> None:
    block = events_in(detector)
    batch = Frame(frame_of(load_detector(detector)), KINDS).see(from_block(block))
    tracks = batch.features_NF[batch.kind_N == TRACK]
    pt, eta = (torch.from_numpy(block["track"][name]) for name in ("pt", "eta"))
    stiff = (pt > 2.0) & (eta.abs() < 2.0)
    values = dict(zip(NAMES, tracks[stiff].T, strict=True))
    assert values["track_num_hits"].median() == pytest.approx(1.0, abs=0.1)
    for parameter in ("pt", "phi", "theta", "d0", "z0"):
        assert values[f"track_log_sigma_{parameter}"].median().abs() < 0.15, parameter
    reaches = torch.from_numpy(block["track"]["reaches_calo"] == 1)
    at_face = tracks[reaches][:, NAMES.index("track_calo_radius")]
    assert (at_face.abs() < 1e-4).float().mean() > 0.95
    clusters = batch.features_NF[batch.kind_N != TRACK]
    assert 0.2 < clusters[:, NAMES.index("cluster_radius")].median() < 2.0
    in_endcap = clusters[:, NAMES.index("cluster_z")]
    assert set(in_endcap.tolist()) == {0.0, 1.0}
    assert 0.1 < in_endcap.mean() < 0.6


def test_hits_can_be_seen_too() -> None:
    kinds = ("track", "hit")
    batch = from_block(events_in("clic", 5), "hit")
    found = Frame(frame_of(load_detector("clic")), kinds).see(batch)
    names = feature_names(kinds)
    depth = found.features_NF[found.kind_N != TRACK, names.index("hit_radius")]
    layer = found.features_NF[found.kind_N != TRACK, names.index("hit_layer")]
    assert -0.5 < depth.quantile(0.001) < 0.1
    assert float(torch.corrcoef(torch.stack([depth, layer]))[0, 1]) > 0.2
    assert torch.equal(found.reference_N4, batch.reference_N4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"barrel_lengths": [(0.0, 0.0)]}, "at least 2"),
        ({"endcap_lengths": [(0.0, 0.0), (0.0, 1.0)]}, "must rise"),
        ({"eta_edges": [1.0, 0.5]}, "must rise"),
        ({"hits": [10.0]}, "hits are 1 numbers, not 2"),
        ({"errors": {"pt": [[0.1, 0.1]]}}, "2 rows of 2"),
        ({"errors": {"pt": [[0.1], [0.1]]}}, "2 rows of 2"),
        ({"errors": {"pt": [[], []]}, "momenta": []}, "2 rows of 1"),
        ({"errors": {"charge": [[0.1, 0.1]] * 2}}, "'pt', 'phi'"),
        ({"matched": {"cluster_mean_depth": []}}, "at least 2"),
        ({"radius": math.nan}, "finite"),
        ({"sides": 70}, "64"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=said):
        FrameSettings.model_validate({**SETTINGS.model_dump(), **changes})


def test_a_curve_of_no_feature_is_refused() -> None:
    with pytest.raises(ValueError, match="no feature 'cluster_colour'"):
        seen(random_elements([3]), matched={"cluster_colour": [(0.0, 0.0), (1.0, 1.0)]})


def test_all_of_it_is_where_the_elements_are() -> None:
    # On an accelerator nothing can be computed of tensors of two devices; on none either.
    given = random_elements([30]).to("meta")
    changes = {"hits": None, "ecal_scale": 1.1, "matched": {"cluster_mean_depth": [(0.0, 1.0), (4.0, 3.0)]}}
    for settings in (SETTINGS, SETTINGS.model_copy(update=changes)):
        found = Frame(settings, KINDS).to("meta").see(given)
        assert {found.features_NF.device.type, found.reference_N4.device.type} == {"meta"}
        with pytest.raises((RuntimeError, NotImplementedError), match=r"device|meta"):
            Frame(settings, KINDS).see(given)

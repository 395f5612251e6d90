"""Through the tracker: layers, faces, loopers, interactions, and the kinematics of decays in flight."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st
from scipy.stats import norm, t

from ringflow.elements.helix import Helix
from ringflow.elements.shapes import Face
from ringflow.event.particles import BENDING, properties
from ringflow.sim.flight import CHANNELS, Draw, Flight, SpeciesTable
from ringflow.sim.geometry import DetectorGeometry, load_detector
from ringflow.sim.tracker import (
    BARREL_FACE,
    CALORIMETER,
    ENDCAP_FACE,
    HADRONIC_FACE,
    INTERACTION,
    LOST,
    TrackerOutput,
    decay,
    draw_pair_mass,
    fly,
    measure_tracks,
    track_through,
    two_body,
)

CPU = torch.device("cpu")
CLIC = load_detector("clic")
IDEAL = CLIC.without()


def gun(pdg: int, pt: float, eta: float, count: int = 1, vertex: tuple[float, float, float] = (0.0, 0.0, 0.0)):
    species = SpeciesTable(np.array([pdg]), CPU)
    phi = torch.linspace(-3.0, 3.0, count, dtype=torch.float64)
    ones = torch.ones(count, dtype=torch.float64)
    x, y, z = (ones * value for value in vertex)
    kind, momentum = torch.full((count,), species.row(pdg)), (pt * torch.cos(phi), pt * torch.sin(phi))
    unset = torch.full((count,), -1)
    flight = Flight(torch.arange(count), kind, x, y, z, 0.0 * ones, *momentum, pt * math.sinh(eta) * ones, unset)
    return flight, species


def fly_one(pdg: int, pt: float, eta: float, vertex=(0.0, 0.0, 0.0)):
    flight, species = gun(pdg, pt, eta, vertex=vertex)
    return fly(flight, flight.helix(species, CLIC.field), species, CLIC, Draw(1, CPU), last=True)


def through(pdg: int, pt: float, eta: float, count: int, seed: int = 1) -> tuple[TrackerOutput, SpeciesTable]:
    flight, species = gun(pdg, pt, eta, count)
    return track_through(flight, species, CLIC, Draw(seed, CPU)), species


@pytest.mark.parametrize(
    ("eta", "face"), [(0.0, BARREL_FACE), (1.0, BARREL_FACE), (1.6, ENDCAP_FACE), (2.6, HADRONIC_FACE)]
)
def test_stiff_muon_enters_the_right_face(eta: float, face: int):
    ends = fly_one(13, 50.0, eta)
    assert ends.kind.item() == CALORIMETER
    assert ends.face.item() == face


def test_soft_central_track_never_reaches_the_calorimeter():
    reach = 0.5 * CLIC.face_radius * 0.299792458e-3 * CLIC.field  # radius of curvature is half the face radius
    assert fly_one(13, 0.95 * reach, 0.0).kind.item() == LOST
    assert fly_one(13, 1.05 * reach, 0.0).kind.item() == CALORIMETER


def test_displaced_vertex_misses_the_layers_behind_it():
    prompt = fly_one(13, 20.0, 0.1)
    assert prompt.num_hits.item() == sum(layer[3] for layer in CLIC.tracker.barrel)
    # The flight starts towards phi = -3, so from this vertex it goes outwards.
    outwards = fly_one(13, 20.0, 0.1, vertex=(-600.0, 0.0, 0.0))
    assert outwards.num_hits.item() == sum(layer[3] for layer in CLIC.tracker.barrel if layer[0] > 600.0)


def test_photons_convert_as_often_as_the_material_says():
    count = 20_000
    output, species = through(22, 5.0, 0.05, count)
    converted = (output.ends.kind[:count] == INTERACTION).double().mean().item()
    material = sum(layer[2] for layer in CLIC.tracker.barrel) * math.cosh(0.05)
    assert converted == pytest.approx(1.0 - math.exp(-7.0 / 9.0 * material), rel=0.06)
    pairs = output.flights.species[count:]
    assert set(pairs.tolist()) >= {species.row(11), species.row(-11)}


@pytest.mark.parametrize(
    ("pdg", "lost_to_neutrinos"), [(22, False), (11, False), (321, True), (130, True), (111, False)]
)
def test_energy_is_shared_not_made(pdg: int, lost_to_neutrinos: bool):
    """What flies on from a conversion, a radiation or a decay carries the energy of its parent, less neutrinos."""
    count = 4000
    output, species = through(pdg, 3.0, 0.3, count, seed=3)
    energy = output.flights.energy(species)
    final = (output.ends.kind == CALORIMETER) | (output.ends.kind == LOST)
    total = torch.zeros(count, dtype=torch.float64).index_add_(0, output.flights.particle[final], energy[final])
    hadronic = torch.zeros(count, dtype=torch.bool)
    interacted = (output.ends.kind == INTERACTION) & species.is_hadron[output.flights.species]
    hadronic[output.flights.particle[interacted]] = True  # these knock out nucleons, which bring their mass
    share = (total / energy[:count])[~hadronic]
    assert share.max() < 1.0 + 1e-3
    assert (share.mean() < 0.999) if lost_to_neutrinos else (share.mean() > 0.995)


def tracks_of(
    output: TrackerOutput, species: SpeciesTable, geometry: DetectorGeometry, seed: int = 5, alone: bool = True
):
    """Columns of tracks of particles that are alone in their events, or all in one."""
    count = int(output.flights.particle.max()) + 1
    event_of = torch.arange(count) if alone else torch.zeros(count, dtype=torch.int64)
    return measure_tracks(output, species, geometry, event_of, Draw(seed, CPU))[0]


def changed(**faults: float | None) -> DetectorGeometry:
    """The detector with nothing wrong but some faults of its tracker."""
    tracker = IDEAL.tracker
    return IDEAL.model_copy(
        update={"tracker": tracker.model_copy(update={"faults": tracker.faults.model_copy(update=faults)})}
    )


def test_electron_that_radiates_keeps_one_track():
    count = 3000
    output, species = through(11, 10.0, 0.2, count)
    radiated = (output.ends.kind[:count] == INTERACTION).sum().item()
    assert radiated > 0.3 * count
    tracks = tracks_of(output, species, IDEAL)
    per_electron = torch.bincount(tracks["particle"], minlength=count)
    # Conversions of radiated photons add a few tracks, but radiation itself does not cut a track in two.
    assert (per_electron == 1).double().mean() > 0.9
    loss = 1.0 - tracks["pt"] / 10.0
    assert loss.mean() > 0.01


@pytest.mark.parametrize("dof", [None, 5.0])
def test_track_errors_have_the_stated_size_and_correlation(dof: float | None):
    count = 20_000
    output, species = through(13, 20.0, 0.2, count)
    tracks = tracks_of(output, species, changed(tail_dof=dof))
    pull = {"pt": 20.0 / tracks["pt"] - 1.0, "d0": tracks["d0"], "z0": tracks["z0"]}
    for name, value in pull.items():
        value = (value / tracks[f"sigma_{name}"]).abs()
        assert value.quantile(0.6827).item() == pytest.approx(1.0, rel=0.03)
        shape = norm if dof is None else t(dof, scale=1.0 / t(dof).ppf(norm.cdf(1.0)))
        assert (value > 3.0).double().mean().item() == pytest.approx(2.0 * shape.sf(3.0), rel=0.35)
    correlation = np.corrcoef(pull["pt"], pull["d0"])[0, 1]
    assert correlation == pytest.approx(0.4, abs=0.03 if dof is None else 0.06)


def test_kinked_tracks_are_worse_than_they_say():
    output, species = through(13, 20.0, 0.2, 20_000)
    tracks = tracks_of(output, species, changed(kink=0.2, kink_scale=5.0))
    pull = (tracks["z0"] / tracks["sigma_z0"]).abs()
    expected = 0.8 * 0.0027 + 0.2 * math.erfc(3.0 / 5.0 / math.sqrt(2.0))
    assert (pull > 3.0).double().mean().item() == pytest.approx(expected, rel=0.1)
    kinked = pull > 4.0
    assert (tracks["chi2"] / tracks["ndf"])[kinked].mean() > 2.0 * (tracks["chi2"] / tracks["ndf"])[~kinked].mean()


def test_splits_and_duplicates_are_as_many_as_said_and_have_fewer_hits():
    count = 20_000
    output, species = through(13, 20.0, 0.2, count)
    whole = tracks_of(output, species, IDEAL)
    assert len(whole["pt"]) == pytest.approx(count, rel=0.01)
    split = tracks_of(output, species, changed(split=0.05))
    per_particle = torch.bincount(split["particle"], minlength=count)
    assert (per_particle == 2).double().mean().item() == pytest.approx(0.05, rel=0.1)
    pieces = per_particle[split["particle"]] == 2
    assert split["num_hits"][pieces].double().mean() == pytest.approx(whole["num_hits"].double().mean() / 2, rel=0.1)
    assert split["sigma_pt"][pieces].median() > 2.0 * whole["sigma_pt"].median()
    again = tracks_of(output, species, changed(duplicate=0.05))
    assert len(again["pt"]) / len(whole["pt"]) == pytest.approx(1.05, abs=0.005)


def test_fake_tracks_are_of_nobody_and_soft():
    output, species = through(13, 20.0, 0.2, 20_000)
    tracks = tracks_of(output, species, changed(fake=0.05, fake_pt=0.5))
    nobody = tracks["particle"] < 0
    assert nobody.double().mean().item() == pytest.approx(0.05 / 1.05, rel=0.1)
    assert tracks["pt"][nobody].mean().item() == pytest.approx(0.6, rel=0.1)
    assert (tracks["chi2"] / tracks["ndf"])[nobody].mean() > 2.0
    for name, values in tracks.items():
        assert values.isfinite().all(), name


def test_tracks_are_lost_beside_a_stiffer_one_only():
    count = 2000  # all in one event, 3 mrad apart
    output, species = through(13, 20.0, 0.2, count)
    alone = tracks_of(output, species, changed(close_loss=0.3))
    beside = tracks_of(output, species, changed(close_loss=0.3), alone=False)
    whole = tracks_of(output, species, IDEAL)
    assert len(alone["pt"]) == len(whole["pt"])
    assert 0.1 < 1.0 - len(beside["pt"]) / len(whole["pt"]) <= 0.31


def test_hits_are_lost_with_the_chance_of_a_layer():
    expected = sum(layer[3] for layer in CLIC.tracker.barrel)
    flight, species = gun(13, 20.0, 0.1, 5000)
    helix = flight.helix(species, CLIC.field)
    ends = fly(flight, helix, species, changed(layer_efficiency=0.9), Draw(1, CPU), last=True)
    assert ends.num_hits.double().mean().item() == pytest.approx(0.9 * expected, rel=0.01)


@pytest.mark.parametrize(("pt", "reaches"), [(20.0, True), (0.6, False)])
def test_a_track_is_extrapolated_from_its_last_hit_to_the_face(pt: float, reaches: bool):
    output, species = through(13, pt, 0.1, 200)
    tracks = tracks_of(output, species, IDEAL)
    last = torch.hypot(tracks["last_x"], tracks["last_y"])
    # A looper leaves hits on its way out only: its last lies within the diameter of its circle.
    outermost = max(layer[0] for layer in CLIC.tracker.barrel)
    diameter = 2.0 * pt / (0.299792458e-3 * CLIC.field)
    assert (last < min(diameter, outermost) + 0.1).all()
    assert (tracks["reaches_calo"] == reaches).all()
    if reaches:
        phi = torch.atan2(tracks["calo_y"], tracks["calo_x"])
        depth = Face(CLIC.face_radius, CLIC.face_z, CLIC.sides).depth(
            tracks["calo_x"], tracks["calo_y"], tracks["calo_z"], torch.ones_like(phi, dtype=torch.bool)
        )
        torch.testing.assert_close(depth, torch.zeros_like(depth), rtol=0, atol=1e-6)
    else:
        for axis in "xyz":
            torch.testing.assert_close(tracks[f"calo_{axis}"], tracks[f"last_{axis}"])
    direction = tracks["calo_dx"] ** 2 + tracks["calo_dy"] ** 2 + tracks["calo_dz"] ** 2
    torch.testing.assert_close(direction, torch.ones_like(direction))


@settings(max_examples=20)
@for_all(
    pdg=st.sampled_from([11, -13, 211, 321, -2212]),
    pt=st.floats(0.5, 100.0),
    eta=st.floats(-2.0, 2.0).filter(lambda eta: abs(eta) > 0.05),
    seed=st.integers(0, 2**31),
)
def test_what_is_told_of_a_track_follows_from_fit_and_hits_whatever_the_truth_is(
    pdg: int, pt: float, eta: float, seed: int
):
    """The errors, from fitted parameters and the last hit alone; the way to the calorimeter, from the last hit on with the
    fitted curvature. Nothing else of the particle is in them: the same measurement of another truth gives the same."""
    output, species = through(pdg, pt, eta, 50, seed)
    tracks = tracks_of(output, species, IDEAL, seed)
    theta = 2.0 * torch.atan(torch.exp(-tracks["eta"]))
    radius, half_length = CLIC.tracker.cylinder
    transverse = torch.hypot(tracks["last_x"], tracks["last_y"])
    arm = torch.maximum(transverse / radius, tracks["last_z"].abs() / half_length).clamp(0.2, 1.0)
    a, b = torch.zeros_like(theta), torch.zeros_like(theta)
    for row in reversed(CLIC.tracker.resolution):
        inside = (tracks["eta"].abs() <= row.eta_max) | (row is CLIC.tracker.resolution[-1])
        a, b = torch.where(inside, row.a, a), torch.where(inside, row.b, b)
    expected = arm**-1.5 * torch.hypot(a * tracks["pt"], b)
    torch.testing.assert_close(tracks["sigma_pt"], expected, rtol=1e-6, atol=0)
    d0, sine = CLIC.tracker.d0, torch.sin(theta)
    momentum = tracks["pt"] / sine
    expected = arm**-1.5 * torch.hypot(torch.full_like(theta, d0.constant), d0.scattering / (momentum * sine**1.5))
    torch.testing.assert_close(tracks["sigma_d0"], expected, rtol=1e-6, atol=0)

    turn = -BENDING * CLIC.field * tracks["charge"] / tracks["pt"]
    at_face = Helix(
        *(tracks[f"calo_{axis}"] for axis in "xyz"),
        torch.atan2(tracks["calo_dy"], tracks["calo_dx"]),
        1.0 / torch.tan(theta),
        turn,
    )
    back = at_face.position((tracks["last_z"] - tracks["calo_z"]) * torch.tan(theta))
    for axis, place in zip("xyz", back, strict=True):
        torch.testing.assert_close(place, tracks[f"last_{axis}"], rtol=0, atol=1e-4)


DRAW = Draw(4, CPU)
COUNT = 5000


def mother(mass: float, momentum: float) -> tuple[torch.Tensor, ...]:
    direction = torch.nn.functional.normalize(torch.randn(COUNT, 3, dtype=torch.float64), dim=1)
    px, py, pz = (momentum * direction).unbind(1)
    return px, py, pz, torch.full((COUNT,), (momentum**2 + mass**2) ** 0.5, dtype=torch.float64)


def masses(*values: float) -> list[torch.Tensor]:
    return [torch.full((COUNT,), value, dtype=torch.float64) for value in values]


def invariant_mass(vector: tuple[torch.Tensor, ...]) -> torch.Tensor:
    px, py, pz, energy = vector
    return torch.sqrt((energy**2 - px**2 - py**2 - pz**2).clamp_min(0.0))


@pytest.mark.parametrize("products", [(0.1057, 0.0), (0.1396, 0.1350), (0.0, 0.0)])
def test_two_body_conserves_momentum_and_masses(products: tuple[float, float]):
    parent = mother(0.4937, 3.0)
    daughters = two_body(parent, *masses(0.4937, *products), DRAW)
    for component, total in enumerate(parent):
        torch.testing.assert_close(sum(d[component] for d in daughters), total, rtol=1e-9, atol=1e-9)
    for daughter, mass in zip(daughters, products, strict=True):
        torch.testing.assert_close(invariant_mass(daughter), masses(mass)[0], rtol=1e-4, atol=1e-5)


def decayed(pdg: int, momentum: tuple[torch.Tensor, ...]) -> tuple[Flight, SpeciesTable]:
    species = SpeciesTable(np.array([pdg, -pdg]), CPU)
    zero, rows = torch.zeros(COUNT, dtype=torch.float64), torch.arange(COUNT)
    kind = torch.full((COUNT,), species.row(pdg))
    return decay(Flight(rows, kind, zero, zero, zero, zero, *momentum[:3], rows), species, DRAW), species


@pytest.mark.parametrize("pdg", sorted(CHANNELS))
def test_daughters_carry_the_momentum_of_the_parent_less_neutrinos(pdg: int):
    parent = mother(properties(pdg).mass, 2.0)
    made, species = decayed(pdg, parent)
    total = torch.zeros(COUNT, 4, dtype=torch.float64)
    total.index_add_(0, made.particle, torch.stack([made.px, made.py, made.pz, made.energy(species)], dim=1))
    missing = torch.stack(parent, dim=1) - total
    assert bool((torch.bincount(made.particle, minlength=COUNT) >= 1).all())
    # What is missing is one or two neutrinos: no negative energy, no negative mass squared.
    assert missing[:, 3].min() > -1e-6
    assert (missing[:, 3] ** 2 - (missing[:, :3] ** 2).sum(1)).min() > -1e-5
    charge = torch.zeros(COUNT, dtype=torch.float64).index_add_(0, made.particle, species.charge[made.species])
    assert bool((charge == properties(pdg).charge).all())


def test_channels_come_as_often_as_the_table_says():
    made, species = decayed(321, mother(0.4937, 1.0))
    charged = torch.bincount(made.particle[species.charge[made.species] != 0], minlength=COUNT)
    assert (charged == 3).double().mean().item() == pytest.approx(0.0558, abs=0.012)
    muons = (made.species == species.row(-13)).double().sum().item() / COUNT
    assert muons == pytest.approx(0.6356 + 0.0335, abs=0.025)


def test_the_mass_of_a_pair_follows_phase_space():
    mass, products = 0.4937, (0.1396, 0.1396, 0.1396)
    found = draw_pair_mass(*masses(mass, *products), DRAW)
    pair = np.linspace(products[0] + products[1], mass - products[2], 2001)

    def breakup(m: np.ndarray | float, m1: np.ndarray | float, m2: float) -> np.ndarray:
        return np.sqrt(np.maximum((m**2 - (m1 + m2) ** 2) * (m**2 - (m1 - m2) ** 2), 0.0)) / m

    weight = breakup(mass, pair, products[2]) * breakup(pair, products[0], products[1])
    mean = np.average(pair, weights=weight)
    spread = np.sqrt(np.average((pair - mean) ** 2, weights=weight))
    assert found.mean().item() == pytest.approx(mean, rel=0.003)
    assert found.std().item() == pytest.approx(spread, rel=0.03)


def measured(pdg: int, pt: float, eta: float, vertex=(0.0, 0.0, 0.0), *, count: int = 400, **tracker):
    """Columns of tracks in a perfect `ild` with some of its tracker changed."""
    perfect = load_detector("ild").without()
    faults = perfect.tracker.faults.model_copy(update=tracker.pop("faults", {}))
    geometry = perfect.model_copy(update={"tracker": perfect.tracker.model_copy(update={"faults": faults, **tracker})})
    flight, species = gun(pdg, pt, eta, count, vertex)
    flown = track_through(flight, species, geometry, Draw(3, CPU))
    return measure_tracks(flown, species, geometry, torch.zeros(count, dtype=torch.int64), Draw(4, CPU))[0]


def test_a_continuous_tracker_measures_what_curls_up_in_it():
    plain, tpc = (measured(13, 0.5, 0.4, continuous=on) for on in (False, True))
    assert tpc["sigma_pt"].median() < 0.6 * plain["sigma_pt"].median()
    assert tpc["num_hits"].double().mean() > 1.5 * plain["num_hits"].double().mean()
    stiff = [measured(13, 30.0, 0.4, continuous=on)["num_hits"] for on in (False, True)]
    assert torch.equal(*stiff)


def test_what_begins_far_from_the_beam_points_worse_back_to_it():
    near, far = (measured(13, 5.0, 0.1, (x, 0.0, 0.0), continuous=True) for x in (0.0, 300.0))
    assert near["sigma_d0"].median() < 0.01
    assert far["sigma_d0"].median() > 0.03
    assert far["sigma_phi"].median() > 2.0 * near["sigma_phi"].median()


def test_uncertainties_spread_and_tracks_stay():
    sure, unsure = (measured(13, 5.0, 0.1, faults={"uncertainty_spread": spread}) for spread in (0.0, 0.1))
    assert torch.equal(sure["pt"], unsure["pt"])
    ratio = torch.log(unsure["sigma_theta"] / sure["sigma_theta"])
    assert ratio.std().item() == pytest.approx(0.1, rel=0.15)
    assert ratio.mean().abs() < 0.02

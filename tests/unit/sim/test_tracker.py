"""Through the tracker: layers, faces, loopers, interactions, and the kinematics of decays in flight."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ringflow.event.particles import properties
from ringflow.sim.flight import CHANNELS, Draw, Flight, SpeciesTable
from ringflow.sim.geometry import load_detector
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


def test_electron_that_radiates_keeps_one_track():
    count = 3000
    output, species = through(11, 10.0, 0.2, count)
    radiated = (output.ends.kind[:count] == INTERACTION).sum().item()
    assert radiated > 0.3 * count
    tracks = measure_tracks(output, species, CLIC, Draw(2, CPU))
    per_electron = torch.bincount(tracks["particle"], minlength=count)
    # Conversions of radiated photons add a few tracks, but radiation itself does not cut a track in two.
    assert (per_electron == 1).double().mean() > 0.9
    loss = 1.0 - tracks["pt"] / 10.0
    assert loss.mean() > 0.01


def test_track_errors_have_the_stated_size_and_correlation():
    count = 20_000
    output, species = through(13, 20.0, 0.2, count)
    tracks = measure_tracks(output, species, CLIC, Draw(5, CPU))
    pull = {"pt": 20.0 / tracks["pt"] - 1.0, "d0": tracks["d0"], "z0": tracks["z0"]}
    for name, value in pull.items():
        assert (value / tracks[f"sigma_{name}"]).std().item() == pytest.approx(1.0, rel=0.03)
    correlation = np.corrcoef(pull["pt"], pull["d0"])[0, 1]
    assert correlation == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize(("pt", "reaches"), [(20.0, True), (0.6, False)])
def test_the_extrapolation_ends_on_the_face_or_where_a_looper_turns_back(pt: float, reaches: bool):
    output, species = through(13, pt, 0.1, 200)
    tracks = measure_tracks(output, species, CLIC, Draw(5, CPU))
    assert (tracks["reaches_calo"] == reaches).all()
    radius = CLIC.face_radius if reaches else 2.0 * pt / (0.299792458e-3 * CLIC.field)
    torch.testing.assert_close(torch.hypot(tracks["calo_x"], tracks["calo_y"]), torch.full_like(tracks["pt"], radius))
    direction = tracks["calo_dx"] ** 2 + tracks["calo_dy"] ** 2 + tracks["calo_dz"] ** 2
    torch.testing.assert_close(direction, torch.ones_like(direction))


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

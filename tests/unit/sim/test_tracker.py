"""Through the tracker: layers, faces, loopers, interactions, decays."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ringflow.sim.flight import Draw, Flight, SpeciesTable
from ringflow.sim.geometry import load_detector
from ringflow.sim.tracker import (
    BARREL_FACE,
    CALORIMETER,
    ENDCAP_FACE,
    HADRONIC_FACE,
    INTERACTION,
    LOST,
    TrackerOutput,
    fly,
    measure_tracks,
    track_through,
)

CPU = torch.device("cpu")
CLIC = load_detector("clic")


def gun(pdg: int, pt: float, eta: float, count: int = 1, vertex: tuple[float, float, float] = (0.0, 0.0, 0.0)):
    species = SpeciesTable(np.array([pdg]), CPU)
    phi = torch.linspace(-3.0, 3.0, count, dtype=torch.float64)
    ones = torch.ones(count, dtype=torch.float64)
    x, y, z = (ones * value for value in vertex)
    flight = Flight(
        particle=torch.arange(count),
        species=torch.full((count,), species.row(pdg)),
        x=x,
        y=y,
        z=z,
        time=0.0 * ones,
        px=pt * torch.cos(phi),
        py=pt * torch.sin(phi),
        pz=pt * math.sinh(eta) * ones,
        root=torch.full((count,), -1),
    )
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


def test_reaches_calo_and_extrapolation_lie_on_the_face():
    output, species = through(13, 20.0, 0.5, 500)
    tracks = measure_tracks(output, species, CLIC, Draw(5, CPU))
    assert bool(tracks["reaches_calo"].all())
    torch.testing.assert_close(
        torch.hypot(tracks["calo_x"], tracks["calo_y"]), torch.full_like(tracks["pt"], CLIC.face_radius)
    )
    direction = tracks["calo_dx"] ** 2 + tracks["calo_dy"] ** 2 + tracks["calo_dz"] ** 2
    torch.testing.assert_close(direction, torch.ones_like(direction))


def test_a_looper_ends_where_it_turns_back():
    output, species = through(13, 0.6, 0.1, 200)
    tracks = measure_tracks(output, species, CLIC, Draw(5, CPU))
    assert not bool(tracks["reaches_calo"].any())
    diameter = 2.0 * 0.6 / (0.299792458e-3 * CLIC.field)
    torch.testing.assert_close(torch.hypot(tracks["calo_x"], tracks["calo_y"]), torch.full_like(tracks["pt"], diameter))

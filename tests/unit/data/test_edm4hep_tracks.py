"""Columns of tracks are functions of hits and fitted parameters, the same ones in the simulation and in EDM4hep files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.edm4hep_files import Content, Lists, write_frame, write_rntuple
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.elements.helix import Helix
from ringflow.event.block import Collection
from ringflow.event.particles import BENDING
from ringflow.sim.flight import Draw, Flight, SpeciesTable
from ringflow.sim.geometry import TRACK_PARAMETERS, load_detector
from ringflow.sim.tracker import find_tracks, track_columns, track_through

CLIC, CLD = load_detector("clic"), load_profile("cld")
AT_BEAM, AT_FIRST_HIT, AT_LAST_HIT, AT_CALORIMETER = 1, 2, 3, 4
PLACE = {"d0": 0, "phi": 2, "pt": 5, "z0": 9, "theta": 14}  # of variances in the lower triangle
State = dict[str, Any]


def content_with(tracks: list[list[State]]) -> Content:
    """One event with these states of its tracks; what a state does not have is zero."""
    content = Content()
    flat = [state for states in tracks for state in states]
    ends = np.cumsum([len(states) for states in tracks]).tolist()
    names = ("location", "D0", "phi", "omega", "Z0", "tanLambda", "time")
    names += tuple(f"referencePoint.{axis}" for axis in "xyz")

    def in_first(values: list[Any]) -> Lists:
        return [values, [], []]

    content.members["SiTracks_Refitted"] = {
        "chi2": in_first([1.0] * len(tracks)),
        "ndf": in_first([5] * len(tracks)),
        "trackStates_begin": in_first([0, *ends[:-1]]),
        "trackStates_end": in_first(ends),
    }
    states: dict[str, Lists] = {name: in_first([state.get(name, 0) for state in flat]) for name in names}
    states["covMatrix.values"] = in_first([state.get("covariance", [0.0] * 21) for state in flat])
    content.vectors["SiTracks_Refitted"] = {"trackStates": states}
    # Nothing refers to tracks.
    content.drop("SiTracksMCTruthLink", "PandoraPFOs")
    return content


def read_tracks(path: Path, tracks: list[list[State]], profile: Any = CLD) -> Collection:
    return next(Edm4hepFile(write_rntuple(path / "events.root", content_with(tracks)), profile).events())["track"]


def at(point: tuple[float, float, float]) -> State:
    return {f"referencePoint.{axis}": float(value) for axis, value in zip("xyz", point, strict=True)}


def test_the_reader_and_the_simulation_define_the_columns_of_a_track_alike(tmp_path: Path) -> None:
    """Fitted tracks of the simulation as states at the beam and at the last hit: what is read is what was simulated."""
    rng, count = np.random.default_rng(7), 1500
    species = SpeciesTable(np.array([11, -13, 211, -211, 321]), torch.device("cpu"))
    kind = torch.from_numpy(rng.choice([species.row(pdg) for pdg in (11, -13, 211, -211, 321)], count))
    place = (torch.from_numpy(rng.normal(0.0, 5.0, count)) for _ in range(3))
    pt, phi, eta = (
        torch.from_numpy(values)
        for values in (rng.exponential(3.0, count) + 0.2, rng.uniform(-3.1, 3.1, count), rng.uniform(-2.2, 2.2, count))
    )
    momentum = (pt * torch.cos(phi), pt * torch.sin(phi), pt * torch.sinh(eta))
    rows = torch.arange(count)
    flight = Flight(rows, kind, *place, torch.zeros_like(pt), *momentum, torch.full((count,), -1))
    draw = Draw(3, torch.device("cpu"))
    output = track_through(flight, species, CLIC, draw)
    fitted = find_tracks(output, species, CLIC, rows, draw)[0]
    simulated = {name: values.numpy() for name, values in track_columns(fitted, CLIC).items()}

    tracks = []
    for row in range(len(fitted)):
        one = {name: float(values[row]) for name, values in vars(fitted).items()}
        tan_lambda, omega = 1 / np.tan(one["theta"]), one["charge"] * BENDING * CLIC.field / one["pt"]
        scale = {"pt": abs(omega), "theta": 1 + tan_lambda**2}
        covariance = [0.0] * 21
        for name in TRACK_PARAMETERS:
            covariance[PLACE[name]] = float(simulated[f"sigma_{name}"][row] * scale.get(name, 1.0)) ** 2
        helix: State = {"omega": omega, "tanLambda": tan_lambda}
        beam = {"location": AT_BEAM, "D0": -one["d0"], "phi": one["phi"], "Z0": one["z0"], "covariance": covariance}
        last = {"location": AT_LAST_HIT, "phi": one["last_phi"], "time": one["last_time"]}
        last |= at((one["last_x"], one["last_y"], one["last_z"]))
        tracks.append([beam | helix, last | helix])
    read = read_tracks(tmp_path, tracks, load_profile("clic"))

    assert set(simulated) - set(read.columns) == {"num_hits", "dedx"}
    np.testing.assert_array_equal(read["reaches_calo"], simulated["reaches_calo"])
    assert 0.5 < read["reaches_calo"].mean() < 0.95
    for name in set(simulated) & set(read.columns) - {"chi2", "ndf", "reaches_calo"}:
        tolerance = 1e-3 if name[:4] in ("calo", "last", "time") else 1e-6
        np.testing.assert_allclose(read[name], simulated[name], rtol=2e-4, atol=tolerance, err_msg=name)


def test_the_way_to_the_calorimeter_starts_at_the_last_hit_and_ends_at_a_flat_side(tmp_path: Path) -> None:
    """Radiation and scattering bend a track on its way: only its end tells where it goes on."""
    omega = BENDING * CLD.field / 20.0
    beam = {"location": AT_BEAM, "phi": 0.1, "omega": omega, "tanLambda": 0.0}
    last = {"location": AT_LAST_HIT, "phi": 0.2, "omega": 1e-9, "tanLambda": 0.0} | at((2000.0, 100.0, 30.0))
    track = read_tracks(tmp_path, [[beam, last], [beam]])
    assert [track[f"last_{axis}"][0] for axis in "xyz"] == [2000.0, 100.0, 30.0]
    assert track["calo_x"][0] == pytest.approx(2150.0, abs=1e-3)  # a side of the barrel, not the cylinder in it
    assert track["calo_y"][0] == pytest.approx(100.0 + 150.0 * np.tan(0.2), abs=1e-2)
    assert track["calo_dy"][0] == pytest.approx(np.sin(0.2), abs=1e-6)
    assert track["calo_x"][1] == pytest.approx(2150.0, abs=1e-3)
    assert [track[f"last_{axis}"][1] for axis in "xyz"] == [track[f"calo_{axis}"][1] for axis in "xyz"]


def test_a_looper_stays_at_its_last_hit_whatever_its_state_at_the_calorimeter_says(tmp_path: Path) -> None:
    """Fits follow a looper through hundreds of turns to the endcap; no particle does."""
    omega = BENDING * CLD.field / 0.3
    helix: State = {"omega": omega, "tanLambda": 0.02}
    beam, last = {"location": AT_BEAM} | helix, {"location": AT_LAST_HIT, "phi": 0.4} | helix | at((300.0, 80.0, 7.0))
    face = {"location": AT_CALORIMETER} | helix | at((200.0, 100.0, 2307.0))
    steep = {"tanLambda": 3.0}
    tracks = read_tracks(tmp_path, [[beam, last, face], [beam | steep, last | steep, face | steep], [beam]])
    assert tracks["reaches_calo"].tolist() == [0, 1, 0]
    assert [tracks[f"calo_{axis}"][0] for axis in "xyz"] == [300.0, 80.0, 7.0]
    assert [tracks[f"calo_{axis}"][1] for axis in "xyz"] == [200.0, 100.0, 2307.0]
    # Without a last hit it ends where it turns back.
    assert np.hypot(tracks["calo_x"][2], tracks["calo_y"][2]) == pytest.approx(2.0 / omega)


def test_uncertainties_are_those_at_the_beam(tmp_path: Path) -> None:
    """A fit given at the first hit alone: its covariance is brought to the beam, by numbers drawn from it."""
    rng = np.random.default_rng(5)
    mean: State = {"D0": 0.01, "phi": 0.7, "omega": BENDING * CLD.field / 3.0, "Z0": -0.02, "tanLambda": 0.4}
    width = np.array([0.01, 1e-3, 1e-6, 0.02, 2e-3])
    root = np.tril(rng.normal(size=(5, 5)))
    root *= (width / np.sqrt((root**2).sum(axis=1)))[:, None]
    whole = root @ root.T
    lower = [float(whole[row, column]) for row in range(5) for column in range(row + 1)] + [0.0] * 6
    first = {"location": AT_FIRST_HIT, "covariance": lower} | mean | at((320.0, 260.0, 150.0))
    read = read_tracks(tmp_path, [[first]])

    drawn = np.array(list(mean.values())) + rng.normal(size=(200_000, 5)) @ root.T
    d0, phi, omega, z0, tan_lambda = map(torch.from_numpy, np.ascontiguousarray(drawn.T))
    helix = Helix(
        320.0 - d0 * torch.sin(phi), 260.0 + d0 * torch.cos(phi), 150.0 + z0, phi, tan_lambda, -omega
    ).perigee()
    for name, values in zip(("d0", "z0", "phi"), helix, strict=True):
        assert read[f"sigma_{name}"][0] == pytest.approx(float(values.std()), rel=0.02)
    assert read["sigma_d0"][0] > 10 * width[0]
    assert read["sigma_theta"][0] == pytest.approx(width[4] / (1 + 0.4**2), rel=1e-5)


def test_a_time_that_was_never_set_is_not_measured(tmp_path: Path) -> None:
    omega = BENDING * CLD.field / 20.0
    helix: State = {"omega": omega, "tanLambda": 0.0}
    beam, last = {"location": AT_BEAM} | helix, {"location": AT_LAST_HIT} | helix | at((2000.0, 0.0, 0.0))
    face = {"location": AT_CALORIMETER} | helix | at((2150.0, 0.0, 0.0))
    for unset in (-1.0, 0.0):
        time = {"time": unset}
        path = write_rntuple(tmp_path / "events.root", content_with([[beam | time, last | time, face | time]] * 2))
        file = Edm4hepFile(path, CLD)
        assert "time" not in file.columns["track"]
        assert any("does not fill" in note and "track_time" in note for note in file.notes)
    tracks = [[beam, last | {"time": 8.0}, face | {"time": -1.0}], [beam, last, face | {"time": 9.5}]]
    tracks += [[beam | {"time": -1.0}, last | {"time": -1.0}, face | {"time": -1.0}]]
    time = read_tracks(tmp_path, tracks)["time"]
    assert time[0] > 8.0 + 149.0 / 299.792458  # carried on from the last hit
    assert time[1] == 9.5
    assert time[2] == pytest.approx(2150.0 / 299.792458)  # nobody knows: as if prompt


def test_a_file_without_last_hits_has_no_columns_of_them(tmp_path: Path) -> None:
    file = Edm4hepFile(write_frame(tmp_path / "events.root", Content()), CLD)
    assert not {"last_x", "last_y", "last_z"} & set(file.columns["track"])

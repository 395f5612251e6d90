"""`ringflow validate`: hold a detector and the rules against what is published of the real one, one row per figure.

The figures are in the detector's own file, with their source. A detector without any is held to what every detector must
do: a flat response, no track beyond its acceptance, exact accounting, and rules as good as Pandora's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ringflow.base.log import say
from ringflow.recipes.rows import Row, at_least, at_most, within
from ringflow.recipes.shoot import BARREL, Floats, Observation, Shot, core_resolution, observe, run_all
from ringflow.recipes.validate_collisions import collision_rows
from ringflow.sim.geometry import (
    DetectorGeometry,
    Published,
    PublishedEnergyResolution,
    PublishedTrackResolution,
    load_detector,
)

PHOTON, PION, LONG_LIVED_KAON, MUON = 22, 211, 130, 13
LINEARITY_ENERGIES = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_LINEARITY = 0.03
TRACK_PT = (10.0, 100.0)


def validate(detector: str, events: int, workers: int, seed: int) -> list[Row]:
    """All rows; `events` particles for each."""
    geometry = load_detector(detector)
    published = geometry.published
    if published is None:
        say(f"nothing is published of detector {geometry.name}: only what every detector must do is compared")
    shots = _shots(detector, published, events, seed)
    seen = run_all(observe, list(shots.values()), workers, "validate: guns")
    guns = dict(zip(shots, seen, strict=True))
    rows = [*_photon_rows(guns, published), *_hadron_rows(guns, geometry), *_track_rows(guns, published)]
    return [*rows, *_efficiency_rows(guns), *collision_rows(detector, published, events, workers, seed)]


def _shots(detector: str, published: Published | None, events: int, seed: int) -> dict[str, Shot]:
    shots = {}
    for kind, pdg in (("photon", PHOTON), ("hadron", LONG_LIVED_KAON)):
        for energy in LINEARITY_ENERGIES:
            shots[f"{kind} {energy:g}"] = Shot(detector, (pdg,), energy, BARREL, events, seed)
    for region in published.tracks if published else []:
        eta = 0.5 * sum(region.eta)
        middle = _cos_theta(eta)
        for pt in TRACK_PT:
            at = (middle - 1e-6, middle + 1e-6)
            shots[_track_name(region, pt)] = Shot(detector, (MUON, -MUON), pt * math.cosh(eta), at, 2 * events, seed)
    inside, outside = _cos_theta(2.4), _cos_theta(2.6)
    # A pion of 6 GeV has more than 1 GeV of transverse momentum everywhere up to |eta| = 2.4.
    shots["pions"] = Shot(detector, (PION, -PION), 6.0, (-inside, inside), 2 * events, seed)
    shots["soft pions"] = Shot(detector, (PION, -PION), math.hypot(0.06, 0.13957), BARREL, events, seed)
    shots["forward pions"] = Shot(detector, (PION, -PION), 20.0, (outside, 0.9999), events, seed)
    return shots


def _track_name(region: PublishedTrackResolution, pt: float) -> str:
    low, high = region.eta
    return f"track pt resolution, {'central' if low == 0.0 else f'{low:g} < |eta| < {high:g}'}, {pt:g} GeV"


def _cos_theta(eta: float) -> float:
    return math.tanh(eta)


def _photon_rows(seen: dict[str, Observation], published: Published | None) -> Iterable[Row]:
    if published:
        for energy in (10.0, 50.0, 100.0):
            measured = core_resolution(seen[f"photon {energy:g}"].calorimeter)
            yield _resolution_row("photon energy resolution, barrel", energy, published.photon, measured)
    means = [float(np.mean(seen[f"photon {energy:g}"].calorimeter)) / energy for energy in LINEARITY_ENERGIES]
    yield at_most("photon response, 2-100 GeV, largest deviation from its mean", 0.0, _deviation(means), _LINEARITY)


def _hadron_rows(seen: dict[str, Observation], geometry: DetectorGeometry) -> Iterable[Row]:
    import torch

    from ringflow.elements.shapes import hadronic_scale

    scale = geometry.calibration

    def energies(energy: float) -> Floats:
        raw = torch.as_tensor(seen[f"hadron {energy:g}"].calorimeter)
        return hadronic_scale(raw, scale.hadronic_energy, scale.hadronic_factor).numpy()

    if geometry.published:
        for energy in (10.0, 20.0, 50.0):
            measured = core_resolution(energies(energy))
            yield _resolution_row(
                "neutral hadron energy resolution, central", energy, geometry.published.hadron, measured
            )
    means = [float(np.mean(energies(energy))) / energy for energy in LINEARITY_ENERGIES]
    name = "neutral hadron response, 2-100 GeV, largest deviation from its mean"
    yield at_most(name, 0.0, _deviation(means), _LINEARITY)


def _resolution_row(name: str, energy: float, published: PublishedEnergyResolution, measured: float) -> Row:
    expected = math.hypot(published.noise / energy, published.stochastic / math.sqrt(energy), published.constant)
    return within(f"{name}, {energy:g} GeV", expected, measured, published.accept)


def _track_rows(seen: dict[str, Observation], published: Published | None) -> Iterable[Row]:
    for region in published.tracks if published else []:
        for pt in TRACK_PT:
            name = _track_name(region, pt)
            yield within(name, math.hypot(region.a * pt, region.b), core_resolution(seen[name].pt_ratio), region.accept)


def _efficiency_rows(seen: dict[str, Observation]) -> Iterable[Row]:
    found = {name: float(np.mean(seen[name].found)) for name in ("pions", "soft pions", "forward pions")}
    yield at_least("pion tracking efficiency, pt > 1 GeV, |eta| < 2.4", 0.995, found["pions"], 0.98)
    yield at_most("pion tracking efficiency, pt < 0.1 GeV", 0.0, found["soft pions"], 0.0)
    yield at_most("pion tracking efficiency, |eta| > 2.54", 0.0, found["forward pions"], 0.0)


def _deviation(responses: list[float]) -> float:
    middle = sum(responses) / len(responses)
    return max(abs(value / middle - 1.0) for value in responses)

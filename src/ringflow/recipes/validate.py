"""`ringflow validate`: hold a detector against the published tables of CLICdet, one row per figure.

Sources: Delphes CLICdet Stage1 card after arXiv:1812.07337 and arXiv:1909.12728 for the resolutions and efficiencies, full
simulation of ttbar at 380 GeV for the hits. A detector without published figures of its own is compared with the same table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ringflow.recipes.rows import Row, at_least, at_most, within
from ringflow.recipes.shoot import BARREL, Floats, Observation, Shot, core_resolution, observe, run_all
from ringflow.recipes.validate_collisions import collision_rows

PHOTON, PION, LONG_LIVED_KAON, MUON = 22, 211, 130, 13
LINEARITY_ENERGIES = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_LINEARITY = 0.03
#: (name, |eta| range, a in 1/GeV, b, accepted relative deviation) of sigma(pt)/pt = a pt (+) b.
_TRACK_REGIONS = (
    ("central", (0.0, 0.45), 1.33e-5, 0.0021, 0.10),
    ("0.45 < |eta| < 0.88", (0.45, 0.88), 1.17e-5, 0.0026, 0.20),
    ("0.88 < |eta| < 1.32", (0.88, 1.32), 1.12e-5, 0.0039, 0.20),
    ("1.32 < |eta| < 1.74", (1.32, 1.74), 8.6e-5, 0.015, 0.20),
)


def validate(detector: str, events: int, workers: int, seed: int) -> list[Row]:
    """All rows; `events` particles for each."""
    shots = _shots(detector, events, seed)
    seen = run_all(observe, list(shots.values()), workers, "validate: guns")
    guns = dict(zip(shots, seen, strict=True))
    rows = [*_photon_rows(guns), *_hadron_rows(guns, detector), *_track_rows(guns), *_efficiency_rows(guns)]
    return [*rows, *collision_rows(detector, events, workers, seed)]


def _shots(detector: str, events: int, seed: int) -> dict[str, Shot]:
    shots = {}
    for kind, pdg in (("photon", PHOTON), ("hadron", LONG_LIVED_KAON)):
        for energy in LINEARITY_ENERGIES:
            shots[f"{kind} {energy:g}"] = Shot(detector, (pdg,), energy, BARREL, events, seed)
    for name, (low, high), _, _, _ in _TRACK_REGIONS:
        middle = _cos_theta(0.5 * (low + high))
        for pt in (10.0, 100.0):
            energy = pt * math.cosh(0.5 * (low + high))
            shots[f"track {name} {pt:g}"] = Shot(
                detector, (MUON, -MUON), energy, (middle - 1e-6, middle + 1e-6), 2 * events, seed
            )
    inside, outside = _cos_theta(2.4), _cos_theta(2.6)
    # A pion of 6 GeV has more than 1 GeV of transverse momentum everywhere up to |eta| = 2.4.
    shots["pions"] = Shot(detector, (PION, -PION), 6.0, (-inside, inside), 2 * events, seed)
    shots["soft pions"] = Shot(detector, (PION, -PION), math.hypot(0.06, 0.13957), BARREL, events, seed)
    shots["forward pions"] = Shot(detector, (PION, -PION), 20.0, (outside, 0.9999), events, seed)
    return shots


def _cos_theta(eta: float) -> float:
    return math.tanh(eta)


def _photon_rows(seen: dict[str, Observation]) -> Iterable[Row]:
    for energy in (10.0, 50.0, 100.0):
        published = math.hypot(0.156 / math.sqrt(energy), 0.01)
        measured = core_resolution(seen[f"photon {energy:g}"].calorimeter)
        yield within(f"photon energy resolution, barrel, {energy:g} GeV", published, measured, 0.15)
    means = [float(np.mean(seen[f"photon {energy:g}"].calorimeter)) / energy for energy in LINEARITY_ENERGIES]
    yield at_most("photon response, 2-100 GeV, largest deviation from its mean", 0.0, _deviation(means), _LINEARITY)


def _hadron_rows(seen: dict[str, Observation], detector: str) -> Iterable[Row]:
    import torch

    from ringflow.elements.shapes import hadronic_scale
    from ringflow.sim.geometry import load_detector

    scale = load_detector(detector).calibration

    def energies(energy: float) -> Floats:
        raw = torch.as_tensor(seen[f"hadron {energy:g}"].calorimeter)
        return hadronic_scale(raw, scale.hadronic_energy, scale.hadronic_factor).numpy()

    for energy in (10.0, 20.0, 50.0):
        published = math.hypot(1.38 / energy, 0.308 / math.sqrt(energy), 0.05)
        yield within(
            f"neutral hadron energy resolution, central, {energy:g} GeV",
            published,
            core_resolution(energies(energy)),
            0.20,
        )
    means = [float(np.mean(energies(energy))) / energy for energy in LINEARITY_ENERGIES]
    yield at_most(
        "neutral hadron response, 2-100 GeV, largest deviation from its mean", 0.0, _deviation(means), _LINEARITY
    )


def _track_rows(seen: dict[str, Observation]) -> Iterable[Row]:
    for name, _, a, b, accepted in _TRACK_REGIONS:
        for pt in (10.0, 100.0):
            measured = core_resolution(seen[f"track {name} {pt:g}"].pt_ratio)
            yield within(f"track pt resolution, {name}, {pt:g} GeV", math.hypot(a * pt, b), measured, accepted)


def _efficiency_rows(seen: dict[str, Observation]) -> Iterable[Row]:
    found = {name: float(np.mean(seen[name].found)) for name in ("pions", "soft pions", "forward pions")}
    yield at_least("pion tracking efficiency, pt > 1 GeV, |eta| < 2.4", 0.995, found["pions"], 0.98)
    yield at_most("pion tracking efficiency, pt < 0.1 GeV", 0.0, found["soft pions"], 0.0)
    yield at_most("pion tracking efficiency, |eta| > 2.54", 0.0, found["forward pions"], 0.0)


def _deviation(responses: list[float]) -> float:
    middle = sum(responses) / len(responses)
    return max(abs(value / middle - 1.0) for value in responses)

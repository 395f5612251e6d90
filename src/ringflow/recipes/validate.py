"""`ringflow validate`: hold a detector against the published tables of CLICdet, one row per figure.

Sources: Delphes CLICdet Stage1 card after arXiv:1812.07337 and arXiv:1909.12728 for the resolutions and efficiencies, full
simulation of ttbar at 380 GeV for the hits. A detector without published figures of its own is compared with the same table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ringflow.recipes.shoot import BARREL, Floats, Observation, Shot, core_resolution, observe, run_all

Row = dict[str, object]

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


@dataclass(frozen=True)
class Collisions:
    """Numbers of a sample of collisions."""

    hits: Floats
    accounting: Floats  # relative difference between the energy of the targets and of the visible particles


def validate(detector: str, events: int, workers: int, seed: int) -> list[Row]:
    """All rows; `events` particles for each."""
    shots = _shots(detector, events, seed)
    seen = run_all(observe, list(shots.values()), workers, "validate: guns")
    guns = dict(zip(shots, seen, strict=True))
    collision = partial(collide, detector, max(events // 20, 20), seed)
    ttbar, zuds = run_all(collision, ["ttbar", "zuds_91"], workers, "validate: collisions")
    return [
        *_photon_rows(guns),
        *_hadron_rows(guns, detector),
        *_track_rows(guns),
        *_efficiency_rows(guns),
        *_event_rows(ttbar, zuds),
    ]


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


def collide(detector: str, events: int, seed: int, sample: str) -> Collisions:
    """Simulate collisions and reduce them to their numbers."""
    import torch

    from ringflow.sim.detector import Detector
    from ringflow.sim.geometry import load_detector
    from ringflow.sim.samples import make_generator
    from ringflow.sim.settings import GeneratorSettings

    torch.set_num_threads(1)
    geometry = load_detector(detector)
    generator = make_generator(GeneratorSettings(sample=sample, seed=seed), *geometry.tracker_cylinder)
    block = Detector(geometry).simulate_block(generator.generate(0, events), seed)
    particles, targets = block["particle"], block["target"]
    visible = particles["energy"] * (particles["target"] >= 0)
    totals = [
        np.bincount(np.repeat(np.arange(events), part.counts), weights=energy, minlength=events)
        for part, energy in ((particles, visible), (targets, targets["energy"]))
    ]
    difference = np.abs(totals[1] - totals[0]) / np.maximum(totals[0], 1e-9)
    return Collisions(block["hit"].counts.astype(np.float64), difference)


def _photon_rows(seen: dict[str, Observation]) -> Iterable[Row]:
    for energy in (10.0, 50.0, 100.0):
        published = math.hypot(0.156 / math.sqrt(energy), 0.01)
        measured = core_resolution(seen[f"photon {energy:g}"].calorimeter)
        yield _within(f"photon energy resolution, barrel, {energy:g} GeV", published, measured, 0.15)
    means = [float(np.mean(seen[f"photon {energy:g}"].calorimeter)) / energy for energy in LINEARITY_ENERGIES]
    yield _at_most("photon response, 2-100 GeV, largest deviation from its mean", 0.0, _deviation(means), _LINEARITY)


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
        yield _within(
            f"neutral hadron energy resolution, central, {energy:g} GeV",
            published,
            core_resolution(energies(energy)),
            0.20,
        )
    means = [float(np.mean(energies(energy))) / energy for energy in LINEARITY_ENERGIES]
    yield _at_most(
        "neutral hadron response, 2-100 GeV, largest deviation from its mean", 0.0, _deviation(means), _LINEARITY
    )


def _track_rows(seen: dict[str, Observation]) -> Iterable[Row]:
    for name, _, a, b, accepted in _TRACK_REGIONS:
        for pt in (10.0, 100.0):
            measured = core_resolution(seen[f"track {name} {pt:g}"].pt_ratio)
            yield _within(f"track pt resolution, {name}, {pt:g} GeV", math.hypot(a * pt, b), measured, accepted)


def _efficiency_rows(seen: dict[str, Observation]) -> Iterable[Row]:
    found = {name: float(np.mean(seen[name].found)) for name in ("pions", "soft pions", "forward pions")}
    yield {
        "name": "pion tracking efficiency, pt > 1 GeV, |eta| < 2.4",
        "published": 0.995,
        "measured": found["pions"],
        "accept": "> 0.98",
        "ok": found["pions"] > 0.98,
    }
    yield _at_most("pion tracking efficiency, pt < 0.1 GeV", 0.0, found["soft pions"], 0.0)
    yield _at_most("pion tracking efficiency, |eta| > 2.54", 0.0, found["forward pions"], 0.0)


def _event_rows(ttbar: Collisions, zuds: Collisions) -> Iterable[Row]:
    median = float(np.median(ttbar.hits))
    yield {
        "name": "calorimeter hits per ttbar event at 380 GeV, median",
        "published": 8500.0,
        "measured": median,
        "accept": "4000 to 15000",
        "ok": 4000.0 <= median <= 15000.0,
    }
    worst = float(zuds.accounting.max())
    yield _at_most("Z to uds at 91 GeV: energy of targets against visible particles, worst event", 0.0, worst, 1e-5)


def _deviation(responses: list[float]) -> float:
    middle = sum(responses) / len(responses)
    return max(abs(value / middle - 1.0) for value in responses)


def _within(name: str, published: float, measured: float, relative: float) -> Row:
    accept = f"{published * (1 - relative):.4g} to {published * (1 + relative):.4g}"
    return {
        "name": name,
        "published": published,
        "measured": measured,
        "accept": accept,
        "ok": abs(measured / published - 1.0) <= relative,
    }


def _at_most(name: str, published: float, measured: float, limit: float) -> Row:
    return {
        "name": name,
        "published": published,
        "measured": measured,
        "accept": f"<= {limit:g}",
        "ok": measured <= limit,
    }

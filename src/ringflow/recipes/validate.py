"""`ringflow validate`: hold a detector and the rules against what is published of the real one, one row per figure.

The figures are in the detector's own file, with their source. A detector without any is held to what every detector must
do: a flat response, no track beyond its acceptance, exact accounting, and rules as good as Pandora's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ringflow.base.log import say
from ringflow.event.particles import PHOTON as PHOTON_LABEL
from ringflow.sim.blocks import BARREL, Floats, Observation, Shot, observe, run_all, simulate_shot
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
#: |eta| ranges of the published photon identification, and what was published there.
_PHOTON_REGIONS = (("|eta| < 0.7", (-0.604, 0.604), 0.94), ("0.7 < |eta| < 2.3", (0.604, 0.98), 0.90))
_PHOTON_ENERGIES = (2.0, 5.0, 20.0, 60.0)
_EVENTS_PER_BLOCK = 50
_FIGURES = ("rms90_jer", "jet_iqr_over_median")

Row = dict[str, object]


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
        middle = math.tanh(eta)
        for pt in TRACK_PT:
            at = (middle - 1e-6, middle + 1e-6)
            shots[_track_name(region, pt)] = Shot(detector, (MUON, -MUON), pt * math.cosh(eta), at, 2 * events, seed)
    inside, outside = math.tanh(2.4), math.tanh(2.6)
    # A pion of 6 GeV has more than 1 GeV of transverse momentum everywhere up to |eta| = 2.4.
    shots["pions"] = Shot(detector, (PION, -PION), 6.0, (-inside, inside), 2 * events, seed)
    shots["soft pions"] = Shot(detector, (PION, -PION), math.hypot(0.06, 0.13957), BARREL, events, seed)
    shots["forward pions"] = Shot(detector, (PION, -PION), 20.0, (outside, 0.9999), events, seed)
    return shots


def _track_name(region: PublishedTrackResolution, pt: float) -> str:
    low, high = region.eta
    return f"track pt resolution, {'central' if low == 0.0 else f'{low:g} < |eta| < {high:g}'}, {pt:g} GeV"


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


def core_resolution(values: Floats) -> float:
    """Half the width of the central 68 % over the median: the sigma of a Gaussian, untouched by tails."""
    low, middle, high = np.quantile(values, [0.15865, 0.5, 0.84135])
    return float((high - low) / (2.0 * middle))


@dataclass(frozen=True)
class Collisions:
    """Numbers of a sample of collisions."""

    hits: Floats
    accounting: Floats  # relative difference between the energy of the targets and of the visible particles
    figures: dict[str, float]  # of the rule-based reconstruction


def collision_rows(detector: str, published: Published | None, events: int, workers: int, seed: int) -> list[Row]:
    """Rows from ttbar and Z to uds events and from photons, for `events` particles per gun."""
    sizes = {"ttbar": max(events // 10, 20), "zuds_91": max(events // 2, 40), "zuds_380": max(events // 4, 40)}
    tasks = list(sizes.items())
    made = run_all(partial(collide, detector, seed), tasks, workers, "validate: collisions")
    ttbar, zuds_91, zuds_380 = made
    shots = [
        Shot(detector, (PHOTON,), energy, cos_theta, max(events // 4, 50), seed)
        for _, cos_theta, _ in _PHOTON_REGIONS
        for energy in _PHOTON_ENERGIES
    ]
    found = (
        np.array(run_all(identified, shots, workers, "validate: photons")).reshape(len(_PHOTON_REGIONS), -1, 2).sum(1)
    )
    return [*_event_rows(ttbar, zuds_91, published), *_jet_rows(ttbar, zuds_91, zuds_380), *_identification_rows(found)]


def collide(detector: str, seed: int, task: tuple[str, int]) -> Collisions:
    """Simulate and reconstruct collisions and reduce them to their numbers."""
    import torch

    from ringflow.baseline.constants import load_constants
    from ringflow.baseline.rules import reconstruct_block
    from ringflow.evaluate.metrics import metrics
    from ringflow.evaluate.momenta import checked
    from ringflow.evaluate.sheet import Sheet, Truth, measure
    from ringflow.sim.detector import Detector
    from ringflow.sim.generator import make_generator
    from ringflow.sim.geometry import load_detector
    from ringflow.sim.settings import GeneratorSettings

    torch.set_num_threads(1)
    sample, events = task
    geometry = load_detector(detector)
    constants = load_constants(detector)
    generator = make_generator(GeneratorSettings(sample=sample, seed=seed), *geometry.tracker_cylinder)
    simulator = Detector(geometry)
    sheet = Sheet.empty(sample, has_truth=True)
    hits, differences = [], []
    for start in range(0, events, _EVENTS_PER_BLOCK):
        count = min(_EVENTS_PER_BLOCK, events - start)
        block = simulator.simulate_block(generator.generate(start, count), seed * 1_000_003 + start)
        reco = checked(reconstruct_block(block, constants), block.event_number, "baseline")
        measure(sheet, sample, block.event_number, Truth.of(block), reco)
        particles, targets = block["particle"], block["target"]
        totals = [
            np.bincount(np.repeat(np.arange(count), part.counts), weights=energy, minlength=count)
            for part, energy in (
                (particles, particles["energy"] * (particles["target"] >= 0)),
                (targets, targets["energy"]),
            )
        ]
        hits.append(block["hit"].counts.astype(np.float64))
        differences.append(np.abs(totals[1] - totals[0]) / np.maximum(totals[0], 1e-9))
    figures = {
        name: figure["value"]
        for name, figure in metrics(sheet, sample).items()
        if name in _FIGURES and figure is not None
    }
    return Collisions(np.concatenate(hits), np.concatenate(differences), figures)


def identified(shot: Shot) -> tuple[int, int]:
    """Photons of a gun that did not convert, found as a photon, and how many there were."""
    from ringflow.baseline.constants import load_constants
    from ringflow.baseline.rules import reconstruct_block

    constants = load_constants(shot.detector)
    found = asked = 0
    for block in simulate_shot(shot):
        whole = block["track"].counts == 0
        candidates = reconstruct_block(block, constants)
        event = np.repeat(np.arange(len(block)), candidates.counts)
        seen = np.bincount(event[candidates["label"] == PHOTON_LABEL], minlength=len(block)) > 0
        found, asked = found + int((seen & whole).sum()), asked + int(whole.sum())
    return found, asked


def _event_rows(ttbar: Collisions, zuds: Collisions, published: Published | None) -> Iterable[Row]:
    if published:
        expected, median = published.ttbar_hits, float(np.median(ttbar.hits))
        low, high = expected.accept
        name = "calorimeter hits per ttbar event at 380 GeV, median"
        yield _row(name, expected.median, median, f"{low:g} to {high:g}", low <= median <= high)
    worst = float(zuds.accounting.max())
    yield at_most("Z to uds at 91 GeV: energy of targets against visible particles, worst event", 0.0, worst, 1e-5)


def _jet_rows(ttbar: Collisions, zuds_91: Collisions, zuds_380: Collisions) -> Iterable[Row]:
    """Published: Pandora 4-5 % and 3-4 % for Z to uds, 0.061 in a full simulation of ttbar."""
    resolution = "rules: jet energy resolution (RMS90), Z to uds"
    yield at_most(f"{resolution}, 45.5 GeV jets, barrel", 0.045, zuds_91.figures["rms90_jer"], 0.055)
    yield at_most(f"{resolution}, 190 GeV jets, barrel", 0.035, zuds_380.figures["rms90_jer"], 0.045)
    spread = ttbar.figures["jet_iqr_over_median"]
    yield at_most("rules: jet response IQR/median, ttbar at 380 GeV", 0.061, spread, 0.075)


def _identification_rows(found: Floats) -> Iterable[Row]:
    for (region, _, published), (seen, asked) in zip(_PHOTON_REGIONS, found, strict=True):
        yield at_least(
            f"rules: photon identification, E >= 2 GeV, unconverted, {region}", published, float(seen / asked), 0.90
        )


def within(name: str, published: float, measured: float, relative: float) -> Row:
    """A figure that must lie within a relative distance of the published one."""
    accept = f"{published * (1 - relative):.4g} to {published * (1 + relative):.4g}"
    return _row(name, published, measured, accept, abs(measured / published - 1.0) <= relative)


def at_most(name: str, published: float, measured: float, limit: float) -> Row:
    """A figure that must not exceed a limit."""
    return _row(name, published, measured, f"<= {limit:g}", measured <= limit)


def at_least(name: str, published: float, measured: float, limit: float) -> Row:
    """A figure that must not fall below a limit."""
    return _row(name, published, measured, f">= {limit:g}", measured >= limit)


def _row(name: str, published: float, measured: float, accept: str, ok: bool) -> Row:
    return {"name": name, "published": published, "measured": measured, "accept": accept, "ok": ok}

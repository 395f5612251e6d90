"""The part of `ringflow validate` that needs a reconstruction: hits, jets and photons as the rules find them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ringflow.event.particles import PHOTON
from ringflow.recipes.rows import Row, at_least, at_most
from ringflow.recipes.shoot import Floats, Shot, run_all, simulate_shot
from ringflow.sim.geometry import Published

#: |eta| ranges of the published photon identification, and what was published there.
_PHOTON_REGIONS = (("|eta| < 0.7", (-0.604, 0.604), 0.94), ("0.7 < |eta| < 2.3", (0.604, 0.98), 0.90))
_PHOTON_ENERGIES = (2.0, 5.0, 20.0, 60.0)
_PHOTON_PDG = 22
_EVENTS_PER_BLOCK = 50
_FIGURES = ("rms90_jer", "jet_iqr_over_median")


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
        Shot(detector, (_PHOTON_PDG,), energy, cos_theta, max(events // 4, 50), seed)
        for _, cos_theta, _ in _PHOTON_REGIONS
        for energy in _PHOTON_ENERGIES
    ]
    found = (
        np.array(run_all(identified, shots, workers, "validate: photons")).reshape(len(_PHOTON_REGIONS), -1, 2).sum(1)
    )
    return [*_event_rows(ttbar, zuds_91, published), *_jet_rows(ttbar, zuds_91, zuds_380), *_photon_rows(found)]


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
        seen = np.bincount(event[candidates["label"] == PHOTON], minlength=len(block)) > 0
        found, asked = found + int((seen & whole).sum()), asked + int(whole.sum())
    return found, asked


def _event_rows(ttbar: Collisions, zuds: Collisions, published: Published | None) -> Iterable[Row]:
    if published:
        expected, median = published.ttbar_hits, float(np.median(ttbar.hits))
        low, high = expected.accept
        yield {
            "name": "calorimeter hits per ttbar event at 380 GeV, median",
            "published": expected.median,
            "measured": median,
            "accept": f"{low:g} to {high:g}",
            "ok": low <= median <= high,
        }
    worst = float(zuds.accounting.max())
    yield at_most("Z to uds at 91 GeV: energy of targets against visible particles, worst event", 0.0, worst, 1e-5)


def _jet_rows(ttbar: Collisions, zuds_91: Collisions, zuds_380: Collisions) -> Iterable[Row]:
    """Published: Pandora 4-5 % and 3-4 % for Z to uds, 0.061 in a full simulation of ttbar."""
    yield at_most(
        "rules: jet energy resolution (RMS90), Z to uds, 45.5 GeV jets, barrel",
        0.045,
        zuds_91.figures["rms90_jer"],
        0.055,
    )
    yield at_most(
        "rules: jet energy resolution (RMS90), Z to uds, 190 GeV jets, barrel",
        0.035,
        zuds_380.figures["rms90_jer"],
        0.045,
    )
    yield at_most(
        "rules: jet response IQR/median, ttbar at 380 GeV", 0.061, ttbar.figures["jet_iqr_over_median"], 0.075
    )


def _photon_rows(found: Floats) -> Iterable[Row]:
    for (region, _, published), (seen, asked) in zip(_PHOTON_REGIONS, found, strict=True):
        yield at_least(
            f"rules: photon identification, E >= 2 GeV, unconverted, {region}", published, float(seen / asked), 0.90
        )

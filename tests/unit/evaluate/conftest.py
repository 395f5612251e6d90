"""A made-up evaluation: histograms and metrics of four reconstructions, with plausible numbers and no simulation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import hist
import numpy as np
import pytest

from ringflow.evaluate.sheet import ETA_EDGES, JET_PT_EDGES, MISSING_PT_EDGES, RESPONSE_PT_EDGES, book
from ringflow.event.block import Collection, EventBlock

#: Width of the response, share found, share of fakes: none for the truth target, most for the rules.
QUALITY = {
    "target": (1e-4, 1.0, 0.0),
    "perfect": (0.025, 0.98, 0.01),
    "baseline": (0.065, 0.86, 0.12),
    "model": (0.045, 0.91, 0.07),
}
FALLBACK = (0.055, 0.88, 0.1)


def fill(name: str, events: int, seed: int = 1) -> dict[str, hist.Hist]:
    """The histograms of one reconstruction."""
    rng = np.random.default_rng(seed)
    width, efficiency, fakes = QUALITY.get(name, FALLBACK)
    booked = book()
    _fill_jets(booked, rng, 4 * events, width, efficiency)
    _fill_particles(booked, rng, 60 * events, width, efficiency, fakes)
    truth_met = rng.exponential(35, events) + 5
    booked["met_response"].fill(truth_met, np.abs(rng.normal(1, width * (1 + 30 / truth_met))))
    for component in "xyz":
        booked["met_error"].fill(component, rng.normal(0, 60 * width, events))
    booked["visible_energy"].fill(rng.normal(1 - 0.1 * width, 0.6 * width, events))
    booked["particles_per_event"].fill(rng.normal(95 * (1 + fakes), 20, events))
    booked["mass"].fill("W", rng.normal(80.4, 3 + 80 * width, 2 * events))
    booked["mass"].fill("top", rng.normal(172.5, 6 + 150 * width, 2 * events))
    return booked


def _fill_jets(booked: dict[str, hist.Hist], rng: np.random.Generator, jets: int, width: float, found: float) -> None:
    pt = rng.exponential(35, jets) + 5
    response = rng.normal(1 - 0.1 * width, 0.75 * width * (1 + 8 / pt))
    matched = rng.random(jets) < found + (1 - found) * pt / (pt + 10)
    booked["jet_response"].fill(pt[matched], response[matched])
    booked["jet_truth_pt"].fill(pt, matched)
    booked["jet_reco_pt"].fill(pt * response, matched)


def _fill_particles(
    booked: dict[str, hist.Hist], rng: np.random.Generator, particles: int, width: float, found: float, fakes: float
) -> None:
    label = rng.choice([1, 2, 3, 4, 5], p=[0.45, 0.12, 0.4, 0.02, 0.01], size=particles)
    pt = rng.lognormal(0.3, 1.2, particles)
    eta = rng.normal(0, 1.1, particles)
    hard = np.where(label == 2, 0.75, 1.0)
    matched = rng.random(particles) < hard * (found + (1 - found) * pt / (pt + 1)) - 0.15 * (1 - found) / pt.clip(0.2)
    booked["particle_truth"].fill(label, pt, eta, matched)
    real = rng.random(particles) >= fakes / hard / (1 + pt)
    booked["particle_reco"].fill(label, pt, eta, real)
    swapped = np.where(rng.random(particles) < 0.6 * fakes, rng.choice([1, 2, 3], size=particles), label)
    booked["confusion"].fill(label, np.where(matched, swapped, 0))
    booked["confusion"].fill(np.zeros((~real).sum(), dtype=int), label[~real])
    events = max(particles // 60, 1)
    for number in range(1, 6):
        booked["multiplicity"].fill(number, np.round(rng.normal(40 * (fakes - (1 - found)) / number, 3, events)))


def measured(value: float, error: float) -> dict[str, float]:
    return {"value": value, "lo": value - error, "hi": value + error}


def metrics(name: str, scale: float = 1.0) -> dict[str, Any]:
    """The metrics of one reconstruction; `scale` makes another sample of it."""
    width, found, fakes = QUALITY.get(name, FALLBACK)
    purity = 1 - fakes
    f1 = 2 * found * purity / (found + purity)
    rates = {
        "efficiency": measured(found, 0.002),
        "purity": measured(purity, 0.002),
        "fake_rate": measured(fakes, 0.0013),
        "f1": measured(f1, 0.0012),
    }
    per_class = {**rates, "pt_bins": bins("pt", RESPONSE_PT_EDGES, width)}
    return {
        "jet_median": measured(1 - 0.1 * width, 0.0006),
        "jet_iqr_over_median": measured(width * scale, 0.0009),
        "jet_matched_fraction": measured(0.9 + 0.1 * found, 0.0011),
        "met_median": measured(1.01, 0.004),
        "met_iqr_over_median": measured(2.5 * width * scale, 0.005),
        "missing_momentum_error": measured(60 * width, 0.12),
        "visible_energy_median": measured(1 - 0.05 * width, 0.0004),
        "visible_energy_resolution": measured(0.6 * width * scale, 0.0007),
        **{f"particle_{rate}": value for rate, value in rates.items()},
        "rms90_jer": None,
        "classes": dict.fromkeys(("charged_hadron", "neutral_hadron", "photon", "electron", "muon"), per_class),
        "jet_bins": [
            {**row, "matched_fraction": measured(0.9 + 0.1 * found, 0.003)} for row in bins("pt", JET_PT_EDGES, width)
        ],
        "jet_eta_bins": bins("eta", ETA_EDGES, width),
        "met_bins": bins("pt", MISSING_PT_EDGES, 2.5 * width),
        "particles_per_event": measured(95 * (1 + fakes), 1.2),
    }


def bins(of: str, edges: tuple[float, ...], width: float) -> list[dict[str, Any]]:
    """A median and a width in every bin."""
    return [
        {
            f"lo_{of}": low,
            f"hi_{of}": high,
            "median": measured(1 - 0.1 * width, 0.001),
            "iqr_over_median": measured(width * (1 + 1 / (1 + abs(low))), 0.002),
        }
        for low, high in pairwise(edges)
    ]


def event(seed: int = 3) -> tuple[EventBlock, Collection]:
    """One event with 40 particles, and candidates that miss some of them."""
    rng = np.random.default_rng(seed)
    n = 40
    axis = rng.choice([0.4, 2.6, -1.5], n)
    eta, phi = rng.normal(0, 0.25, n) + np.cos(axis), rng.normal(axis, 0.2)
    phi = (phi + np.pi) % (2 * np.pi) - np.pi
    pt = rng.lognormal(0.8, 1.0, n)
    momentum = {"px": pt * np.cos(phi), "py": pt * np.sin(phi), "pz": pt * np.sinh(eta), "energy": pt * np.cosh(eta)}
    label = rng.choice([1, 2, 3, 4, 5], p=[0.45, 0.12, 0.39, 0.02, 0.02], size=n).astype(np.int8)
    charged = np.isin(label, (1, 4, 5))
    counts = np.array([n])
    block = EventBlock(
        np.array([7]),
        {
            "track": Collection(
                counts * 0 + charged.sum(), {"eta": eta[charged], "phi": phi[charged], "pt": pt[charged]}
            ),
            "cluster": Collection(counts, {"eta": eta + 0.01, "phi": phi + 0.03, "energy": momentum["energy"] * 0.9}),
            "target": Collection(counts, {"label": label, **momentum}),
        },
    )
    kept = rng.random(n) < 0.85
    found = {name: values[kept] * 1.02 for name, values in momentum.items()}
    return block, Collection(np.array([kept.sum()]), {"label": label[kept], **found})


@pytest.fixture(scope="session")
def filled() -> Callable[..., dict[str, hist.Hist]]:
    return fill


@pytest.fixture(scope="session")
def made_up_metrics() -> Callable[..., dict[str, Any]]:
    return metrics


@pytest.fixture(scope="session")
def made_up_event() -> tuple[EventBlock, Collection]:
    return event()

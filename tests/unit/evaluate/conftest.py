"""Four reconstructions of events made by hand, measured and compared as an evaluation does it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from fixtures.hand_made import momenta_of
from ringflow.evaluate.jets import find_jets, in_barrel
from ringflow.evaluate.metrics import comparisons, metrics
from ringflow.evaluate.sheet import Sheet, Truth, measure

EVENTS = 200
#: Width of momenta, which is also the share of particles that are lost and of those that are invented.
WIDTHS = {"target": 0.0, "perfect": 0.02, "baseline": 0.12, "model": 0.06}


@pytest.fixture(scope="session")
def sheets() -> dict[str, Sheet]:
    rng = np.random.default_rng(1)
    shape = (EVENTS, 60)
    jet = rng.integers(0, 4, shape)
    eta, phi = rng.normal(0.6 * jet - 1, 0.2), (rng.normal(1.5 * jet, 0.2) + np.pi) % (2 * np.pi) - np.pi
    particles = np.stack([rng.lognormal(0.3, 1.2, shape), eta, phi, rng.integers(1, 6, shape)], axis=2)
    true = momenta_of(particles.tolist())
    truth = Truth(true, true, find_jets(true), true, find_jets(true), np.zeros((EVENTS, 4)), in_barrel(true))
    found = {}
    for name, width in WIDTHS.items():
        made = particles.copy()
        made[..., 0] *= rng.normal(1, width, shape).clip(0.1)
        fake = rng.random(shape) < width
        made[..., 2] = np.where(fake, rng.uniform(-3, 3, shape), made[..., 2])
        kept = rng.random(shape) >= width
        found[name] = Sheet.empty("ttbar", has_truth=True)
        reco = momenta_of([event[chosen].tolist() for event, chosen in zip(made, kept, strict=True)])
        measure(found[name], "ttbar", np.arange(EVENTS), truth, reco)
    return found


@pytest.fixture(scope="session")
def books(sheets: dict[str, Sheet]) -> dict[str, Any]:
    return {name: sheet.histograms for name, sheet in sheets.items()}


@pytest.fixture(scope="session")
def _scored(sheets: dict[str, Sheet]) -> dict[str, Any]:
    figures = {name: metrics(sheet, "ttbar") for name, sheet in sheets.items()}
    return {"sample": "ttbar", "events": 12345, "reconstructions": figures, "comparisons": comparisons(sheets)}


@pytest.fixture
def scored(_scored: dict[str, Any]) -> dict[str, Any]:
    """What the results of an evaluation have of one sample, to be changed at will."""
    return deepcopy(_scored)

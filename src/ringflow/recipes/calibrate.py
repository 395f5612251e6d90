"""`ringflow calibrate`: derive the calorimeter scales of a detector from particle guns.

The electromagnetic scale makes the mean response of photons one. The hadronic scale is a curve: neutral hadrons of known
energies give the mean sum of hits at each, and the factor that corrects it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ringflow.base.config import write
from ringflow.recipes.shoot import BARREL, Shot, observe, run_all
from ringflow.sim.geometry import load_detector

PHOTON, LONG_LIVED_KAON = 22, 130
PHOTON_ENERGIES = (5.0, 20.0, 50.0)
HADRON_ENERGIES = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 70.0, 110.0, 180.0)


def calibrate(detector: str, events: int, workers: int, seed: int) -> dict[str, object]:
    """The `[calibration]` section of a detector file, from `events` particles at each energy."""
    geometry = load_detector(detector)
    photons = [Shot(detector, (PHOTON,), energy, BARREL, events, seed) for energy in PHOTON_ENERGIES]
    hadrons = [Shot(detector, (LONG_LIVED_KAON,), energy, BARREL, events, seed) for energy in HADRON_ENERGIES]
    sums = [float(np.mean(seen.calorimeter)) for seen in run_all(observe, [*photons, *hadrons], workers, "calibrate")]
    response = np.mean([total / shot.energy for total, shot in zip(sums, photons, strict=False)])
    # The hits already carry the scale of the detector file, so the new one corrects it.
    correction = 1.0 / float(response)
    measured = [correction * total for total in sums[len(photons) :]]
    return {
        "em_scale": round(geometry.calibration.em_scale * correction, 5),
        "hadronic_energy": [round(value, 4) for value in measured],
        "hadronic_factor": [round(energy / value, 5) for energy, value in zip(HADRON_ENERGIES, measured, strict=True)],
    }


def calibrate_rules(detector: str, events: int, workers: int, seed: int, out: Path | None) -> dict[str, object]:
    """The constants of the rule-based reconstruction, written to a file if one is named."""
    from ringflow.recipes.calibrate_baseline import calibrate_baseline

    constants = calibrate_baseline(detector, events, workers, seed)
    if out is not None:
        write(constants, out)
    return constants.model_dump(mode="json")

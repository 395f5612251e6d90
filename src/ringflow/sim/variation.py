"""Detectors that are somewhat off: where every block of events has one of its own, a network learns what all have in common.

`detector=clic~0.1` lets the numbers of `clic` vary by about a tenth, what is known less by more (`STANDARD_VARIATION`); the
section `[variation]` of a detector file says how far each group of them may. Geometry, field and material stay as they are.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final

from ringflow.sim.geometry import DetectorGeometry

#: By group the fields that share a factor; `*` stands for every row of a table. What is a chance stays one.
FIELDS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "response": (("calibration.em_scale",), ("calibration.hcal_scale",)),
    "hadronic": (("shower.hadronic_response",), ("shower.neutron_fraction",), ("shower.neutron_reach",)),
    "sampling": (
        ("ecal.em_spots_per_gev", "ecal.hadronic_spots_per_gev"),
        ("hcal.em_spots_per_gev", "hcal.hadronic_spots_per_gev"),
        ("shower.em_sampling",),
        ("shower.intrinsic_noise", "shower.intrinsic_constant"),
    ),
    "showers": (
        ("shower.lateral_size",),
        ("ecal.moliere_radius", "hcal.moliere_radius"),
        ("shower.transverse_kick",),
        ("shower.subshower_base",),
        ("shower.late_start_length",),
        ("shower.backscatter_fraction",),
    ),
    "thresholds": (("ecal.threshold",), ("hcal.threshold",), ("yoke.threshold",)),
    "cells": (
        ("ecal.noise_hits", "hcal.noise_hits", "yoke.noise_hits"),
        ("ecal.dead", "hcal.dead"),
        ("ecal.intercalibration", "hcal.intercalibration"),
        ("ecal.gap", "hcal.gap"),
        ("ecal.time_resolution", "hcal.time_resolution"),
    ),
    "tracks": (
        ("tracker.resolution.*.a",),
        ("tracker.resolution.*.b",),
        ("tracker.d0.constant", "tracker.z0.constant"),
        ("tracker.d0.scattering", "tracker.z0.scattering"),
        ("tracker.phi.constant", "tracker.theta.constant"),
        ("tracker.phi.scattering", "tracker.theta.scattering"),
        ("tracker.dedx_resolution",),
    ),
    "faults": (
        ("tracker.faults.kink",),
        ("tracker.faults.split",),
        ("tracker.faults.duplicate",),
        ("tracker.faults.fake",),
        ("tracker.faults.close_loss",),
        ("tracker.efficiency.*.value",),
        ("tracker.faults.layer_efficiency",),
    ),
    "clustering": (
        ("clustering.fragment_energy",),
        ("clustering.fragment_distance",),
        ("clustering.link_distance",),
        ("clustering.min_energy",),
    ),
    "strays": (
        ("shower.stray_fraction",),
        ("shower.stray_reach",),
        ("shower.stray_energy",),
        ("shower.soft_energy",),
    ),
    "following": (("clustering.follow_distance",), ("clustering.follow_excess",)),
}
#: Efficiencies: what varies is the inefficiency.
_EFFICIENCIES = ("tracker.efficiency.*.value", "tracker.faults.layer_efficiency")
#: Upper limits of what has one, just inside.
_MOST = {
    "shower.neutron_fraction": 0.99,
    "shower.backscatter_fraction": 1.0,
    "shower.stray_fraction": 1.0,
    "ecal.dead": 0.99,
    "hcal.dead": 0.99,
    "ecal.intercalibration": 0.29,
    "hcal.intercalibration": 0.29,
}


def varied(geometry: DetectorGeometry, seed: int) -> DetectorGeometry:
    """One of the detectors that a detector may be; the same seed gives the same one, which itself varies no more."""
    if geometry.variation is None:
        return geometry
    draw = random.Random(f"{seed} of {geometry.name}")
    data = geometry.model_dump(exclude={"variation"})
    for group, fields in FIELDS.items():
        reach = getattr(geometry.variation, group)
        for together in fields:
            factor = math.exp(reach * draw.uniform(-1.0, 1.0))  # drawn also for no range: others stay what they are
            for field in together:
                _multiply(data, field.split("."), field, factor)
    return DetectorGeometry.model_validate(data)


def _multiply(data: Any, path: list[str], field: str, factor: float) -> None:
    """Change a field in place; `*` are all rows."""
    step, *rest = path
    if step == "*":
        for row in data:
            _multiply(row, rest, field, factor)
    elif rest:
        _multiply(data[step], rest, field, factor)
    elif isinstance(data[step], tuple):
        data[step] = tuple(factor * value for value in data[step])
    elif field in _EFFICIENCIES:
        data[step] = max(1.0 - factor * (1.0 - data[step]), 0.01)
    else:
        most = 1.0 if field.startswith("tracker.faults.") else _MOST.get(field, math.inf)
        data[step] = min(factor * data[step], most)

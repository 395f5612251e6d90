"""`ringflow calibrate`: derive the calorimeter scales of a detector from particle guns.

The electromagnetic scale makes the mean response of photons one. The hadronic scale is a curve: neutral hadrons of known
energies give the mean sum of hits at each, and the factor that corrects it.

`--baseline` derives the constants of the rule-based reconstruction: every number that describes the detector is a quantile of
what guns left in it; what is a choice of the algorithm (how many sigmas, how pure) is a constant of this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringflow.base.config import write
from ringflow.base.errors import FailureError, UsageError
from ringflow.base.rundir import write_atomic
from ringflow.baseline.rules import (
    CORE_SHARE,
    BaselineConstants,
    EventView,
    event_views,
    follow_tracks,
    pull_of,
    seen_from,
    track_distance,
)
from ringflow.sim.blocks import BARREL, Floats, Shot, observe, run_all, simulate_shot
from ringflow.sim.geometry import DetectorGeometry, detector_path, load_detector, split_variation

PHOTON, LONG_LIVED_KAON, ELECTRON, MUON, PION = (22,), (130,), (11, -11), (13, -13), (211, -211)
PHOTON_ENERGIES = (5.0, 20.0, 50.0)
HADRON_ENERGIES = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 70.0, 110.0, 180.0)
# Of the rules.
SHAPE_ENERGIES = (0.3, 0.7, 2.0, 6.0, 20.0, 60.0)
PION_ENERGIES = (2.0, 4.0, 8.0, 16.0, 32.0)
_DETECTOR = (-0.95, 0.95)

# Choices of the algorithm.
_MIN_HITS = 3
_ABSORB_SIGMAS = 3.0
_KEPT = 0.97  # of the photons, electrons and muons, by each limit
_FRAGMENT_SHARE = 0.90  # of the energy of pieces within the fragment distance
_MOMENTUM_SHARE = 0.80  # of the energy of pieces below the fragment momentum
_BALANCED = 0.997  # of the charged pions, by what makes a neutral hadron beside them
_MARGIN = 3.0  # times the spread of minimum-ionising hits around a track
_CORE_ENERGY, _BREM_ANGLE, _MUON_MOMENTUM = 0.3, 0.015, 3.0
_ECAL_SHARE = 0.9


def calibrate(detector: str, events: int, workers: int, seed: int, out: Path | None = None) -> dict[str, object]:
    """The `[calibration]` section of a detector file, from `events` particles at each energy; `out` is written with it."""
    geometry = _nominal(detector)
    photons = [Shot(detector, PHOTON, energy, BARREL, events, seed) for energy in PHOTON_ENERGIES]
    hadrons = [Shot(detector, LONG_LIVED_KAON, energy, BARREL, events, seed) for energy in HADRON_ENERGIES]
    sums = [float(np.mean(seen.calorimeter)) for seen in run_all(observe, [*photons, *hadrons], workers, "calibrate")]
    if min(sums) <= 0.0 or any(more <= less for less, more in pairwise(sums[len(photons) :])):
        raise FailureError(
            f"with {events} events at each energy, hadrons of more energy do not leave more; give --events more"
        )
    response = np.mean([total / shot.energy for total, shot in zip(sums, photons, strict=False)])
    # The hits already carry the scale of the detector file, so the new one corrects it.
    correction = 1.0 / float(response)
    measured = [correction * total for total in sums[len(photons) :]]
    found: dict[str, object] = {
        "em_scale": round(geometry.calibration.em_scale * correction, 5),
        "hadronic_energy": [round(value, 4) for value in measured],
        "hadronic_factor": [round(energy / value, 5) for energy, value in zip(HADRON_ENERGIES, measured, strict=True)],
    }
    if out is not None:
        write_atomic(out, _with_calibration(detector_path(detector).read_text(encoding="utf-8"), found))
    return found


def _with_calibration(text: str, found: dict[str, object]) -> str:
    """The text of a detector file with other scales; comments and all else stay as they are."""
    for name, value in found.items():
        text, count = re.subn(rf"^{name}\s*=\s*(\[[^\]]*\]|\S+)", f"{name} = {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise UsageError(f"the file has {count} lines '{name} = ...'; give it one, below [calibration]")
    return text


#: What is measured of a gun; where it is more than a number per entry, its columns.
_COLUMNS = {
    "calorimeter": 0,  # energy of all clusters of an event, at the electromagnetic scale
    "width": 0,  # of the largest cluster
    "depth": 0,
    "start_layer": 0,
    "mean_layer": 0,  # of the ECAL hits of the largest cluster
    "core_radius": 0,  # around its axis that holds CORE_SHARE of its ECAL energy
    "ratio": 0,  # energy of the largest cluster over track momentum
    "pattern": 3,  # HCAL layers, HCAL energy and yoke hits on the track
    "ecal_distance": 0,  # of a hit from the track
    "hcal_distance": 0,
    "yoke_distance": 0,
    "fragments": 2,  # distance of a piece from track or shower, and its energy
    "across": 2,  # momentum of a piece across the track, and its energy
    "excess": 0,  # energy above the momentum of the track, times the momentum of all hits across it
}
Seen = dict[str, Floats]
Add = Callable[[str, object], None]


def _nominal(detector: str) -> DetectorGeometry:
    """One detector, not one for each block of events."""
    geometry = load_detector(detector)
    if geometry.variation is not None:
        raise UsageError(
            f"{detector} varies, which has no one calibration; give {split_variation(detector)[0]} without [variation]"
        )
    return geometry


def calibrate_rules(detector: str, events: int, workers: int, seed: int, out: Path | None) -> dict[str, object]:
    """The constants of the rule-based reconstruction from `events` particles per gun and energy, written to a file if one
    is named."""
    geometry = _nominal(detector)
    guns = [
        *(Shot(detector, PHOTON, energy, _DETECTOR, events, seed) for energy in SHAPE_ENERGIES),
        *(Shot(detector, PION, energy, _DETECTOR, events, seed) for energy in PION_ENERGIES),
        Shot(detector, MUON, 15.0, (-0.7, 0.7), events, seed),
        Shot(detector, ELECTRON, 15.0, _DETECTOR, events, seed),
    ]
    *seen, muon, electron = run_all(partial(_measure, geometry), guns, workers, "calibrate baseline")
    photons, pions = seen[: len(SHAPE_ENERGIES)], seen[len(SHAPE_ENERGIES) :]
    firm = [seen for energy, seen in zip(SHAPE_ENERGIES, photons, strict=True) if energy >= 2.0]
    noise, stochastic = _hadron_resolution(geometry, pions)
    constants = {
        "detector": geometry.name,
        "field": geometry.field,
        "face_radius": geometry.face_radius,
        "link": {
            "ecal_distance": _upper(muon["ecal_distance"], 0.95, _MARGIN),
            "hcal_distance": _upper(muon["hcal_distance"], 0.95, _MARGIN),
            "min_hits": _MIN_HITS,
            "fragment_distance": _holds([seen["fragments"] for seen in pions], _FRAGMENT_SHARE),
            "fragment_momentum": _holds([seen["across"] for seen in pions], _MOMENTUM_SHARE),
        },
        "hadron": {
            "energy": geometry.calibration.hadronic_energy,
            "factor": geometry.calibration.hadronic_factor,
            "noise": noise,
            "stochastic": stochastic,
            "excess": _upper(np.concatenate([seen["excess"] for seen in pions]), _BALANCED),
            "absorb_sigmas": _ABSORB_SIGMAS,
        },
        "photon": {
            "energy": SHAPE_ENERGIES,
            "width": [_upper(seen["width"]) for seen in photons],
            "depth": [_upper(seen["depth"]) for seen in photons],
            "start_layer": int(max(np.quantile(seen["start_layer"], _KEPT) for seen in photons)),
            "ecal_share": _ECAL_SHARE,
            "core_radius": _digits(np.median(np.concatenate([seen["core_radius"] for seen in firm]))),
            "core_energy": _CORE_ENERGY,
            "core_layer": _upper(np.concatenate([seen["mean_layer"] for seen in firm])),
            "core_track_distance": _digits(2.0 * geometry.ecal.cell),
        },
        "lepton": {
            "electron_ratio": [_digits(q) for q in np.quantile(electron["ratio"], [1 - _KEPT, _KEPT])],
            "brem_angle": _BREM_ANGLE,
            "muon_layers": int(np.quantile(muon["pattern"][:, 0], 1 - _KEPT)),
            "muon_hcal_energy": _upper(muon["pattern"][:, 1]),
            "muon_yoke_hits": 2,
            "muon_yoke_distance": _upper(muon["yoke_distance"]),
            "muon_momentum": _MUON_MOMENTUM,
        },
    }
    checked = BaselineConstants.model_validate(constants)
    if out is not None:
        write(checked, out)
    return checked.model_dump(mode="json")


def _measure(geometry: DetectorGeometry, shot: Shot) -> Seen:
    """What a gun left, as the rules see it."""
    seen: dict[str, list[Floats]] = {name: [np.zeros((0, n) if n else 0)] for name, n in _COLUMNS.items()}

    def add(name: str, values: object) -> None:
        seen[name].append(np.atleast_1d(np.asarray(values, dtype=np.float64)))

    anywhere = np.array([40.0, 120.0, 600.0])
    for block in simulate_shot(shot):
        clusters = block["cluster"]
        for event, view in enumerate(event_views(block, geometry.field, np.zeros(len(clusters), dtype=bool))):
            add("calorimeter", view.energy.sum())
            if len(view.energy) == 0:
                continue
            largest = clusters.offsets[event]  # clusters come in order of falling energy
            for name, column in (("width", "width_across"), ("depth", "mean_depth"), ("start_layer", "start_layer")):
                add(name, clusters[column][largest])
            _add_core(view, geometry.face_radius, add)
            if len(view.tracks) != 1 or np.isnan(view.tracks[0, 6]):
                continue
            add("ratio", view.energy[0] / view.momentum[0])
            _, distance, pattern = follow_tracks(view, anywhere)
            for kind, name in enumerate(("ecal_distance", "hcal_distance", "yoke_distance")):
                add(name, distance[(view.calorimeter == kind) & (distance < anywhere[kind])])
            add("pattern", pattern)
            for piece in range(1, len(view.energy)):
                _, from_track = track_distance(view.tracks[0], *view.centre[piece])
                apart = min(from_track, float(np.linalg.norm(view.centre[piece] - view.centre[0])))
                add("fragments", [[apart, view.energy[piece]]])
                add(
                    "across",
                    [[view.energy[piece] * seen_from(view.tracks[0], view.centre[piece])[1], view.energy[piece]]],
                )
            energy = float(_hadronic(geometry, view.energy.sum()))
            pull = pull_of(view, np.nonzero(view.cluster >= 0)[0], np.zeros(1, dtype=np.int64))
            add("excess", max(energy - view.momentum[0], 0.0) * pull)
    return {name: np.concatenate(parts) for name, parts in seen.items()}


def _add_core(view: EventView, face_radius: float, add: Add) -> None:
    """Depth and radius of the electromagnetic core of the largest cluster."""
    chosen = (view.cluster == 0) & (view.calorimeter == 0)
    hits, weight = view.hits[chosen], view.hits[chosen, 3]
    if len(hits) == 0:
        return
    add("mean_layer", np.average(view.layer[chosen], weights=weight))
    flat = np.maximum(np.hypot(hits[:, 0], hits[:, 1]), 0.5 * np.abs(hits[:, 2]))
    seen = hits[:, :3] * (face_radius / flat)[:, None]
    distance = np.linalg.norm(seen - np.average(seen, axis=0, weights=weight), axis=1)
    order = np.argsort(distance)
    inside = np.cumsum(weight[order]) / weight.sum()
    add("core_radius", distance[order][np.searchsorted(inside, CORE_SHARE).clip(0, len(order) - 1)])


def _hadron_resolution(geometry: DetectorGeometry, pions: list[Seen]) -> tuple[float, float]:
    """Noise and stochastic term of sigma^2 = noise^2 + stochastic^2 E."""
    variances = []
    for seen in pions:
        low, high = np.quantile(_hadronic(geometry, seen["calorimeter"]), [0.15865, 0.84135])
        variances.append((0.5 * (high - low)) ** 2)
    # Fitted with relative weights so that the soft end counts.
    design = np.column_stack([np.ones(len(pions)), PION_ENERGIES]) / np.array(variances)[:, None]
    noise2, stochastic2 = np.linalg.lstsq(design, np.ones(len(pions)), rcond=None)[0].clip(0.0)
    return _digits(np.sqrt(noise2)), _digits(np.sqrt(stochastic2))


def _hadronic(geometry: DetectorGeometry, energy: npt.ArrayLike) -> Floats:
    """Energies at the hadronic scale."""
    raw, scale = np.asarray(energy, dtype=np.float64), geometry.calibration
    corrected: Floats = raw * np.interp(
        np.log(np.maximum(raw, 1e-3)), np.log(scale.hadronic_energy), scale.hadronic_factor
    )
    return corrected


def _holds(pieces: list[Floats], share: float) -> float:
    """What is not exceeded by pieces that hold a share of the energy; given with their energies."""
    value, energy = np.concatenate(pieces).T
    order = np.argsort(value)
    inside = np.cumsum(energy[order]) / energy.sum()
    return _digits(value[order][np.searchsorted(inside, share)])


def _upper(values: Floats, share: float = _KEPT, times: float = 1.0) -> float:
    return _digits(times * float(np.quantile(values, share)))


def _digits(value: float) -> float:
    """Four digits are more than guns can tell."""
    return float(f"{value:.4g}")

"""`ringflow calibrate`: derive the calorimeter scales of a detector from particle guns.

The electromagnetic scale makes the mean response of photons one. The hadronic scale is a curve: neutral hadrons of known
energies give the mean sum of hits at each, and the factor that corrects it.

`--baseline` derives the constants of the rule-based reconstruction: every number that describes the detector is a quantile of
what guns left in it; what is a choice of the algorithm (how many sigmas, how pure) is a constant of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from ringflow.base.config import write
from ringflow.baseline.constants import (
    BaselineConstants,
    HadronConstants,
    LeptonConstants,
    LinkConstants,
    PhotonConstants,
)
from ringflow.baseline.link import CORE_SHARE, EventView, follow_tracks, track_distance
from ringflow.baseline.rules import event_views
from ringflow.event.block import EventBlock
from ringflow.sim.blocks import BARREL, Floats, Shot, observe, run_all, simulate_shot
from ringflow.sim.geometry import DetectorGeometry, load_detector

PHOTON, LONG_LIVED_KAON, ELECTRON, MUON, PION = (22,), (130,), (11, -11), (13, -13), (211, -211)
PHOTON_ENERGIES = (5.0, 20.0, 50.0)
HADRON_ENERGIES = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 70.0, 110.0, 180.0)
# Of the rules.
SHAPE_ENERGIES = (0.3, 0.7, 2.0, 6.0, 20.0, 60.0)
PION_ENERGIES = (2.0, 4.0, 8.0, 16.0, 32.0)
_DETECTOR = (-0.95, 0.95)

# Choices of the algorithm.
_MIN_HITS = 3
_EXCESS_SIGMAS, _ABSORB_SIGMAS = 2.5, 1.0
_KEPT = 0.97  # of the photons, electrons and muons, by each limit
_FRAGMENT_SHARE = 0.90  # of the energy of pieces within the fragment distance
_MARGIN = 3.0  # times the spread of minimum-ionising hits around a track
_CORE_ENERGY, _BREM_ANGLE, _MUON_MOMENTUM = 0.3, 0.015, 3.0
_ECAL_SHARE = 0.9


def calibrate(detector: str, events: int, workers: int, seed: int) -> dict[str, object]:
    """The `[calibration]` section of a detector file, from `events` particles at each energy."""
    geometry = load_detector(detector)
    photons = [Shot(detector, PHOTON, energy, BARREL, events, seed) for energy in PHOTON_ENERGIES]
    hadrons = [Shot(detector, LONG_LIVED_KAON, energy, BARREL, events, seed) for energy in HADRON_ENERGIES]
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
    constants = calibrate_baseline(detector, events, workers, seed)
    if out is not None:
        write(constants, out)
    return constants.model_dump(mode="json")


def calibrate_baseline(detector: str, events: int, workers: int, seed: int) -> BaselineConstants:
    """Constants of a detector from `events` particles per gun and energy."""
    geometry = load_detector(detector)
    guns = {
        **{f"photon {energy:g}": Shot(detector, PHOTON, energy, _DETECTOR, events, seed) for energy in SHAPE_ENERGIES},
        **{f"pion {energy:g}": Shot(detector, PION, energy, _DETECTOR, events, seed) for energy in PION_ENERGIES},
        "muon": Shot(detector, MUON, 15.0, (-0.7, 0.7), events, seed),
        "electron": Shot(detector, ELECTRON, 15.0, _DETECTOR, events, seed),
    }
    measured = run_all(partial(_measure, geometry), list(guns.values()), workers, "calibrate baseline")
    seen = dict(zip(guns, measured, strict=True))
    muon = seen["muon"]
    return BaselineConstants(
        detector=geometry.name,
        field=geometry.field,
        face_radius=geometry.face_radius,
        link=LinkConstants(
            ecal_distance=_upper(muon.ecal_distance, 0.95, _MARGIN),
            hcal_distance=_upper(muon.hcal_distance, 0.95, _MARGIN),
            min_hits=_MIN_HITS,
            fragment_distance=_fragment_distance([seen[f"pion {energy:g}"] for energy in PION_ENERGIES]),
        ),
        hadron=_hadron(geometry, [seen[f"pion {energy:g}"] for energy in PION_ENERGIES]),
        photon=_photon(geometry, [seen[f"photon {energy:g}"] for energy in SHAPE_ENERGIES]),
        lepton=LeptonConstants(
            electron_ratio=tuple(_digits(q) for q in np.quantile(seen["electron"].ratio, [1 - _KEPT, _KEPT])),  # type: ignore[arg-type]
            brem_angle=_BREM_ANGLE,
            muon_layers=int(np.quantile(muon.pattern[:, 0], 1 - _KEPT)),
            muon_hcal_energy=_upper(muon.pattern[:, 1], _KEPT, 1.0),
            muon_yoke_hits=2,
            muon_yoke_distance=_upper(muon.yoke_distance, _KEPT, 1.0),
            muon_momentum=_MUON_MOMENTUM,
        ),
    )


@dataclass(frozen=True)
class _Seen:
    """What a gun left, as the rules see it; one entry per event unless it says otherwise."""

    true_energy: float
    calorimeter: Floats  # all clusters, at the electromagnetic scale
    width: Floats  # of the largest cluster
    depth: Floats
    start_layer: Floats
    mean_layer: Floats  # of the ECAL hits of the largest cluster
    core_radius: Floats  # around its axis that holds CORE_SHARE of its ECAL energy
    ratio: Floats  # energy of the largest cluster over track momentum
    pattern: Floats  # [event, (HCAL layers, HCAL energy, yoke hits)] on the track
    ecal_distance: Floats  # one entry per hit: from the track
    hcal_distance: Floats
    yoke_distance: Floats
    fragments: Floats  # [piece, (distance from track or shower, energy)]


def _measure(geometry: DetectorGeometry, shot: Shot) -> _Seen:
    shapes = {"pattern": (0, 3), "fragments": (0, 2)}
    names = [name for name in _Seen.__dataclass_fields__ if name != "true_energy"]
    seen: dict[str, list[Floats]] = {name: [np.zeros(shapes.get(name, (0,)))] for name in names}

    def add(name: str, values: object) -> None:
        seen[name].append(np.atleast_1d(np.asarray(values, dtype=np.float64)))

    for block in simulate_shot(shot):
        _measure_block(geometry, block, add)
    return _Seen(true_energy=shot.energy, **{name: np.concatenate(parts) for name, parts in seen.items()})


def _measure_block(geometry: DetectorGeometry, block: EventBlock, add: Callable[[str, object], None]) -> None:
    clusters = block["cluster"]
    anywhere = np.array([40.0, 120.0, 600.0])
    for event, view in enumerate(event_views(block, geometry.field, np.zeros(len(clusters), dtype=bool))):
        add("calorimeter", view.energy.sum())
        if len(view.energy) == 0:
            continue
        row = clusters.offsets[event]  # clusters come in order of falling energy
        add("width", clusters["width_across"][row])
        add("depth", clusters["mean_depth"][row])
        add("start_layer", clusters["start_layer"][row])
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


def _add_core(view: EventView, face_radius: float, add: Callable[[str, object], None]) -> None:
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


def _hadron(geometry: DetectorGeometry, pions: list[_Seen]) -> HadronConstants:
    scale = geometry.calibration
    knots = np.log(scale.hadronic_energy)
    variances, energies = [], []
    for seen in pions:
        total = seen.calorimeter * np.interp(np.log(np.maximum(seen.calorimeter, 1e-3)), knots, scale.hadronic_factor)
        low, high = np.quantile(total, [0.15865, 0.84135])
        variances.append((0.5 * (high - low)) ** 2)
        energies.append(seen.true_energy)
    # sigma^2 = noise^2 + stochastic^2 E, fitted with relative weights so that the soft end counts.
    design = np.column_stack([np.ones(len(energies)), energies]) / np.array(variances)[:, None]
    noise2, stochastic2 = np.linalg.lstsq(design, np.ones(len(energies)), rcond=None)[0].clip(0.0)
    return HadronConstants(
        energy=scale.hadronic_energy,
        factor=scale.hadronic_factor,
        noise=_digits(np.sqrt(noise2)),
        stochastic=_digits(np.sqrt(stochastic2)),
        excess_sigmas=_EXCESS_SIGMAS,
        absorb_sigmas=_ABSORB_SIGMAS,
    )


def _photon(geometry: DetectorGeometry, photons: list[_Seen]) -> PhotonConstants:
    firm = [seen for seen in photons if seen.true_energy >= 2.0]
    return PhotonConstants(
        energy=[seen.true_energy for seen in photons],
        width=[_upper(seen.width, _KEPT, 1.0) for seen in photons],
        depth=[_upper(seen.depth, _KEPT, 1.0) for seen in photons],
        start_layer=int(max(np.quantile(seen.start_layer, _KEPT) for seen in photons)),
        ecal_share=_ECAL_SHARE,
        core_radius=_digits(np.median(np.concatenate([seen.core_radius for seen in firm]))),
        core_energy=_CORE_ENERGY,
        core_layer=_upper(np.concatenate([seen.mean_layer for seen in firm]), _KEPT, 1.0),
        core_track_distance=_digits(2.0 * geometry.ecal.cell),
    )


def _fragment_distance(pions: list[_Seen]) -> float:
    """Distance within which most of the energy of pieces lies."""
    distance, energy = np.concatenate([seen.fragments for seen in pions]).T
    order = np.argsort(distance)
    inside = np.cumsum(energy[order]) / energy.sum()
    return _digits(distance[order][np.searchsorted(inside, _FRAGMENT_SHARE)])


def _upper(values: Floats, share: float, times: float) -> float:
    return _digits(times * float(np.quantile(values, share)))


def _digits(value: float) -> float:
    """Four digits are more than guns can tell."""
    return float(f"{value:.4g}")

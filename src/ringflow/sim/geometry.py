"""A detector as data: read from `detectors/<name>.toml`, checked, and turned into the tables the simulation looks things up in.

Lengths are mm, energies GeV, the field tesla. Free of torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator, model_validator

from ringflow.base.config import Settings, require_curve
from ringflow.base.errors import UsageError
from ringflow.base.words import did_you_mean
from ringflow.elements.settings import ClusteringSettings

DETECTORS = Path(__file__).parent / "detectors"

Positive = Annotated[float, Field(gt=0)]
#: Tables of the simulation have entries for every millimetre or less: a hundred metres are enough.
Length = Annotated[float, Field(gt=0, le=1e5)]
NotNegative = Annotated[float, Field(ge=0)]
Chance = Annotated[float, Field(ge=0, le=1)]
#: Of the logarithm of a factor: at most two and a half times more or less.
Range = Annotated[float, Field(ge=0, le=0.92)]
Hits = Annotated[int, Field(ge=0, le=1000)]
#: Radius, half length, X0 of one crossing, hits of one crossing.
Layer = tuple[Length, Length, NotNegative, Hits]
#: |z|, inner radius, outer radius, X0 of one crossing, hits of one crossing.
Disk = tuple[Length, NotNegative, Length, NotNegative, Hits]
Parameter = Literal["pt", "phi", "theta", "d0", "z0"]
TRACK_PARAMETERS: tuple[Parameter, ...] = ("pt", "phi", "theta", "d0", "z0")
Correlation = tuple[Parameter, Parameter, Annotated[float, Field(gt=-1, lt=1)]]

_CALORIMETERS = ("ecal", "hcal", "yoke")
#: Effects that every real detector has, by name, and the values of the fields that switch each of them off.
EFFECTS: dict[str, dict[str, float | None]] = {
    "tails": {"tracker.faults.tail_dof": None},
    "kinks": {"tracker.faults.kink": 0.0},
    "splits": {"tracker.faults.split": 0.0},
    "duplicates": {"tracker.faults.duplicate": 0.0},
    "fakes": {"tracker.faults.fake": 0.0},
    "close": {"tracker.faults.close_loss": 0.0},
    "lost hits": {"tracker.faults.layer_efficiency": 1.0},
    "gaps": {f"{name}.gap": 0.0 for name in _CALORIMETERS},
    "noise": {f"{name}.noise_hits": 0.0 for name in _CALORIMETERS},
    "dead cells": {f"{name}.dead": 0.0 for name in _CALORIMETERS},
    "inter-calibration": {f"{name}.intercalibration": 0.0 for name in _CALORIMETERS},
    "neutrons": {"shower.neutron_fraction": 0.0},
    "sampling": {"shower.em_sampling": 0.0, "shower.em_constant_term": 0.0},
}


def _require_rising(what: str, values: Sequence[float]) -> None:
    """For validators."""
    if any(after <= before for before, after in pairwise(values)):
        raise ValueError(f"{what} must rise, not {', '.join(f'{value:g}' for value in values)}")


def _correlation_matrix(correlations: list[Correlation]) -> npt.NDArray[np.float64]:
    matrix = np.eye(len(TRACK_PARAMETERS))
    for first, second, value in correlations:
        i, j = TRACK_PARAMETERS.index(first), TRACK_PARAMETERS.index(second)
        matrix[i, j] = matrix[j, i] = value
    return matrix


#: Ranges of `Variation` for `NAME~1`: what is known least varies most.
STANDARD_VARIATION = {
    "response": 0.5,
    "hadronic": 1.0,
    "sampling": 2.0,
    "showers": 1.5,
    "thresholds": 3.0,
    "cells": 5.0,
    "tracks": 3.0,
    "faults": 5.0,
    "clustering": 3.0,
    "strays": 7.0,
    "following": 5.0,
}
MOST_VARIATION = 0.5


class EtaResolution(Settings):
    """Relative pt resolution `a pt (+) b` up to |eta|."""

    eta_max: Positive
    a: NotNegative
    b: NotNegative


class Efficiency(Settings):
    """Probability to find a track above a transverse momentum and up to |eta|; later rows override earlier ones."""

    pt_min: NotNegative
    eta_max: Annotated[float, Field(gt=0, le=10)]
    value: Annotated[float, Field(ge=0, le=1)]


class ParameterResolution(Settings):
    """Resolution `constant (+) scattering / p` of a track parameter."""

    constant: NotNegative
    scattering: NotNegative
    sine_power: NotNegative | None = None  # `p` is meant times this power of sin(theta); None: the usual one


class TrackFaults(Settings):
    """What pattern recognition and fits do wrong; all chances are per track that is found. By default nothing."""

    tail_dof: Annotated[float, Field(gt=2)] | None = (
        None  # errors follow Student's t of so many degrees of freedom; None: Gauss
    )
    kink: Chance = 0.0  # errors and chi squared of a scattered track are larger
    kink_scale: Annotated[float, Field(ge=1)] = 4.0
    split: Chance = 0.0  # its hits make two tracks, one after the other
    duplicate: Chance = 0.0  # it is found a second time, from fewer hits
    fake: Chance = 0.0  # hits of several particles make a track of nobody, softer than `fake_pt` GeV on average
    fake_pt: Positive = 0.7
    close_loss: Chance = 0.0  # lost beside a stiffer one that is nearer than `close_distance` in eta and phi
    close_distance: NotNegative = 0.01
    layer_efficiency: Annotated[float, Field(gt=0, le=1)] = 1.0  # of a hit
    uncertainty_spread: NotNegative = 0.0  # of the logarithm of each uncertainty around that of its region and momentum


class TrackerGeometry(Settings):
    """Layers a track crosses, and how well it is measured."""

    lambda_per_x0: NotNegative
    min_hits: int = Field(ge=1)
    max_turns: Positive
    dedx_resolution: NotNegative
    time_resolution: NotNegative
    point_resolution: NotNegative = 0.01  # mm, of the last hit
    continuous: bool = False  # a TPC: what curls up in it is followed, and what begins in it is found
    faults: TrackFaults = TrackFaults()
    barrel: list[Layer] = Field(min_length=1)
    disks: list[Disk] = Field(min_length=1)
    resolution: list[EtaResolution] = Field(min_length=1)
    efficiency: list[Efficiency] = Field(min_length=1)
    d0: ParameterResolution
    z0: ParameterResolution
    phi: ParameterResolution
    theta: ParameterResolution
    correlations: list[Correlation]

    @field_validator("disks")
    @classmethod
    def _are_rings(cls, disks: list[Disk]) -> list[Disk]:
        for disk in disks:
            _require_rising("the radii of a disk", disk[1:3])
        return disks

    @field_validator("resolution")
    @classmethod
    def _are_regions(cls, regions: list[EtaResolution]) -> list[EtaResolution]:
        _require_rising("eta_max", [region.eta_max for region in regions])
        return regions

    @field_validator("correlations")
    @classmethod
    def _are_possible(cls, given: list[Correlation]) -> list[Correlation]:
        if any(a == b for a, b, _ in given) or np.linalg.eigvalsh(_correlation_matrix(given)).min() <= 0:
            raise ValueError("no errors are correlated like this; give smaller numbers, of two parameters each")
        return given

    @property
    def cylinder(self) -> tuple[float, float]:
        """Radius and half length of the outermost layers."""
        return max(layer[0] for layer in self.barrel), max(disk[0] for disk in self.disks)

    def correlation_matrix(self) -> npt.NDArray[np.float64]:
        """Correlations of the track parameters in the order of TRACK_PARAMETERS."""
        return _correlation_matrix(self.correlations)


class BarrelShape(Settings):
    """A barrel of flat sides from its inner distance to the axis outwards, in rings of modules along the beam."""

    inner: Length
    half_length: Length
    rings: int = Field(default=1, ge=1, le=1000)


class EndcapShape(Settings):
    """A pair of endcaps from |z| = inner outwards."""

    inner: Length
    r_min: NotNegative
    r_max: Length

    @model_validator(mode="after")
    def _is_ring(self) -> Self:
        _require_rising("r_min and r_max", (self.r_min, self.r_max))
        return self


class CalorimeterGeometry(Settings):
    """One sampling calorimeter: a barrel and two endcaps of the same layers."""

    barrel: BarrelShape
    endcap: EndcapShape
    layers: int = Field(ge=1, le=127)
    pitch: Annotated[float, Field(gt=0, le=1e3)]
    cell: Positive
    x0_per_layer: Positive
    lambda_per_layer: Positive
    loss_per_layer: Positive
    mip: Positive
    threshold: NotNegative
    moliere_radius: Positive
    em_spots_per_gev: Positive
    hadronic_spots_per_gev: Positive
    time_resolution: NotNegative
    gap: NotNegative = 0.0  # mm without read-out between neighbouring modules
    noise_hits: NotNegative = 0.0  # mean number per event, barrel and endcaps together
    dead: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of cells that never answer
    intercalibration: Annotated[float, Field(ge=0, lt=0.3)] = 0.0  # relative spread of the cells' own scales

    @property
    def depth(self) -> float:
        """Thickness."""
        return self.layers * self.pitch


class CoilShape(Settings):
    """Radii of the coil."""

    inner: Length
    outer: Length

    @model_validator(mode="after")
    def _is_ring(self) -> Self:
        _require_rising("inner and outer", (self.inner, self.outer))
        return self


class CoilGeometry(Settings):
    """The solenoid: material without read-out between the barrel HCAL and the yoke, and the edge of the field."""

    barrel: CoilShape
    radiation_lengths: NotNegative
    interaction_lengths: NotNegative
    loss: NotNegative


class ShowerModel(Settings):
    """Parameters of the shower shapes; what each does is said where it is used, in `sim/shower.py`."""

    critical_energy: Positive
    atomic_number: Positive
    em_constant_term: NotNegative
    em_sampling: NotNegative = 0.0
    hadronic_response: Positive
    intrinsic_noise: NotNegative
    intrinsic_constant: NotNegative
    intrinsic_maximum: Positive
    subshower_base: Positive
    subshower_log: NotNegative
    late_start_fraction: Annotated[float, Field(ge=0, le=1)]
    late_start_length: NotNegative
    transverse_kick: NotNegative
    lateral_size: Positive
    soft_energy: NotNegative = 0.0
    stray_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    stray_energy: Positive = 1.0
    stray_reach: NotNegative = 0.0
    backscatter_fraction: Annotated[float, Field(ge=0, le=1)]
    backscatter_length: NotNegative
    neutron_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    neutron_reach: NotNegative = 0.0
    neutron_time: tuple[NotNegative, NotNegative] = (0.0, 0.0)


class Calibration(Settings):
    """Scales that bring the calorimeters to the energy of the particle; derived by `ringflow calibrate`."""

    em_scale: Positive
    hcal_scale: Positive = (
        1.0  # of hits behind the ECAL against the electromagnetic scale: experiments set it for hadrons
    )
    hadronic_energy: list[Positive]
    hadronic_factor: list[Positive]

    @model_validator(mode="after")
    def _is_curve(self) -> Self:
        require_curve(self.hadronic_energy, self.hadronic_factor)
        return self


class PublishedEnergyResolution(Settings):
    """Relative energy resolution noise/E (+) stochastic/sqrt(E) (+) constant, and the accepted relative deviation."""

    noise: NotNegative
    stochastic: NotNegative
    constant: NotNegative
    accept: Positive


class PublishedTrackResolution(Settings):
    """Relative pt resolution `a pt (+) b` in a range of |eta|, and the accepted relative deviation."""

    eta: tuple[NotNegative, Positive]
    a: NotNegative
    b: NotNegative
    accept: Positive


class PublishedHits(Settings):
    """Calorimeter hits of a ttbar event at 380 GeV: published median and accepted range."""

    median: Positive
    accept: tuple[Positive, Positive]


class Published(Settings):
    """What is published of the real detector, for `ringflow validate` to compare with."""

    source: str
    photon: PublishedEnergyResolution
    hadron: PublishedEnergyResolution
    tracks: list[PublishedTrackResolution]
    ttbar_hits: PublishedHits


class Variation(Settings):
    """How far each detector of a training may be off from what the file says, see `ringflow.sim.variation`: the logarithms of
    factors are even between minus and plus these ranges."""

    response: Range = 0.0  # of the calorimeters, each its own
    hadronic: Range = 0.0  # h/e, and the share and reach of neutrons
    sampling: Range = 0.0  # spots per GeV and sampling fluctuations
    showers: Range = 0.0  # their width, angles and late starts
    thresholds: Range = 0.0  # of the cells
    cells: Range = 0.0  # noise, dead cells, inter-calibration, gaps, times
    tracks: Range = 0.0  # resolutions of tracks, and dE/dx
    faults: Range = 0.0  # tracks that are lost, kinked, split, found twice or fake
    clustering: Range = 0.0  # what becomes of fragments, and what is too small
    strays: Range = 0.0  # how much of soft showers is elsewhere, and how short they are
    following: Range = 0.0  # of clusters along tracks


class DetectorGeometry(Settings):
    """A whole detector."""

    name: str = Field(min_length=1)
    description: str
    field: Positive
    sides: int = Field(default=12, ge=3, le=64)  # of the barrels
    tracker: TrackerGeometry
    ecal: CalorimeterGeometry
    hcal: CalorimeterGeometry
    coil: CoilGeometry
    yoke: CalorimeterGeometry
    shower: ShowerModel
    clustering: ClusteringSettings
    calibration: Calibration
    published: Published | None = None
    variation: Variation | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Seen from the collision, every part begins where the one before it has ended."""
        radius, half_length = self.tracker.cylinder
        coil = ("coil", self.coil.barrel.inner, self.coil.barrel.outer)
        calorimeters = [(name, self.calorimeter(name)) for name in _CALORIMETERS]
        barrel = [(name, part.barrel.inner, part.barrel.inner + part.depth) for name, part in calorimeters]
        endcap = [(name, part.endcap.inner, part.endcap.inner + part.depth) for name, part in calorimeters]
        for where, parts in (
            ("barrel", [("tracker", 0.0, radius), *barrel[:2], coil, barrel[2]]),
            ("endcap", [("tracker", 0.0, half_length), *endcap]),
        ):
            for (before, _, end), (name, begin, own_end) in pairwise(parts):
                if begin < end:
                    raise ValueError(
                        f"the {name} lies in the {where} from {begin:g} to {own_end:g} mm, but the {before} in front "
                        f"of it ends at {end:g} mm"
                    )
        return self

    @property
    def face_radius(self) -> float:
        """Distance of the calorimeter face from the axis in the barrel, at the middle of a side."""
        return self.ecal.barrel.inner

    @property
    def face_z(self) -> float:
        """|z| of the calorimeter face in the endcaps."""
        return self.ecal.endcap.inner

    @property
    def tracker_cylinder(self) -> tuple[float, float]:
        """Radius and half length of the tracker, within which short-lived particles decay."""
        return self.tracker.cylinder

    def without(self, *effects: str) -> DetectorGeometry:
        """The same detector without some of EFFECTS, without all of them if none is named."""
        data = self.model_dump()
        for effect in effects or EFFECTS:
            for field, value in EFFECTS[effect].items():
                *sections, name = field.split(".")
                section = data
                for part in sections:
                    section = section[part]
                section[name] = value
        return DetectorGeometry.model_validate(data)

    def calorimeter(self, subsystem: str) -> CalorimeterGeometry:
        """Calorimeter of a subsystem such as `ecal_barrel`."""
        return {"ecal": self.ecal, "hcal": self.hcal, "yoke": self.yoke}[subsystem.split("_")[0]]


def detector_names() -> list[str]:
    """Detectors that ship with the package."""
    return sorted(path.stem for path in DETECTORS.glob("*.toml"))


def detector_path(name: str) -> Path:
    """File of a detector that is given by its name or its file."""
    name, _ = split_variation(name)
    if name.endswith(".toml") and Path(name).is_file():
        return Path(name)
    known = detector_names()
    if name not in known:
        what, or_file = (
            ("there is no file", "") if name.endswith(".toml") else ("unknown detector", ", or give a TOML file")
        )
        raise UsageError(f"{what} '{name}': {did_you_mean(name, known)}known are {', '.join(known)}{or_file}")
    return DETECTORS / f"{name}.toml"


def split_variation(name: str) -> tuple[str, float | None]:
    """Name or file of a detector, and how far it shall vary, if that is said: `clic~0.1`."""
    base, tilde, said = name.rpartition("~")
    if not tilde:
        return name, None
    try:
        strength = float(said)
    except ValueError:
        strength = math.nan
    if not 0.0 < strength <= MOST_VARIATION:
        raise UsageError(
            f"{name!r}: a detector varies by more than 0 and at most {MOST_VARIATION:g}; write {base}~0.1, or {base} alone"
        )
    return base, strength


def load_detector(name: str) -> DetectorGeometry:
    """Detector by name, or from a TOML file of the same form, which may have changed since it was read last; with `~0.1` behind
    either every block of events has one that is off by about a tenth."""
    base, strength = split_variation(name)
    path = detector_path(base)
    geometry = DetectorGeometry.resolve(path, complete=False) if base.endswith(".toml") else _load_shipped(path)
    if strength is None:
        return geometry
    ranges = {name: min(round(strength * times, 6), 0.92) for name, times in STANDARD_VARIATION.items()}
    return geometry.model_copy(update={"variation": Variation(**ranges)})


@cache
def _load_shipped(path: Path) -> DetectorGeometry:
    return DetectorGeometry.resolve(path)

"""Constants of the rule-based reconstruction, derived from particle guns by `ringflow calibrate --baseline`.

Lengths are mm, energies GeV. Free of torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from ringflow.base.config import Settings
from ringflow.base.errors import UsageError
from ringflow.base.words import did_you_mean

CONSTANTS = Path(__file__).parent / "detectors"


class LinkConstants(Settings):
    """When a track and a hit or cluster belong together."""

    ecal_distance: float = Field(gt=0)  # of a hit from the track
    hcal_distance: float = Field(gt=0)
    min_hits: int = Field(ge=1)  # near the track, to link it to their cluster
    fragment_distance: float = Field(gt=0)  # of the centre of a piece of a hadronic shower from the track or its shower


class HadronConstants(Settings):
    """Energy scale and resolution of hadronic showers: sigma^2 = noise^2 + stochastic^2 E."""

    energy: list[float]  # at the electromagnetic scale
    factor: list[float]  # to the hadronic scale, linear in ln E between
    noise: float = Field(ge=0)
    stochastic: float = Field(ge=0)
    excess_sigmas: float = Field(ge=0)  # calorimeter energy above the tracks' that makes a neutral particle
    absorb_sigmas: float = Field(ge=0)  # up to this excess pieces of showers are given to the tracks


class PhotonConstants(Settings):
    """Shape of photon showers: upper limits that all but a few per cent of photons keep, at some energies."""

    energy: list[float]
    width: list[float]
    depth: list[float]
    start_layer: int
    ecal_share: float
    core_radius: float  # of a photon hidden in a charged shower
    core_energy: float
    core_layer: float  # mean layer it may have at most
    core_track_distance: float


class LeptonConstants(Settings):
    """Electrons and muons."""

    electron_ratio: tuple[float, float]  # accepted calorimeter energy over track momentum
    brem_angle: float
    muon_layers: int = Field(ge=1)  # HCAL layers with a hit on the track
    muon_hcal_energy: float  # largest energy on the track in the HCAL
    muon_yoke_hits: int
    muon_yoke_distance: float
    muon_momentum: float


class BaselineConstants(Settings):
    """Everything the rules need to know about a detector."""

    detector: str
    field: float = Field(gt=0)
    face_radius: float = Field(gt=0)
    link: LinkConstants
    hadron: HadronConstants
    photon: PhotonConstants
    lepton: LeptonConstants


@cache
def load_constants(detector: str) -> BaselineConstants:
    """Constants of a detector by name, or from a TOML file of the same form."""
    if detector.endswith(".toml"):
        return BaselineConstants.resolve(Path(detector))
    known = sorted(path.stem for path in CONSTANTS.glob("*.toml"))
    if detector not in known:
        raise UsageError(
            f"no baseline constants for detector '{detector}': {did_you_mean(detector, known)}"
            f"known are {', '.join(known)}; derive them with `ringflow calibrate`"
        )
    return BaselineConstants.resolve(CONSTANTS / f"{detector}.toml")

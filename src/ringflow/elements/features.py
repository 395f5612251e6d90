"""From the columns of an event to the features of its elements.

A feature is a small function of columns of the schema: a logarithm of an energy, an angle relative to the element itself.
None of them changes when the event is turned around the beam, so that a network built on them turns with the event; where
an element is (eta, phi) is given apart. A feature whose columns a detector does not provide is NaN: missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.base.errors import DatasetError
from ringflow.event.particles import SPEED_OF_LIGHT

Columns = Mapping[str, Tensor]

_METRE = 1000.0


@dataclass(frozen=True)
class Feature:
    """One number of an element. Features of a group come and go together; those without a group every detector has."""

    name: str
    group: str | None
    needs: tuple[str, ...]
    of: Callable[[Columns], Tensor]


def _feature(name: str, needs: str, of: Callable[[Columns], Tensor], group: str | None = None) -> Feature:
    return Feature(name, group, tuple(needs.split()), of)


def _log(values: Tensor, least: float = 1e-6) -> Tensor:
    return torch.log(values.clamp_min(least))


def _wrap(angle: Tensor) -> Tensor:
    return angle - 2 * torch.pi * torch.round(angle / (2 * torch.pi))  # exact where there is nothing to wrap


def _distance(c: Columns, prefix: str) -> Tensor:
    x, y, z = (c[f"{prefix}{axis}"] for axis in "xyz")
    return torch.sqrt(x.square() + y.square() + z.square())


def direction(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Pseudorapidity and azimuth of points, in float64.

    Small distances are made of them, and fine waves: the last bit of a float32 would be seen in the answer, and libraries
    differ in it.
    """
    return _pseudorapidity(x, y, z), torch.atan2(y.double(), x.double())


def _pseudorapidity(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.asinh(z.double() / torch.hypot(x.double(), y.double()).clamp_min(1e-3))


def _eta(c: Columns, prefix: str) -> Tensor:
    return _pseudorapidity(*(c[f"{prefix}{axis}"] for axis in "xyz"))


def _phi(c: Columns, prefix: str) -> Tensor:
    return torch.atan2(c[f"{prefix}y"].double(), c[f"{prefix}x"].double())


def _lateness(c: Columns, prefix: str) -> Tensor:
    """Time minus what light needs on a straight line, in ns, with its tail drawn in."""
    return torch.asinh(c["time"] - _distance(c, prefix) / SPEED_OF_LIGHT)


def _face_direction(c: Columns, along: str) -> Tensor:
    """Component of the direction at the calorimeter face, in the frame of the point where it enters."""
    phi = _phi(c, "calo_")
    if along == "radius":
        return c["calo_dx"] * torch.cos(phi) + c["calo_dy"] * torch.sin(phi)
    return c["calo_dy"] * torch.cos(phi) - c["calo_dx"] * torch.sin(phi)


def _in_part(number: int) -> Callable[[Columns], Tensor]:
    """Whether a hit is in a part of the calorimeter, barrel or endcap; NaN stays NaN, which no integer is."""

    def of(c: Columns) -> Tensor:
        subsystem = c["subsystem"].float()
        return torch.where(subsystem.isnan(), torch.nan, (torch.floor(subsystem / 2) == number).float())

    return of


def _share(name: str) -> Callable[[Columns], Tensor]:
    return lambda c: c[name] / c["energy"].clamp_min(1e-6)


def _shift(part: str, axis: str) -> Callable[[Columns], Tensor]:
    """Angle from the centre of a cluster to a part of it, in units of a hundredth."""
    if axis == "eta":
        return lambda c: torch.asinh(100.0 * (_eta(c, f"{part}_") - c["eta"]))
    return lambda c: torch.asinh(100.0 * _wrap(_phi(c, f"{part}_") - c["phi"]))


_CALO_POINT = "calo_x calo_y calo_z"
_DIRECTION = "calo_x calo_y calo_dx calo_dy"

TRACK_FEATURES = (
    _feature("log_pt", "pt", lambda c: _log(c["pt"])),
    _feature("log_p", "pt eta", lambda c: _log(c["pt"]) + _log(torch.cosh(c["eta"]))),
    _feature("eta", "eta", lambda c: c["eta"]),
    _feature("charge", "charge", lambda c: c["charge"]),
    _feature("calo_radius", _CALO_POINT, lambda c: torch.hypot(c["calo_x"], c["calo_y"]) / _METRE),
    _feature("calo_z", _CALO_POINT, lambda c: c["calo_z"] / _METRE),
    _feature("calo_d_phi", f"phi {_CALO_POINT}", lambda c: _wrap(_phi(c, "calo_") - c["phi"])),
    _feature("calo_d_eta", f"eta {_CALO_POINT}", lambda c: _eta(c, "calo_") - c["eta"]),
    _feature("reaches_calo", "reaches_calo", lambda c: c["reaches_calo"], "face"),
    _feature("face_radial", _DIRECTION, lambda c: _face_direction(c, "radius"), "face"),
    _feature("face_azimuthal", _DIRECTION, lambda c: _face_direction(c, "azimuth"), "face"),
    _feature("face_z", "calo_dz", lambda c: c["calo_dz"], "face"),
    _feature("d0", "d0", lambda c: torch.asinh(c["d0"] / 0.1), "fit"),
    _feature("z0", "z0", lambda c: torch.asinh(c["z0"] / 0.1), "fit"),
    _feature("log_chi2_ndf", "chi2 ndf", lambda c: _log(c["chi2"] / c["ndf"].clamp_min(1), 1e-3), "fit"),
    _feature("num_hits", "num_hits", lambda c: c["num_hits"] / 10.0, "fit"),
    _feature("log_sigma_pt", "sigma_pt", lambda c: _log(c["sigma_pt"]), "errors"),
    _feature("log_sigma_phi", "sigma_phi", lambda c: _log(c["sigma_phi"]), "errors"),
    _feature("log_sigma_theta", "sigma_theta", lambda c: _log(c["sigma_theta"]), "errors"),
    _feature("log_sigma_d0", "sigma_d0", lambda c: _log(c["sigma_d0"]), "errors"),
    _feature("log_sigma_z0", "sigma_z0", lambda c: _log(c["sigma_z0"]), "errors"),
    _feature("dedx", "dedx", lambda c: _log(c["dedx"], 1e-2), "dedx"),
    _feature("lateness", f"time {_CALO_POINT}", lambda c: _lateness(c, "calo_"), "time"),
)

CLUSTER_FEATURES = (
    _feature("log_energy", "energy", lambda c: _log(c["energy"])),
    _feature("log_et", "energy eta", lambda c: _log(c["energy"]) - _log(torch.cosh(c["eta"]))),
    _feature("eta", "eta", lambda c: c["eta"]),
    _feature("radius", "x y", lambda c: torch.hypot(c["x"], c["y"]) / _METRE),
    _feature("z", "z", lambda c: c["z"] / _METRE),
    _feature("hadronic_scale", "energy energy_hadronic", _share("energy_hadronic"), "scale"),
    _feature("ecal_share", "energy ecal_energy", _share("ecal_energy"), "parts"),
    _feature("hcal_share", "energy hcal_energy", _share("hcal_energy"), "parts"),
    _feature("muon_share", "energy muon_energy", _share("muon_energy"), "parts"),
    _feature("log_num_hits", "num_hits", lambda c: _log(c["num_hits"]), "hits"),
    _feature("log_hit_energy", "energy num_hits", lambda c: _log(c["energy"]) - _log(c["num_hits"], 1.0), "hits"),
    _feature("log_width_along", "width_along", lambda c: _log(c["width_along"], 1.0), "widths"),
    _feature("log_width_across", "width_across", lambda c: _log(c["width_across"], 1.0), "widths"),
    _feature("start_layer", "start_layer", lambda c: c["start_layer"] / 40.0, "depth"),
    _feature("mean_depth", "mean_depth", lambda c: _log(c["mean_depth"], 1.0), "depth"),
    _feature("front_share", "energy front_energy", _share("front_energy"), "shape"),
    _feature("log_ecal_width", "ecal_width", lambda c: _log(c["ecal_width"], 1.0), "shape"),
    _feature("log_hcal_width", "hcal_width", lambda c: _log(c["hcal_width"], 1.0), "shape"),
    _feature("ecal_d_eta", "eta ecal_x ecal_y ecal_z", _shift("ecal", "eta"), "shape"),
    _feature("ecal_d_phi", "phi ecal_x ecal_y", _shift("ecal", "phi"), "shape"),
    _feature("peak_share", "energy peak_energy", _share("peak_energy"), "shape"),
    _feature("peak_d_eta", "eta peak_x peak_y peak_z", _shift("peak", "eta"), "shape"),
    _feature("peak_d_phi", "phi peak_x peak_y", _shift("peak", "phi"), "shape"),
    _feature("slope_phi", "slope_phi", lambda c: torch.asinh(5.0 * c["slope_phi"]), "shape"),
    _feature("slope_theta", "slope_theta", lambda c: torch.asinh(5.0 * c["slope_theta"]), "shape"),
    _feature("lateness", "time x y z", lambda c: _lateness(c, ""), "time"),
)

HIT_FEATURES = (
    _feature("log_energy", "energy", lambda c: _log(c["energy"])),
    _feature("eta", "x y z", lambda c: _eta(c, "")),
    _feature("radius", "x y", lambda c: torch.hypot(c["x"], c["y"]) / _METRE),
    _feature("z", "z", lambda c: c["z"] / _METRE),
    _feature("is_hcal", "subsystem", _in_part(1), "parts"),
    _feature("is_yoke", "subsystem", _in_part(2), "parts"),
    _feature("layer", "layer", lambda c: c["layer"] / 40.0, "depth"),
    _feature("lateness", "time x y z", lambda c: _lateness(c, ""), "time"),
)

FEATURES = {"track": TRACK_FEATURES, "cluster": CLUSTER_FEATURES, "hit": HIT_FEATURES}


def feature_names(kinds: Sequence[str]) -> tuple[str, ...]:
    """Names of the columns of `ElementBatch.features_NF` for elements of these kinds."""
    return tuple(f"{kind}_{feature.name}" for kind in kinds for feature in FEATURES[kind])


def feature_groups(kinds: Sequence[str]) -> tuple[str | None, ...]:
    """Group of every feature, with its kind, in the order of `feature_names`."""
    return tuple(feature.group and f"{kind}_{feature.group}" for kind in kinds for feature in FEATURES[kind])


def essential_columns(kind: str) -> set[str]:
    """Columns without which no element of a kind can be made."""
    return {name for feature in FEATURES[kind] if feature.group is None for name in feature.needs}


def needed_columns(kinds: Sequence[str], present: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Columns to read for these kinds, out of those that are there; an error if one is lacking that every feature needs."""
    found = {}
    for kind in kinds:
        there = present.get(kind, ())
        if lacking := sorted(essential_columns(kind) - set(there)):
            raise DatasetError(
                f"missing features: the {kind} collection has no column {', '.join(map(repr, lacking))}; "
                "a network cannot do without"
            )
        wanted = {name for feature in FEATURES[kind] for name in feature.needs}
        found[kind] = tuple(name for name in there if name in wanted)
    return found


def features_of(kind: str, columns: Columns) -> Tensor:
    """Features [N, F] of the objects of one kind, NaN where the columns are not there; columns are [N] or [N, 1]."""
    first = next(iter(columns.values()))
    values = []
    for feature in FEATURES[kind]:
        if all(name in columns for name in feature.needs):
            values.append(feature.of(columns).float())
        else:
            values.append(torch.full(first.shape, torch.nan, device=first.device))
    return torch.cat(values, dim=1) if first.dim() == 2 else torch.stack(values, dim=1)

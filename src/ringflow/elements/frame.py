"""Elements relative to their detector: what a network learns on one then holds on another.

The plain features say where an element is in mm, how many hits a track has and how large its errors are: another detector has
other ones. A frame (`FrameSettings`) knows where the calorimeter begins and what is usual for tracks there, and puts in the
same places of the table

- depth behind the calorimeter face along the ray from the origin, in interaction lengths, instead of the radius;
- whether the element is in an endcap, instead of z;
- hits as a share of those that are usual at that angle;
- the logarithm of an error over that which is usual at that angle and momentum.

It also brings the energies of ECAL and HCAL to the scale that the network has learned, and features to the distribution that
they had there, if it says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, get_args

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ringflow.base.config import Settings
from ringflow.elements.batch import TRACK, ElementBatch
from ringflow.elements.features import feature_names
from ringflow.elements.shapes import normal_of_side

Positive = Annotated[float, Field(gt=0)]
#: Rising numbers and what belongs to them.
Curve = Annotated[list[tuple[float, float]], Field(min_length=2)]
Parameter = Literal["pt", "phi", "theta", "d0", "z0"]


class FrameSettings(Settings):
    """What has to be known of a detector to see its elements as those of any other: lengths in mm, momenta in GeV."""

    #: Whose it is.
    detector: str
    #: Distance of the calorimeter face from the axis, half length of the barrel, |z| of the endcaps, sides (0: round).
    radius: Positive
    half_length: Positive
    z: Positive
    sides: int = Field(default=0, ge=0, le=64)
    #: Sides of the surface on which tracks are said to enter, where it is not the face itself: a cylinder inside of it.
    entry_sides: int | None = Field(default=None, ge=0, le=64)
    #: Depth behind the face (mm) and interaction lengths up to there, in barrel and endcaps.
    barrel_lengths: Curve
    endcap_lengths: Curve
    #: Upper edges of bins of |eta|; the last bin has none.
    eta_edges: list[Positive]
    #: Usual number of hits of a track by bin of |eta|; none where tracks have no number of hits.
    hits: list[Positive] | None = None
    #: Usual errors of tracks by parameter: rows are bins of |eta|, columns momenta.
    momenta: list[Positive] = Field(default_factory=list)
    errors: dict[Parameter, list[list[Positive]]] = Field(default_factory=dict)
    #: Factors that bring what ECAL and HCAL measure to the scale that the network has learned.
    ecal_scale: Positive = 1.0
    hcal_scale: Positive = 1.0
    #: By feature: values here, and those of the same quantiles where the network has learned.
    matched: dict[str, Curve] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Tables are as large as what they are looked up by; curves rise."""
        bins = len(self.eta_edges) + 1
        rising = [self.barrel_lengths, self.endcap_lengths, *self.matched.values()]
        if any(after[0] <= before[0] for curve in rising for before, after in pairwise(curve)):
            raise ValueError("the first numbers of a curve must rise")
        if any(after <= before for row in (self.eta_edges, self.momenta) for before, after in pairwise(row)):
            raise ValueError("edges of |eta| and momenta must rise")
        if self.hits is not None and len(self.hits) != bins:
            raise ValueError(f"hits are {len(self.hits)} numbers, not {bins} for the bins of |eta|")
        columns = max(len(self.momenta), 1)
        if any(len(rows) != bins or any(len(row) != columns for row in rows) for rows in self.errors.values()):
            raise ValueError(f"errors must be {bins} rows of {columns} numbers")
        return self


_METRE: Final = 1000.0
#: Features of what share of the energy lies in one calorimeter.
_ECAL_SHARES = ("cluster_ecal_share", "cluster_front_share", "cluster_peak_share")
_SHARES = {**dict.fromkeys(_ECAL_SHARES, "ecal"), "cluster_hcal_share": "hcal", "cluster_muon_share": "muon"}
_ENERGIES = ("cluster_log_energy", "cluster_log_et", "cluster_log_hit_energy")
_HITS = "track_num_hits"
_TEN_HITS = 10.0  # the plain feature counts in tens


class Frame(nn.Module):
    """Sees elements of these kinds relative to a detector."""

    def __init__(self, settings: FrameSettings, kinds: Sequence[str]) -> None:
        super().__init__()
        self.settings = settings
        self._names = feature_names(kinds)
        entry = settings.sides if settings.entry_sides is None else settings.entry_sides
        self._places = (
            ("track_calo_radius", "track_calo_z", entry),
            (f"{kinds[1]}_radius", f"{kinds[1]}_z", settings.sides),
        )
        for name, curve in (("barrel", settings.barrel_lengths), ("endcap", settings.endcap_lengths)):
            self._table(f"{name}_K2", curve)
        self._table("edges", settings.eta_edges)
        self._table("momenta", [math.log(momentum) for momentum in settings.momenta])
        if settings.hits is not None:
            self._table("hits", settings.hits)
        for parameter, rows in settings.errors.items():
            self._table(f"errors_{parameter}", [[math.log(value) for value in row] for row in rows])
        for name, curve in settings.matched.items():
            if name not in self._names:
                raise ValueError(f"no feature {name!r}")
            self._table(f"matched_{name}", curve)

    def _table(self, name: str, values: Sequence[object]) -> None:
        self.register_buffer(name, torch.tensor(values, dtype=torch.float32), persistent=False)

    def see(self, batch: ElementBatch) -> ElementBatch:
        """The batch with features and measured energies as a network knows them."""
        features, reference = self(batch.features_NF, batch.position_N2, batch.reference_N4)
        return replace(batch, features_NF=features, reference_N4=reference)

    def forward(self, features_NF: Tensor, position_N2: Tensor, reference_N4: Tensor) -> tuple[Tensor, Tensor]:
        """The features and the reference; what is missing stays so, and what nothing is known of becomes so."""
        missing = features_NF.isnan()
        column = dict(zip(self._names, features_NF.nan_to_num(0.0).unbind(1), strict=True))
        unknown: list[str] = []
        for radius, z, sides in self._places:
            column[radius], column[z] = self._place(
                column[radius] * _METRE, column[z] * _METRE, position_N2[:, 1], sides
            )
        self._tracks(column, unknown)
        factor = self._scaled(column)
        for name in self.settings.matched:
            column[name] = _followed(column[name], getattr(self, f"matched_{name}"))
        seen = torch.stack([column[name] for name in self._names], dim=1)
        if unknown:
            missing = missing | torch.tensor([name in unknown for name in self._names], device=missing.device)
        if factor is not None:
            scale = torch.stack([factor, torch.ones_like(factor), torch.ones_like(factor), factor], dim=1)
            reference_N4 = reference_N4 * scale
        return torch.where(missing, torch.nan, seen), reference_N4

    def _place(self, radius: Tensor, z: Tensor, phi: Tensor, sides: int) -> tuple[Tensor, Tensor]:
        """Interaction lengths behind the face along the ray from the origin (in front: negative), and whether in an endcap."""
        settings = self.settings
        cosine = torch.ones_like(phi)
        if sides:
            cosine = torch.cos(phi - normal_of_side(torch.cos(phi), torch.sin(phi), sides))
        radius, height = radius.clamp_min(1.0), z.abs()
        distance = torch.hypot(radius, height)
        in_barrel = settings.radius * height <= settings.half_length * radius * cosine
        barrel = _followed(radius * cosine - settings.radius, self.get_buffer("barrel_K2"))
        endcap = _followed(height - settings.z, self.get_buffer("endcap_K2"))
        along = torch.where(in_barrel, barrel / (radius * cosine), endcap / height.clamp_min(1.0)) * distance
        return along, 1.0 - in_barrel.to(along.dtype)

    def _tracks(self, column: dict[str, Tensor], unknown: list[str]) -> None:
        """Hits and errors over those that are usual."""
        settings = self.settings
        region = (column["track_eta"].abs()[:, None] > self.get_buffer("edges")).sum(1)
        if settings.hits is None:
            unknown.append(_HITS)
        else:
            column[_HITS] = column[_HITS] * _TEN_HITS / self.get_buffer("hits")[region]
        for parameter in get_args(Parameter):
            name = f"track_log_sigma_{parameter}"
            if parameter not in settings.errors:
                unknown.append(name)
                continue
            table, knots = self.get_buffer(f"errors_{parameter}")[region], self.get_buffer("momenta")
            share = ((column["track_log_p"][:, None] - knots[:-1]) / knots.diff()).clamp(0.0, 1.0)
            usual = table[:, 0] + (share * table.diff(dim=1)).sum(1)
            column[name] = column[name] - usual

    def _scaled(self, column: dict[str, Tensor]) -> Tensor | None:
        """Bring clusters to other scales; the factor on the energy of every element, none if nothing changes."""
        scales = {"ecal": self.settings.ecal_scale, "hcal": self.settings.hcal_scale, "muon": 1.0}
        if "cluster_log_energy" not in column or scales["ecal"] == scales["hcal"] == 1.0:
            return None
        ecal, hcal = (column[f"cluster_{part}_share"] for part in ("ecal", "hcal"))
        factor = (1.0 + (scales["ecal"] - 1.0) * ecal + (scales["hcal"] - 1.0) * hcal).clamp_min(0.1)
        for name in _ENERGIES:
            column[name] = column[name] + torch.log(factor)
        for name, part in _SHARES.items():
            column[name] = column[name] * scales[part] / factor
        return factor


def _followed(values: Tensor, curve_K2: Tensor) -> Tensor:
    """What a curve of straight pieces gives; its ends go on as they are. By sums: every runtime has those."""
    x, y = curve_K2.unbind(1)
    along = values[:, None] - x[:-1]
    longest, shortest = x.diff(), torch.zeros_like(x[:-1])
    longest = torch.cat([longest[:-1], torch.full_like(x[:1], torch.inf)])
    shortest = torch.cat([torch.full_like(x[:1], -torch.inf), shortest[1:]])
    return y[0] + (torch.minimum(torch.maximum(along, shortest), longest) * (y.diff() / x.diff())).sum(1)


#: Quantiles of features by which data are known again.
PROBABILITIES: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
#: Elements that are looked at for what is usual: enough for a quantile of a thousandth.
_LOOKED_AT = 1 << 18


def what_is_usual(batch: ElementBatch, kinds: Sequence[str]) -> dict[str, Any]:
    """How the features of elements are distributed, as a network sees them, and how calorimeters and tracks agree: by feature
    the values at `PROBABILITIES`, and the two numbers of `balance`, for JSON. What no element has is left out."""
    features = batch.features_NF[:: max(-(-batch.num_elements // _LOOKED_AT), 1)].double()
    quantiles = {}
    for name, values in zip(feature_names(kinds), features.unbind(1), strict=True):
        there = values[~values.isnan()]
        if len(there):
            at = torch.quantile(there, torch.tensor(PROBABILITIES, dtype=there.dtype))
            quantiles[name] = [float(f"{value:.6g}") for value in at.tolist()]
    return {"quantiles": quantiles, "balance": balance(batch, kinds)}


#: A track is compared with the clusters this near to where it enters (eta, phi), where no other track is as near as twice that.
_AROUND = 0.1
#: Momenta of such tracks (GeV): below, the field and the thresholds decide; above, there are few.
_COMPARED = (2.0, 50.0)
_FEWEST = 50


def balance(batch: ElementBatch, kinds: Sequence[str]) -> list[float] | None:
    """Factors a and b with which a E(ECAL) + b E(HCAL) of the clusters around isolated tracks is their momentum, in the middle.

    They belong to tracks and clusters of a kind of events, neutral particles nearby included: only their ratio to those of
    other data says something of a scale. None without clusters or with too few such tracks.
    """
    names = feature_names(kinds)
    if "cluster" not in kinds:
        return None
    shares = batch.features_NF[:, [names.index("cluster_ecal_share"), names.index("cluster_hcal_share")]]
    sums, momenta = [], []
    for event in range(batch.num_events):
        rows = slice(int(batch.offsets_B[event]), int(batch.offsets_B[event + 1]))
        is_track = batch.kind_N[rows] == TRACK
        place, energy = batch.position_N2[rows], batch.reference_N4[rows, 3]
        tracks, clusters = place[is_track], place[~is_track]
        if not len(tracks) or not len(clusters):
            continue
        momentum = energy[is_track]
        apart = _angle(tracks, tracks) + torch.eye(len(tracks))
        alone = (apart.amin(1) > 2 * _AROUND) & (momentum > _COMPARED[0]) & (momentum < _COMPARED[1])
        near = (_angle(tracks, clusters) < _AROUND).double()
        sums.append((near @ (shares[rows][~is_track].double().nan_to_num(0.0) * energy[~is_track, None]))[alone])
        momenta.append(momentum[alone].double())
    if not sums:
        return None
    relative = torch.cat(sums) / torch.cat(momenta)[:, None]
    # Muons and tracks that were not found leave nothing, neutral particles much: the middle is what counts.
    inside = (relative.sum(1) > 0.2) & (relative.sum(1) < 2.0)
    if inside.sum() < _FEWEST:
        return None
    solution = torch.ones(2, dtype=torch.float64)
    for _ in range(20):
        left = (1.0 - relative @ solution).abs()
        weight = inside / left.clamp_min(0.05)  # least absolute deviations, by weights
        normal = (relative * weight[:, None]).T @ relative + 1e-3 * torch.eye(2)
        solution = torch.linalg.solve(normal, (relative * weight[:, None]).sum(0) + 1e-3)
    return [float(f"{value:.4g}") for value in solution.tolist()]


def _angle(one: Tensor, other: Tensor) -> Tensor:
    """Distances in eta and phi, of all to all."""
    d_eta, d_phi = (one[:, None] - other[None]).unbind(2)
    return torch.hypot(d_eta, torch.remainder(d_phi + math.pi, 2.0 * math.pi) - math.pi)

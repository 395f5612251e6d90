"""Adapt: bring a network that sees elements relative to their detector to a detector it has not learned on, without labels.

What has to be known of the new detector (`FrameSettings`) is measured on unlabelled events of it, or taken from a detector
file:

- where the calorimeter begins: where the tracks that reach it enter;
- how many hits and which errors are usual for tracks, by angle and momentum;
- the scales of ECAL and HCAL: around isolated tracks both have to agree with the momentum as they did where the network has
  learned;
- on request, other features: their quantiles there for the same quantiles here.

Nothing is trained; the weights stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch

from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.provenance import collect, describe_input
from ringflow.base.rundir import require_suffix, write_errors
from ringflow.elements.batch import ElementBatch, from_block
from ringflow.elements.features import essential_columns
from ringflow.elements.frame import Curve, Frame, FrameSettings, balance, what_is_usual
from ringflow.event.block import Collection, EventBlock, concatenate, require_finite
from ringflow.infer.inputs import open_input
from ringflow.infer.shipped import model_file
from ringflow.models.file import LoadedModel, load_model, save_model
from ringflow.sim.geometry import detector_names, load_detector, split_variation
from ringflow.sim.tracker import frame_of

Cell = TypeVar("Cell", float, list[float])
Match = Literal["geometry", "scales", "features"]
#: Events that are looked at, unless asked otherwise.
EVENTS: Final = 2000
#: Scales beyond which something else is wrong, and those that say nothing: what lies beside tracks depends on the events too.
#: Measured by `balance`: tt at 380 GeV, qq at 380 and at 91 GeV differ by up to 7 %, our four detectors by 1 % (ECAL) and 5 %
#: (HCAL), and 25 tt events at 500 GeV with six jets each, in our own ild, from many of all kinds by 8 % (HCAL).
_SCALES: Final = (0.4, 2.5)
_AS_BEFORE: Final = 0.2
#: Standard deviations of the events at hand that a scale has to differ by, and parts of them by which those are known.
_SIGMAS: Final = 3.0
_PARTS: Final = 10
#: Features that a detector decides about, not the collision; those of kinds of shares and flags keep what they are.
_OF_DETECTOR: Final = (
    *("track_log_chi2_ndf", "track_num_hits", "track_dedx", "track_lateness"),
    *(f"track_log_sigma_{parameter}" for parameter in ("pt", "phi", "theta", "d0", "z0")),
    *("cluster_hadronic_scale", "cluster_log_num_hits", "cluster_log_hit_energy", "cluster_lateness"),
    *("cluster_log_width_along", "cluster_log_width_across", "cluster_log_ecal_width", "cluster_log_hcal_width"),
    *("cluster_start_layer", "cluster_mean_depth", "cluster_front_share", "cluster_peak_share"),
)
#: The outermost quantiles are of too few elements to be followed.
_FOLLOWED: Final = slice(1, -1)
_FEWEST_TRACKS = 200
_FEWEST_PER_BIN = 8
#: How near to each other (mm) the points of tracks on a face lie.
_FLAT = 5.0
#: Share of those from there on that lie on an endcap.
_MOSTLY = 0.7
_SIDES = (0, *range(4, 25))
#: Clusters by which sides are counted: above an energy (GeV), of which so much is in the ECAL, in the middle of the barrel.
_ECAL_ENERGY, _ECAL_ALONE, _MIDDLE_OF_BARREL, _FEWEST_CLUSTERS = 0.5, 0.98, 0.9, 60
_CLEARLY = 0.7


def adapt(
    source: str,
    out: Path,
    *,
    model: Path | None = None,
    match: Match = "scales",
    events: int = EVENTS,
    profile: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write the model for the detector of a dataset or EDM4hep file, or for a detector that is given by its name or TOML file;
    what was found of it, ready for JSON."""
    require_suffix(out, ".safetensors")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} is there already; give another name, or --overwrite to replace it")
    path = model_file(model)
    if path.suffix == ".onnx":
        raise UsageError(f"{path} is an exported file; adapt the model file that it was made of, and export it again")
    loaded = load_model(path)
    if loaded.model.settings.features == "absolute":
        raise UsageError(
            f"{path.name} sees elements as they lie in its own detector and cannot be adapted without training; give a model "
            "that sees them relative to it (--model any), or train with start=" + path.name
        )
    if Path(source).exists() and not source.endswith(".toml"):
        frame, said = _measured(Path(source), loaded, match, events, profile)
    else:
        frame = _given(source)
        if match == "features":
            raise UsageError(
                f"--match features compares events, and {source} has none; give a dataset or an EDM4hep file"
            )
        match, said = "geometry", {"events": 0, "given": {"detector": frame.detector}}
    adapted = {"from": loaded.card.get("detector"), "model": describe_input(path), "match": match, **said}
    loaded.model.bind(frame)
    before = {name: value for name, value in loaded.card.items() if name != "pruned_from"}  # which that model says
    card = {**before, "detector": frame.detector, "adapted": {**adapted, "provenance": collect({}, {})}}
    with write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    save_model(out, loaded.model, threshold=loaded.threshold, card=card)
    summary = frame.model_dump(mode="json", include={"radius", "z", "half_length", "sides", "ecal_scale", "hcal_scale"})
    told = {"path": str(out), "detector": frame.detector, "match": match, "events": said["events"], **summary}
    return {**told, "matched": sorted(frame.matched)} if frame.matched else told


def _given(name: str) -> FrameSettings:
    """That of a detector file, or of one of ours; what is not off by chance is the same for all that vary."""
    if not name.endswith(".toml") and split_variation(name)[0] not in (names := detector_names()):
        raise InputFileError(
            f"nothing at {name}; give the folder of a dataset, an EDM4hep ROOT file, or a detector: {', '.join(names)} or its "
            "TOML file"
        )
    return frame_of(load_detector(name))


def _measured(
    path: Path, loaded: LoadedModel, match: Match, events: int, profile: str | None
) -> tuple[FrameSettings, dict[str, Any]]:
    """That of events, and what to remember of these."""
    given = open_input(path, None, events, profile)
    kinds = loaded.model.kinds
    block = concatenate(
        [EventBlock(one.event_number, {kind: one[kind] for kind in kinds}) for one in given.blocks(kinds)]
    )
    require_finite(block, {kind: essential_columns(kind) for kind in kinds})
    frame = measured_frame(block["track"], block.collections.get("cluster"), given.detector)
    said = {"events": len(block), "given": given.identity}
    if match == "geometry":
        return frame, said
    seen = loaded.card.get("seen")
    if not isinstance(seen, Mapping) or not isinstance(seen.get("quantiles"), Mapping):
        raise InputFileError("the model does not say what it has seen; use --match geometry, or train it again")
    elements = from_block(block, kinds[1])
    if kinds[1] == "cluster":
        frame = _scaled(frame, Frame(frame, kinds).see(elements), kinds, seen.get("balance"))
    else:
        say("hits say too little of the scales of ECAL and HCAL: these stay as they are")
    if match == "features":
        usual = what_is_usual(Frame(frame, kinds).see(elements), kinds)
        frame = frame.model_copy(update={"matched": _matched(usual["quantiles"], seen["quantiles"])})
    return frame, said


def measured_frame(tracks: Collection, clusters: Collection | None, detector: str) -> FrameSettings:
    """The frame of a detector by unlabelled events: its face, and what is usual for tracks.

    Tracks tell where it begins, but those of some experiments are carried on to a cylinder inside of flat sides. How many
    sides there are is told by the clusters in the ECAL: at the right number they are about equally deep.

    Where it is deep in interaction lengths is not measured: it is taken from our detector of the same name, or of the first
    one otherwise; calorimeters of today differ little in it.
    """
    lacking = [name for name in ("calo_x", "calo_y", "calo_z", "reaches_calo") if name not in tracks.columns]
    if lacking:
        raise DatasetError(
            f"the track collection has no column {lacking[0]!r}: nothing tells where the calorimeter begins"
        )
    reach = tracks["reaches_calo"] == 1
    x, y, z = (tracks[f"calo_{axis}"][reach].astype(np.float64) for axis in "xyz")
    if len(x) < _FEWEST_TRACKS:
        raise DatasetError(
            f"only {len(x)} tracks reach the calorimeter, too few to see where it begins; give more events"
        )
    z = np.abs(z)
    face_z = _endcap(z)
    in_barrel = z < face_z - _FLAT
    radius, entry = _barrel(x[in_barrel], y[in_barrel])
    sides = entry if clusters is None else _sides(clusters, face_z, entry)
    named = detector if detector in (names := detector_names()) else names[0]
    if named != detector:
        say(f"how deep {detector} is in interaction lengths is not measured: taken to be as {named}")
    like = frame_of(load_detector(named))
    measured: dict[str, Any] = {
        "detector": detector,
        "radius": round(radius, 1),
        "z": round(face_z, 1),
        "half_length": round(float(np.quantile(z[in_barrel], 0.999)), 1),
        "sides": sides,
        "entry_sides": None if entry == sides else entry,
        "hits": None,
        "errors": {},
    }
    region = np.digitize(np.abs(tracks["eta"]), like.eta_edges)
    momentum = tracks["pt"] * np.cosh(tracks["eta"])
    bins = range(len(like.eta_edges) + 1)
    if "num_hits" in tracks.columns:
        stiff = tracks["pt"] > 1.0
        measured["hits"] = _filled([_middle(tracks["num_hits"][stiff & (region == row)]) for row in bins])
    cells = np.digitize(momentum, [math.sqrt(low * high) for low, high in pairwise(like.momenta)])
    for parameter in like.errors:
        if (name := f"sigma_{parameter}") not in tracks.columns:
            continue
        values = tracks[name]
        table = [
            _filled([_middle(values[(region == row) & (cells == column)]) for column in range(len(like.momenta))])
            for row in bins
        ]
        if rows := _filled(table):
            measured["errors"][parameter] = rows
    return FrameSettings.model_validate({**like.model_dump(), **measured})


def _endcap(z: Any) -> float:
    """Where the endcaps are, which are flat, by the |z| of points on the face."""
    values, counts = np.unique(np.round(z), return_counts=True)
    around = np.array([counts[np.abs(values - value) <= 1.0].sum() for value in values])
    place = values[around.argmax()]
    on = np.abs(z - place) <= _FLAT
    # Some go on behind it, through the hole for the beam or past its edge.
    if on.sum() < max(_FEWEST_TRACKS // 10, _MOSTLY * (z >= place - _FLAT).sum()):
        raise DatasetError(
            "the points where tracks enter the calorimeter do not lie on its endcaps; they say nothing of its face"
        )
    return float(np.median(z[on]))


def _barrel(x: Any, y: Any) -> tuple[float, int]:
    """Distance of the sides from the axis and their number, 0 for a round barrel: those that make the points flattest."""
    if len(x) < _FEWEST_TRACKS // 10:
        raise DatasetError(f"only {len(x)} tracks enter the barrel, too few to see where it begins; give more events")
    found = []
    for sides in _SIDES:
        low, middle, high = np.quantile(_across(x, y, sides), (0.16, 0.5, 0.84))
        found.append((high - low, sides, middle))
    spread, sides, middle = min(found)
    if spread > 2 * _FLAT:
        raise DatasetError(
            f"the points where tracks enter the barrel lie within {spread:.0f} mm of a face, not on it; they say nothing of it"
        )
    return float(middle), sides


def _across(x: Any, y: Any, sides: int) -> Any:
    """Distance of points from the axis, along the normal of the side above them."""
    across = np.hypot(x, y)
    if not sides:
        return across
    step = 2.0 * np.pi / sides
    azimuth = np.arctan2(y, x)
    return across * np.cos(azimuth - step * np.round(azimuth / step))


def _sides(clusters: Collection, face_z: float, entry: int) -> int:
    """The number of sides at which clusters of the ECAL in the barrel are equally deep; that of the tracks where this is not
    clearly better."""
    if not {"ecal_energy", "x", "y", "z"} <= clusters.columns.keys():
        return entry
    energy = clusters["energy"]
    chosen = (energy > _ECAL_ENERGY) & (clusters["ecal_energy"] > _ECAL_ALONE * energy)
    chosen &= np.abs(clusters["z"]) < _MIDDLE_OF_BARREL * face_z
    x, y = (clusters[axis][chosen].astype(np.float64) for axis in "xy")
    if len(x) < _FEWEST_CLUSTERS:
        return entry
    spread = {}
    for sides in {entry, *_SIDES}:
        low, high = np.quantile(_across(x, y, sides), (0.25, 0.75))
        spread[sides] = float(high - low)
    best = min(spread, key=lambda sides: spread[sides])
    return best if spread[best] < _CLEARLY * spread[entry] else entry


def _middle(values: Any) -> float | None:
    good = values[np.isfinite(values) & (values > 0)]
    return float(f"{np.median(good):.4g}") if len(good) >= _FEWEST_PER_BIN else None


def _filled(row: Sequence[Cell | None]) -> list[Cell] | None:
    """What is not known is as in the nearest cell that is; none if none is."""
    known = [(place, value) for place, value in enumerate(row) if value is not None]
    if not known:
        return None
    places = np.array([place for place, _ in known])
    return [known[int(np.abs(places - place).argmin())][1] for place in range(len(row))]


def _scaled(
    frame: FrameSettings, seen: ElementBatch, kinds: tuple[str, str], there: Sequence[float] | None
) -> FrameSettings:
    """With the scales at which clusters agree with tracks as they did where the network has learned."""
    now = balance(seen, kinds)
    if now is None or there is None:
        say(
            "too few isolated tracks whose energy is about that of clusters there: scales of ECAL and HCAL stay as they are"
        )
        return frame
    scales = [float(f"{here / known:.4g}") for here, known in zip(now, there, strict=True)]
    if not all(_SCALES[0] < scale < _SCALES[1] for scale in scales):
        raise DatasetError(
            f"the scales of ECAL and HCAL would change by {scales[0]:g} and {scales[1]:g}: clusters and tracks do not belong "
            "together, or are of other units than GeV and mm; --match geometry leaves the scales as they are"
        )
    least = [max(_AS_BEFORE, _SIGMAS * error / known) for error, known in zip(_errors(seen, kinds), there, strict=True)]
    kept = [1.0 if abs(scale - 1.0) < by else scale for scale, by in zip(scales, least, strict=True)]
    if kept != scales:
        words = " and ".join(f"{scale:g} (by {by:.0%} at least)" for scale, by in zip(scales, least, strict=True))
        say(f"by the tracks, ECAL and HCAL want factors {words}; what differs by less from 1 stays 1")
    return frame.model_copy(update={"ecal_scale": kept[0], "hcal_scale": kept[1]})


def _errors(seen: ElementBatch, kinds: tuple[str, str]) -> list[float]:
    """Uncertainties of a balance: by leaving out one part of the events after the other (jackknife)."""
    number, parts = torch.arange(seen.num_events), min(_PARTS, seen.num_events)
    found = [balance(seen.take(number[number % parts != part]), kinds) for part in range(parts)]
    known = np.array([one for one in found if one is not None])
    if len(known) < parts or parts < 2:  # hardly enough tracks with all of them
        return [math.inf, math.inf]
    spread: list[float] = np.sqrt((parts - 1) * known.var(axis=0)).tolist()
    return spread


def _matched(here: Mapping[str, Sequence[float]], there: Mapping[str, Sequence[float]]) -> dict[str, Curve]:
    """Curves from the values of quantiles here to those of the same quantiles there."""
    curves: dict[str, Curve] = {}
    for name in _OF_DETECTOR:
        if name not in here or name not in there:
            continue
        pairs = list(zip(here[name], there[name], strict=True))[_FOLLOWED]
        # Values that many elements share make no step; beyond the ends the shift stays what it is there.
        rising = [pairs[0], *(after for before, after in pairwise(pairs) if after[0] > before[0] + 1e-6)]
        (low, low_to), (high, high_to) = rising[0], rising[-1]
        if len(rising) > 1:
            curves[name] = [(low - 100.0, low_to - 100.0), *rising, (high + 100.0, high_to + 100.0)]
    return curves

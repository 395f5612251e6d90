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

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.provenance import collect, describe_input
from ringflow.base.rundir import require_suffix, write_errors
from ringflow.elements.batch import from_block
from ringflow.elements.frame import Curve, Frame, FrameSettings, what_is_usual
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer.inputs import open_input
from ringflow.infer.shipped import model_file
from ringflow.models.file import LoadedModel, load_model, save_model
from ringflow.sim.geometry import detector_names, load_detector, split_variation
from ringflow.sim.tracker import frame_of

Match = Literal["geometry", "scales", "features"]
#: Events that are looked at, unless asked otherwise.
EVENTS: Final = 2000
#: Scales beyond which something else is wrong.
_SCALES: Final = (0.4, 2.5)
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
_SIDES = (0, *range(4, 25))


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
    if not Path(source).exists() and (names := detector_names()) and split_variation(source)[0] not in names:
        raise InputFileError(
            f"nothing at {source}; give the folder of a dataset, an EDM4hep ROOT file, or a detector: {', '.join(names)} or "
            "its TOML file"
        )
    if not Path(source).is_dir() and (source.endswith(".toml") or split_variation(source)[0] in detector_names()):
        frame, found = frame_of(load_detector(split_variation(source)[0])), dict[str, Any]()
        said: dict[str, Any] = {"events": 0, "given": {"detector": frame.detector}}
    else:
        frame, found, said = _measured(Path(source), loaded, match, events, profile)
    known = loaded.card.get("detector")
    loaded.model.bind(frame)
    card = {
        **loaded.card,
        "detector": frame.detector,
        "adapted": {
            "from": known,
            "model": describe_input(path),
            "match": match,
            **said,
            "provenance": collect({}, {}),
        },
    }
    with write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    save_model(out, loaded.model, threshold=loaded.threshold, card=card)
    summary = frame.model_dump(mode="json", include={"radius", "z", "half_length", "sides", "ecal_scale", "hcal_scale"})
    return {"path": str(out), "detector": frame.detector, "match": match, "events": said["events"], **summary, **found}


def _measured(
    path: Path, loaded: LoadedModel, match: Match, events: int, profile: str | None
) -> tuple[FrameSettings, dict[str, Any], dict[str, Any]]:
    given = open_input(path, None, events, profile)
    kinds = loaded.model.kinds
    block = concatenate(
        [EventBlock(one.event_number, {kind: one[kind] for kind in kinds}) for one in given.blocks(kinds)]
    )
    frame = measured_frame(block["track"], given.detector)
    elements = from_block(block, kinds[1])
    seen: Mapping[str, Any] = loaded.card.get("seen", {})
    found: dict[str, Any] = {}
    if match != "geometry":
        if not seen:
            raise InputFileError("the model does not say what it has seen; use --match geometry, or train it again")
        now = what_is_usual(Frame(frame, kinds).see(elements), kinds)
        frame = _scaled(frame, now["balance"], seen.get("balance"))
    usual = what_is_usual(Frame(frame, kinds).see(elements), kinds)
    if match == "features":
        matched = _matched(usual["quantiles"], seen["quantiles"])
        frame = frame.model_copy(update={"matched": matched})
        found["matched"] = sorted(matched)
    return frame, found, {"events": len(block), "given": given.identity}


def measured_frame(tracks: Collection, detector: str) -> FrameSettings:
    """The frame of a detector by the tracks of unlabelled events: its face, and what is usual for tracks.

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
    in_endcap, face_z = _flat(np.abs(z))
    radius, sides = _barrel(x[~in_endcap], y[~in_endcap])
    like = frame_of(load_detector(detector if detector in detector_names() else detector_names()[0]))
    measured: dict[str, Any] = {
        "detector": detector,
        "radius": round(radius, 1),
        "z": round(face_z, 1),
        "half_length": round(min(float(np.quantile(np.abs(z[~in_endcap]), 0.999)), face_z), 1),
        "sides": sides,
        "hits": None,
        "errors": {},
    }
    region = np.digitize(np.abs(tracks["eta"]), like.eta_edges)
    momentum = tracks["pt"] * np.cosh(tracks["eta"])
    bins = range(len(like.eta_edges) + 1)
    if "num_hits" in tracks.columns:
        stiff = tracks["pt"] > 1.0
        measured["hits"] = _filled([_middle(tracks["num_hits"][stiff & (region == row)]) for row in bins])
    cells = np.digitize(np.log(momentum), np.convolve(np.log(like.momenta), (0.5, 0.5), "valid"))
    for parameter in like.errors:
        if (name := f"sigma_{parameter}") not in tracks.columns:
            continue
        values = tracks[name]
        table = [
            _filled([_middle(values[(region == row) & (cells == column)]) for column in range(len(like.momenta))])
            for row in bins
        ]
        if rows := _filled_rows(table):
            measured["errors"][parameter] = rows
    return FrameSettings.model_validate({**like.model_dump(), **measured})


def _flat(z: Any) -> tuple[Any, float]:
    """Which points lie on the endcaps, which are flat, and where those are."""
    values, counts = np.unique(np.round(z), return_counts=True)
    around = np.array([counts[np.abs(values - value) <= 1.0].sum() for value in values])
    place = float(values[around.argmax()])
    on = np.abs(z - place) <= _FLAT
    if on.sum() < _FEWEST_TRACKS // 10 or (z > place + _FLAT).mean() > 0.02:
        raise DatasetError(
            "the points where tracks enter the calorimeter do not lie on its endcaps; they say nothing of its face"
        )
    return on, float(np.median(z[on]))


def _barrel(x: Any, y: Any) -> tuple[float, int]:
    """Distance of the sides from the axis and their number, 0 for a round barrel: those that make the points flattest."""
    found = []
    for sides in _SIDES:
        across = np.hypot(x, y)
        if sides:
            step = 2.0 * np.pi / sides
            azimuth = np.arctan2(y, x)
            across = across * np.cos(azimuth - step * np.round(azimuth / step))
        low, middle, high = np.quantile(across, (0.16, 0.5, 0.84))
        found.append((high - low, sides, middle))
    # A round one unless sides make it flatter by far: points on a circle are flat for many sides, nearly.
    flattest = min(found)
    spread, sides, middle = found[0] if found[0][0] < 2.0 * max(flattest[0], 0.1) else flattest
    if spread > 2 * _FLAT:
        raise DatasetError(
            f"the points where tracks enter the barrel lie within {spread:.0f} mm of a face, not on it; they say nothing of it"
        )
    return float(middle), sides


def _middle(values: Any) -> float | None:
    good = values[np.isfinite(values) & (values > 0)]
    return float(f"{np.median(good):.4g}") if len(good) >= _FEWEST_PER_BIN else None


def _filled(row: Sequence[float | None]) -> list[float] | None:
    """What is not known is as in the nearest cell that is."""
    known = [place for place, value in enumerate(row) if value is not None]
    if not known:
        return None
    nearest = [min(known, key=lambda other, place=place: abs(other - place)) for place in range(len(row))]  # type: ignore[misc]
    return [float(row[place]) for place in nearest]  # type: ignore[arg-type]


def _filled_rows(table: Sequence[list[float] | None]) -> list[list[float]] | None:
    known = [place for place, row in enumerate(table) if row is not None]
    if not known:
        return None
    return [table[min(known, key=lambda other, place=place: abs(other - place))] for place in range(len(table))]  # type: ignore[misc]


def _scaled(frame: FrameSettings, now: Sequence[float] | None, there: Sequence[float] | None) -> FrameSettings:
    """With the scales at which clusters agree with tracks as they did where the network has learned."""
    if now is None or there is None:
        say("too few isolated tracks to compare the calorimeters with: their scales stay as they are")
        return frame
    scales = [float(f"{here / known:.4g}") for here, known in zip(now, there, strict=True)]
    if not all(_SCALES[0] < scale < _SCALES[1] for scale in scales):
        raise DatasetError(
            f"the scales of ECAL and HCAL would change by {scales[0]:g} and {scales[1]:g}: clusters and tracks do not belong "
            "together, or are of other units than GeV and mm; --match geometry leaves the scales as they are"
        )
    return frame.model_copy(update={"ecal_scale": scales[0], "hcal_scale": scales[1]})


def _matched(here: Mapping[str, Sequence[float]], there: Mapping[str, Sequence[float]]) -> dict[str, Curve]:
    """Curves from the values of quantiles here to those of the same quantiles there."""
    curves: dict[str, Curve] = {}
    for name in _OF_DETECTOR:
        if name not in here or name not in there:
            continue
        pairs = list(zip(here[name], there[name], strict=True))[_FOLLOWED]
        # Values that many elements share make no step; beyond the ends the shift stays what it is there.
        rising = [pairs[0], *(after for before, after in itertools.pairwise(pairs) if after[0] > before[0] + 1e-6)]
        (low, low_to), (high, high_to) = rising[0], rising[-1]
        if len(rising) > 1:
            curves[name] = [(low - 100.0, low_to - 100.0), *rising, (high + 100.0, high_to + 100.0)]
    return curves

"""Whether events are like those that a network has learned from, and what differs if they are not.

The first events are compared: where tracks enter the calorimeter, the magnetic field, and the distribution of every feature as
the network sees it. What depends on the collision alone (other processes, single particles, pile-up, few events) is no
difference; thresholds are between what was measured of that and of other detectors, see `docs/how-to/reconstruct.md`. Costs
less than 0.1 s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import InputFileError
from ringflow.base.log import say
from ringflow.elements.batch import KINDS, from_block
from ringflow.elements.features import feature_groups, feature_names
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer.inputs import EventInput
from ringflow.infer.runtime import Reconstructor
from ringflow.infer.session import Session
from ringflow.launch.frameworks import one_line
from ringflow.sim.geometry import detector_names, load_detector

Verdict = Literal["like", "unlike", "hopeless"]
Floats = npt.NDArray[np.float64]

#: Events that are looked at, and elements after which no more are.
EVENTS: Final = 50
_ENOUGH: Final = 100_000
#: Nothing is said of fewer elements that differ.
_FEWEST: Final = 10

# The face of the calorimeter. Of tracks of its own detector at most 3 % lie elsewhere (between barrel and endcap). With the
# calorimeter of `clic` moved outwards the shipped network makes of jets of 0.032 at 1 % of the radius 0.033, at 2 % 0.046, at
# 3 % 0.071, at 5 % 0.154, at 10 % 0.267. Further inwards it knows endcaps: 0.033 with 3 % less, 0.041 with 20 %, 0.072 with
# half.
#: Relative distance from the face that is no longer on it, and the share of tracks there that is not what it saw.
_OFF, _MANY_OFF = 0.015, 0.10
#: The same of no hope: behind the face, where nothing has ever been seen, or far in front of it.
_BEHIND, _IN_FRONT, _MANY_LOST = 0.03, 0.5, 0.25
#: Tracks nearer to the beam than this share of the angle of the edge between barrel and endcap may pass through the hole there.
_HOLE: Final = 0.35

#: Relative difference of the field; the shipped network has jets of 0.030 with 12 % less field, 0.034 with 25 % and 0.049 with
#: half of it, and F1 0.926, 0.911, 0.826 instead of 0.930.
_OTHER_FIELD: Final = 0.10

# Features, against the range in which the network saw all but 2 in 1000 of them; where that is not told, what is that of a
# Gaussian.
#: Parts of its width that a value may lie outside of it, and the share of the elements there that is not what it saw: single
#: particles have at most 0.15, other detectors from 0.48 on.
_OUTSIDE, _MANY_OUTSIDE = 0.1, 0.3
#: The same for what is out of sight: beyond eight deviations, or 0.8 of the width, a network sees no difference any more.
_FAR, _MOST_FAR = 0.8, 0.5
_DEVIATIONS: Final = 3.1
_LEAST_WIDTH: Final = 8e-3  # features that were constant
#: Share of the features that may be missing.
_MISSING: Final = 1 / 3
#: Differences of which a refusal speaks, the name of the detector among them.
_WORST: Final = 3
#: Features that are logarithms though their name does not say so, and the units of those that are scaled.
_LOGARITHMS: Final = ("track_dedx", "cluster_mean_depth")
_UNITS: Final = {"track_num_hits": 10.0, "cluster_start_layer": 40.0, "hit_layer": 40.0}


@dataclass(frozen=True)
class Likeness:
    """How events differ from those that a network has learned from."""

    verdict: Verdict
    events: int
    #: The worst first; of events that are alike at most that their detector has another name.
    differences: tuple[str, ...] = ()

    @property
    def hopeless(self) -> bool:
        """Whether one of them leaves no hope."""
        return self.verdict == "hopeless"

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"verdict": self.verdict, "events": self.events, "differences": list(self.differences)}

    def summary(self) -> str:
        """The worst of it in one line."""
        return "; ".join(self.differences[:_WORST])

    def warn(self, where: str = "") -> None:
        """Say what differs, and loudly if it is more than a name."""
        before = where and f"{where}: "
        if self.verdict != "like":
            what = "are nothing that it knows" if self.hopeless else "are unlike those it has learned from"
            say(f"{before}WARNING: the network was made for other data; these events {what}")
            before = "  "
        for difference in self.differences:
            say(f"{before}{difference}")


class _Difference(NamedTuple):
    badness: float  # 1 where it is too much to be said nothing
    text: str
    hopeless: bool = False


def likeness(session: Reconstructor, given: EventInput) -> Likeness:
    """Compare the first events of an input with what the network of a session saw."""
    block = _first(given, session.kinds)
    if block is None:
        return Likeness("like", 0)
    found = [*_faces(session, block["track"]), *_fields(session, given, block["track"])]
    has_face = any("enter the calorimeter" in one.text for one in found)
    found += _features(session, block, without_places=has_face)
    found.sort(key=lambda one: (not one.hopeless, -one.badness))
    verdict: Verdict = "hopeless" if any(one.hopeless for one in found) else "unlike" if found else "like"
    return Likeness(verdict, len(block), (*_names(session, given), *(one.text for one in found)))


def _first(given: EventInput, kinds: tuple[str, str]) -> EventBlock | None:
    """None where there is nothing to look at; what is wrong with such events, who reconstructs them says."""
    blocks: list[EventBlock] = []
    for block in given.blocks(kinds):
        if not all(kind in block for kind in kinds):
            return None
        block = EventBlock(block.event_number, {kind: block[kind] for kind in kinds})
        blocks.append(block.take(0, min(len(block), EVENTS - sum(map(len, blocks)))))
        elements = sum(len(one[kind]) for one in blocks for kind in kinds)
        if sum(map(len, blocks)) >= EVENTS or elements >= _ENOUGH:
            break
    return concatenate(blocks) if blocks else None


def _trained_for(session: Reconstructor) -> tuple[str, ...]:
    """Names of the detectors that a network is for; the one it was adapted to, if it can be."""
    if isinstance(session, Session) and session.model.frame is not None:
        return (session.model.frame.settings.detector,)
    return () if session.detector is None else tuple(session.detector.split(","))


def _names(session: Reconstructor, given: EventInput) -> list[str]:
    trained_for = _trained_for(session)
    if not trained_for or given.detector in trained_for:
        return []
    of = ", ".join(map(repr, trained_for))
    return [f"the model was trained for the detector {of}, the events are of {given.detector!r}"]


class _Face(NamedTuple):
    """Where a calorimeter begins: distance from the axis, |z|, sides of the barrel (0: round)."""

    detector: str
    radius: float
    z: float
    sides: int

    def off(self, x: Floats, y: Floats, z: Floats) -> tuple[Floats, Floats]:
        """Of points the relative distance from the nearest part of the face, and that behind it."""
        across = np.hypot(x, y)
        if self.sides:
            angle = 2.0 * np.pi / self.sides
            phi = np.arctan2(y, x)
            across = across * np.cos(phi - angle * np.round(phi / angle))
        barrel, endcap = across / self.radius - 1.0, np.abs(z) / self.z - 1.0
        return np.minimum(np.abs(barrel), np.abs(endcap)), np.maximum(barrel, endcap)


def _face(session: Reconstructor) -> _Face | None:
    """The one that a network knows, if it is one that can be told."""
    if isinstance(session, Session) and session.model.frame is not None:
        frame = session.model.frame.settings
        entry = frame.sides if frame.entry_sides is None else frame.entry_sides
        return _Face(frame.detector, frame.radius, frame.z, entry)
    trained_for = _trained_for(session)
    if len(trained_for) != 1 or trained_for[0] not in detector_names():
        return None
    detector = load_detector(trained_for[0])
    return _Face(detector.name, detector.face_radius, detector.face_z, detector.sides)


def _faces(session: Reconstructor, tracks: Collection) -> list[_Difference]:
    """Tracks are extrapolated to the face: whatever made them, and where they went, they lie on it."""
    face = _face(session)
    if face is None or not {"reaches_calo", "calo_x", "calo_y", "calo_z"} <= set(tracks.columns):
        return []
    x, y, z = (tracks[f"calo_{axis}"].astype(np.float64) for axis in "xyz")
    slope = np.hypot(x, y) * face.z - _HOLE * np.abs(z) * face.radius
    chosen = (tracks["reaches_calo"] == 1) & (slope > 0.0)
    off, behind = face.off(x[chosen], y[chosen], z[chosen])
    if np.sum(off > _OFF) < _FEWEST or (share := float(np.mean(off > _OFF))) < _MANY_OFF:
        return []
    in_barrel = np.hypot(x, y) * face.z > np.abs(z) * face.radius
    here = [
        f"{name} {np.median(values):.0f}"
        for name, values in (("radius", np.hypot(x, y)[chosen & in_barrel]), ("|z|", np.abs(z)[chosen & ~in_barrel]))
        if len(values)
    ]
    text = (
        f"{share:.0%} of the tracks enter the calorimeter elsewhere: its face is at radius {face.radius:.0f} mm and |z| "
        f"{face.z:.0f} mm in {face.detector!r}, here at {' and '.join(here)} mm"
    )
    if isinstance(session, Session) and session.model.frame is not None:
        text += "; `ringflow adapt` tells the network so"
    lost = np.mean((behind > _BEHIND) | (off > _IN_FRONT))
    return [_Difference(share / _MANY_OFF, text, bool(lost >= _MANY_LOST))]


def _fields(session: Reconstructor, given: EventInput, tracks: Collection) -> list[_Difference]:
    trained_for = _trained_for(session)
    if len(trained_for) != 1 or trained_for[0] not in detector_names() or not len(tracks):
        return []
    usual = load_detector(trained_for[0]).field
    try:
        here = given.field
    except InputFileError:  # nobody told it
        return []
    difference = abs(here / usual - 1.0)
    if difference <= _OTHER_FIELD:
        return []
    return [_Difference(difference / _OTHER_FIELD, f"the magnetic field is {here:g} T instead of {usual:g} T")]


class _Usual(NamedTuple):
    """Ends of the range in which nearly all values of a feature were, and the middle."""

    low: float
    middle: float
    high: float

    @property
    def width(self) -> float:
        return max(self.high - self.low, _LEAST_WIDTH)

    @property
    def varies(self) -> bool:
        """Whether it was more than a constant, such as the energy in the yoke of events without muons."""
        return self.width > 1.01 * _LEAST_WIDTH


def _usual(session: Reconstructor, names: tuple[str, ...]) -> dict[str, _Usual]:
    """By feature; without those that the network never saw, empty if it does not say."""
    if (quantiles := _told(session.card, "seen", "quantiles")) is not None:
        try:
            values = {name: [float(value) for value in quantiles[name]] for name in names if name in quantiles}
            return {name: _Usual(of[0], of[len(of) // 2], of[-1]) for name, of in values.items()}
        except (TypeError, ValueError, LookupError) as error:
            reason = one_line(str(error))
            raise InputFileError(f"the model does not say what it has seen ({reason}); train it again") from None
    if not isinstance(session, Session):
        return {}
    embedding = session.model.embedding
    mean, deviation = (values.double().cpu().numpy() for values in (embedding.mean_F, embedding.deviation_F))
    if (mean == 0.0).all() and (deviation == 1.0).all():  # it has learned nothing yet
        return {}
    low, high = mean - _DEVIATIONS * deviation, mean + _DEVIATIONS * deviation
    return {name: _Usual(*map(float, row)) for name, *row in zip(names, low, mean, high, strict=True)}


def _told(card: Any, *path: str) -> Any:
    """What a card says in some place, if it does."""
    for name in path:
        card = card.get(name) if isinstance(card, Mapping) else None
    return card


def _features(session: Reconstructor, block: EventBlock, *, without_places: bool) -> list[_Difference]:
    """Features outside of what the network saw, and those that are not there."""
    names = feature_names(session.kinds)
    usual = _usual(session, names)
    batch = from_block(block, session.kinds[1])
    if isinstance(session, Session):
        batch = session.model.see(batch.to(session.model.embedding.mean_F.device))
    elif _told(session.card, "settings", "model", "features") == "relative":
        return []  # an exported file knows how to see them, but does not tell
    if not usual:
        return []
    features, kind = batch.features_NF.double().cpu().numpy(), batch.kind_N.cpu().numpy()
    places = {f"track_calo_{axis}" for axis in ("radius", "z")} | {
        f"{session.kinds[1]}_{axis}" for axis in ("radius", "z")
    }
    found: list[_Difference] = []
    missing: list[int] = []
    varied = {name for name, one in usual.items() if one.varies}
    plain = _told(session.card, "settings", "model", "features") != "relative"
    for number, name in enumerate(names):
        of_kind = features[kind == KINDS.index(name.split("_")[0]), number]
        values = of_kind[~np.isnan(of_kind)]
        if len(of_kind) >= _FEWEST and not len(values) and name in varied:
            missing.append(number)
        if without_places and name in places:
            continue
        if name not in usual:
            if len(values) >= _FEWEST and len(values) >= _MOST_FAR * len(of_kind):
                found.append(_Difference(1.0 / _MANY_OUTSIDE, f"{_words(name)}: it never saw any", hopeless=True))
        elif one := _outside(name, values, usual[name], plain):
            found.append(one)
    if len(missing) > _MISSING * len(varied):
        groups = dict.fromkeys(group for number in missing if (group := feature_groups(session.kinds)[number]))
        text = f"{len(missing)} of {len(varied)} features that it saw are not there: {', '.join(map(_words, groups))}"
        found.append(_Difference(len(missing) / len(varied) / _MISSING, text))
    return found


def _outside(name: str, values: Floats, usual: _Usual, plain: bool) -> _Difference | None:
    """A feature of elements that too often is not where it was."""
    beyond = np.maximum(usual.low - values, values - usual.high) / usual.width
    if np.sum(beyond > _OUTSIDE) < _FEWEST or (share := float(np.mean(beyond > _OUTSIDE))) < _MANY_OUTSIDE:
        return None
    there, here = (_shown(name, value, plain) for value in (usual.middle, float(np.median(values))))
    text = f"{_words(name)}: {share:.0%} outside of what it saw (usual {there}, here {here})"
    return _Difference(share / _MANY_OUTSIDE, text, usual.varies and bool(np.mean(beyond > _FAR) >= _MOST_FAR))


def _words(name: str) -> str:
    return name.replace("_log_", "_").replace("_", " ")


def _shown(name: str, value: float, plain: bool) -> str:
    """The value of a feature as people know it; relative to a detector it is a number without a unit."""
    if "_log_" in name or name in _LOGARITHMS:
        value = math.exp(min(value, 700.0))
    return f"{value * _UNITS.get(name, 1.0) if plain else value:.3g}"

"""Tracks of an EDM4hep file: from the states of the helix fit to the columns of the schema.

EDM4hep: omega = 1/radius (1/mm) is positive for positive charges in a field along +z; the point of closest approach to the
reference point lies at D0 (-sin phi, cos phi). The schema counts d0 the other way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import InputFileError
from ringflow.data.edm4hep_layout import Array, PodioFile
from ringflow.data.edm4hep_objects import Objects, PodioBlock, Rows
from ringflow.data.edm4hep_profile import Profile, TrackSource
from ringflow.event.particles import SPEED_OF_LIGHT, properties

#: pt [GeV] = BENDING * B [T] / |omega| [1/mm]
BENDING = SPEED_OF_LIGHT * 1e-6

AT_INTERACTION_POINT, AT_CALORIMETER = 1, 4
#: States in the order in which they describe the track at the beam: there, unnamed, at a vertex, first hit, last hit.
_NEAR_BEAM = (AT_INTERACTION_POINT, 0, 5, 2, 3, AT_CALORIMETER)

_STRAIGHT = 1e-9  # 1/mm; an omega of nothing would be an infinite momentum
#: A particle that turns more often has lost its energy on the way, as in the simulation.
_MOST_TURNS = 2.0
_PION_MASS = properties(211).mass

#: Place of the variances in the lower triangle of the covariance of (d0, phi, omega, z0, tan lambda).
_D0, _PHI, _OMEGA, _Z0, _TAN_LAMBDA = 0, 2, 5, 9, 14

Double = npt.NDArray[np.float64]
Columns = dict[str, Array]


@dataclass(frozen=True)
class Helix:
    """Helices by their parameters at the point of closest approach to a reference point, signs as in EDM4hep."""

    d0: Double
    phi: Double
    omega: Double
    z0: Double
    tan_lambda: Double
    reference: tuple[Double, Double, Double]

    def at_beam(self) -> Helix:
        """The same helices with the origin as reference point."""
        x, y, z = self.reference
        radius = 1.0 / self.omega
        centre_x = x + (radius - self.d0) * np.sin(self.phi)
        centre_y = y - (radius - self.d0) * np.cos(self.phi)
        sign, distance = np.sign(self.omega), np.hypot(centre_x, centre_y)
        phi = np.arctan2(sign * centre_x, -sign * centre_y)
        path = -wrap(phi - self.phi) * radius
        nothing = np.zeros_like(phi)
        z0 = z + self.z0 + path * self.tan_lambda
        return Helix(radius - sign * distance, phi, self.omega, z0, self.tan_lambda, (nothing, nothing, nothing))

    def point(self, path: Double) -> tuple[Double, Double, Double]:
        """Position after a transverse path from the point of closest approach."""
        half_turn = -0.5 * self.omega * path
        chord = path * np.sinc(half_turn / np.pi)
        x, y, z = self.reference
        return (
            x - self.d0 * np.sin(self.phi) + chord * np.cos(self.phi + half_turn),
            y + self.d0 * np.cos(self.phi) + chord * np.sin(self.phi + half_turn),
            z + self.z0 + path * self.tan_lambda,
        )

    def direction(self, path: Double) -> tuple[Double, Double, Double]:
        """Unit vector of the momentum after a transverse path."""
        azimuth, cos_lambda = self.phi - self.omega * path, 1.0 / np.hypot(1.0, self.tan_lambda)
        return cos_lambda * np.cos(azimuth), cos_lambda * np.sin(azimuth), cos_lambda * self.tan_lambda

    def path_to_face(self, radius: float, z: float) -> tuple[Double, npt.NDArray[np.bool_]]:
        """Transverse path from the origin's side to the calorimeter, and whether it gets there.

        A path that never does ends where it turns back to the beam.
        """
        bend = 1.0 / np.abs(self.omega)
        distance = np.abs(1.0 / self.omega - self.d0)
        with np.errstate(divide="ignore", invalid="ignore"):
            square = (radius**2 - self.d0**2) / (4.0 * distance * bend)
            barrel = np.where(square <= 1.0, 2.0 * bend * np.arcsin(np.sqrt(np.clip(square, 0.0, 1.0))), np.inf)
            endcap = (np.copysign(z, self.tan_lambda) - self.z0) / self.tan_lambda
        path = np.minimum(barrel, np.where(endcap > 0.0, endcap, np.inf))
        reaches = path <= 2.0 * np.pi * _MOST_TURNS * bend
        return np.where(reaches, path, np.pi * bend), reaches


def wrap(angle: Double) -> Double:
    """An angle between -pi and pi."""
    wrapped: Double = np.remainder(angle + np.pi, 2.0 * np.pi) - np.pi
    return wrapped


def has_times(file: PodioFile, events: range, source: TrackSource) -> bool:
    """Whether states at the calorimeter carry times; many files have the member but never fill it."""
    location = file.vector(events, source.collection, "trackStates", "location")
    time = file.vector(events, source.collection, "trackStates", "time")
    return location is not None and time is not None and bool(np.any(time.values[location.values == AT_CALORIMETER]))


def track_columns(
    block: PodioBlock, tracks: Objects, source: TrackSource, profile: Profile, *, with_time: bool
) -> Columns:
    """Columns of the `track` collection without truth."""
    states = _States(block, tracks)
    near, at_face = states.nearest_beam(), states.at_face()
    helix = states.helix(near).at_beam()
    pt = BENDING * profile.field / np.abs(helix.omega)
    columns: Columns = {
        "pt": pt,
        "eta": np.arcsinh(helix.tan_lambda),
        "phi": helix.phi,
        "charge": np.sign(helix.omega),
        "d0": -helix.d0,
        "z0": helix.z0,
        **states.uncertainties(near),
    }
    for name in ("chi2", "ndf"):
        if (values := block.column(tracks, name)) is not None:
            columns[name] = values
    if (num_hits := block.lengths(tracks, "trackerHits")) is not None:
        columns["num_hits"] = num_hits
    if (dedx := _energy_loss(block, tracks, source)) is not None:
        columns["dedx"] = dedx
    return columns | _at_calorimeter(states, helix, near, at_face, pt, profile, with_time)


class _States:
    """The states of all tracks."""

    def __init__(self, block: PodioBlock, tracks: Objects) -> None:
        self._block, self._tracks = block, tracks
        self.owner, location = self._member("location")
        self._location = location.astype(np.int64)
        self._omega = self._member("omega")[1].astype(np.float64)

    def _member(self, *names: str) -> tuple[Rows, Array]:
        found = self._block.held(self._tracks, "trackStates", *names)
        if found is None:
            raise InputFileError(
                f"{self._block.file.path}: {self._tracks.names[0]} has no track states; name another track collection"
            )
        return found

    def nearest_beam(self) -> Rows:
        """The state of each track that describes it at the beam."""
        rank = np.array([_NEAR_BEAM.index(place) if place in _NEAR_BEAM else 9 for place in self._location.tolist()])
        order = np.lexsort((np.arange(len(rank)), rank, self.owner)) if len(rank) else np.zeros(0, np.int64)
        track, first = np.unique(self.owner[order], return_index=True)
        if len(track) != len(self._tracks):
            lacking = int(np.setdiff1d(np.arange(len(self._tracks)), track)[0])
            event = self._block.events[int(self._tracks.event[lacking])]
            raise InputFileError(
                f"{self._block.file.path}: a track of entry {event} in {self._tracks.names[0]} has no state; "
                "it has no momentum, so leave it out of the file"
            )
        return order[first]

    def at_face(self) -> Rows:
        """The state of each track at the calorimeter; -1 without one. A state in the origin was never set."""
        away = np.hypot(*(self._member(f"referencePoint.{axis}")[1] for axis in "xy")) > 1.0
        rows = np.flatnonzero((self._location == AT_CALORIMETER) & away)
        face = np.full(len(self._tracks), -1, np.int64)
        face[self.owner[rows]] = rows
        return face

    def column(self, state: Rows, *names: str) -> Double:
        """A member of some states."""
        return self._member(*names)[1][state].astype(np.float64)

    def helix(self, state: Rows) -> Helix:
        """Helices of some states."""
        omega = self._omega[state]
        omega = np.where(np.abs(omega) < _STRAIGHT, np.copysign(_STRAIGHT, omega), omega)
        d0, phi, z0, tan_lambda = (self.column(state, name) for name in ("D0", "phi", "Z0", "tanLambda"))
        x, y, z = (self.column(state, f"referencePoint.{axis}") for axis in "xyz")
        return Helix(d0, phi, omega, z0, tan_lambda, (x, y, z))

    def uncertainties(self, state: Rows) -> Columns:
        """Uncertainties from the covariance; none if the file has no covariance."""
        found = self._block.held(self._tracks, "trackStates", "covMatrix.values", "covMatrix")
        if found is None:
            return {}
        # Nothing has no second axis.
        variance = found[1][state].astype(np.float64) if len(state) else np.zeros((0, _TAN_LAMBDA + 1))
        sigma = np.sqrt(np.clip(np.nan_to_num(variance), 0.0, None))
        helix = self.helix(state)
        return {
            "sigma_pt": sigma[:, _OMEGA] / np.abs(helix.omega),
            "sigma_phi": sigma[:, _PHI],
            "sigma_theta": sigma[:, _TAN_LAMBDA] / (1.0 + helix.tan_lambda**2),
            "sigma_d0": sigma[:, _D0],
            "sigma_z0": sigma[:, _Z0],
        }


def _at_calorimeter(
    states: _States, helix: Helix, near: Rows, at_face: Rows, pt: Double, profile: Profile, with_time: bool
) -> Columns:
    """Where a track enters the calorimeter: from the state there, else along its helix."""
    path, reaches = helix.path_to_face(profile.face_radius, profile.face_z)
    given = at_face >= 0
    face = states.helix(at_face[given])
    point, direction = helix.point(path), helix.direction(path)
    nothing = np.zeros(int(given.sum()))
    columns: Columns = {"reaches_calo": reaches | given}
    for axis, along, heading, at, to in zip(
        "xyz", point, direction, face.point(nothing), face.direction(nothing), strict=True
    ):
        along[given], heading[given] = at, to
        columns[f"calo_{axis}"], columns[f"calo_d{axis}"] = along, heading
    if with_time:
        # Some tracks lack the state: as if they were pions.
        momentum = pt * np.hypot(1.0, helix.tan_lambda)
        length = path * np.hypot(1.0, helix.tan_lambda)
        time = states.column(near, "time") + length * np.hypot(1.0, _PION_MASS / momentum) / SPEED_OF_LIGHT
        time[given] = states.column(at_face[given], "time")
        columns["time"] = time
    return columns


def _energy_loss(block: PodioBlock, tracks: Objects, source: TrackSource) -> Array | None:
    """dE/dx in units of a minimum-ionising particle; nothing if the profile does not say what that is."""
    if source.mip_dedx is None:
        return None
    values: Array | None
    if source.dedx_collection is None:
        values = block.column(tracks, "dEdx")
    elif not block.file.has(source.dedx_collection):
        values = None
    else:
        measured = block.objects([source.dedx_collection], "dQdx.value")
        references = block.reference(measured, "track")
        values = None
        if references is not None:
            track = tracks.locate(references)
            values = np.zeros(len(tracks))
            values[track[track >= 0]] = block.need(measured, "dQdx.value")[track >= 0]
    return None if values is None else values / source.mip_dedx

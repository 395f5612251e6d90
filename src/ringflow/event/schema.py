"""The vocabulary of an event on disk and in memory: collections, columns, dtypes, units.

An event is a set of named collections; a collection is a table of columns with one row per object. On disk every column is
one Parquet list column named `<collection>_<column>`, for example `track_pt`. Units are GeV, mm, ns, tesla and radians.

Indices (`track_particle`, `hit_cluster`, ...) count within the event and are -1 where there is nothing to point to.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 1

#: Subsystem codes of calorimeter hits, and of the columns that sum over them.
SUBSYSTEMS = ("ecal_barrel", "ecal_endcap", "hcal_barrel", "hcal_endcap", "yoke_barrel", "yoke_endcap")


@dataclass(frozen=True)
class Column:
    """One column: its name, numpy dtype, unit and meaning; `points_to` names the collection an index counts in."""

    name: str
    dtype: str
    unit: str
    meaning: str
    points_to: str | None = None


def _float(name: str, unit: str, meaning: str) -> Column:
    return Column(name, "float32", unit, meaning)


def _code(name: str, meaning: str, dtype: str = "int8") -> Column:
    return Column(name, dtype, "1", meaning)


def _index(name: str, points_to: str, meaning: str) -> Column:
    return Column(name, "int32", "1", meaning, points_to)


_MOMENTUM = (
    _float("px", "GeV", "momentum along x"),
    _float("py", "GeV", "momentum along y"),
    _float("pz", "GeV", "momentum along z, the beam axis"),
    _float("energy", "GeV", "total energy"),
)
_POSITION = (_float("x", "mm", "position x"), _float("y", "mm", "position y"), _float("z", "mm", "position z"))

_TRACK = (
    _float("pt", "GeV", "transverse momentum at the point of closest approach to the beam axis"),
    _float("eta", "1", "pseudorapidity of the momentum"),
    _float("phi", "rad", "azimuth of the momentum at the point of closest approach"),
    _code("charge", "electric charge"),
    _float("d0", "mm", "signed transverse impact parameter"),
    _float("z0", "mm", "longitudinal impact parameter"),
    _float("chi2", "1", "chi squared of the fit"),
    _code("ndf", "degrees of freedom of the fit", "int16"),
    _code("num_hits", "tracker hits on the track", "int16"),
    _float("sigma_pt", "1", "relative uncertainty of pt"),
    _float("sigma_phi", "rad", "uncertainty of phi"),
    _float("sigma_theta", "rad", "uncertainty of the polar angle"),
    _float("sigma_d0", "mm", "uncertainty of d0"),
    _float("sigma_z0", "mm", "uncertainty of z0"),
    _float("dedx", "1", "mean energy loss in units of a minimum-ionising particle"),
    _float("time", "ns", "measured time, carried on to the calorimeter face; at the last hit if that is not met"),
    _code("reaches_calo", "1 if the fitted helix, carried on from the last hit, meets the calorimeter face"),
    _float("calo_x", "mm", "where the fitted helix meets the calorimeter face, x; the last hit if it does not"),
    _float("calo_y", "mm", "extrapolation to the calorimeter face y"),
    _float("calo_z", "mm", "extrapolation to the calorimeter face z"),
    _float("calo_dx", "1", "unit direction at the face, x"),
    _float("calo_dy", "1", "unit direction at the face, y"),
    _float("calo_dz", "1", "unit direction at the face, z"),
    _float("last_x", "mm", "last hit of the track, x"),
    _float("last_y", "mm", "last hit of the track, y"),
    _float("last_z", "mm", "last hit of the track, z"),
    _index("particle", "particle", "particle that left the track"),
)

_CLUSTER = (
    _float("energy", "GeV", "sum of the hits at the electromagnetic scale"),
    _float("energy_hadronic", "GeV", "the same at the hadronic scale"),
    _float("ecal_energy", "GeV", "part of the energy in the electromagnetic calorimeter"),
    _float("hcal_energy", "GeV", "part of the energy in the hadronic calorimeter"),
    _float("muon_energy", "GeV", "part of the energy in the yoke"),
    *_POSITION,
    _float("eta", "1", "pseudorapidity of the position"),
    _float("phi", "rad", "azimuth of the position"),
    _code("num_hits", "hits in the cluster", "int32"),
    _float("width_along", "mm", "energy-weighted spread along the line from the origin"),
    _float("width_across", "mm", "energy-weighted spread across that line"),
    _code("start_layer", "first layer with a hit, counted through ECAL, HCAL and yoke", "int16"),
    _float("mean_depth", "mm", "energy-weighted depth behind the calorimeter face"),
    _float("time", "ns", "energy-weighted time of the prompt hits; of all hits where none is prompt"),
    _float("front_energy", "GeV", "part of the energy in the first ten layers of the electromagnetic calorimeter"),
    _float(
        "ecal_x", "mm", "centre of what lies in the electromagnetic calorimeter, x; of the whole where nothing does"
    ),
    _float("ecal_y", "mm", "the same, y"),
    _float("ecal_z", "mm", "the same, z"),
    _float("ecal_width", "mm", "spread across the line from the origin, electromagnetic calorimeter only"),
    _float("hcal_width", "mm", "the same, hadronic calorimeter only"),
    _float("peak_energy", "GeV", "energy in the electromagnetic calorimeter near the line through its strongest hit"),
    _float("peak_x", "mm", "strongest hit of the electromagnetic calorimeter, else of all, x"),
    _float("peak_y", "mm", "the same, y"),
    _float("peak_z", "mm", "the same, z"),
    _float("slope_phi", "1", "change of the offset in azimuth per length along the line from the origin"),
    _float("slope_theta", "1", "change of the offset in polar angle per length along that line"),
)

_HIT = (
    _float("energy", "GeV", "energy at the electromagnetic scale"),
    *_POSITION,
    _float("time", "ns", "time of the hit, time of flight included"),
    _code("layer", "layer in its subsystem, 0 is the innermost", "int16"),
    _code("subsystem", "index into SUBSYSTEMS"),
    _index("cluster", "cluster", "cluster the hit belongs to"),
)

_PARTICLE = (
    _code("pdg", "PDG number", "int32"),
    *_MOMENTUM,
    _code("charge", "electric charge"),
    *_POSITION,
    _float("time", "ns", "production time"),
    _code("interaction", "0 for the hard collision, 1, 2, ... for overlaid ones", "int16"),
    _code("label", "truth label, see PARTICLE_CLASSES; 0 if it is not visible"),
    _float("calo_energy", "GeV", "energy it left in calorimeter hits"),
    _index("target", "target", "target that carries its four-momentum, on tracks + clusters"),
    _index("hit_target", "hit_target", "target that carries its four-momentum, on tracks + hits"),
)


def _target(calo_collection: str) -> tuple[Column, ...]:
    return (
        _code("label", "truth label, see PARTICLE_CLASSES"),
        _code("charge", "electric charge"),
        *_MOMENTUM,
        _index("track", "track", "primary element if it is a track"),
        _index(calo_collection, calo_collection, f"primary element if it is a {calo_collection}"),
        _code("num_particles", "particles merged into it", "int32"),
    )


def _link(calo_collection: str) -> tuple[Column, ...]:
    return (
        _index(calo_collection, calo_collection, "where the energy was left"),
        _index("particle", "particle", "who left it"),
        _float("energy", "GeV", "how much, at the electromagnetic scale"),
    )


#: What a reconstruction may add to a candidate.
CANDIDATE_ERRORS = (
    _float("energy_error", "GeV", "68 % uncertainty of the energy"),
    _float("pt_error", "GeV", "68 % uncertainty of the transverse momentum"),
    _float("eta_error", "1", "68 % uncertainty of the pseudorapidity"),
    _float("phi_error", "rad", "68 % uncertainty of the azimuth"),
)

#: Collection name -> its columns, in the order they are written.
COLLECTIONS: dict[str, tuple[Column, ...]] = {
    "track": _TRACK,
    "cluster": _CLUSTER,
    "hit": _HIT,
    "particle": _PARTICLE,
    "target": _target("cluster"),
    "hit_target": _target("hit"),
    "cluster_link": _link("cluster"),
    "hit_link": _link("hit"),
    "candidate": (
        _code("label", "reconstructed label, see PARTICLE_CLASSES"),
        _code("charge", "electric charge"),
        *_MOMENTUM,
        _index("track", "track", "track it was made from"),
        _index("cluster", "cluster", "cluster it was made from"),
        *CANDIDATE_ERRORS,
    ),
}

#: What every simulated event has; candidates come from a reconstruction.
SIMULATED = tuple(name for name in COLLECTIONS if name != "candidate")


def parquet_name(collection: str, column: str) -> str:
    """Name of a column on disk."""
    return f"{collection}_{column}"

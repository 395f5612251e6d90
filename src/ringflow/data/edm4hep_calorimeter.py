"""Calorimeter hits and clusters of an EDM4hep file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringflow.data.edm4hep_layout import Array
from ringflow.data.edm4hep_objects import Objects, PodioBlock, Rows
from ringflow.data.edm4hep_profile import ClusterSource, HitSource, Profile
from ringflow.event.schema import SUBSYSTEMS

Columns = dict[str, Array]
Vectors = tuple[Array, Array, Array]

#: Of the columns that need layers.
_BY_LAYER = ("start_layer", "front_energy")
#: Position of an object that was never given one.
_NOWHERE = 1e-3  # mm from the origin


@dataclass(frozen=True)
class Hits:
    """Hits, the collections they are from, and whether the profile tells their layers."""

    objects: Objects
    columns: Columns
    know_layers: bool


def read_hits(block: PodioBlock, sources: Sequence[HitSource]) -> Hits:
    """Columns of the `hit` collection without clusters."""
    hits = block.objects([source.collection for source in sources], "energy")
    x, y, z = block.three(hits, "position")
    columns: Columns = {"energy": block.need(hits, "energy"), "x": x, "y": y, "z": z}
    if (time := block.column(hits, "time")) is not None:
        columns["time"] = time
    cells = block.column(hits, "cellID")
    know_layers = cells is not None and all(source.layer is not None for source in sources)
    subsystem = np.zeros(len(hits), np.int64)
    layer = np.zeros(len(hits), np.int64)
    for number, source in enumerate(sources):
        rows = hits.rows_of(number)
        subsystem[rows] = SUBSYSTEMS.index(source.subsystem)
        if source.endcap_from is not None:
            subsystem[rows[np.abs(z[rows]) >= source.endcap_from]] |= 1
        if know_layers and cells is not None and source.layer is not None:
            bits = cells[rows].astype(np.uint64) >> np.uint64(source.layer.offset)
            number_in_cell = (bits & np.uint64((1 << source.layer.width) - 1)).astype(np.int64)
            layer[rows] = np.clip(number_in_cell - source.layer.first, 0, None)
    columns["subsystem"] = subsystem
    if know_layers:
        columns["layer"] = layer
    return Hits(hits, columns, know_layers)


def clusters_of_hits(block: PodioBlock, clusters: Objects, hits: Objects) -> Rows:
    """Cluster of every hit, -1 for a hit in none."""
    cluster_of = np.full(len(hits), -1, np.int64)
    if (references := block.relation(clusters, "hits")) is not None:
        hit = hits.locate(references)
        cluster_of[hit[hit >= 0]] = references.owner[hit >= 0]
    return cluster_of


def cluster_columns(
    block: PodioBlock, clusters: Objects, source: ClusterSource, momentum: Vectors | None, profile: Profile
) -> Columns:
    """Columns of the `cluster` collection that need no hits.

    `momentum` is that of the reconstructed particle each cluster belongs to: where a cluster was never given a position, it
    is put on the calorimeter face in that direction.
    """
    position = block.three(clusters, "position")
    nowhere = sum(component**2 for component in position) < _NOWHERE**2
    if momentum is not None and np.any(nowhere):
        on_face = _on_face(momentum, profile)
        x, y, z = (np.where(nowhere, there, given) for there, given in zip(on_face, position, strict=True))
        position = (x, y, z)
    columns: Columns = {"energy": block.need(clusters, "energy").astype(np.float64), **_place(position)}
    if source.subdetectors is not None:
        columns |= _parts(block, clusters, source.subdetectors)
    if (num_hits := block.lengths(clusters, "hits")) is not None:
        columns["num_hits"] = num_hits
    return columns


def _place(position: Vectors) -> Columns:
    x, y, z = position
    return {
        "x": x,
        "y": y,
        "z": z,
        "eta": np.arcsinh(z / np.maximum(np.hypot(x, y), _NOWHERE)),
        "phi": np.arctan2(y, x),
    }


def _on_face(momentum: Vectors, profile: Profile) -> Vectors:
    """Where straight lines from the origin meet the calorimeter; the origin for no direction."""
    across, along = np.hypot(momentum[0], momentum[1]), np.abs(momentum[2])
    with np.errstate(divide="ignore"):
        length = np.minimum(profile.face_radius / across, profile.face_z / along)
    length = np.where(np.isfinite(length), length, 0.0)
    x, y, z = (component * length for component in momentum)
    return x, y, z


def _parts(block: PodioBlock, clusters: Objects, subdetectors: Sequence[str]) -> Columns:
    """Energy per calorimeter, and their sum: what the hits of a cluster sum to, before any correction."""
    energies = block.held(clusters, "subdetectorEnergies")
    if energies is None:
        return {}
    owner, energy = energies
    place = np.arange(len(owner)) - np.searchsorted(owner, owner)
    table = np.zeros((len(clusters), len(subdetectors)))
    named = place < len(subdetectors)
    table[owner[named], place[named]] = energy[named]
    parts = {
        f"{part}_energy": table[:, [name == part for name in subdetectors]].sum(axis=1)
        for part in ("ecal", "hcal", "muon")
    }
    total, whole = table.sum(axis=1), block.need(clusters, "energy")
    return {"energy": np.where(total > 0.0, total, whole), **parts}


def shapes_from_hits(hits: Hits, cluster_of: Rows, clusters: Columns, profile: Profile) -> Columns:
    """Columns of clusters from their hits, by the same definitions as in the simulation.

    A cluster without hits counts as one of its energy at its place.
    """
    import torch

    from ringflow.elements.shapes import cluster_columns as columns_of

    num_clusters = len(clusters["energy"])
    inside = cluster_of >= 0
    energy = np.where(inside, hits.columns["energy"], 0.0).astype(np.float64)
    sums = np.bincount(cluster_of[inside], energy[inside], minlength=num_clusters)
    empty = np.flatnonzero(sums <= 0.0)
    # Hits of nothing would leave a cluster without a centre.
    label = np.where(inside & (sums[cluster_of] > 0.0), cluster_of, -1) if len(cluster_of) else cluster_of
    stand_in = {name: clusters[name][empty] for name in ("energy", "x", "y", "z")}
    stand_in["energy"] = np.maximum(stand_in["energy"], 1e-6)
    stand_in["subsystem"] = (np.abs(stand_in["z"]) >= profile.face_z).astype(np.int64)
    none = np.zeros(len(hits.columns["energy"]))
    tensors = {
        name: torch.from_numpy(
            np.concatenate([hits.columns.get(name, none), stand_in.get(name, np.zeros(len(empty)))]).astype(kind)
        )
        for name, kind in _HIT_TYPES.items()
    }
    layers = profile.layers
    in_front = {"ecal": 0, "hcal": layers.ecal if layers else 0, "yoke": layers.ecal + layers.hcal if layers else 0}
    made = columns_of(
        tensors,
        torch.from_numpy(np.concatenate([label, empty])),
        num_clusters,
        profile.face_radius,
        profile.face_z,
        [in_front[name.split("_")[0]] for name in SUBSYSTEMS],
    )
    columns: Columns = {name: values.numpy() for name, values in made.items()}
    columns["num_hits"][empty] = 0
    lacking = {*(() if hits.know_layers and layers else _BY_LAYER), *(() if "time" in hits.columns else ("time",))}
    return {name: values for name, values in columns.items() if name not in lacking}


_HIT_TYPES: dict[str, npt.DTypeLike] = {
    "energy": np.float64,
    "x": np.float64,
    "y": np.float64,
    "z": np.float64,
    "time": np.float64,
    "subsystem": np.int64,
    "layer": np.int64,
}

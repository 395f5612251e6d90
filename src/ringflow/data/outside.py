"""Write a dataset from anybody's arrays: outside data enters by the same door as simulated data.

    write_dataset("data/mine", detector="mine", tracks=tracks, clusters=clusters)

`tracks` and the others are awkward arrays of records, one list per event, whose fields are named like the columns of the
schema (`tracks.pt`, `clusters.energy`); a dict of jagged arrays does as well. Whatever does not exist is left out: whole
collections, and columns a detector does not have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import UsageError
from ringflow.base.rundir import temporary_folder, write_errors
from ringflow.base.words import did_you_mean
from ringflow.data.manifest import make_manifest, write_manifest
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter, columns_of, shard_file
from ringflow.event.block import Collection, EventBlock, cast, dangling
from ringflow.event.schema import COLLECTIONS, Column

#: Elements, and the targets that are made from their links.
_TARGETS_OF = {"hit": "hit_target", "cluster": "target"}


def write_dataset(
    path: Path | str,
    *,
    detector: str,
    sample: str = "outside",
    tracks: Any = None,
    clusters: Any = None,
    hits: Any = None,
    particles: Any = None,
    targets: Any = None,
    hit_targets: Any = None,
    cluster_links: Any = None,
    hit_links: Any = None,
    candidates: Any = None,
    event_number: Any = None,
    make_targets: bool = True,
    events_per_shard: int = 250,
    provenance: Mapping[str, Any] | None = None,
) -> Dataset:
    """Write arrays into a new dataset folder, which appears whole or not at all, and open it.

    `event_number` counts from 0 unless given; given numbers must rise. `provenance` is what you want to be known about the
    data: anything that can be written as JSON.

    Where particles and links are given and targets are not, targets are made by the definition of truth that the simulation
    has (`elements.truth`), and particles get what follows: `label`, `target` and, unless it is given, `calo_energy`.
    """
    given = {
        "track": tracks,
        "cluster": clusters,
        "hit": hits,
        "particle": particles,
        "target": targets,
        "hit_target": hit_targets,
        "cluster_link": cluster_links,
        "hit_link": hit_links,
        "candidate": candidates,
    }
    if events_per_shard < 1:
        raise UsageError(f"events_per_shard must be at least 1, not {events_per_shard}")
    try:
        record = json.loads(json.dumps(dict(provenance or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"provenance cannot be written as JSON ({error}); give text, numbers, lists and dicts"
        ) from None
    collections = {name: _collection(name, array) for name, array in given.items() if array is not None}
    block = EventBlock(_event_numbers(event_number, collections), collections)
    _check_indices(block)
    if make_targets and "particle" in block:
        block = _with_targets(block)
    folder = Path(path)
    _write(folder, block, detector, sample, events_per_shard, record)
    return Dataset(folder)


def _write(
    folder: Path, block: EventBlock, detector: str, sample: str, events_per_shard: int, provenance: Mapping[str, Any]
) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder} already exists; choose another folder or remove it")
    shards = []
    with write_errors(folder), temporary_folder(folder) as temporary:
        for index, start in enumerate(range(0, len(block), events_per_shard)):
            with ShardWriter(temporary / shard_file(index)) as writer:
                writer.append(block.take(start, min(start + events_per_shard, len(block))))
                shards.append(writer.finish())
        manifest = make_manifest(
            detector=detector, sample=sample, columns=columns_of(block), shards=shards, provenance=provenance
        )
        write_manifest(temporary, manifest)
        temporary.rename(folder)


def _collection(name: str, array: Any) -> Collection:
    """Awkward records as flat columns of the schema's types."""
    import awkward as ak

    fields = dict(array) if isinstance(array, Mapping) else {field: array[field] for field in ak.fields(array)}
    described = {column.name: column for column in COLLECTIONS[name]}
    if not fields:
        raise UsageError(f"{name}: give records with named fields, for example {name}.{next(iter(described))}")
    counts: npt.NDArray[np.int64] | None = None
    columns: dict[str, npt.NDArray[Any]] = {}
    for field, values in fields.items():
        if field not in described:
            hint = did_you_mean(field, described)
            raise UsageError(f"{name}.{field} is not in the schema; {hint}columns: {', '.join(described)}")
        per_event, flat = _flatten(f"{name}.{field}", values)
        if counts is not None and not np.array_equal(per_event, counts):
            first = next(iter(fields))
            raise UsageError(f"{name}.{field} and {name}.{first} differ in their numbers of objects; give equal lists")
        counts = per_event
        columns[field] = _cast(f"{name}.{field}", flat, described[field])
    assert counts is not None
    return cast(name, counts, columns)


def _flatten(what: str, values: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Objects per event, and all values in a row."""
    import awkward as ak

    array = ak.Array(values)
    if array.ndim != 2:
        raise UsageError(f"{what} must hold one list of numbers per event, not {array.type}")
    if ak.any(ak.is_none(array, axis=0)) or ak.any(ak.is_none(array, axis=1)):
        raise UsageError(f"{what} has missing values (None); fill them or leave the column out")
    counts = ak.to_numpy(ak.num(array, axis=1)).astype(np.int64)
    flat = np.asarray(ak.to_numpy(ak.drop_none(ak.flatten(array, axis=1))))
    if flat.size and flat.dtype.kind not in "biuf":
        raise UsageError(f"{what} must hold numbers, not {array.type}")
    return counts, flat


def _cast(what: str, values: npt.NDArray[Any], column: Column) -> npt.NDArray[Any]:
    """The schema's type, if it can hold the values."""
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        wrong = int(np.count_nonzero(~np.isfinite(values)))
        raise UsageError(f"{what} has {wrong} values that are not finite; replace them or leave the column out")
    if column.dtype.startswith("int") and values.size:
        limits = np.iinfo(column.dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise UsageError(f"{what} goes from {values.min()} to {values.max()}, which {column.dtype} cannot hold")
        if values.dtype.kind == "f" and np.any(values != np.rint(values)):
            raise UsageError(f"{what} must hold whole numbers, not {values[values != np.rint(values)][0]}")
    with np.errstate(over="ignore"):
        result = values.astype(column.dtype)
    if result.dtype.kind == "f" and not np.all(np.isfinite(result)):
        raise UsageError(f"{what} has values beyond the range of {column.dtype}; is the unit {column.unit}?")
    return result


def _with_targets(block: EventBlock) -> EventBlock:
    """The block with the targets that its links tell and that were not given, and what its particles get by them."""
    collections, given = dict(block.collections), block["particle"]
    found: dict[str, npt.NDArray[Any]] = {}
    for element, name in _TARGETS_OF.items():
        if f"{element}_link" not in block or name in block:
            continue
        from ringflow.elements.truth import NEEDED_FOR_TARGETS, targets_from_links  # torch: not before there is work

        needed = {**NEEDED_FOR_TARGETS, f"{element}_link": (element, "particle", "energy")}
        for collection, columns in needed.items():
            there = block[collection].columns if collection in block else columns
            if lacking := next((column for column in columns if column not in there), None):
                raise UsageError(
                    f"{name}s cannot be made from {element}_links without {collection}.{lacking}; give it, give {name}s, "
                    "or write without (make_targets=False)"
                )
        collections[name], of_particles = targets_from_links(block, element)
        # Labels are those of targets on clusters, energies those of hits, as in the simulation.
        found = {**found, **of_particles, **{key: found[key] for key in ("calo_energy",) if key in found}}
    kept = ("calo_energy", *(("label",) if "target" in block else ()))
    whole = {**given.columns, **found, **{key: given[key] for key in kept if key in given.columns}}
    collections["particle"] = cast("particle", given.counts, whole)
    return EventBlock(block.event_number, {name: collections[name] for name in COLLECTIONS if name in collections})


def _event_numbers(given: Any, collections: Mapping[str, Collection]) -> npt.NDArray[np.int64]:
    """The numbers of the events, after making sure that all collections have the same number of events."""
    if not collections:
        raise UsageError("no collection was given; give at least tracks, clusters or hits")
    lengths = {name: len(part.counts) for name, part in collections.items()}
    if len(set(lengths.values())) > 1:
        raise UsageError(f"the collections differ in their numbers of events: {lengths}")
    num_events = next(iter(lengths.values()))
    if num_events == 0:
        raise UsageError("there are no events to write; give at least one")
    numbers = np.arange(num_events) if given is None else np.asarray(given)
    if numbers.shape != (num_events,) or numbers.dtype.kind not in "iu":
        raise UsageError(
            f"event_number must be {num_events} whole numbers, not {numbers.dtype} of shape {numbers.shape}"
        )
    if numbers[0] < 0 or np.any(np.diff(numbers.astype(np.int64)) <= 0):
        raise UsageError("event_number must rise from event to event and not be negative; sort the events first")
    return numbers.astype(np.int64)


def _check_indices(block: EventBlock) -> None:
    for name, part in block.collections.items():
        for column in COLLECTIONS[name]:
            if column.points_to is not None and column.name in part.columns and column.points_to not in block:
                raise UsageError(
                    f"{name}.{column.name} points into {column.points_to}, which was not given; give it or leave it out"
                )
    for name, column, wrong in dangling(block):
        if wrong.any():
            part, at, pointed = block[name], int(np.argmax(wrong)), str(column.points_to)
            row = int(np.repeat(np.arange(len(block)), part.counts)[at])
            raise UsageError(
                f"{name}.{column.name} is {part[column.name][at]} in event {block.event_number[row]}, where there are "
                f"{block[pointed].counts[row]} {pointed} objects; indices count from 0 within the event, -1 for none"
            )

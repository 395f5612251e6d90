"""One particle of a file, as it is written there, and the truth behind it where that is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ringflow.base.errors import RingflowError, UsageError
from ringflow.data.candidates import CandidateFile
from ringflow.data.manifest import read_manifest
from ringflow.data.read import read_shard, select_columns
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import PARTICLE_CLASSES

_MOMENTUM = ("px", "py", "pz", "energy")


@dataclass(frozen=True)
class Asked:
    """An event, or one of its particles."""

    event: int
    index: int | None


def parse(text: str) -> Asked:
    """`EVENT` or `EVENT:INDEX`."""
    event, colon, index = text.partition(":")
    try:
        asked = Asked(int(event), int(index) if colon else None)
    except ValueError:
        raise UsageError(f"--particle {text} cannot be read; write EVENT or EVENT:INDEX, as in 17:3") from None
    if min(asked.event, asked.index or 0) < 0:
        raise UsageError(f"--particle {text} is negative; events and particles count from 0")
    return asked


def of_candidates(path: Path, asked: Asked) -> dict[str, Any]:
    """A candidate of a candidate file; the number of them, without an index."""
    return _described(CandidateFile(path).select(np.array([asked.event])), asked, path)


def of_root(path: Path, asked: Asked) -> dict[str, Any]:
    """A reconstructed particle of an EDM4hep file of ours."""
    import uproot

    from ringflow.data.edm4hep.write import CANDIDATES

    members = {"energy": "energy", "px": "momentum.x", "py": "momentum.y", "pz": "momentum.z"}
    members |= {"pdg": "PDG", "charge": "charge"}
    with uproot.open(path) as file:
        tree = file["events"]
        numbers = tree["EventHeader.eventNumber"].array(library="np")
        rows = [row for row, number in enumerate(numbers) if int(number[0]) == asked.event]
        if not rows:
            raise UsageError(f"{path} has no event {asked.event}; it holds {len(numbers)} events")
        part = {"entry_start": rows[0], "entry_stop": rows[0] + 1}

        def column(name: str) -> Any:
            return np.asarray(tree[name].array(library="np", **part)[0])

        columns = {name: column(f"{CANDIDATES}.{member}") for name, member in members.items()}
        for kind in ("track", "cluster"):  # each has one at most, the first of its relation
            begin, end = (column(f"{CANDIDATES}.{kind}s_{edge}").astype(np.int64) for edge in ("begin", "end"))
            index = np.append(column(f"_{CANDIDATES}_{kind}s.index"), -1)
            columns[kind] = np.where(end > begin, index[np.minimum(begin, len(index) - 1)], -1)
    return _described(Collection(np.array([len(columns["pdg"])]), columns), asked, path)


def of_dataset(folder: Path, asked: Asked) -> dict[str, Any]:
    """A true particle of a dataset."""
    block = _event(folder, asked.event, "particle")
    if block is None:
        raise UsageError(f"{folder} has no true particles; give --particle {asked.event} without an index")
    return _described(block["particle"], asked, folder)


def truth_of(folder: Path, event: int, candidate: dict[str, Any]) -> dict[str, Any] | None:
    """The target of the element that a candidate was made from; None where the dataset does not say, or there is none."""
    block = _event(folder, event, "target")
    if block is None:
        return None
    targets = block["target"]
    kind = next((kind for kind in ("track", "cluster") if candidate.get(kind, -1) >= 0), None)
    if kind is None or kind not in targets.columns:
        return None
    rows = np.flatnonzero(targets[kind] == candidate[kind])
    return _row(targets, int(rows[0])) if len(rows) else None


def _event(folder: Path, event: int, collection: str) -> EventBlock | None:
    """One event of a dataset with one collection; None if it has none, or the shard cannot be read."""
    manifest = read_manifest(folder)
    shard = next((shard for shard in manifest.shards if shard.first_event <= event <= shard.last_event), None)
    if shard is None or collection not in manifest.columns:
        return None
    try:
        for block in read_shard(folder, shard, select_columns(manifest.columns, [collection])):
            rows = np.flatnonzero(block.event_number == event)
            if len(rows):
                return block.take(int(rows[0]), int(rows[0]) + 1)
    except RingflowError:
        return None  # a shard that is damaged is told where it is verified
    return None


def _described(part: Collection, asked: Asked, path: Path) -> dict[str, Any]:
    size = len(part)
    if asked.index is None:
        return {"event": asked.event, "particles": size}
    if asked.index >= size:
        held = f"has {size}, 0 to {size - 1}" if size else "has none"
        raise UsageError(f"event {asked.event} of {path} has no particle {asked.index}; it {held}")
    return {"event": asked.event, "index": asked.index, **_row(part, asked.index)}


def _row(part: Collection, index: int) -> dict[str, Any]:
    row = {name: values[index].item() for name, values in part.columns.items()}
    named = {"class": PARTICLE_CLASSES[int(row["label"])]} if "label" in row else {}
    kept = ("pdg", "charge", *_MOMENTUM, "track", "cluster", "hit")
    return {**named, **{name: row[name] for name in kept if name in row}}

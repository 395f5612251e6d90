"""The three ways podio has laid out EDM4hep collections in ROOT files, read with uproot as flat columns.

frame      a TTree; members in `Tracks.chi2`, relations in `_Tracks_trackerHits`, links in `_Link_from` and `_Link_to`
rntuple    the same names in an RNTuple
legacy     a TTree of before 2023; relations in `Tracks#0`, vector members in `Tracks_0`, numbered in the order of their type
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt
import uproot

from ringflow.base.errors import InputFileError, RingflowError

Array = npt.NDArray[Any]
Layout = Literal["frame", "rntuple", "legacy"]

_EVENTS = "events"
_FIXED_SIZE = re.compile(r"(\[\d*\])+$")


class Jagged(NamedTuple):
    """Values of a block of events in a row, and how many belong to each."""

    counts: npt.NDArray[np.int64]
    values: Array


class PodioFile:
    """An open file: its layout, its collections, their numbers, and columns of any range of events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputFileError(f"no file at {path}; give an EDM4hep file in ROOT format")
        with _reading(path):
            self._root = uproot.open(path, array_cache=None)
            self._require_whole()
            if _EVENTS not in self._root:
                held = ", ".join(sorted({key.split(";")[0] for key in self._root.keys()})) or "nothing"  # noqa: SIM118
                raise InputFileError(f"{path} is not an EDM4hep file: it has no tree '{_EVENTS}', but {held}")
            self._events = self._root[_EVENTS]
            self.num_events = int(self._events.num_entries)
            self._keys = {_FIXED_SIZE.sub("", key.rsplit("/", 1)[-1]): key for key in self._events.keys()}  # noqa: SIM118
        self.layout: Layout = self._find_layout()
        self.collections = self._find_collections()
        self.ids = self._find_ids()
        self._vectors: dict[str, tuple[str, ...]] = {}

    def _require_whole(self) -> None:
        """A file whose end is missing may still have an index that can be read, and events that cannot."""
        there, promised = self.path.stat().st_size, int(self._root.file.fEND)
        if there < promised:
            raise InputFileError(f"{self.path} is cut off: {there} of {promised} bytes are there; copy it again")

    def _find_layout(self) -> Layout:
        if "RNTuple" in type(self._events).__name__:
            return "rntuple"
        return "legacy" if any("#" in name for name in self._keys) else "frame"

    def _find_collections(self) -> tuple[str, ...]:
        """Names of what has members; vectors, relations and parameters are parts of something else."""
        names = {name.split(".")[0] for name in self._keys if "." in name}
        return tuple(sorted(name for name in names if not re.search(r"^_|#\d+$", name) and not self._is_vector(name)))

    def _is_vector(self, name: str) -> bool:
        return self.layout == "legacy" and re.search(r"_\d+$", name) is not None

    def _find_ids(self) -> dict[str, int]:
        """Number of every collection, by which relations name it; empty if a legacy file does not tell."""
        for tree, names, numbers in (
            ("podio_metadata", "events___CollectionTypeInfo.name", "events___CollectionTypeInfo.collectionID"),
            ("podio_metadata", "m_names", "m_collectionIDs"),
            ("metadata", "m_names", "m_collectionIDs"),
        ):
            with _reading(self.path):
                if tree not in self._root:
                    continue
                keys = {key.rsplit("/", 1)[-1]: key for key in reversed(self._root[tree].keys())}
                if names in keys and numbers in keys:
                    table = [self._root[tree][keys[part]].array().tolist()[0] for part in (names, numbers)]
                    return dict(zip(*table, strict=True))
        return {} if self.layout == "legacy" else {name: collection_id(name) for name in self.collections}

    def has(self, collection: str) -> bool:
        """Whether the file holds a collection."""
        return collection in self.collections

    def has_member(self, collection: str, member: str) -> bool:
        """Whether the objects of a collection have a member."""
        return f"{collection}.{member}" in self._keys

    def column(self, events: range, collection: str, *members: str) -> Jagged | None:
        """The first of these members that is there, of all objects of some events."""
        found = next((name for member in members if (name := f"{collection}.{member}") in self._keys), None)
        return self._read(events, found) if found else None

    def vector(self, events: range, collection: str, vector: str, *members: str) -> Jagged | None:
        """What a relation or vector member holds, of all objects of some events; `members` of what it holds, if any."""
        branch = self._branch_of(collection, vector)
        names = [f"{branch}.{member}" for member in members] if members else [branch]
        found = next((name for name in names if branch and name in self._keys), None)
        return self._read(events, found) if found else None

    def _branch_of(self, collection: str, vector: str) -> str | None:
        if self.layout != "legacy":
            return f"_{collection}_{vector}"
        if vector in ("from", "rec"):
            return f"{collection}#0"
        if vector in ("to", "sim"):
            return f"{collection}#1"
        if collection not in self._vectors:
            prefix, suffix = f"{collection}.", "_begin"
            self._vectors[collection] = tuple(
                name[len(prefix) : -len(suffix)]
                for name in self._keys
                if name.startswith(prefix) and name.endswith(suffix)
            )
        order = self._vectors[collection]
        if vector not in order:
            return None
        # Vector members come first, then relations, each numbered from 0.
        numbered = re.compile(rf"{re.escape(collection)}_(\d+)")
        num_members = len({int(match[1]) for name in self._keys if (match := numbered.fullmatch(name.split(".")[0]))})
        place = order.index(vector)
        return f"{collection}_{place}" if place < num_members else f"{collection}#{place - num_members}"

    def _read(self, events: range, name: str) -> Jagged:
        with _reading(self.path):
            array = self._events[self._keys[name]].array(entry_start=events.start, entry_stop=events.stop)
            if array.ndim < 2 or len(array) != len(events):
                raise InputFileError(f"{self.path}: {name} holds no list per event; is it an EDM4hep file?")
            counts = ak.to_numpy(ak.num(array, axis=1)).astype(np.int64)
            return Jagged(counts, np.asarray(ak.to_numpy(ak.flatten(array, axis=1))))


def collection_id(name: str) -> int:
    """Number that podio gives a collection: the 32-bit MurmurHash3 of its name."""
    data, mask = name.encode(errors="surrogateescape"), 0xFFFFFFFF  # in a broken file a name may be no text
    full = len(data) // 4 * 4

    def scramble(word: int) -> int:
        word = word * 0xCC9E2D51 & mask
        return (word << 15 | word >> 17) * 0x1B873593 & mask

    value = 0
    for start in range(0, full, 4):
        value ^= scramble(int.from_bytes(data[start : start + 4], "little"))
        value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & mask
    value ^= scramble(int.from_bytes(data[full:], "little")) ^ len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    return value ^ value >> 16


def listed(names: Sequence[str], most: int = 40) -> str:
    """Names for a message, cut where they get too many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Whatever uproot meets in a broken file becomes one line."""
    try:
        yield
    except RingflowError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise InputFileError(f"{path} cannot be read as a ROOT file ({reason}); is it whole, and is it one?") from None


Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class References:
    """Who refers to which object: `owner` is a row, the object is named by event, collection and place in it."""

    owner: Rows
    event: Rows
    index: Rows
    collection_id: Rows


@dataclass(frozen=True)
class Objects:
    """Objects of one kind: how many each collection has in each event, and the numbers of the collections."""

    names: tuple[str, ...]
    ids: tuple[int | None, ...]
    counts_of: npt.NDArray[np.int64]  # [collection, event]

    @cached_property
    def counts(self) -> Rows:
        """Objects per event."""
        return np.asarray(self.counts_of.sum(axis=0))

    @cached_property
    def event(self) -> Rows:
        """Event of every row."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def _first_of(self) -> npt.NDArray[np.int64]:
        """First row of every collection in every event."""
        first_of_event = np.cumsum(self.counts) - self.counts
        return first_of_event + np.cumsum(self.counts_of, axis=0) - self.counts_of

    def __len__(self) -> int:
        return int(self.counts.sum())

    def join(self, parts: Sequence[Array]) -> Array:
        """One column of all objects from one per collection."""
        if len(parts) == 1:
            return parts[0]
        joined = np.empty((len(self), *parts[0].shape[1:]), np.result_type(*parts))
        for number, part in enumerate(parts):
            joined[self.rows_of(number)] = part
        return joined

    def rows_of(self, number: int) -> Rows:
        """Rows of the objects of one collection, in its order."""
        return spread(self._first_of[number], self.counts_of[number])

    def locate(self, references: References) -> Rows:
        """Row of each object referred to; -1 where it is not one of these."""
        row = np.full(len(references.index), -1, np.int64)
        for number, name_id in enumerate(self.ids):
            limit = self.counts_of[number][references.event]
            inside = (references.index >= 0) & (references.index < limit)
            mine = inside if name_id is None else inside & (references.collection_id == name_id)
            row[mine] = self._first_of[number][references.event[mine]] + references.index[mine]
        return row


class PodioBlock:
    """Some events of a file; what was read of them is kept as long as the block is."""

    def __init__(self, file: PodioFile, events: range, ids: Mapping[str, int]) -> None:
        self.file = file
        self.events = events
        self._ids = ids
        self._read: dict[tuple[str, ...], Jagged | None] = {}

    def _members(self, collection: str, *members: str) -> Jagged | None:
        return self._once(self.file.column, collection, *members)

    def _entries(self, collection: str, vector: str, *members: str) -> Jagged | None:
        return self._once(self.file.vector, collection, vector, *members)

    def _once(self, read: Callable[..., Jagged | None], *names: str) -> Jagged | None:
        key = (read.__name__, *names)
        if key not in self._read:
            self._read[key] = read(self.events, *names)
        return self._read[key]

    def objects(self, names: Sequence[str], member: str) -> Objects:
        """The objects of collections that are in the file; `member` is one that all of them have."""
        counts = []
        for name in names:
            column = self._members(name, member)
            if column is None:
                raise self._lacking(name, member)
            counts.append(column.counts)
        table = np.array(counts, np.int64).reshape(len(names), len(self.events))
        return Objects(tuple(names), tuple(self._ids.get(name) for name in names), table)

    def column(self, objects: Objects, *members: str) -> Array | None:
        """A member of all objects; None if not every collection has it."""
        parts = [self._members(name, *members) for name in objects.names]
        found = [part.values for part in parts if part is not None]
        return objects.join(found) if len(found) == len(parts) and found else None

    def need(self, objects: Objects, *members: str) -> Array:
        """A member that EDM4hep objects of this kind always have."""
        column = self.column(objects, *members)
        if column is None:
            raise self._lacking(next(n for n in objects.names if self._members(n, *members) is None), members[0])
        return column

    def _lacking(self, collection: str, member: str) -> InputFileError:
        return InputFileError(
            f"{self.file.path}: {collection} has no {member}; is it what the profile takes it for, and is the file whole?"
        )

    def three(self, objects: Objects, member: str) -> tuple[Array, Array, Array]:
        """The components of a vector, in double precision."""
        x, y, z = (self.need(objects, f"{member}.{axis}").astype(np.float64) for axis in "xyz")
        return x, y, z

    def lengths(self, objects: Objects, vector: str) -> Rows | None:
        """How many entries every object has in a relation or vector member."""
        begin, end = (self.column(objects, f"{vector}_{edge}") for edge in ("begin", "end"))
        return None if begin is None or end is None else end.astype(np.int64) - begin.astype(np.int64)

    def held(self, objects: Objects, vector: str, *members: str) -> tuple[Rows, Array] | None:
        """Owner and value of every entry of a vector member, in the order of the owners."""
        owners, values = [], []
        for number, name in enumerate(objects.names):
            begin = self._members(name, f"{vector}_begin")
            end = self._members(name, f"{vector}_end")
            entries = self._entries(name, vector, *members)
            if begin is None or end is None or entries is None:
                return None
            start = begin.values.astype(np.int64)
            length = end.values.astype(np.int64) - start
            self._require_inside(f"{name}.{vector}", start, length, np.repeat(entries.counts, begin.counts))
            first = np.repeat(np.cumsum(entries.counts) - entries.counts, begin.counts) + start
            owners.append(np.repeat(objects.rows_of(number), length))
            values.append(entries.values[spread(first, length)])
        if not owners:
            return None
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        return owner[order], np.concatenate(values)[order]

    def _require_inside(self, name: str, start: Rows, length: Rows, limit: Rows) -> None:
        """Entries outside of the event would be those of another one."""
        wrong = (length < 0) | ((length > 0) & ((start < 0) | (start + length > limit)))
        if np.any(wrong):
            at = int(np.argmax(wrong))
            raise InputFileError(
                f"{self.file.path}: {name} goes from {start[at]} to {start[at] + length[at]} in an event that has "
                f"{limit[at]}; the file is damaged"
            )

    def relation(self, objects: Objects, vector: str) -> References | None:
        """All objects that a one-to-many relation names."""
        index = self.held(objects, vector, "index")
        number = self.held(objects, vector, "collectionID")
        if index is None or number is None:
            return None
        return References(index[0], objects.event[index[0]], index[1].astype(np.int64), number[1].astype(np.int64))

    def reference(self, objects: Objects, *names: str) -> References | None:
        """The one object that each of these names, under the first of the names that is there."""
        for name in names:
            parts = [
                [self._entries(collection, name, member) for member in ("index", "collectionID")]
                for collection in objects.names
            ]
            found = [[part for part in pair if part is not None] for pair in parts]
            whole = bool(found) and all(len(pair) == 2 for pair in found)
            if whole and np.array_equal([pair[0].counts for pair in found], objects.counts_of):
                index, number = (objects.join([p[part].values.astype(np.int64) for p in found]) for part in (0, 1))
                return References(np.arange(len(objects)), objects.event, index, number)
        return None


def spread(first: Rows, length: Rows) -> Rows:
    """first[0], first[0] + 1, ... `length[0]` times, then first[1], ..."""
    start = np.repeat(first - (np.cumsum(length) - length), length)
    return start + np.arange(len(start))


def infer_ids(block: PodioBlock, wanted: Sequence[tuple[References | None, Objects]]) -> dict[str, int]:
    """Numbers of collections in a file that keeps no table of them, from what refers to them.

    A number belongs to the collection that has all the places it is used with, and the fewest others.
    """
    ids: dict[str, int] = {}
    for references, objects in wanted:
        if references is None:
            continue
        for number in np.unique(references.collection_id[references.index >= 0]).tolist():
            mine = references.collection_id == number
            most = np.full(len(block.events), -1, np.int64)
            np.maximum.at(most, references.event[mine], references.index[mine])
            spare = {
                name: int((objects.counts_of[k] - most - 1).sum())
                for k, name in enumerate(objects.names)
                if name not in ids and np.all(most < objects.counts_of[k])
            }
            if spare:
                ids[min(spare, key=lambda name: spare[name])] = number
    return ids

"""The three ways podio has laid out EDM4hep collections in ROOT files, read with uproot as flat columns.

frame      a TTree; members in `Tracks.chi2`, relations in `_Tracks_trackerHits`, links in `_Link_from` and `_Link_to`
rntuple    the same names in an RNTuple
legacy     a TTree of before 2023; relations in `Tracks#0`, vector members in `Tracks_0`, numbered in the order of their type
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import awkward as ak
import numpy as np
import numpy.typing as npt
import uproot

from ringflow.base.errors import InputFileError, RingflowError
from ringflow.data.manifest import reason_of

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]
Layout = Literal["frame", "rntuple", "legacy"]

_EVENTS = "events"
_FIXED_SIZE = re.compile(r"(\[\d*\])+$")
#: Where files keep the numbers of their collections: tree, names, numbers.
_ID_TABLES = (
    ("podio_metadata", "events___CollectionTypeInfo.name", "events___CollectionTypeInfo.collectionID"),
    ("podio_metadata", "m_names", "m_collectionIDs"),
    ("metadata", "m_names", "m_collectionIDs"),
)


class Jagged(NamedTuple):
    """Values of a block of events in a row, and how many belong to each."""

    counts: Rows
    values: Array


class PodioFile:
    """An open file: its layout, its collections, their numbers, and what is in any range of events."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputFileError(f"no file at {path}; give an EDM4hep file in ROOT format")
        with self._reading():
            root = uproot.open(path, array_cache=None)
            # A file whose end is missing may still have an index that can be read, and events that cannot.
            there, promised = path.stat().st_size, int(root.file.fEND)
            if there < promised:
                raise InputFileError(f"{path} is cut off: {there} of {promised} bytes are there; copy it again")
            if _EVENTS not in root:
                held = ", ".join(sorted({key.split(";")[0] for key in root.keys()})) or "nothing"  # noqa: SIM118
                raise InputFileError(f"{path} is not an EDM4hep file: it has no tree '{_EVENTS}', but {held}")
            self._events = root[_EVENTS]
            self.num_events = int(self._events.num_entries)
            self._keys = {_FIXED_SIZE.sub("", key.rsplit("/", 1)[-1]): key for key in self._events.keys()}  # noqa: SIM118
            legacy = any("#" in name for name in self._keys)
            is_ntuple = "RNTuple" in type(self._events).__name__
            self.layout: Layout = "rntuple" if is_ntuple else "legacy" if legacy else "frame"
            # What has members; vectors, relations and parameters are parts of something else.
            part = re.compile(r"^_|#\d+$" + (r"|_\d+$" if self.layout == "legacy" else ""))
            names = {name.split(".")[0] for name in self._keys if "." in name}
            self.collections = tuple(sorted(name for name in names if not part.search(name)))
            #: Number of every collection, by which relations name it; empty if a legacy file does not tell.
            self.ids = self._find_ids(root)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever uproot meets in a broken file becomes one line."""
        try:
            yield
        except RingflowError:
            raise
        except Exception as error:
            raise InputFileError(
                f"{self.path} cannot be read as a ROOT file ({reason_of(error)}); is it whole, and is it one?"
            ) from None

    def _find_ids(self, root: Any) -> dict[str, int]:
        for tree, names, numbers in _ID_TABLES:
            keys = {key.rsplit("/", 1)[-1]: key for key in reversed(root[tree].keys())} if tree in root else {}
            if names in keys and numbers in keys:
                return dict(
                    zip(*(root[tree][keys[part]].array().tolist()[0] for part in (names, numbers)), strict=True)
                )
        return {} if self.layout == "legacy" else {name: collection_id(name) for name in self.collections}

    def branch(self, collection: str, vector: str) -> str:
        """The name under which a relation or a vector member is stored."""
        if self.layout != "legacy":
            return f"_{collection}_{vector}"
        if vector in ("from", "rec", "to", "sim"):
            return f"{collection}#{int(vector in ('to', 'sim'))}"
        # Vector members come first, then relations, each numbered from 0.
        begins = [name for name in self._keys if name.startswith(f"{collection}.") and name.endswith("_begin")]
        if f"{collection}.{vector}_begin" not in begins:
            return ""
        place = begins.index(f"{collection}.{vector}_begin")
        members = {name.split(".")[0] for name in self._keys if re.match(rf"{re.escape(collection)}_\d+(\.|$)", name)}
        return f"{collection}_{place}" if place < len(members) else f"{collection}#{place - len(members)}"

    def read(self, events: range, name: str) -> Jagged | None:
        """What is stored under a name, in double precision; None if it is not there."""
        if name not in self._keys:
            return None
        with self._reading():
            lists = self._events[self._keys[name]].array(entry_start=events.start, entry_stop=events.stop)
            if lists.ndim < 2 or len(lists) != len(events):
                raise InputFileError(f"{self.path}: {name} holds no list per event; is it an EDM4hep file?")
            counts, values = ak.to_numpy(ak.num(lists, axis=1)), ak.to_numpy(ak.flatten(lists, axis=1))
            kind = np.float64 if values.dtype.kind == "f" else np.int64
            return Jagged(counts.astype(np.int64), values.astype(kind))


def spread(first: Rows, length: Rows) -> Rows:
    """first[0], first[0] + 1, ... `length[0]` times, then first[1], ..."""
    start = np.repeat(first - (np.cumsum(length) - length), length)
    return start + np.arange(len(start))


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


class PodioBlock:
    """Some events of a file; what was read of them is kept as long as the block is."""

    def __init__(self, file: PodioFile, events: range, ids: Mapping[str, int]) -> None:
        self.file, self.events, self.ids = file, events, ids
        self._kept: dict[str, Jagged | None] = {}

    def first(self, *names: str) -> Jagged | None:
        """What is stored under the first of these names that is there."""
        for name in names:
            if name not in self._kept:
                self._kept[name] = self.file.read(self.events, name)
            if (found := self._kept[name]) is not None:
                return found
        return None

    def entries(self, collection: str, vector: str, *members: str) -> Jagged | None:
        """What a relation or vector member holds; `members` of what it holds, if any."""
        branch = self.file.branch(collection, vector)
        return self.first(*(f"{branch}.{member}" for member in members)) if members else self.first(branch)

    def objects(self, names: Sequence[str | None], member: str) -> Objects | None:
        """The objects of those collections that are in the file, if any are; `member` is one that all of them have."""
        present = [name for name in names if name in self.file.collections]
        return Objects(self, present, member) if present else None


class References(NamedTuple):
    """Who refers to which object: `owner` is a row, the object is named by event, collection and place in it."""

    owner: Rows
    event: Rows
    place: Rows
    collection_id: Rows


class Objects:
    """Objects of one kind, event by event and in there collection by collection; columns are flat over all of them."""

    def __init__(self, block: PodioBlock, names: Sequence[str], member: str) -> None:
        self.block, self.names = block, names
        #: [event, collection]
        self.counts_of = np.stack([self._one(name, member).counts for name in names], axis=1)
        sizes = self.counts_of.ravel()
        self._first_of = (np.cumsum(sizes) - sizes).reshape(self.counts_of.shape)
        event, source = np.indices(self.counts_of.shape)
        #: Of every row.
        self.event: Rows = np.repeat(event.ravel(), sizes)
        self.source: Rows = np.repeat(source.ravel(), sizes)

    def __len__(self) -> int:
        return len(self.event)

    def _one(self, name: str, *members: str) -> Jagged:
        """A member that must be there, of one collection."""
        found = self.block.first(*(f"{name}.{member}" for member in members))
        if found is None:
            raise InputFileError(
                f"{self.block.file.path}: {name} has no {members[0]}; is it what the profile takes it for, and is the file "
                "whole?"
            )
        return found

    def _join(self, parts: Sequence[Jagged]) -> Array:
        """One column of all objects from one per collection."""
        if len(parts) == 1:
            return parts[0].values
        events = np.concatenate([np.repeat(np.arange(len(part.counts)), part.counts) for part in parts])
        return np.concatenate([part.values for part in parts])[np.argsort(events, kind="stable")]

    def column(self, *members: str) -> Array | None:
        """The first of these members that is there, of all objects; None if not every collection has one."""
        parts = [self.block.first(*(f"{name}.{member}" for member in members)) for name in self.names]
        found = [part for part in parts if part is not None]
        return self._join(found) if len(found) == len(parts) else None

    def need(self, *members: str) -> Array:
        """A member that EDM4hep objects of this kind always have."""
        return self._join([self._one(name, *members) for name in self.names])

    def table(self, members: Mapping[str, str | tuple[str, ...]]) -> dict[str, Array]:
        """Members that are always there under other names; of several the first that is there."""
        return {ours: self.need(*([given] if isinstance(given, str) else given)) for ours, given in members.items()}

    def three(self, member: str) -> Array:
        """The components of a vector."""
        return np.stack([self.need(f"{member}.{axis}") for axis in "xyz"])

    def lengths(self, vector: str) -> Array | None:
        """How many entries every object has in a relation or vector member."""
        begin, end = (self.column(f"{vector}_{edge}") for edge in ("begin", "end"))
        return None if begin is None or end is None else end - begin

    def held(self, vector: str, *members: str) -> tuple[Rows, Array] | None:
        """Owner and value of every entry of a vector member, in the order of the owners."""
        owners, values = [], []
        for number, name in enumerate(self.names):
            begin, end = (self.block.first(f"{name}.{vector}_{edge}") for edge in ("begin", "end"))
            entries = self.block.entries(name, vector, *members)
            if begin is None or end is None or entries is None:
                return None
            start, length = begin.values, end.values - begin.values
            limit = np.repeat(entries.counts, begin.counts)
            wrong = (length < 0) | ((length > 0) & ((start < 0) | (start + length > limit)))
            if np.any(wrong):  # entries outside of the event would be those of another one
                at = int(np.argmax(wrong))
                raise InputFileError(
                    f"{self.block.file.path}: {name}.{vector} goes from {start[at]} to {start[at] + length[at]} in an event "
                    f"that has {limit[at]}; the file is damaged"
                )
            first = np.repeat(np.cumsum(entries.counts) - entries.counts, begin.counts) + start
            owners.append(np.repeat(np.flatnonzero(self.source == number), length))
            values.append(entries.values[spread(first, length)])
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        return owner[order], np.concatenate(values)[order]

    def relation(self, vector: str) -> References | None:
        """All objects that a one-to-many relation names."""
        index, number = self.held(vector, "index"), self.held(vector, "collectionID")
        if index is None or number is None:
            return None
        return References(index[0], self.event[index[0]], index[1], number[1])

    def reference(self, *names: str) -> References | None:
        """The one object that each of these names, under the first of the names that is there."""
        for name in names:
            index, number = (
                [part for part in (self.block.entries(one, name, member) for one in self.names) if part is not None]
                for member in ("index", "collectionID")
            )
            whole = len(index) == len(number) == len(self.names)
            if whole and np.array_equal(np.stack([part.counts for part in index], axis=1), self.counts_of):
                return References(np.arange(len(self)), self.event, self._join(index), self._join(number))
        return None

    def locate(self, references: References) -> Rows:
        """Row of each object referred to; -1 where it is not one of these."""
        row = np.full(len(references.place), -1, np.int64)
        for number, name in enumerate(self.names):
            mine = (references.place >= 0) & (references.place < self.counts_of[references.event, number])
            if name in self.block.ids:
                mine &= references.collection_id == self.block.ids[name]
            row[mine] = self._first_of[references.event[mine], number] + references.place[mine]
        return row


def relation_of(objects: Objects | None, vector: str) -> References | None:
    """All objects that a relation of these names, if there are these."""
    return None if objects is None else objects.relation(vector)


def infer_ids(wanted: Sequence[tuple[References | None, Objects | None]]) -> dict[str, int]:
    """Numbers of collections in a file that keeps no table of them, from what refers to them.

    A number belongs to the collection that has all the places it is used with, and the fewest others.
    """
    ids: dict[str, int] = {}
    for references, objects in wanted:
        if references is None or objects is None:
            continue
        for number in np.unique(references.collection_id[references.place >= 0]).tolist():
            mine = references.collection_id == number
            most = np.full(len(objects.counts_of), -1, np.int64)
            np.maximum.at(most, references.event[mine], references.place[mine])
            spare = {
                name: int((having - most - 1).sum())
                for name, having in zip(objects.names, objects.counts_of.T, strict=True)
                if name not in ids and np.all(most < having)
            }
            if spare:
                ids[min(spare, key=lambda name: spare[name])] = number
    return ids


def listed(names: Sequence[str], most: int = 40) -> str:
    """Names for a message, cut where they get too many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more

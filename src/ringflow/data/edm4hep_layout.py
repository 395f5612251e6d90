"""The three ways podio has laid out EDM4hep collections in ROOT files, read with uproot as flat columns.

frame      a TTree; members in `Tracks.chi2`, relations in `_Tracks_trackerHits`, links in `_Link_from` and `_Link_to`
rntuple    the same names in an RNTuple
legacy     a TTree of before 2023; relations in `Tracks#0`, vector members in `Tracks_0`, numbered in the order of their type
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

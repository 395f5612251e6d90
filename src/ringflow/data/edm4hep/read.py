"""EDM4hep files: their events in the words of the schema, block by block.

    file = open_edm4hep(Path("events.root"))
    for block in file.events():
        block["track"]["pt"], block["cluster"].counts

The collections `track`, `cluster`, `hit`, `particle`, `target`, `hit_target`, `cluster_link`, `hit_link` and `candidate` (the
reconstructed particles of the file) are there as far as the file has what they are made of; `notes` says what is not. Columns
that a file carries but never filled are left out. Memory is that of one block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import progress, say
from ringflow.base.provenance import collect
from ringflow.data.edm4hep.convert import Converter, PartsPresent
from ringflow.data.edm4hep.podio import PodioBlock, PodioFile, infer_ids, listed
from ringflow.data.edm4hep.profile import Profile, load_profile, profile_names
from ringflow.data.manifest import EDM4HEP, Shard
from ringflow.data.production import Production, already_made, begin
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter, columns_of, shard_file
from ringflow.event.block import Collection, EventBlock
from ringflow.event.schema import parquet_name

#: Events looked at when a file is opened, to learn what it fills.
_LOOK_AT = 100
#: Columns that are zero in every object only if nobody filled them; those of a group go together.
_FILLED = (
    ("track", ("chi2", "ndf")),
    ("track", ("num_hits",)),
    ("track", ("dedx",)),
    ("track", ("sigma_pt", "sigma_phi", "sigma_theta", "sigma_d0", "sigma_z0")),
    ("cluster", ("num_hits",)),
    ("cluster", ("time",)),
    ("cluster", ("ecal_energy", "hcal_energy", "muon_energy")),
    ("hit", ("time",)),
)
#: Reconstructed particles have the pt of their track; a wrong field is wrong by more than this.
_SAME_PT = (0.8, 1.25)
#: Tracks from which on a profile that was asked for is refused for its field.
_ENOUGH_TRACKS = 10


def open_edm4hep(path: Path, profile: str | None = None) -> Edm4hepFile:
    """A file, read with the profile that is named, or with the one of the package that fits, which is then said."""
    if profile is not None:
        return Edm4hepFile(path, load_profile(profile))
    there = PodioFile(path)
    known = [load_profile(name) for name in profile_names()]
    lacking = {one.name: [name for name in one.required if not there.has(name)] for one in known}
    fitting = [one for one in known if not lacking[one.name]]
    if not fitting:
        lacks = "; ".join(f"{name} lacks {listed(missing)}" for name, missing in lacking.items())
        raise InputFileError(
            f"no profile fits {path}: {lacks}. Write one that names its collections and give it with --profile FILE.toml. "
            f"There: {listed(there.collections)}"
        )
    most = max(len(one.required) for one in fitting)
    files, refused = [], []
    for one in fitting:
        try:
            files += [Edm4hepFile(path, one)] if len(one.required) == most else []
        except _OtherDetectorError as error:
            refused.append(error)
    if not files:
        raise refused[0]
    files = [file for file in files if file.same_pt] or files
    if len(files) > 1:
        names = [file.profile.name for file in files]
        raise InputFileError(
            f"{path} has what the profiles {' and '.join(names)} need, and does not tell which detector it is of; say "
            + " or ".join(f"--profile {name}" for name in names)
        )
    say(f"{path.name} is read with the profile {files[0].profile.name!r}: {files[0].profile.description}")
    return files[0]


class _OtherDetectorError(InputFileError):
    """The field of the profile is not that of the file."""


class Edm4hepFile:
    """An EDM4hep file in any of podio's layouts, read with the profile of its detector."""

    def __init__(self, path: Path, profile: Profile) -> None:
        self.path = path
        self.profile = profile
        self._file = PodioFile(path)
        self.layout = self._file.layout
        self.num_events = self._file.num_events
        self._require_collections()
        if self.num_events == 0:
            raise InputFileError(f"{path} has no events; give a file that has some")
        look_at = range(min(_LOOK_AT, self.num_events))
        self._parts = PartsPresent.of(self._file, profile, look_at)
        self._ids = self._file.ids or self._infer_ids()
        self.event_numbers = self._event_numbers()
        first = self._convert(look_at)
        self._unfilled = _never_filled(first)
        self._left_out = {parquet_name(*column) for column in self._unfilled} | set(profile.ignored_columns or ())
        #: Whether tracks have the momentum of the particles made of them; None if the file does not tell.
        self.same_pt = self._verify_field(first)
        self.columns = columns_of(self._without_left_out(first))
        self.notes = self._find_notes()

    @property
    def has_truth(self) -> bool:
        """Whether there are targets to compare a reconstruction with."""
        return "target" in self.columns or "hit_target" in self.columns

    def events(self, start: int = 0, stop: int | None = None, block_events: int = 250) -> Iterator[EventBlock]:
        """Events `start` to `stop`, counted in the file, in blocks of at most `block_events`."""
        last = self.num_events if stop is None else min(stop, self.num_events)
        for first in range(start, last, block_events):
            block = self._without_left_out(self._convert(range(first, min(first + block_events, last))))
            self._require_finite(block)
            yield block

    def _convert(self, events: range) -> EventBlock:
        block = PodioBlock(self._file, events, self._ids)
        collections = Converter(block, self.profile, self._parts).collections()
        return EventBlock(self.event_numbers[events.start : events.stop], collections)

    def _without_left_out(self, block: EventBlock) -> EventBlock:
        kept = {
            name: {c: values for c, values in part.columns.items() if parquet_name(name, c) not in self._left_out}
            for name, part in block.collections.items()
        }
        return EventBlock(block.event_number, {name: Collection(block[name].counts, kept[name]) for name in kept})

    def _require_collections(self) -> None:
        wanted = self.profile.required or ((self.profile.candidates,) if self.profile.candidates else ())
        missing = [name for name in wanted if not self._file.has(name)]
        if not missing:
            return
        others = (name for name in profile_names() if name != self.profile.name)
        fitting = [name for name in others if all(map(self._file.has, load_profile(name).required))]
        hint = f"the profile {fitting[0]!r} would fit" if fitting else "write a profile that names its collections"
        raise InputFileError(
            f"{self.path} has no collection {missing[0]!r}, which the profile {self.profile.name!r} needs; {hint}. "
            f"There: {listed(self._file.collections)}"
        )

    def _verify_field(self, block: EventBlock) -> bool | None:
        """The file of another detector may have the same collections; its tracks then get another momentum."""
        if "track" not in block or "candidate" not in block:
            return None
        candidates, tracks = block["candidate"], block["track"]
        on_track = np.flatnonzero(candidates["track"] >= 0)
        if not len(on_track):
            return None
        event = np.repeat(np.arange(len(block)), candidates.counts)[on_track]
        pt = tracks["pt"][tracks.offsets[event] + candidates["track"][on_track]]
        ratio = float(np.median(np.hypot(candidates["px"], candidates["py"])[on_track] / pt))
        same = _SAME_PT[0] < ratio < _SAME_PT[1]
        if not same and len(on_track) >= _ENOUGH_TRACKS:
            raise _OtherDetectorError(
                f"{self.path}: its particles have {ratio:.2f} times the transverse momentum that their tracks have in a "
                f"field of {self.profile.field} T; the profile {self.profile.name!r} is of another detector"
            )
        return same

    def _require_finite(self, block: EventBlock) -> None:
        for name, part in block.collections.items():
            for column, values in part.columns.items():
                if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
                    wrong = int(np.argmin(np.isfinite(values)))
                    event = np.repeat(block.event_number, part.counts)[wrong]
                    raise InputFileError(
                        f"{self.path}: {name} {column} is {values[wrong]} in event {event}; repair the file or leave the "
                        "event out"
                    )

    def _infer_ids(self) -> dict[str, int]:
        block = PodioBlock(self._file, range(min(10 * _LOOK_AT, self.num_events)), {})
        return infer_ids(block, Converter(block, self.profile, self._parts).references())

    def _event_numbers(self) -> npt.NDArray[np.int64]:
        """Numbers of the header where they rise, as datasets need it; else places in the file."""
        everything = range(self.num_events)
        header = self.profile.event_header
        column = self._file.column(everything, header, "eventNumber") if header else None
        if column is not None and np.all(column.counts == 1):
            numbers = column.values.astype(np.int64)
            if numbers[0] >= 0 and np.all(np.diff(numbers) > 0):
                return numbers
        return np.arange(self.num_events, dtype=np.int64)

    def _find_notes(self) -> tuple[str, ...]:
        notes = []
        if self.profile.truth is not None and not self.has_truth:
            named = [name for name in self.profile.truth.collections if not self._file.has(name)]
            lacking = f"it has no {named[0]!r}" if named else "its links lead nowhere"
            notes.append(f"{self.path.name} tells no truth to compare with: {lacking}")
        if lacking_parts := [name for name in self.profile.optional if not self._file.has(name)]:
            notes.append(f"{self.path.name} lacks {listed(lacking_parts)}; read without")
        if self._unfilled:
            columns = listed(sorted(parquet_name(*column) for column in self._unfilled))
            notes.append(f"{self.path.name} does not fill {columns}; read without")
        return tuple(notes)


def _never_filled(block: EventBlock) -> frozenset[tuple[str, str]]:
    unfilled: set[tuple[str, str]] = set()
    for name, group in _FILLED:
        if name not in block or not len(block[name]):
            continue
        present = [column for column in group if column in block[name].columns]
        if not any(np.any(block[name][column]) for column in present):
            unfilled.update((name, column) for column in present)
    return frozenset(unfilled)


def convert_edm4hep(
    paths: Sequence[Path],
    out: Path,
    *,
    profile: str | None = None,
    sample: str | None = None,
    events: int | None = None,
    events_per_shard: int = 250,
    overwrite: bool = False,
) -> Dataset:
    """Write the (first) events of files of one detector into a dataset folder, and open it; `profile` as in `open_edm4hep`.

    An interrupted conversion goes on where it stopped, more events extend a dataset, and one that is there already is found.
    Events keep their numbers as long as these rise from file to file; otherwise those of a file are counted on.
    """
    if not paths:
        raise UsageError("there are no files to convert; give at least one")
    first = open_edm4hep(paths[0], profile)
    files = [first, *(Edm4hepFile(path, first.profile) for path in paths[1:])]
    for note in dict.fromkeys(note for file in files for note in file.notes):
        say(note)
    for file in files[1:]:
        if file.columns != first.columns:
            raise InputFileError(
                f"{file.path} does not hold the same columns as {first.path}; convert them into datasets of their own"
            )
    sample = sample or paths[0].stem
    there = sum(file.num_events for file in files)
    if events is not None and events > there:
        raise UsageError(f"the files have {there} events, {events} were asked for; ask for fewer")
    settings = {
        "profile": first.profile.model_dump(mode="json", exclude_none=True),
        "production": {"events": events or there, "events_per_shard": events_per_shard},
        "sample": sample,
    }
    record = {"source": EDM4HEP, **collect(settings, {}, paths)}
    if not overwrite and already_made(out, record):
        say(f"{out} is already there, made of the same files")
        return Dataset(out)
    pieces = list(_pieces(files, events or there, events_per_shard))
    with begin(out, record, overwrite=overwrite) as production, progress(events or there, "converting") as advance:
        finished, shards = production.finished(), []
        for index, piece in enumerate(pieces):
            shard = finished.get(shard_file(index))
            if shard is None or shard.num_events != piece.stop - piece.start:
                shard = piece.write(production, index)
            shards.append(shard)
            advance(shard.num_events)
        production.complete(detector=first.profile.detector, sample=sample, shards=shards)
    return Dataset(out)


@dataclass(frozen=True)
class _Piece:
    """Events `start` to `stop` of a file, which make one shard; `shift` is added to their numbers."""

    file: Edm4hepFile
    start: int
    stop: int
    shift: int

    def write(self, production: Production, index: int) -> Shard:
        """Make the shard, and count it as finished."""
        with ShardWriter(production.folder / shard_file(index), temporary_folder=production.workshop) as writer:
            for block in self.file.events(self.start, self.stop, self.stop - self.start):
                writer.append(EventBlock(block.event_number + self.shift, block.collections))
            shard = writer.finish()
        production.keep(shard)
        return shard


def _pieces(files: Sequence[Edm4hepFile], events: int, events_per_shard: int) -> Iterator[_Piece]:
    next_number = 0
    for file in files:
        last = min(events, file.num_events)
        shift = max(next_number - int(file.event_numbers[0]), 0)
        for start in range(0, last, events_per_shard):
            yield _Piece(file, start, min(start + events_per_shard, last), shift)
        events -= last
        if not events:
            return
        next_number = int(file.event_numbers[-1]) + shift + 1

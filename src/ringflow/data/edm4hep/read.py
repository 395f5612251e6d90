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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import say
from ringflow.base.provenance import collect
from ringflow.data.check import PROMPT, hit_lateness
from ringflow.data.edm4hep.convert import Conversion, lacking_of_states
from ringflow.data.edm4hep.podio import PodioBlock, PodioFile, infer_ids, listed
from ringflow.data.edm4hep.profile import FLIGHT_SUBTRACTED, FROM_COLLISION, Profile, load_profile, profile_names
from ringflow.data.manifest import EDM4HEP
from ringflow.data.production import PlannedShard, Request, produce
from ringflow.data.read import Dataset
from ringflow.data.write import columns_of, shard_file
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
    opened = PodioFile(path)
    there = opened.collections
    lacking = {one: [name for name in one.required if name not in there] for one in map(load_profile, profile_names())}
    fitting = [one for one, missing in lacking.items() if not missing]
    if not fitting:
        lacks = "; ".join(f"{one.name} lacks {listed(missing)}" for one, missing in lacking.items())
        raise InputFileError(
            f"no profile fits {path}: {lacks}. Write one that names its collections and give it with --profile FILE.toml. "
            f"There: {listed(there)}"
        )
    most = max(len(one.required) for one in fitting)
    files, refused = [], []
    for one in fitting:
        try:
            files += [Edm4hepFile(path, one, opened)] if len(one.required) == most else []
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

    def __init__(self, path: Path, profile: Profile, opened: PodioFile | None = None) -> None:
        self.path, self.profile = path, profile
        self._file = opened or PodioFile(path)
        self.layout, self.num_events = self._file.layout, self._file.num_events
        self._require_collections()
        if self.num_events == 0:
            raise InputFileError(f"{path} has no events; give a file that has some")
        self._present = profile.of_collections(self._file.collections)
        self._ids = self._file.ids
        if not self._ids:
            block = PodioBlock(self._file, range(min(10 * _LOOK_AT, self.num_events)), {})
            self._ids = infer_ids(Conversion(block, self._present).references())
        self.event_numbers = self._event_numbers()
        self._left_out = set(profile.ignored_columns or ())
        look_at = range(min(_LOOK_AT, self.num_events))
        first = self._convert(look_at)
        lacking = lacking_of_states(PodioBlock(self._file, look_at, self._ids), self._present.tracks)
        self._left_out.update(parquet_name("track", column) for column in lacking)
        unfilled = _never_filled(first)
        if "time" in lacking and "time" in first["track"].columns:
            unfilled.add("track_time")
        self._left_out |= unfilled
        #: Whether tracks have the momentum of the particles made of them; None if the file does not tell.
        self.same_pt = self._verify_field(first)
        self._verify_hit_times(first)
        self.columns = columns_of(self._kept(first))
        #: Whether there are targets to compare a reconstruction with.
        self.has_truth = "target" in self.columns or "hit_target" in self.columns
        self.notes = tuple(self._find_notes(unfilled))

    def events(self, start: int = 0, stop: int | None = None, block_events: int = 250) -> Iterator[EventBlock]:
        """Events `start` to `stop`, counted in the file, in blocks of at most `block_events`."""
        last = self.num_events if stop is None else min(stop, self.num_events)
        for first in range(start, last, block_events):
            block = self._kept(self._convert(range(first, min(first + block_events, last))))
            self._require_finite(block)
            yield block

    def _convert(self, events: range) -> EventBlock:
        block = PodioBlock(self._file, events, self._ids)
        numbers = self.event_numbers[events.start : events.stop]
        return EventBlock(numbers, Conversion(block, self._present).collections())

    def _kept(self, block: EventBlock) -> EventBlock:
        parts = {}
        for name, part in block.collections.items():
            kept = {c: values for c, values in part.columns.items() if parquet_name(name, c) not in self._left_out}
            parts[name] = Collection(part.counts, kept)
        return EventBlock(block.event_number, parts)

    def _require_collections(self) -> None:
        there = self._file.collections
        wanted = self.profile.required or ((self.profile.candidates,) if self.profile.candidates else ())
        missing = [name for name in wanted if name not in there]
        if not missing:
            return
        others = (name for name in profile_names() if name != self.profile.name)
        fitting = [name for name in others if set(load_profile(name).required) <= set(there)]
        hint = f"the profile {fitting[0]!r} would fit" if fitting else "write a profile that names its collections"
        raise InputFileError(
            f"{self.path} has no collection {missing[0]!r}, which the profile {self.profile.name!r} needs; {hint}. "
            f"There: {listed(there)}"
        )

    def _verify_field(self, block: EventBlock) -> bool | None:
        """The file of another detector may have the same collections; its tracks then get another momentum."""
        if "track" not in block or "candidate" not in block:
            return None
        candidates, tracks = block["candidate"], block["track"]
        on_track = np.flatnonzero(candidates["track"] >= 0)
        if not len(on_track):
            return None
        row = np.repeat(tracks.offsets[:-1], candidates.counts)[on_track] + candidates["track"][on_track]
        ratio = float(np.median(np.hypot(candidates["px"], candidates["py"])[on_track] / tracks["pt"][row]))
        same = _SAME_PT[0] < ratio < _SAME_PT[1]
        if not same and len(on_track) >= _ENOUGH_TRACKS:
            raise _OtherDetectorError(
                f"{self.path}: its particles have {ratio:.2f} times the transverse momentum that their tracks have in a "
                f"field of {self.profile.field} T; the profile {self.profile.name!r} is of another detector"
            )
        return same

    def _verify_hit_times(self, block: EventBlock) -> None:
        """Files have times from the collision, or less the flight of light; taken for the other ones they are ns off."""
        if "hit" not in block or "time" not in block["hit"].columns or "hit_time" in self._left_out:
            return
        late = hit_lateness(*(block["hit"][name] for name in ("time", "x", "y", "z")))
        if len(late) and not PROMPT.low <= late[0] <= PROMPT.high:
            said = self.profile.hit_times or FROM_COLLISION
            other = FROM_COLLISION if said == FLIGHT_SUBTRACTED else FLIGHT_SUBTRACTED
            raise InputFileError(
                f"{self.path}: taken as the profile {self.profile.name!r} says, with hit_times = {said!r}, its hits come "
                f"{late[0]:.1f} ns after light from the collision, and should come with it. Write a profile with hit_times = "
                f"{other!r}, or with ignored_columns = ['hit_time']"
            )

    def _require_finite(self, block: EventBlock) -> None:
        for name, part in block.collections.items():
            for column, values in part.columns.items():
                if not (finite := np.isfinite(values)).all():
                    wrong = int(np.argmin(finite))
                    event = np.repeat(block.event_number, part.counts)[wrong]
                    raise InputFileError(
                        f"{self.path}: {name} {column} is {values[wrong]} in event {event}; repair the file or leave the "
                        "event out"
                    )

    def _event_numbers(self) -> npt.NDArray[np.int64]:
        """Numbers of the header where they rise, as datasets need it; else places in the file."""
        found = self._file.read(range(self.num_events), f"{self.profile.event_header}.eventNumber")
        one_each = found is not None and bool(np.all(found.counts == 1))
        if found is not None and one_each and found.values[0] >= 0 and np.all(np.diff(found.values) > 0):
            return found.values
        return np.arange(self.num_events, dtype=np.int64)

    def _find_notes(self, unfilled: set[str]) -> Iterator[str]:
        name, there = self.path.name, self._file.collections
        if self.profile.truth is not None and not self.has_truth:
            absent = [part for part in self.profile.truth.collections if part not in there]
            lacking = f"it has no {absent[0]!r}" if absent else "its links lead nowhere"
            yield f"{name} tells no truth to compare with: {lacking}"
        if parts := [part for part in self.profile.optional if part not in there]:
            yield f"{name} lacks {listed(parts)}; read without"
        if "time" in self.columns.get("hit", ()) and self.profile.hit_times == FLIGHT_SUBTRACTED:
            yield f"times of hits in {name} are taken to have the flight of light subtracted, which is added again"
        if unfilled:
            yield f"{name} does not fill {listed(sorted(unfilled))}; read without"


def _never_filled(block: EventBlock) -> set[str]:
    unfilled: set[str] = set()
    for name, group in _FILLED:
        present = [column for column in group if name in block and column in block[name].columns]
        if present and len(block[name]) and not any(np.any(block[name][column]) for column in present):
            unfilled.update(parquet_name(name, column) for column in present)
    return unfilled


class _Pieces:
    """Events of files, one piece per shard; numbers of a file that would not rise go on from those of the one before."""

    def __init__(self, files: Sequence[Edm4hepFile], events: int, events_per_shard: int) -> None:
        self._pieces: list[tuple[Edm4hepFile, int, int, int]] = []
        next_number = 0
        for file in files:
            last = min(events, file.num_events)
            shift = max(next_number - int(file.event_numbers[0]), 0)
            for start in range(0, last, events_per_shard):
                self._pieces.append((file, start, min(start + events_per_shard, last), shift))
            events -= last
            next_number = int(file.event_numbers[-1]) + shift + 1

    def tasks(self) -> list[PlannedShard]:
        """The shards."""
        sizes = [stop - start for _, start, stop, _ in self._pieces]
        return [PlannedShard(shard_file(index), ((index, 0, size),)) for index, size in enumerate(sizes)]

    def block(self, index: int) -> EventBlock:
        """A piece."""
        file, start, stop, shift = self._pieces[index]
        (block,) = file.events(start, stop, stop - start)
        return EventBlock(block.event_number + shift, block.collections)

    def close(self) -> None:
        """Nothing has to be given back."""


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
    pieces = _Pieces(files, events or there, events_per_shard)
    request = Request(
        tasks=pieces.tasks(),
        record={"source": EDM4HEP, **collect(settings, {}, paths)},
        detector=first.profile.detector,
        sample=sample,
        doing="converting",
    )
    produce(out, request, lambda: pieces, overwrite=overwrite)
    return Dataset(out)

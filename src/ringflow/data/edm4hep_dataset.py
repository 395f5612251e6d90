"""Make a dataset of EDM4hep files, one shard in memory at a time.

    dataset = convert_edm4hep([Path("events.root")], Path("data/cld"), sample="ttbar")

Everything that reads datasets then reads it: the gates, training, evaluation. The reconstructed particles of the files are its
candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.log import progress, say
from ringflow.base.provenance import collect
from ringflow.data.edm4hep import Edm4hepFile, open_edm4hep
from ringflow.data.manifest import EDM4HEP, Shard
from ringflow.data.production import Production, already_made, begin
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter, shard_file
from ringflow.event.block import EventBlock


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

"""The state on disk of a production that is being made: what makes it resumable.

While it is made, a dataset folder holds `.production/` with the record of what was asked for (`production.json`), one small
file per finished shard (`shard-00000.json`: its hash and counts) and everything temporary. A shard counts only once its small
file is there and its hash is right. The last steps are the card, the manifest and the removal of `.production/`, so that a
kill at any moment leaves either a dataset or something the same command finishes, with the same bytes.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pydantic

from ringflow.base.errors import DatasetError, FailureError, UsageError
from ringflow.base.log import say
from ringflow.base.rundir import SETTINGS_FILE, write_atomic, write_errors
from ringflow.data.manifest import (
    CARD_FILE,
    CRATE_FILE,
    CROISSANT_FILE,
    KNOWN_FILES,
    MANIFEST_FILE,
    PACKED_FOLDER,
    PRODUCTION_FOLDER,
    Manifest,
    Shard,
    dataset_card,
    make_manifest,
    read_manifest,
    to_json,
    write_manifest,
)
from ringflow.data.write import columns_in, file_hash

_RECORD_FILE = "production.json"
_LOCK_FILE = "lock"
_WHAT_EVENTS_ARE_MADE_FROM = ("settings", "inputs", "generator", "geometry_sha256")
_EVENTS_KEY = "settings.production.events"
#: What describes a finished dataset, the manifest first: without it there is none.
_DESCRIPTIONS = (MANIFEST_FILE, CARD_FILE, SETTINGS_FILE, CRATE_FILE, CROISSANT_FILE)


class Production:
    """A dataset folder we may write to; made by `begin`, ended by `complete`."""

    def __init__(self, folder: Path, record: Mapping[str, Any]) -> None:
        self.folder = folder
        self.record = record

    @property
    def workshop(self) -> Path:
        """Where temporary files go, on the same file system as the shards."""
        return self.folder / PRODUCTION_FOLDER

    def keep(self, shard: Shard) -> None:
        """Count a shard as finished."""
        write_atomic(self._note(shard.file), to_json(shard))

    def finished(self) -> dict[str, Shard]:
        """Finished shards by file name, their hashes verified; whatever else looks like a shard is removed."""
        kept = {}
        for path in sorted(self.folder.glob("shard-*.parquet")):
            shard = _read_note(self._note(path.name))
            if shard is not None and path.stat().st_size == shard.bytes and file_hash(path) == shard.sha256:
                kept[path.name] = shard
            else:
                self.discard(path.name)
        return kept

    def discard(self, file: str) -> None:
        """Remove a shard."""
        self._note(file).unlink(missing_ok=True)
        (self.folder / file).unlink(missing_ok=True)

    def complete(self, *, detector: str, sample: str, shards: list[Shard], settings: str | None = None) -> Manifest:
        """Write settings (TOML, of a simulated one), card and, last, the manifest; the folder is a dataset now."""
        columns = columns_in(self.folder / shards[0].file)
        manifest = make_manifest(
            detector=detector, sample=sample, columns=columns, shards=shards, provenance=self.record
        )
        if settings is not None:
            write_atomic(self.folder / SETTINGS_FILE, settings)
        write_atomic(self.folder / CARD_FILE, dataset_card(manifest))
        write_manifest(self.folder, manifest)
        shutil.rmtree(self.workshop)
        return manifest

    def remove_temporaries(self) -> None:
        """Remove what interrupted writers left."""
        for leftover in [*self.folder.glob(".*.part"), *self.workshop.glob(".*.part")]:
            leftover.unlink(missing_ok=True)

    def _note(self, shard_file: str) -> Path:
        return self.workshop / f"{Path(shard_file).stem}.json"


def already_made(folder: Path, record: Mapping[str, Any]) -> Manifest | None:
    """The manifest, if the folder holds exactly what the record asks for; other software versions do not matter."""
    if not (folder / MANIFEST_FILE).is_file():
        return None
    manifest = read_manifest(folder)
    if any(manifest.provenance.get(key) != record.get(key) for key in _WHAT_EVENTS_ARE_MADE_FROM):
        return None
    for shard in manifest.shards:
        path = folder / shard.file
        size = path.stat().st_size if path.is_file() else 0
        if size != shard.bytes:
            raise DatasetError(
                f"{path} is damaged: {size} bytes instead of {shard.bytes}; make it anew with --overwrite"
            )
    return manifest


@contextmanager
def begin(folder: Path, record: Mapping[str, Any], *, overwrite: bool = False) -> Iterator[Production]:
    """Start, resume or extend the production of a record (what `provenance.collect` returns, plus anything).

    If it fails before the first shard is finished, nothing of it is left behind.
    """
    _refuse_foreign(folder)
    folder_is_new = not folder.exists()
    production = Production(folder, record)
    workshop_is_new = not production.workshop.exists()
    with write_errors(folder):
        production.workshop.mkdir(parents=True, exist_ok=True)
        lock = (production.workshop / _LOCK_FILE).open("w")
    with lock:
        _claim(lock, folder)
        try:
            with write_errors(folder):
                if overwrite:
                    _clear(production)
                _take_up(production)
        except BaseException:
            if workshop_is_new:
                shutil.rmtree(production.workshop, ignore_errors=True)
            if folder_is_new:
                folder.rmdir()
            raise
        try:
            yield production
        except BaseException:
            _leave_nothing_half_written(production, folder_is_new)
            raise


def _claim(lock: IO[str], folder: Path) -> None:
    """The kernel lets go of the lock when its holder dies."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FailureError(f"another production is writing to {folder}; wait for it or choose another folder") from None


def _refuse_foreign(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder; choose another output folder")
    names = {path.name for path in folder.iterdir()}
    ours = bool(names & {MANIFEST_FILE, PRODUCTION_FOLDER})
    for name in sorted(names):
        shard = name.startswith("shard-") and name.endswith(".parquet")
        if not ours or not (name in KNOWN_FILES or shard or name.endswith(".part")):
            raise UsageError(f"{folder} holds {name!r}, which is no part of a dataset; choose another output folder")


def _clear(production: Production) -> None:
    """Remove all that is ours, the manifest first: without it there is no dataset."""
    for name in _DESCRIPTIONS:
        (production.folder / name).unlink(missing_ok=True)
    for path in production.folder.glob("shard-*.parquet"):
        path.unlink()
    shutil.rmtree(production.folder / PACKED_FOLDER, ignore_errors=True)
    for path in production.workshop.iterdir():
        if path.name != _LOCK_FILE:
            path.unlink()


def _take_up(production: Production) -> None:
    """Compare with what the folder already holds; write the record if it is new or asks for more events."""
    folder, record_file = production.folder, production.workshop / _RECORD_FILE
    if record_file.is_file():
        _compare(folder, json.loads(record_file.read_bytes()), production.record)
    elif (folder / MANIFEST_FILE).is_file():
        manifest = read_manifest(folder)
        _compare(folder, manifest.provenance, production.record)
        for shard in manifest.shards:
            production.keep(shard)
    write_atomic(record_file, json.dumps(production.record, indent=1) + "\n")
    for name in _DESCRIPTIONS:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / PACKED_FOLDER, ignore_errors=True)
    production.remove_temporaries()


def _compare(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Only more events are a reason to go on with another record: they leave the earlier events as they are.

    The user's settings come first in the complaint, what follows from them after.
    """
    if "settings" not in old:
        raise UsageError(f"{folder} holds a dataset of another origin; choose another folder or overwrite it")
    before, now = dict(_flatten(old)), dict(_flatten(json.loads(json.dumps(new))))
    keys = sorted(before.keys() | now.keys(), key=lambda key: (not key.startswith("settings."), key))
    for key in keys:
        was, asked = before.get(key), now.get(key)
        if was == asked or (key == _EVENTS_KEY and isinstance(was, int) and isinstance(asked, int) and asked > was):
            continue
        name = key.removeprefix("settings.")
        raise UsageError(
            f"{folder} was made with {name}={was}, now {name}={asked} is asked for; "
            "choose another folder, or replace it with --overwrite"
        )


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _read_note(path: Path) -> Shard | None:
    try:
        return Shard.model_validate_json(path.read_bytes())
    except (OSError, pydantic.ValidationError):
        return None


def _leave_nothing_half_written(production: Production, folder_is_new: bool) -> None:
    """Keep finished shards for the next attempt; without any, leave the folder as it was found."""
    with suppress(OSError):
        production.remove_temporaries()
        if any(production.workshop.glob("shard-*.json")):
            say(f"finished shards are kept in {production.folder}; the same command goes on from there")
            return
        shutil.rmtree(production.workshop, ignore_errors=True)
        for path in production.folder.glob("shard-*.parquet"):
            path.unlink()
        if folder_is_new:
            production.folder.rmdir()

"""Make a dataset of EDM4hep files, one block in memory at a time.

    dataset = convert_edm4hep([Path("events.root")], load_profile("cld"), Path("data/cld"), sample="ttbar")

Everything that reads datasets then reads it: the gates, training, evaluation. The reconstructed particles of the files are its
candidates.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.data.card import dataset_card
from ringflow.data.edm4hep import Edm4hepFile, Profile
from ringflow.data.manifest import CARD_FILE, Shard, make_manifest, write_manifest
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter, file_hash, shard_file
from ringflow.event.block import EventBlock


def convert_edm4hep(
    paths: Sequence[Path], profile: Profile, out: Path, *, sample: str = "edm4hep", events_per_shard: int = 250
) -> Dataset:
    """Write the events of files into a new dataset folder, which appears whole or not at all, and open it.

    Events keep their numbers as long as these rise from file to file; otherwise those of a file are counted on.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} already exists; choose another folder or remove it")
    files = [Edm4hepFile(path, profile) for path in paths]
    if not files:
        raise UsageError("there are no files to convert; give at least one")
    for file in files[1:]:
        if file.columns != files[0].columns:
            raise InputFileError(
                f"{file.path} does not hold the same columns as {files[0].path}; convert them into datasets of their own"
            )
    provenance = {
        "source": "EDM4hep",
        "profile": profile.model_dump(mode="json", exclude_none=True),
        "files": [{"name": file.path.name, "sha256": file_hash(file.path)} for file in files],
    }
    temporary = out.with_name(f".{out.name}.{os.getpid()}.part")
    with write_errors(out):
        temporary.mkdir(parents=True)
        try:
            shards = _write_shards(files, temporary, events_per_shard)
            manifest = make_manifest(
                detector=profile.detector, sample=sample, columns=files[0].columns, shards=shards, provenance=provenance
            )
            write_atomic(temporary / CARD_FILE, dataset_card(manifest))
            write_manifest(temporary, manifest)
            temporary.rename(out)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return Dataset(out)


def _write_shards(files: Sequence[Edm4hepFile], folder: Path, events_per_shard: int) -> list[Shard]:
    shards: list[Shard] = []
    next_number = 0
    for file in files:
        shift: int | None = None
        for block in file.events(block_events=events_per_shard):
            if shift is None:
                shift = max(next_number - int(block.event_number[0]), 0)
            numbered = EventBlock((block.event_number + shift).astype(np.int64), block.collections)
            with ShardWriter(folder / shard_file(len(shards))) as writer:
                writer.append(numbered)
                shards.append(writer.finish())
            next_number = int(numbered.event_number[-1]) + 1
    return shards

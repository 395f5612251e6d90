"""The training events of one or several datasets, chunk by chunk.

    source = DatasetChunks([Dataset("data/ttbar")], detector="clic", calorimeter="cluster", chunk_events=20_000, seed=1)
    source.chunk(0), source.prefetch(1)

What fits into one chunk is read once and kept: every chunk is then all of it. Of more, every epoch puts the shards of all
datasets in a new order and cuts it into chunks. Lanes share an epoch without overlap: they are dealt shards where there are
enough of them, else the events of every shard. Finished elements are stored in the dataset's `packed/` folder as they are
first needed, so that the first epoch runs at the speed of Parquet and the others at that of memory. What is stored there is
verified when it is first read, and made again if it is not what was written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.manifest import PACKED_FOLDER, Shard, inside, manifest_hash
from ringflow.data.read import Dataset, whole_cache
from ringflow.elements.batch import ElementBatch, ElementTargets, from_block, join, target_collection, target_columns
from ringflow.elements.features import feature_names, needed_columns
from ringflow.elements.frame import Frame
from ringflow.event.schema import parquet_name

#: Shards per lane from which on lanes are dealt shards: fewer would make lanes of very different lengths.
_SHARDS_PER_LANE = 4


class _Part(NamedTuple):
    """The training events of one shard, and the folder where their elements are stored."""

    dataset: Dataset
    shard: Shard
    columns: tuple[str, ...]
    folder: Path


class Lane(NamedTuple):
    """One of `of` parts into which the events of an epoch are dealt."""

    number: int
    of: int


#: All of an epoch in one lane.
ALL = Lane(0, 1)


class Ahead:
    """Chunks by index, made one after the other in a thread of their own; `make` is a pure function of the index."""

    def __init__(self, make: Callable[[int], ElementBatch]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chunks")
        self._begun: dict[int, Future[ElementBatch]] = {}

    def prefetch(self, index: int) -> None:
        """Begin to make a chunk."""
        if index not in self._begun:
            self._begun[index] = self._thread.submit(self._make, index)

    def chunk(self, index: int) -> ElementBatch:
        """A chunk, waited for if it is not ready; what went wrong in the background is raised here."""
        self.prefetch(index)
        return self._begun.pop(index).result()

    def close(self) -> None:
        """Drop what was begun; one that is being made is waited for."""
        self._thread.shutdown(cancel_futures=True)
        self._begun.clear()


class DatasetChunks(Ahead):
    """Chunks of about `chunk_events` events of the training split; chunk `index` depends on seed, lane and index only."""

    def __init__(
        self,
        datasets: Sequence[Dataset],
        *,
        detector: str,
        calorimeter: str,
        chunk_events: int,
        seed: int,
        lane: Lane = ALL,
        threads: int = 1,
        cache: Path | None = None,
        frames: Mapping[str, Frame] | None = None,
    ) -> None:
        super().__init__(self._read)
        self._frames = frames or {}
        self._calorimeter, self._seed, self._lane = calorimeter, seed, lane
        for dataset in datasets:
            require_learnable(dataset, detector, calorimeter)
        self._parts = [part for dataset in datasets for part in _parts(dataset, calorimeter, cache)]
        self.num_events = sum(part.shard.splits["train"] for part in self._parts)
        self._by_shards = self.num_events > chunk_events and len(self._parts) >= _SHARDS_PER_LANE * lane.of
        parts = len(self._parts) // lane.of if self._by_shards else len(self._parts)
        self._per_epoch = min(max(round(self.num_events / chunk_events), 1), parts)
        self._whole: ElementBatch | None = None
        self._verified: dict[str, Path] = {}
        self._readers = ThreadPoolExecutor(threads, thread_name_prefix="shards")

    def chunk(self, index: int) -> ElementBatch:
        """Elements with targets."""
        if self._per_epoch > 1:
            return super().chunk(index)
        if self._whole is None:
            self._whole = super().chunk(0)
        return self._whole

    def prefetch(self, index: int) -> None:
        """Begin to read a chunk, unless there is but one."""
        if self._per_epoch > 1 or self._whole is None:
            super().prefetch(index if self._per_epoch > 1 else 0)

    def close(self) -> None:
        """End the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _read(self, index: int) -> ElementBatch:
        epoch, place = divmod(index, self._per_epoch)
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._parts))
        if self._by_shards:
            order = order[self._lane.number :: self._lane.of]
        chosen = np.array_split(order, self._per_epoch)[place]
        made = join(list(self._readers.map(self._elements, [self._parts[part] for part in chosen])))
        if self._by_shards or self._lane.of == 1:
            return made
        return made.take(torch.arange(self._lane.number, made.num_events, self._lane.of))

    def _elements(self, part: _Part) -> ElementBatch:
        """The training events of a shard, as they are seen."""
        return seen_by(self._frames, part.dataset.manifest.detector, self._stored(part))

    def _stored(self, part: _Part) -> ElementBatch:
        """The training events of a shard; stored, and made first if they are not there or are not what was written."""

        def make() -> ElementBatch:
            blocks = part.dataset.one_shard(part.shard).events("train", part.columns)
            return join([from_block(block, self._calorimeter, with_targets=True) for block in blocks])

        def store(path: Path) -> None:
            path.write_bytes(save({name: column.contiguous() for name, column in to_tensors(make()).items()}))

        if self._per_epoch == 1:  # they are read once
            return make()
        key = part.shard.sha256
        if key not in self._verified:
            self._verified[key] = whole_cache(part.folder, f"{key[:_DIGITS]}.safetensors", store)
        file, width = self._verified[key], len(feature_names(("track", self._calorimeter)))
        try:
            return _stored_batch(file, part.shard.splits["train"], width)
        except (OSError, SafetensorError, KeyError, ValueError, IndexError):
            del self._verified[key]  # gone or changed meanwhile, or somebody's who gave other content the right name
            file.unlink(missing_ok=True)
            return self._stored(part)


def seen_by(frames: Mapping[str, Frame], detector: str, batch: ElementBatch) -> ElementBatch:
    """Elements relative to their detector, or as they are where no frames are given."""
    return frames[detector].see(batch) if frames else batch


def describe(dataset: Dataset) -> dict[str, Any]:
    """What to remember of a dataset that was learned from; not where it was."""
    manifest = dataset.manifest
    return {
        "dataset": dataset.path.name,
        "sample": manifest.sample,
        "detector": manifest.detector,
        "events": manifest.splits["train"],
        "manifest_sha256": manifest_hash(dataset.path),
    }


def require_learnable(dataset: Dataset, detector: str, calorimeter: str) -> None:
    """Refuse, in one line, a dataset that a training for this detector cannot learn from or be validated with."""
    if dataset.manifest.detector not in detector.split(","):
        raise UsageError(
            f"{dataset.path} is of the detector {dataset.manifest.detector!r}, the training is for {detector!r}; "
            f"give detector={dataset.manifest.detector} or another dataset"
        )
    training_columns(dataset, calorimeter)
    for split in ("train", "valid"):
        if not dataset.manifest.splits[split]:
            raise DatasetError(
                f"{dataset.path} has no events in split {split!r}; make more than its {len(dataset)} events"
            )


def training_columns(dataset: Dataset, calorimeter: str) -> tuple[str, ...]:
    """Names of the columns a training reads; an error in one line if one is missing."""
    truth = target_collection(calorimeter)
    missing = [name for name in target_columns(calorimeter) if name not in dataset.columns.get(truth, ())]
    if missing:
        raise DatasetError(
            f"{dataset.path} has no {parquet_name(truth, missing[0])}: without truth there is nothing to learn; "
            "give a simulated dataset"
        )
    try:
        features = needed_columns(("track", calorimeter), dataset.columns)
    except DatasetError as error:
        raise DatasetError(f"{dataset.path}: {error}") from None
    wanted = {**features, truth: target_columns(calorimeter)}
    return tuple(parquet_name(collection, column) for collection, columns in wanted.items() for column in columns)


def _parts(dataset: Dataset, calorimeter: str, cache: Path | None) -> list[_Part]:
    columns = training_columns(dataset, calorimeter)
    what = [STORED_VERSION, feature_names(("track", calorimeter)), columns, dataset.manifest.split_rule.model_dump()]
    key = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
    folder = inside(cache or inside(dataset.path, PACKED_FOLDER), f"elements-{key}")
    return [_Part(dataset, shard, columns, folder) for shard in dataset.manifest.shards if shard.splits["train"]]


#: To be raised when the meaning of a stored column changes under the same name.
STORED_VERSION = 1
#: Of the sha256 of a shard, in the name of the file of its elements.
_DIGITS = 32
_CODE, _NUMBER = torch.int8, torch.float32
#: Stored columns: their types and how many numbers an element has there; 0: no second axis; None: as many as features.
_STORED: dict[str, tuple[torch.dtype, int | None]] = {
    "kind": (_CODE, 0),
    "features": (_NUMBER, None),
    "position": (_NUMBER, 2),
    "reference": (_NUMBER, 4),
    "charge": (_CODE, 0),
    "offsets": (torch.int64, 0),
    "label": (_CODE, 0),
    "target_charge": (_CODE, 0),
    "momentum": (_NUMBER, 4),
}


def to_tensors(batch: ElementBatch) -> dict[str, Tensor]:
    """The columns of a batch with targets; codes take one byte each."""
    targets = batch.targets
    assert targets is not None, "only what is learned from is stored"
    return {
        "kind": batch.kind_N.to(torch.int8),
        "features": batch.features_NF,
        "position": batch.position_N2,
        "reference": batch.reference_N4,
        "charge": batch.charge_N.to(torch.int8),
        "offsets": batch.offsets_B,
        "label": targets.label_N.to(torch.int8),
        "target_charge": targets.charge_N.to(torch.int8),
        "momentum": targets.momentum_N4,
    }


def from_tensors(columns: dict[str, Tensor]) -> ElementBatch:
    """The batch again."""
    kind, features, position, reference, charge, offsets, label, target_charge, momentum = (
        columns[name].long() if columns[name].dtype == _CODE else columns[name] for name in _STORED
    )
    targets = ElementTargets(label, target_charge, momentum)
    return ElementBatch(kind, features, position, reference, charge, offsets, targets)


def _stored_batch(file: Path, num_events: int, num_features: int) -> ElementBatch:
    """The batch in a file; a ValueError if it is none of so many events with so many features."""
    columns = load_file(file)
    offsets = columns["offsets"]
    for name, (dtype, width) in _STORED.items():
        rows = num_events + 1 if name == "offsets" else int(offsets[-1])
        shape = (rows,) if width == 0 else (rows, num_features if width is None else width)
        if columns[name].dtype != dtype or columns[name].shape != shape:
            raise ValueError(f"{name} is {columns[name].dtype} {tuple(columns[name].shape)}, not {dtype} {shape}")
    if offsets[0] != 0 or (offsets.diff() < 0).any():
        raise ValueError("events do not follow each other")
    return from_tensors(columns)

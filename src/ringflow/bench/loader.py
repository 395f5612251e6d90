"""`ringflow bench loader`: whether the loading of a dataset keeps up with a training on the CPU.

Three things are timed one after the other, so that none takes the other's cores: chunks alone, through a first epoch that
reads Parquet and stores finished elements, and through later epochs that read those; batches taken out of a chunk; and
training steps of a preset on the same events. What is stored lies in a temporary folder: the dataset is not touched.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ringflow.bench.record import hardware
from ringflow.bench.train import load_rate, train_rate
from ringflow.data.chunks import DatasetChunks
from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch
from ringflow.models.model import Model
from ringflow.train.settings import TrainSettings

_CPU = torch.device("cpu")
#: What a benchmark of loading sets itself: these events, on the CPU, from one chunk for as long as it takes.
_OURS = ("source.reuse=1000000", "compute.device=cpu")


def run(dataset: Path, preset: str, overrides: Sequence[str], seconds: float) -> dict[str, Any]:
    """Events per second of chunks, batches and training, and how many times faster loading is than training."""
    settings = TrainSettings.resolve(preset, [*overrides, *_OURS])
    opened = Dataset(dataset)
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as cache:
        chunk, first, later = _epochs(opened, settings, Path(cache), seconds)
    batches = load_rate(settings, chunk, _CPU, seconds / 4)
    torch.manual_seed(settings.seed)
    network = Model(settings.model)
    network.embedding.fit(chunk.features_NF)
    training = train_rate(settings, network, chunk, _CPU, seconds)["train_events_per_second"]
    loading = {"first_epoch": _together(first, batches), "later_epochs": _together(later, batches)}
    return {
        "benchmark": "loader",
        "sample": opened.manifest.sample,
        "detector": opened.manifest.detector,
        "preset": Path(preset).name,
        "train_events": opened.manifest.splits["train"],
        "elements_per_event": round(chunk.num_elements / chunk.num_events, 1),
        "batch_elements": settings.compute.batch_elements,
        "threads": {"loading": settings.source.workers, "training": torch.get_num_threads()},
        "chunk_events_per_second": {"first_epoch": first, "later_epochs": later},
        "batches_per_second": batches["batches_per_second"],
        "batch_events_per_second": batches["events_per_second"],
        "load_events_per_second": loading,
        "train_events_per_second": training,
        "load_over_train": {epoch: round(rate / training, 2) for epoch, rate in loading.items()},
        **hardware("cpu"),
    }


def _epochs(
    dataset: Dataset, settings: TrainSettings, cache: Path, seconds: float
) -> tuple[ElementBatch, float, float | None]:
    """A chunk, and events per second of the first and of later epochs; None where all is kept in memory."""
    events = dataset.manifest.splits["train"]
    source = DatasetChunks(
        [dataset],
        detector=dataset.manifest.detector,
        calorimeter=settings.model.calorimeter,
        # Of one chunk nothing would be stored.
        chunk_events=min(settings.source.chunk_events, max(events // 2, 1)),
        seed=settings.seed,
        threads=settings.source.workers,
        cache=cache,
    )
    try:
        start, delivered, index = time.perf_counter(), 0, 0
        while delivered < events:
            chunk = source.chunk(index)
            delivered += chunk.num_events
            index += 1
        first = round(delivered / (time.perf_counter() - start), 1)
        if chunk.num_events == events:
            return chunk, first, None
        start, delivered = time.perf_counter(), 0
        while delivered < events or time.perf_counter() - start < seconds / 4:
            delivered += source.chunk(index).num_events
            index += 1
        return chunk, first, round(delivered / (time.perf_counter() - start), 1)
    finally:
        source.close()


def _together(chunks: float | None, batches: dict[str, float]) -> float:
    """Events per second of chunks and of batches out of them, one after the other."""
    per_event = 1.0 / batches["events_per_second"] + (1.0 / chunks if chunks else 0.0)
    return round(1.0 / per_event, 1)

"""A frame of events becomes a dataset that trainings read, in a folder that all machines see.

    dataset = stored_events(frame, Path("/shared/spark"), detector="clic", calorimeter="cluster", validation=0.1)

The executors write the shards. A dataset is named by a fingerprint of what is in the frame: equal frames are written once,
whatever their partitions. Its events are sorted and numbered anew, so that every tenth of them, say, is there to validate with.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ringflow.base.errors import DatasetError, FailureError, RingflowError, UsageError
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.data.manifest import (
    CARD_FILE,
    MANIFEST_FILE,
    Shard,
    SplitRule,
    dataset_card,
    make_manifest,
    write_manifest,
)
from ringflow.data.read import TRUTH_COLUMNS
from ringflow.data.write import EVENT_NUMBER, ShardWriter, columns_in, shard_file
from ringflow.elements.batch import target_collection, target_columns
from ringflow.elements.features import FEATURES, essential_columns
from ringflow.event.block import EventBlock, require_finite
from ringflow.event.schema import SCHEMA_VERSION, parquet_name
from ringflow.infer.remote import EVENTS_AT_ONCE, block_of
from ringflow.infer.spark import TO_LEARN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENTS_PER_SHARD = 250
#: First numbers of events in consecutive shards are so far apart.
_STRIDE = 10**9
_SAMPLE = "spark"


def stored_events(frame: DataFrame, store: Path, *, detector: str, calorimeter: str, validation: float) -> Path:
    """The folder of the dataset of a frame, written now unless it is there."""
    wanted = learning_columns(frame.columns, calorimeter)
    rule = split_rule(validation)
    events, content = _fingerprint(frame.select(*wanted))
    if not events:
        raise DatasetError("the frame has no events; give some to train on")
    what = [SCHEMA_VERSION, wanted, rule.model_dump(), detector, events, content]
    name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
    folder = store.absolute() / "events" / name
    if not (folder / MANIFEST_FILE).is_file():
        _write(frame.select(*wanted), folder, events, rule, detector, calorimeter)
    return folder


def learning_columns(names: Iterable[str], calorimeter: str) -> list[str]:
    """Columns of a frame that a training reads; an error that names all that are missing."""
    present = set(names)
    truth = target_collection(calorimeter)
    needed = [EVENT_NUMBER]
    for kind in ("track", calorimeter):
        needed += sorted(parquet_name(kind, column) for column in essential_columns(kind))
    needed += [parquet_name(truth, column) for column in target_columns(calorimeter)]
    if missing := [name for name in needed if name not in present]:
        raise DatasetError(
            f"the events have no {', '.join(missing)}, and a training needs them; "
            f"read_events(..., collections={TO_LEARN}) gives those of a dataset"
        )
    helpful = [
        parquet_name(kind, column)
        for kind in ("track", calorimeter)
        for feature in FEATURES[kind]
        for column in feature.needs
    ]
    judged = TRUTH_COLUMNS if present >= set(TRUTH_COLUMNS) else ()
    return [name for name in dict.fromkeys([*needed, *helpful, *judged]) if name in present]


def split_rule(validation: float) -> SplitRule:
    """Every so many events are there to validate with, the others to train on."""
    share = Fraction(validation).limit_denominator(100)
    if not 0 < share < 1:
        raise UsageError(f"validation={validation} is no share of the events; give one between 0.01 and 0.99")
    size, held_out = share.denominator, share.numerator
    return SplitRule(
        modulus=size, train=tuple(range(size - held_out)), valid=tuple(range(size - held_out, size)), test=()
    )


def _fingerprint(frame: DataFrame) -> tuple[int, str]:
    """The number of rows and a sum over them, which does not depend on partitions."""
    from pyspark.sql import functions as sql

    hashed = sql.xxhash64(*(sql.col(name) for name in frame.columns)).cast("decimal(38,0)")
    row = frame.agg(sql.count(sql.lit(1)).alias("events"), sql.sum(hashed).alias("content")).first()
    assert row is not None
    return int(row["events"]), str(row["content"])


def _write(frame: DataFrame, folder: Path, events: int, rule: SplitRule, detector: str, calorimeter: str) -> None:
    """Write a dataset under another name, and give it its own when it is whole."""
    from ringflow.infer.spark import mapped

    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    with write_errors(folder):
        temporary.mkdir(parents=True)
        try:
            parts = -(-events // EVENTS_PER_SHARD)
            ordered = frame.repartitionByRange(parts, EVENT_NUMBER).sortWithinPartitions(EVENT_NUMBER)
            write = partial(_write_shard, folder=str(temporary), rule=rule, calorimeter=calorimeter)
            answers = mapped(ordered, write, "shard string, problem string").collect()
            if problem := next((problem for _, problem in answers if problem), None):
                raise DatasetError(problem)
            shards = [Shard.model_validate_json(text) for text, _ in answers]
            if unseen := next((shard for shard in shards if not (temporary / shard.file).is_file()), None):
                raise FailureError(
                    f"a worker wrote {unseen.file} where this process cannot see it; give store= a folder that all machines "
                    "share"
                )
            _finish(temporary, shards, rule, detector)
            if not (folder / MANIFEST_FILE).is_file():  # another fit may have been faster
                temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _finish(folder: Path, shards: Sequence[Shard], rule: SplitRule, detector: str) -> None:
    shards = sorted(shards, key=lambda shard: shard.first_event)
    columns = columns_in(folder / shards[0].file)
    manifest = make_manifest(
        detector=detector, sample=_SAMPLE, columns=columns, shards=shards, provenance={}, split_rule=rule
    )
    write_atomic(folder / CARD_FILE, dataset_card(manifest))
    write_manifest(folder, manifest)


def _write_shard(
    batches: Iterator[pa.RecordBatch], folder: str, rule: SplitRule, calorimeter: str
) -> Iterator[pa.RecordBatch]:
    """What an executor does with a partition; an error is an answer, because Spark would try again what is raised."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    shard = problem = None
    try:
        shard = _written(batches, Path(folder), context.partitionId(), rule, calorimeter)
    except RingflowError as error:
        problem = str(error)
    if shard or problem:
        answers = [shard.model_dump_json() if shard else None, problem]
        yield pa.RecordBatch.from_arrays([pa.array([text], pa.string()) for text in answers], ["shard", "problem"])


def _written(
    batches: Iterable[pa.RecordBatch], folder: Path, index: int, rule: SplitRule, calorimeter: str
) -> Shard | None:
    kinds = ("track", calorimeter, target_collection(calorimeter))
    done = 0
    with ShardWriter(folder / shard_file(index)) as writer:
        for batch in batches:
            judged = ("particle",) if set(TRUTH_COLUMNS) <= set(batch.schema.names) else ()
            for start in range(0, batch.num_rows, EVENTS_AT_ONCE):
                block = block_of(batch.slice(start, EVENTS_AT_ONCE), (*kinds, *judged))
                require_learnable_events(block, calorimeter)
                numbers = index * _STRIDE + done + np.arange(len(block))
                writer.append(EventBlock(numbers, block.collections))
                done += len(block)
        if not done:
            return None
        numbers = index * _STRIDE + np.arange(done)
        return writer.finish().model_copy(update={"splits": rule.count(numbers)})


def require_learnable_events(block: EventBlock, calorimeter: str) -> None:
    """An error for numbers that are none, and for truth that is on no element of its event."""
    require_finite(block, {kind: essential_columns(kind) for kind in ("track", calorimeter)})
    name = target_collection(calorimeter)
    truth = block[name]
    require_finite(block, {name: ("px", "py", "pz", "energy")})
    track, element = truth["track"], truth[calorimeter]
    on_track, on_element = (
        (index >= 0) & (index < np.repeat(block[kind].counts, truth.counts))
        for kind, index in (("track", track), (calorimeter, element))
    )
    good = on_track | ((track < 0) & on_element)
    if not good.all():
        wrong = int(np.argmin(good))
        event = np.repeat(block.event_number, truth.counts)[wrong]
        raise DatasetError(
            f"a {name} of event {event} is on track {track[wrong]} and {calorimeter} {element[wrong]}, which are not there; "
            "count from 0 within the event, with -1 for none"
        )

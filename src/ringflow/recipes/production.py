"""Produce a dataset from a source of blocks: start it, go on with it, extend it, or find it already made."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError
from ringflow.base.log import progress, say
from ringflow.base.words import size_in_words
from ringflow.data.manifest import Manifest, Shard
from ringflow.data.production import Production, already_made, begin
from ringflow.recipes.workers import OpenSource, Plan, make_shards


@dataclass(frozen=True)
class Request:
    """What is asked for. Requests with equal records make equal bytes, on any number of workers."""

    plan: Plan
    record: Mapping[str, Any]
    detector: str
    sample: str
    settings: str  # TOML, to be kept beside the shards
    event_bytes: int  # rather less than what an event takes on disk


def produce(
    out: Path, request: Request, open_source: OpenSource, *, workers: int, overwrite: bool = False
) -> tuple[Manifest, int]:
    """The manifest of the finished dataset, and the number of events that were made now."""
    if not overwrite and (manifest := already_made(out, request.record)):
        say(f"{out} is already there, made with the same settings")
        return manifest, 0
    _require_space(out, request)
    with begin(out, request.record, overwrite=overwrite) as production:
        kept = _keep_finished(production, request.plan)
        missing = [task for task in request.plan.shards() if task.file not in kept]
        with progress(request.plan.events, f"simulating {request.sample}") as advance:
            if kept:
                advance(sum(shard.num_events for shard in kept.values()))
            made = make_shards(production, missing, open_source, workers, advance)
        manifest = production.complete(
            detector=request.detector,
            sample=request.sample,
            shards=sorted([*kept.values(), *made], key=lambda shard: shard.first_event),
            settings=request.settings,
        )
    return manifest, sum(shard.num_events for shard in made)


def _keep_finished(production: Production, plan: Plan) -> dict[str, Shard]:
    """Shards of an earlier attempt that are what the plan asks for; the last one of a shorter production is not."""
    planned = {task.file: task for task in plan.shards()}
    kept = {}
    for file, shard in production.finished().items():
        task = planned.get(file)
        if task and (shard.first_event, shard.num_events) == (task.start, task.stop - task.start):
            kept[file] = shard
        else:
            production.discard(file)
    return kept


def _require_space(out: Path, request: Request) -> None:
    """Refuse what cannot fit, counting what is already there."""
    needed = request.plan.events * request.event_bytes - sum(
        path.stat().st_size for path in out.glob("shard-*.parquet")
    )
    place = next(path for path in (out, *out.absolute().parents) if path.exists())
    disk = shutil.disk_usage(place)
    if disk.total and needed > disk.free:
        raise FailureError(
            f"{out} needs about {size_in_words(needed)} but only {size_in_words(disk.free)} are free; "
            "ask for fewer events or choose another disk"
        )

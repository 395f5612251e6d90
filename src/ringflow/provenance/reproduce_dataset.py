"""Reproduce: simulate shards of a dataset again, and compare them byte by byte; where they differ, find the first value."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ringflow.base.errors import FailureError, RingflowError, UsageError
from ringflow.base.log import progress, say
from ringflow.base.rundir import SETTINGS_FILE
from ringflow.data.manifest import Manifest, Shard, read_manifest
from ringflow.data.production import Plan, Production, ShardTask, write_shard
from ringflow.data.read import read_shard
from ringflow.data.write import columns_in, file_hash
from ringflow.event.block import concatenate
from ringflow.provenance.circumstances import differences
from ringflow.provenance.places import sha256_of
from ringflow.sim.blocks import SimulatedBlocks
from ringflow.sim.settings import SimulateSettings

#: How the answer begins when nothing but the bytes differs.
_EQUAL_VALUES = "every value is equal"

Row = dict[str, Any]


def reproduce_dataset(dataset: Path, out: Path | None = None, *, events: int | None = None) -> dict[str, Any]:
    """Make the first shard again, or those that hold the first `events`; what is the same, ready for JSON."""
    manifest = read_manifest(dataset)
    settings = _settings(dataset, manifest)
    apart = differences(manifest.provenance)
    for difference in apart:
        say(f"note: {difference}")
    chosen = _chosen(manifest, settings, events)
    with _folder(out) as folder:
        production = Production(folder, {})
        production.workshop.mkdir(parents=True, exist_ok=True)
        total = sum(shard.num_events for shard, _ in chosen)
        with closing(SimulatedBlocks(settings)) as source, progress(total, "simulating again") as advance:
            made = [write_shard(production, source, task, advance) for _, task in chosen]
        pairs = zip((shard for shard, _ in chosen), made, strict=True)
        rows = [_row(dataset, was, folder, now, manifest, exact=not apart) for was, now in pairs]
    return {
        "path": str(dataset),
        "again": str(out) if out else None,
        "events": total,
        "differences": [difference._asdict() for difference in apart],
        "rows": rows,
        "same": all(row["ok"] for row in rows),
    }


def _settings(dataset: Path, manifest: Manifest) -> SimulateSettings:
    """The settings of the production; refused if it was none, or if what it read has changed."""
    path = dataset / SETTINGS_FILE
    if "generator" not in manifest.provenance or not path.is_file():
        raise UsageError(
            f"{dataset} was not simulated, so it cannot be simulated again; give one made by `ringflow simulate`"
        )
    settings = SimulateSettings.resolve(path, complete=False)
    read = [settings.generator.hepmc, Path(settings.detector) if settings.detector.endswith(".toml") else None]
    known = {entry["file"]: entry["sha256"] for entry in manifest.provenance.get("inputs", ())}
    for file in filter(None, read):
        if sha256_of(file) != known.get(file.name):
            raise FailureError(f"{file}, which {dataset} was made of, is gone or has changed; put it back")
    return settings


def _chosen(manifest: Manifest, settings: SimulateSettings, events: int | None) -> list[tuple[Shard, ShardTask]]:
    """Shards to make again, and what makes each."""
    production = settings.production
    plan = Plan(manifest.num_events, production.events_per_shard, production.block_events)
    tasks = {task.file: task for task in plan.shards()}
    chosen, held = [], 0
    for shard in manifest.shards:
        if shard.file not in tasks:
            raise FailureError(f"{shard.file} is not what the settings beside it would make; put the settings back")
        chosen.append((shard, tasks[shard.file]))
        held += shard.num_events
        if events is None or held >= events:
            break
    return chosen


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out} is not empty; give another folder")
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="ringflow-reproduce-") as folder:
        yield Path(folder)


def _row(dataset: Path, was: Shard, folder: Path, now: Shard, manifest: Manifest, *, exact: bool) -> Row:
    """One shard: the hash in the manifest, and that of the new one; the file in the dataset may be damaged beside.

    Other versions may write equal events in other bytes: then values count.
    """
    found, ok = "equal", True
    if was.sha256 != now.sha256:
        found = _first_difference(dataset, was, folder, now, manifest)
        ok = found.startswith(_EQUAL_VALUES) and not exact
    path = dataset / was.file
    if not path.is_file() or file_hash(path) != was.sha256:
        found, ok = f"{found}; the file in the dataset is not what its manifest says", False
    return {"compared": was.file, "asked": f"sha256 {was.sha256[:12]}", "found": found, "ok": ok}


def _first_difference(dataset: Path, was: Shard, folder: Path, now: Shard, manifest: Manifest) -> str:
    """The first event and column that are not the same; bytes may also differ where no value does."""
    try:
        before, after = (
            concatenate(list(read_shard(place, shard, manifest.columns)))
            for place, shard in ((dataset, was), (folder, now))
        )
    except (RingflowError, ValueError) as error:
        return f"differs, and cannot be compared value by value ({' '.join(str(error).split())[:120]})"
    for event, number in enumerate(before.event_number):
        for name, part in before.collections.items():
            one, other = (slice(*block[name].offsets[event : event + 2]) for block in (before, after))
            for column, values in part.columns.items():
                if not np.array_equal(values[one], after[name][column][other], equal_nan=values.dtype.kind == "f"):
                    return f"first at event {number}: {name}_{column}"
    there = columns_in(folder / now.file)
    more = [
        f"{name}_{column}" for name, present in there.items() for column in present if not _has(manifest, name, column)
    ]
    return f"{_EQUAL_VALUES}, but not the bytes" + (f": {len(more)} columns are new, such as {more[0]}" if more else "")


def _has(manifest: Manifest, name: str, column: str) -> bool:
    return column in manifest.columns.get(name, ())

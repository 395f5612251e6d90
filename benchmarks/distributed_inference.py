"""Spark and Ray against one process on the same machine: what it costs to let workers reconstruct.

    python benchmarks/distributed_inference.py data/ttbar --events 20000

A dataset of fewer events is taken several times over. Every case runs in a process of its own: `here` with as many threads as
the others have workers, `spark` and `ray` with workers of one thread. `file` is `ringflow reconstruct` from dataset to
candidate file; `memory` is the candidates of a DataFrame, a Ray Dataset or blocks, which are counted and dropped. The start of
a cluster is reported apart, that of its Python processes is not. Rounds are run in turn and the fastest of each case counts, as
on a shared machine the others measure the neighbours. Cost: 20,000 events at 100 to 200 per second, for every case and round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

from ringflow.base.log import say
from ringflow.base.processes import wait_without_spinning
from ringflow.base.provenance import package_version

wait_without_spinning()  # before torch is loaded

from ringflow.bench import write_record  # noqa: E402
from ringflow.data.manifest import Shard, make_manifest, write_manifest  # noqa: E402
from ringflow.data.read import Dataset  # noqa: E402
from ringflow.data.write import shard_file  # noqa: E402
from ringflow.infer.remote import Place  # noqa: E402
from ringflow.infer.session import as_onnx  # noqa: E402
from ringflow.infer.shipped import model_file  # noqa: E402
from ringflow.train.device import hardware  # noqa: E402

PLACES = ("here", "spark", "ray")
WAYS = ("file", "memory")


def of_size(dataset: Dataset, events: int, folder: Path) -> Path:
    """A dataset of about so many events: links to shards of another, the same ones again if there are too few."""
    given = dataset.manifest
    folder.mkdir()
    shards: list[Shard] = []
    for shard in cycle(given.shards):
        shards.append(shard.model_copy(update={"file": shard_file(len(shards))}))
        (folder / shards[-1].file).symlink_to((dataset.path / shard.file).resolve())
        if sum(shard.num_events for shard in shards) >= events:
            break
    described = {"detector": given.detector, "sample": given.sample, "columns": given.columns}
    write_manifest(folder, make_manifest(**described, shards=shards, provenance={}))
    return folder


def measure_file(place: str, options: argparse.Namespace) -> dict[str, Any]:
    """From dataset to file."""
    from ringflow.recipes.reconstruct import reconstruct

    on = Place() if place == "here" else Place(place, options.master if place == "spark" else None, options.workers)
    threads = options.workers if place == "here" else 1
    chosen = {"model": options.model, "engine": options.engine, "device": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        done = reconstruct(options.dataset, Path(folder) / "out.parquet", on=on, threads=threads, **chosen)
    seconds = done["events"] / done["events_per_second"]
    return {"events": done["events"], "seconds": seconds, "start_seconds": done.get("start_seconds", 0.0)}


def measure_memory(place: str, options: argparse.Namespace) -> dict[str, Any]:
    """From dataset to candidates that nobody keeps."""
    begun = time.perf_counter()
    model = model_file(options.model)
    if place == "here":
        import torch

        from ringflow.infer.session import open_session

        torch.set_num_threads(options.workers)
        session = open_session(model, "cpu", options.engine, options.workers)
        ready = time.perf_counter()
        blocks = Dataset(options.dataset).events(columns=list(session.kinds))
        events = sum(len(session.reconstruct(block).counts) for block in blocks)
    elif place == "spark":
        from pyspark.sql.functions import count

        from ringflow.infer import spark
        from ringflow.launch.spark import open_spark

        session, _ = open_spark(options.master, options.workers)
        ready = time.perf_counter()
        frame = spark.reconstruct_frame(spark.read_events(session, options.dataset), model, options.engine)
        # Everything is asked for: Spark leaves out columns that nobody wants.
        events = frame.select(*(count(name) for name in frame.columns)).first()[0]
        session.stop()
    else:
        from ringflow.infer import ray
        from ringflow.launch.ray import open_ray

        framework, _ = open_ray(None, options.workers)
        ready = time.perf_counter()
        made = ray.reconstruct_dataset(ray.read_events(options.dataset), model, options.engine, options.workers)
        events = sum(batch.num_rows for batch in made.iter_batches(batch_size=None, batch_format="pyarrow"))
        framework.shutdown()
    return {"events": events, "seconds": time.perf_counter() - ready, "start_seconds": ready - begun}


def fastest(place: str, way: str, dataset: Path, words: list[str], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """One more measurement of a case, in a process of its own, and the best so far."""
    command = [sys.executable, __file__, str(dataset), *words, "--case", place, way]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    row = {"on": place, "way": way, **json.loads(done.stdout.splitlines()[-1])}
    row["events_per_second"] = row["events"] / row["seconds"]
    rounds.append(row)
    say(f"{place} {way}: {row['events_per_second']:.1f} events/s, start {row['start_seconds']:.1f} s")
    return min((r for r in rounds if (r["on"], r["way"]) == (place, way)), key=lambda r: r["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engine", choices=("torch", "onnx"), default="torch")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--master", help="Spark master; local[WORKERS] unless given")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        place, way = options.case
        print(json.dumps((measure_file if way == "file" else measure_memory)(place, options)))
        return
    load = os.getloadavg()[0]
    measured: list[dict[str, Any]] = []
    best = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        dataset = of_size(Dataset(options.dataset), options.events, folder / "dataset")
        model = model_file(options.model)
        if options.engine == "onnx":
            model = stack.enter_context(as_onnx(model))  # once, not in every case
        words = ["--engine", options.engine, "--workers", str(options.workers), "--model", str(model)]
        words += ["--master", options.master] if options.master else []
        for _ in range(options.rounds):
            for way in WAYS:
                for place in PLACES:
                    best[place, way] = fastest(place, way, dataset, words, measured)
    rows = []
    print("| way | on | events/s | over here | start |\n|---|---|---|---|---|")
    for (place, way), row in best.items():
        overhead = (row["seconds"] / row["events"]) / (best["here", way]["seconds"] / best["here", way]["events"]) - 1
        rows.append({**row, "overhead": overhead})
        print(f"| {way} | {place} | {row['events_per_second']:.1f} | {overhead:+.1%} | {row['start_seconds']:.1f} s |")
    versions = {name: package_version(name) for name in ("pyspark", "ray", "onnxruntime")}
    settings = {"engine": options.engine, "workers": options.workers, "rounds": options.rounds, "load_before": load}
    record = {"benchmark": "distributed_inference", "rows": rows, **settings, **versions, **hardware("cpu")}
    print(write_record(record, options.out / f"distributed_inference_{options.engine}.json"))


if __name__ == "__main__":
    main()

"""The ring against the master: the same network trained with allreduce, downpour and easgd on the same number of events.

    python benchmarks/synchronous_asynchronous.py data/ttbar --events 8000 --seeds 1 2 --periods 1 4

Every case is `ringflow launch` in processes of one thread: one process alone, workers that add up their gradients, and as many
workers with a master. The master is a process more: on a machine with as many cores as workers it competes with them, which the
record says. The loss is that of the last network on the `valid` events. Shares of the time are those of a process: what it
computes (events, forward, backward, optimiser), and what it is with the others (messages, and waiting for them). Bytes of
allreduce are those of a ring, 2(N-1)K/N per step and rank; those of the others are counted where they are sent. Cost: a minute
per case and seed for 8,000 ttbar events on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from ringflow.base.log import say
from ringflow.base.provenance import package_version
from ringflow.bench import write_record
from ringflow.data.read import Dataset
from ringflow.train.device import hardware

TOGETHER = ("communication", "idle")
#: What only a master does; neither computing nor talking.
APART = ("validation", "checkpoint")


class Case(NamedTuple):
    """One way to train."""

    sync: str
    workers: int
    period: int = 1

    @property
    def name(self) -> str:
        """As in the table."""
        if self.workers == 1:
            return "alone"
        return self.sync if self.sync == "allreduce" else f"{self.sync}, period {self.period}"

    def start(self) -> list[str]:
        """What comes before the words of the training."""
        if self.workers == 1:
            return []
        if self.sync == "allreduce":
            return ["launch", "local", "--workers", str(self.workers), "--"]
        return ["launch", "mpi", "--workers", str(self.workers + 1), "--"]


def run_case(case: Case, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train in one way, and what it came to."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        lengths = {"events": options.events, "validate_every": options.events, "validation_events": options.validation}
        words = [f"length.{name}={value}" for name, value in lengths.items()]
        words += ["length.checkpoint_seconds=1e9", "compute.device=cpu", f"seed={seed}", f"data={options.dataset}"]
        words += [f"sync={case.sync}", f"asynchronous.period={case.period}", f"source.lanes={case.workers}"]
        words += ["profile=true"] if case.sync == "allreduce" and case.workers > 1 else []
        command = [
            sys.executable,
            "-m",
            "ringflow.cli",
            *case.start(),
            "train",
            options.preset,
            *words,
            *options.overrides,
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--out", str(run), "--json"], stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
        result = json.loads(done.stdout)
        last = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()][-1]
        row = {"case": case.name, **case._asdict(), "seed": seed}
        row |= {name: result[name] for name in ("events", "steps", "events_per_second")}
        row |= {"loss": last["loss"], "jet_iqr_over_median": last.get("jet_iqr_over_median")}
        row |= _ring(run, result["steps"]) if (run / "profile").exists() else _accounts(run)
    say(f"{case.name}, seed {seed}: {row['events_per_second']:.0f} events/s, loss {row['loss']:.4f}")
    return row


def _ring(run: Path, steps: int) -> dict[str, Any]:
    summary = json.loads((run / "profile" / "summary.json").read_text())
    ranks = [
        {
            "rank": rank["rank"],
            "role": "worker",
            "together_share": sum(rank[f"{phase}_share"] for phase in TOGETHER),
            "bytes_sent": summary["ring_bytes_per_step"] * steps,
        }
        for rank in summary["ranks"]
    ]
    return {"staleness": 0.0, "ranks": ranks}


def _accounts(run: Path) -> dict[str, Any]:
    path = run / "asynchronous.json"
    if not path.exists():
        return {"staleness": 0.0, "ranks": []}
    record = json.loads(path.read_text())
    ranks = []
    for rank in record["ranks"]:
        seconds = {phase: spent for phase, spent in rank["seconds"].items() if phase not in APART}
        share = sum(seconds.get(phase, 0.0) for phase in TOGETHER) / sum(seconds.values())
        ranks.append(
            {"rank": rank["rank"], "role": rank["role"], "together_share": share, "bytes_sent": rank["bytes_sent"]}
        )
    return {"staleness": record["staleness_mean"], "ranks": ranks}


def summarized(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds of one case."""
    first = rows[0]
    made = {name: first[name] for name in ("case", "sync", "workers", "period", "steps")}
    made |= {name: mean(row[name] for row in rows) for name in ("events_per_second", "loss", "staleness")}
    made["loss_by_seed"] = [row["loss"] for row in rows]
    jets = [row["jet_iqr_over_median"] for row in rows]
    made["jet_iqr_over_median"] = None if None in jets else mean(jets)
    for role in ("worker", "master"):
        ranks = [rank for row in rows for rank in row["ranks"] if rank["role"] == role]
        if ranks:
            made[f"{role}_together_share"] = mean(rank["together_share"] for rank in ranks)
            made[f"{role}_bytes_sent"] = mean(rank["bytes_sent"] for rank in ranks)
    return made


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The table, for people."""
    columns = ("case", "events/s", "loss", "staleness", "worker, talk and wait", "master, talk and wait")
    say(f"| {' | '.join([*columns, 'MB from a worker', 'MB from the master'])} |")
    say("|---|---|---|---|---|---|---|---|")
    for row in rows:
        shares = [
            f"{100 * row[name]:.0f} %" if name in row else "-"
            for name in ("worker_together_share", "master_together_share")
        ]
        sent = [f"{row[name] / 1e6:.1f}" if name in row else "-" for name in ("worker_bytes_sent", "master_bytes_sent")]
        figures = [f"{row['events_per_second']:.0f}", f"{row['loss']:.3f}", f"{row['staleness']:.2f}"]
        say(f"| {' | '.join([row['case'], *figures, *shares, *sent])} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("overrides", nargs="*", help="settings as section.field=value")
    parser.add_argument("--preset", default="clic_tiny")
    parser.add_argument("--events", type=int, default=8000, help="event presentations of every case")
    parser.add_argument("--validation", type=int, default=500, help="events of the validation")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--periods", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--json", action="store_true", help="the record on stdout")
    options = parser.parse_args()
    options.dataset = options.dataset.resolve()
    cases = [Case("allreduce", 1), Case("allreduce", options.workers)]
    cases += [Case(sync, options.workers, period) for sync in ("downpour", "easgd") for period in options.periods]
    load = os.getloadavg()[0]
    measured = {case: [run_case(case, seed, options) for seed in options.seeds] for case in cases}
    rows = [summarized(of_case) for of_case in measured.values()]
    show(rows)
    manifest = Dataset(options.dataset).manifest
    record = {
        "benchmark": "synchronous_asynchronous",
        "dataset": f"{sum(shard.num_events for shard in manifest.shards)} events of {manifest.sample}, {manifest.detector}",
        "preset": options.preset,
        "overrides": options.overrides,
        "events": options.events,
        "seeds": options.seeds,
        "rows": rows,
        "load_before": load,
        "note": "one thread per process; the master is a process more than the workers, and competes with them for the cores",
        "mpich": package_version("mpich"),
        **hardware("cpu"),
    }
    say(str(write_record(record, options.out / "sync_async_cpu.json")))
    if options.json:
        print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()

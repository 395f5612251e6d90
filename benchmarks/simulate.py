"""Speed of the simulation: one record per device, under `benchmarks/results/`.

    python benchmarks/simulate.py                                   # CPU: one worker and two, in turn
    python benchmarks/simulate.py --device cuda --events 10000      # GPU: detector chain alone

On a CPU every run is a process of its own, so that each pays for its start, and the runs take turns: on a machine that is not
alone single runs differ by a fifth, so the median counts and all are kept. Cost: about three minutes on two cores by default.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from ringflow.bench import write_record
from ringflow.bench.events import simulate


def production(events: int, workers: int, detector: str) -> dict[str, Any]:
    """One production in a fresh process."""
    command = [sys.executable, "-m", "ringflow.cli", "bench", "simulate", "--events", str(events), "--json"]
    command += ["--workers", str(workers), "--detector", detector]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def one_against_two(events: int, detector: str, repeats: int) -> dict[str, Any]:
    """Productions with one worker and with two, in turn; medians of both and of the ratio within a turn."""
    turns = [(production(events, 1, detector), production(events, 2, detector)) for _ in range(repeats)]
    rates = [(one["events_per_second"], two["events_per_second"]) for one, two in turns]
    return {
        "one_worker_events_per_second": median(one for one, _ in rates),
        "two_workers_events_per_second": median(two for _, two in rates),
        "speedup": round(median(two / one for one, two in rates), 3),
        "turns": rates,
        "last_one_worker": turns[-1][0],
        "last_two_workers": turns[-1][1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--detector", default="clic")
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3, help="turns on a CPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.device == "cpu":
        result = one_against_two(options.events, options.detector, options.repeats)
    else:
        result = simulate(options.events, 1, options.detector, options.device)
    print(json.dumps(result, indent=2))
    print(write_record(result, options.out / f"simulate_{options.detector}_{options.device}.json"))


if __name__ == "__main__":
    main()

"""Speed of the simulation: one record per device, under `benchmarks/results/`.

    python benchmarks/simulate.py                                   # CPU: one worker, then two
    python benchmarks/simulate.py --device cuda --events 10000      # GPU: detector chain alone

Cost: about a minute on two cores for the default 2,000 events; seconds on a GPU after the events are generated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ringflow.bench.record import write_record
from ringflow.bench.simulate import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--detector", default="clic")
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.device == "cpu":
        one, two = (run(options.events, workers, options.detector, "cpu") for workers in (1, 2))
        result = {
            "one_worker": one,
            "two_workers": two,
            "speedup": round(two["events_per_second"] / one["events_per_second"], 3),
        }
    else:
        result = run(options.events, 1, options.detector, options.device)
    print(json.dumps(result, indent=2))
    print(write_record(result, options.out, f"simulate_{options.detector}_{options.device}"))


if __name__ == "__main__":
    main()

"""What is a search for better settings worth? Tune networks of several backbones, then train with the settings before and
after, with a seed that the search has not seen.

    ringflow simulate ttbar --events 50000 --no-hits --out data/tt
    ringflow simulate qq --events 50000 --no-hits --seed 5 --out data/qq
    python benchmarks/tuning_campaign.py data/tt data/qq --out campaign --seconds 300

A study ends after `--trials` or `--seconds`, whichever is first, and goes on when the same command is given again; so do the
trainings. What is varied stands in `benchmarks/spaces`. With `--only-record` nothing is trained, and what is there becomes
`tuning_campaign.json`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PRESET = "clic_base"
SPACES = Path(__file__).parent / "spaces"
#: Settings that make a network of the preset one of another backbone.
BACKBONES = {"attention": (), "graph": ("model.backbone=graph", "model.heads=4")}
SEED = 2
FIGURES = (
    "loss",
    "jet_iqr_over_median",
    "jet_iqr_over_median/ttbar",
    "jet_median",
    "particle_f1",
    "met_iqr_over_median",
)


def command(*words: object) -> list[str]:
    """A ringflow command in a process of its own."""
    return [sys.executable, "-m", "ringflow.cli", *map(str, words)]


def settings(arguments: argparse.Namespace, backbone: str) -> list[str]:
    """What the trainings of a backbone have in common."""
    return [
        f"data={','.join(map(str, arguments.data))}",
        *BACKBONES[backbone],
        f"length.events={arguments.events}",
        f"length.validate_every={arguments.events // 8}",
        f"length.validation_events={arguments.validation_events}",
        "source.chunk_events=50000",
        "source.reuse=4",
        "source.workers=2",
        # The preset averages over a tenth of its own steps; a campaign has fewer.
        "optimizer.average=0.99",
        *arguments.set,
    ]


def tune(arguments: argparse.Namespace, backbone: str) -> None:
    """Search, until the time is over."""
    study = arguments.out / backbone / "study"
    words = ["--space", SPACES / f"{backbone}.toml", "--trials", arguments.trials, "--workers", arguments.workers]
    least = ["--least", arguments.events // 8, "--out", study]
    process = subprocess.Popen(command("tune", PRESET, *settings(arguments, backbone), *words, *least))
    try:
        process.wait(arguments.seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # not SIGINT, which nobody hears in the background of a script
        process.wait()
    best = subprocess.run(command("tune", "best", study), capture_output=True, text=True, check=True).stdout
    (arguments.out / backbone / "best.toml").write_text(best)


def compare(arguments: argparse.Namespace) -> None:
    """Train with the settings before and after, all at a time."""
    started = []
    for backbone in arguments.backbones:
        folder = arguments.out / backbone
        before = [PRESET, *settings(arguments, backbone)]
        for name, words in (("before", before), ("after", [folder / "best.toml"])):
            start = command("train", *words, f"seed={SEED}", "--out", folder / name)
            with (folder / f"{name}.log").open("w") as log:
                started.append(subprocess.Popen(start, stdout=log, stderr=log))
    if any(process.wait() for process in started):
        raise SystemExit(f"a training failed; see the logs in {arguments.out}")


def record(arguments: argparse.Namespace) -> dict[str, Any]:
    """What came of it, ready for JSON."""
    return {
        "benchmark": "tuning_campaign",
        "preset": PRESET,
        "device": arguments.device,
        "backbones": {name: outcome(arguments.out / name) for name in arguments.backbones},
    }


def outcome(folder: Path) -> dict[str, Any]:
    """A study, and the last validations before and after."""
    from ringflow.tune.folder import StudyFolder

    known = StudyFolder(folder / "study").record()
    best = known.best
    if best is None:
        raise SystemExit(f"no trial in {folder} has a value")
    states = [trial.state for trial in known.trials]
    return {
        "trials": {state: states.count(state) for state in sorted(set(states))},
        "events": sum(trial.resource for trial in known.trials),
        "device_seconds": round(known.device_seconds, 1),
        "best": {"trial": best.number, "loss": best.value, "settings": dict(best.point)},
        "default": [[said.resource, said.value] for said in known.trials[0].reports],
        **{name: last_validation(folder / name) for name in ("before", "after")},
    }


def last_validation(run: Path) -> dict[str, float]:
    """Figures of the averaged network at the end of a training."""
    lines = map(json.loads, (run / "history.jsonl").read_text().splitlines())
    last = [line for line in lines if line["kind"] == "validation"][-1]
    return {name: last[name] for name in ("events", *FIGURES) if name in last}


def main() -> None:
    """Do what is not done, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="*", help="datasets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbones", nargs="+", choices=BACKBONES, default=list(BACKBONES))
    parser.add_argument("--events", type=int, default=1_600_000, help="event presentations of a whole trial")
    parser.add_argument("--validation-events", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=300.0, help="of a study")
    parser.add_argument("--workers", type=int, default=6, help="trials at a time")
    parser.add_argument("--device", default="one H200, 16 cores", help="for the record")
    parser.add_argument("--set", nargs="*", default=[], help="further settings: compute.compile=no")
    parser.add_argument("--only-record", action="store_true")
    arguments = parser.parse_args()
    if not arguments.only_record:
        for backbone in arguments.backbones:
            (arguments.out / backbone).mkdir(parents=True, exist_ok=True)
            tune(arguments, backbone)
        compare(arguments)
    text = json.dumps(record(arguments), indent=1)
    (arguments.out / "tuning_campaign.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()

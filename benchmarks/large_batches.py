"""How large may the steps of a training be? Train the same network on the same events, for the same number of presentations,
with steps of several sizes, rates and optimisers.

    ringflow simulate ttbar --events 60000 --no-hits --out data/many
    python benchmarks/large_batches.py data/many --out large --preset clic_small --events 600000

All combinations of `--elements` (of a step), `--rates` and `--optimizers` are trained, `--jobs` at a time; further ones have
longer warm-ups and longer trainings. Rules for the rate are lines through that grid, and the best rate of a size is the tuned
opponent. Every finished training is a line of `runs.jsonl`, so that the same command goes on after an interruption; at the end
`large_batches.json` has all of them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

#: Elements that go through the network at once; larger steps take several lanes.
AT_ONCE = 262_144
#: Training events on which the loss is measured as on validation events: the difference is what was learned by heart.
SEEN = 1000
#: Of the averaged network at the end, on validation events.
FIGURES = ("loss", "jet_iqr_over_median", "jet_median", "particle_f1", "missing_momentum_error")


@dataclass(frozen=True)
class Trial:
    """One training."""

    optimizer: str
    elements: int
    rate: float
    events: int
    warmup: float = 0.05
    seed: int = 1


def trials(arguments: argparse.Namespace) -> list[Trial]:
    """The grid; then, for the largest steps, what may repair them; largest steps first, they teach most."""
    sizes = sorted(arguments.elements, reverse=True)
    grid = [
        Trial(name, elements, rate, arguments.events)
        for elements in sizes
        for name in arguments.optimizers
        for rate in arguments.rates
    ]
    repairs = [
        Trial(name, sizes[0], rate, times * arguments.events, warmup)
        for name in arguments.optimizers
        for rate in arguments.rates
        for warmup, times in ((0.3, 1), (0.05, 4))
    ]
    return [*grid, *repairs] if arguments.repairs else grid


class Place:
    """A process that holds the events and trains one network after the other."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch

        from ringflow.train.data import open_training_data
        from ringflow.train.device import choose_device

        torch.set_num_threads(1)
        self._arguments = arguments
        settings = self.settings(Trial("adamw", AT_ONCE, 1e-3, arguments.events))
        device = choose_device(arguments.device)
        with open_training_data(settings, device, Path(tempfile.mkdtemp())) as data:
            self._chunk = data.sources[0].chunk(0).to(device)
            self._data = data

    def settings(self, trial: Trial) -> Any:
        """The settings of a training."""
        from ringflow.train.settings import TrainSettings

        lanes = -(-trial.elements // AT_ONCE)
        words = {
            "data": ",".join(map(str, self._arguments.data)),
            "seed": trial.seed,
            "optimizer.name": trial.optimizer,
            "optimizer.rate": trial.rate,
            "optimizer.warmup": trial.warmup,
            "length.events": trial.events,
            "length.validate_every": trial.events,
            "length.validation_events": 2000,
            "length.checkpoint_seconds": 1e6,
            "source.lanes": lanes,
            "source.chunk_events": 10_000_000,
            "source.reuse": 1_000_000,
            "compute.device": self._arguments.device,
            "compute.batch_elements": trial.elements // lanes,
        }
        return TrainSettings.resolve(self._arguments.preset, [f"{name}={value}" for name, value in words.items()])

    def train(self, trial: Trial) -> dict[str, Any]:
        """Train, and return the figures."""
        import torch

        from ringflow.base.errors import RingflowError
        from ringflow.bench.training import KeptChunk
        from ringflow.models.file import load_model
        from ringflow.train.trainer import Trainer
        from ringflow.train.validation import ValidationLoss

        settings = self.settings(trial)
        lanes = settings.source.lanes
        events = self._chunk.num_events
        sources = {
            lane: KeptChunk(self._chunk.take(torch.arange(lane, events, lanes)) if lanes > 1 else self._chunk)
            for lane in range(lanes)
        }
        torch._dynamo.reset()
        with tempfile.TemporaryDirectory() as folder:
            data = replace(self._data, sources=sources, card={"detector": "clic"})
            try:
                result = Trainer(settings, data, Path(folder)).fit()
            except RingflowError as error:  # a rate can be too high
                return {**asdict(trial), "error": str(error).split(";")[0]}
            seen = ValidationLoss(self._chunk.take(torch.arange(SEEN)), settings, self._chunk.kind_N.device)
            learned = seen.measure(load_model(result["model"]).model.to(self._chunk.kind_N.device))
        figures = {name: result["best"][name] for name in FIGURES}
        counts = {"steps": result["steps"], "seconds": round(result["seconds"], 1)}
        return {**asdict(trial), **counts, "training_loss": learned["loss"], **figures}


_place: Place


def _settle(arguments: argparse.Namespace) -> None:
    global _place
    os.environ["OMP_NUM_THREADS"] = "1"
    _place = Place(arguments)


def _train(trial: Trial) -> dict[str, Any]:
    return _place.train(trial)


def main() -> None:
    """Train whatever is not yet done, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="+", help="datasets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="clic_small")
    parser.add_argument("--events", type=int, default=600_000, help="event presentations per training")
    parser.add_argument("--elements", type=int, nargs="+", default=[16_384, 65_536, 262_144, 1_048_576])
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2])
    parser.add_argument("--optimizers", nargs="+", default=["adamw", "lamb"])
    parser.add_argument(
        "--repairs", action="store_true", help="longer warm-ups and longer trainings of the largest steps"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    file = arguments.out / "runs.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {_key(row) for row in rows}
    left = [trial for trial in trials(arguments) if _key(asdict(trial)) not in done]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, _settle, (arguments,)) as places:
        for row in places.imap_unordered(_train, left):
            rows.append(row)
            with file.open("a") as lines:
                lines.write(json.dumps(row) + "\n")
            print(f"{len(rows)} of {len(done) + len(left)}", json.dumps(row), flush=True)
    _record(arguments, rows)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in Trial.__dataclass_fields__)


def _record(arguments: argparse.Namespace, rows: Iterable[dict[str, Any]]) -> None:
    from ringflow.data.read import Dataset
    from ringflow.train.device import choose_device, hardware

    data = [{"sample": dataset.manifest.sample, "events": len(dataset)} for dataset in map(Dataset, arguments.data)]
    record = {
        "benchmark": "large_batches",
        "preset": arguments.preset,
        "data": data,
        "rows": sorted(rows, key=_key),
        **hardware(choose_device(arguments.device).type),
    }
    (arguments.out / "large_batches.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

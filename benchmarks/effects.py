"""What each effect of a real detector does alone: to the rules, to perfect association and to a network.

    python benchmarks/effects.py --out effects --train 60000 --shown 240000 --jobs 8   # one H200, 16 cores: 5.5 minutes
    python benchmarks/effects.py --out effects --train 2000 --shown 8000 --test 100 --jobs 1 compute.compile=no

The detector is taken without any of the effects (`DetectorGeometry.without`), with each of them alone, and with all. The same
collisions go through every variant; the rules keep the constants of the whole detector, and the calibration is not made anew.
Two networks are asked of each variant: the one that was trained without any effect, and one that was trained with the effect,
both for the same short time on the same collisions, tested on others. Every figure is given with the central 68 % of a hundred
resampled sets of events, and as a ratio to the detector without effects, in which the events fluctuate together.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ringflow.base.config import write
from ringflow.base.log import progress
from ringflow.baseline.perfect import perfect_block
from ringflow.baseline.rules import load_constants, reconstruct_block
from ringflow.bench import write_record
from ringflow.bench.training import KeptChunk
from ringflow.elements.batch import from_block, join
from ringflow.evaluate.bootstrap import estimate, ratio
from ringflow.evaluate.metrics import metrics, spread
from ringflow.evaluate.momenta import checked
from ringflow.evaluate.sheet import Sheet, Truth, measure
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.infer.session import candidates
from ringflow.models.file import load_model
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, block_seed
from ringflow.sim.geometry import EFFECTS, DetectorGeometry, load_detector
from ringflow.train import collisions
from ringflow.train.collisions import TRAINING, VALIDATION, Stream, start_workers, stream_seed
from ringflow.train.data import TrainingData, measured_elements
from ringflow.train.device import choose_device, hardware
from ringflow.train.settings import TrainSettings
from ringflow.train.trainer import Trainer

Floats = npt.NDArray[np.float64]

SAMPLE, SEED = "ttbar", 21
NONE, ALL = "none", "all"
#: Events of a block that is made on a processor, and on an accelerator.
TESTED_AT_ONCE, TRAINED_AT_ONCE = 50, 2000
KEPT = ("track", "cluster", "target", "particle")
RULES, PERFECT, FIRST, AGAIN = "rules", "perfect", "network", "network, trained with it"
FIGURES = ("jet_iqr_over_median", "jet_rms90", "jet_median", "particle_f1", "generated_f1", "visible_energy_resolution")


def variants(detector: str) -> dict[str, DetectorGeometry]:
    """The detector without effects, with each of them, and with all."""
    whole = load_detector(detector)
    alone = {effect: whole.without(*(other for other in EFFECTS if other != effect)) for effect in EFFECTS}
    return {NONE: whole.without(), **alone, ALL: whole}


def tested(stream: Stream, index: int, detector: str) -> tuple[EventBlock, dict[str, Collection]]:
    """A block of test events as a network sees it, and what the rules and perfect association make of its hits."""
    block, constants = collisions.simulate(stream, index), load_constants(detector)
    made = {RULES: reconstruct_block(block, constants), PERFECT: perfect_block(block, constants)}
    return EventBlock(block.event_number, {name: block[name] for name in KEPT}), made


def trained(geometry: Path, blocks: list[GeneratedEvents], settings: TrainSettings, folder: Path) -> Path:
    """A network for one variant, from collisions that are the same for all; the file of its weights."""
    device = choose_device(settings.compute.device)
    torch.set_num_threads(1)
    detector = Detector(load_detector(str(geometry)), str(device))
    parts = [
        measured_elements(detector, block, block_seed(SEED, index), "cluster") for index, block in enumerate(blocks)
    ]
    held_out = parts.pop().to("cpu")  # for the one validation that ends a training; nothing is chosen by it
    data = TrainingData({0: KeptChunk(join(parts))}, held_out, card={"detector": detector.geometry.name})
    folder.mkdir(parents=True, exist_ok=True)
    Trainer(settings, data, folder).fit()
    return folder / "model.safetensors"


class Judged(NamedTuple):
    """Figures of a reconstruction, and the width of its jets in all resampled sets of events."""

    figures: dict[str, Any]
    widths: Floats


def judged(parts: list[tuple[EventBlock, dict[str, Collection]]], networks: dict[str, Path]) -> dict[str, Judged]:
    """What rules, perfect association and networks come to on the test events of a variant, on one core."""
    torch.set_num_threads(1)
    blocks, made = zip(*parts, strict=True)
    block = concatenate(list(blocks))
    truth, elements = Truth.of(block), from_block(block, "cluster")
    found = {name: _joined([one[name] for one in made]) for name in (RULES, PERFECT)}
    found |= {name: candidates(load_model(file).model, elements, 0.5) for name, file in networks.items()}
    results = {}
    for name, collection in found.items():
        sheet = Sheet.empty(SAMPLE, has_truth=True)
        measure(sheet, SAMPLE, block.event_number, truth, checked(collection, block.event_number, name))
        values = metrics(sheet, SAMPLE)
        results[name] = Judged({key: values[key] for key in FIGURES}, spread(sheet.entries["jet_response"])[1])
    return results


def row(effect: str, found: dict[str, Judged], reference: dict[str, Judged]) -> dict[str, Any]:
    """Figures of all reconstructions of a variant, and the ratio of the jet widths to those without effects."""
    return {"effect": effect} | {
        name: one.figures | {"jet_width_ratio": estimate(ratio(one.widths, reference[name].widths))}
        for name, one in found.items()
    }


def main() -> None:
    """Simulate, train, reconstruct; print the table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--detector", default="clic")
    parser.add_argument("--preset", default="clic_base")
    parser.add_argument("--train", type=int, default=100_000, help="different events of each training")
    parser.add_argument("--shown", type=int, default=800_000, help="event presentations of each training")
    parser.add_argument("--test", type=int, default=2000, help="test events")
    parser.add_argument("--jobs", type=int, default=3, help="trainings at a time")
    parser.add_argument("--workers", type=int, default=16, help="processes that simulate")
    parser.add_argument("--out", type=Path, required=True, help="folder for networks and record")
    parser.add_argument("overrides", nargs="*", help="settings of the training as section.field=value")
    options = parser.parse_args()
    shown = [f"length.events={options.shown}", f"length.validate_every={options.shown}"]
    settings = TrainSettings.resolve(options.preset, [*shown, *options.overrides])
    files = {}
    for effect, geometry in variants(options.detector).items():
        files[effect] = options.out / f"{effect.replace(' ', '_')}.toml"
        files[effect].parent.mkdir(parents=True, exist_ok=True)
        write(geometry, files[effect])

    pool = start_workers(options.workers)
    size = min(TRAINED_AT_ONCE, options.train)
    stream = Stream(SAMPLE, str(files[NONE]), stream_seed(SEED, TRAINING, SAMPLE), size)
    to_learn = [pool.submit(collisions.generate, stream, index) for index in range(-(-options.train // size) + 1)]
    seed = stream_seed(SEED, VALIDATION, SAMPLE)
    blocks = range(-(-options.test // TESTED_AT_ONCE))
    to_test = {
        effect: [
            pool.submit(tested, Stream(SAMPLE, str(file), seed, TESTED_AT_ONCE), index, options.detector)
            for index in blocks
        ]
        for effect, file in files.items()
    }
    generated = [future.result() for future in to_learn]
    networks: dict[str, Path] = {}
    with (
        ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as trainers,
        progress(len(files), "training") as advance,
    ):
        running = {
            effect: trainers.submit(trained, file, generated, settings, options.out / file.stem)
            for effect, file in files.items()
        }
        for effect, training in running.items():
            networks[effect] = training.result()
            advance(1)

    results = {
        effect: pool.submit(judged, [one.result() for one in futures], {FIRST: networks[NONE], AGAIN: networks[effect]})
        for effect, futures in to_test.items()
    }
    found = {effect: future.result() for effect, future in results.items()}
    rows = [row(effect, one, found[NONE]) for effect, one in found.items()]
    pool.shutdown()
    record = {
        "benchmark": "effects",
        "detector": options.detector,
        "sample": SAMPLE,
        "train_events": options.train,
        "shown_events": options.shown,
        "test_events": len(blocks) * TESTED_AT_ONCE,
        "settings": settings.model_dump(mode="json"),
        "rows": rows,
        **hardware(choose_device(settings.compute.device).type),
    }
    print(table(rows))
    print(write_record(record, options.out / "effects.json"))


def _joined(parts: list[Collection]) -> Collection:
    """Collections of consecutive blocks as one."""
    names = parts[0].columns
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    return Collection(np.concatenate([part.counts for part in parts]), columns)


def table(rows: list[dict[str, Any]]) -> str:
    """Jet width and F1 of everything, as Markdown."""
    names = (RULES, PERFECT, FIRST, AGAIN)
    lines = [
        "| effect | " + " | ".join(f"{name}: jet width | ratio | F1" for name in names) + " |",
        "|---|" + "---|" * 3 * len(names),
    ]
    for found in rows:
        cells = []
        for name in names:
            width, times = found[name]["jet_iqr_over_median"], found[name]["jet_width_ratio"]
            cells.append(f"{width['value']:.4f} ± {0.5 * (width['hi'] - width['lo']):.4f}")
            cells.append(f"{times['value']:.3f} ({times['lo']:.3f} to {times['hi']:.3f})")
            cells.append(f"{found[name]['particle_f1']['value']:.3f}")
        lines.append(f"| {found['effect']} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

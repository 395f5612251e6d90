"""What an event costs: `ringflow bench simulate`, `bench baseline`, `bench model` and `bench infer`.

`simulate`: on a CPU the whole production of ttbar events at 380 GeV is timed: generator, detector, hits, clusters, truth and
writing, start-up included. On a GPU the generator events are given and nothing is written: this is the rate at which a GPU can
simulate its own training data.

`baseline`: how the time of the rules grows is fitted to events of 25, 50, 100 and 200 charged pions, as published for Pandora
(1.4 to 1.8, arXiv:2309.06782).

`model` and `infer`: what a network costs on a CPU with batch 1, two threads, float32, each row in a process of its own.
`cpu_ms_per_event` is the processor time of all threads, the median of repeated runs; `wall_ms_per_event` is what a clock on
the wall says. `peak_mb` is how far the resident memory rises in the first run of the measured event, after a small one: buffers
that are freed on the way count, weights and the event do not.

`model` has a row per backbone and number of elements, and how the time grows with it. `infer` has one per engine: every one
computes the same function, from raw detector values to particles, as an exported file does: `torch` is the traced program run
eagerly, `onnx` the file, `onnx-int8` the file in int8. Its rows are the fastest of three rounds in which the engines take
turns: what else a machine does comes and goes, and must not hit one of them alone.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.processes import keep_freed_memory
from ringflow.baseline.rules import load_constants, reconstruct_block
from ringflow.bench import growth, in_fresh_process, median_milliseconds, peak_megabytes
from ringflow.data.read import Dataset
from ringflow.elements.batch import random_elements
from ringflow.event.block import EventBlock
from ringflow.infer import export, shipped
from ringflow.infer.runtime import EventRuntime, event_values
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.recipes.reconstruct import reconstruct
from ringflow.recipes.simulate import simulate as produce
from ringflow.sim.blocks import SimulatedBlocks
from ringflow.sim.detector import Detector
from ringflow.sim.generator import GeneratedEvents, at_origin, make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings
from ringflow.train.device import choose_device, hardware, peak_memory, synchronize

#: Events per tensor batch on a GPU, which needs more of them to be busy than a CPU.
GPU_BLOCK_EVENTS = 4000
PIONS = (25, 50, 100, 200)
_PION, _PION_MASS = 211, 0.13957
_SIMULATE_SEED, _BASELINE_SEED = 20_261, 20_263
_BLOCKS = 4

BACKBONES = ("graph", "kernel", "attention", "mlp", shipped.SHIPPED)
MODEL_ELEMENTS = (128, 256, 512, 1024, 4096, 8192, 16_384, 50_000)
#: The exponents are fitted between these numbers of elements, if at least three were measured.
_FITTED = (1_000, 50_000)
_QUADRATIC_UP_TO = 16_384
ENGINES = ("torch", "onnx", "onnx-int8")
INFER_ELEMENTS = (64, 128, 512, 2048, 8192)
_THREADS = 2
_WARM_UP_ELEMENTS = 32
_INFER_SEED, _CALIBRATION_EVENTS, _ROUNDS = 77, 50, 3


def ttbar(seed: int, *, detector: str = "clic", **production: Any) -> SimulateSettings:
    """A production of ttbar events."""
    return SimulateSettings(
        detector=detector,
        generator=GeneratorSettings(sample="ttbar", seed=seed),
        production=ProductionSettings(**production),
    )


def simulate(events: int, workers: int, detector: str, device: str) -> dict[str, Any]:
    """Time a production and describe the machine it ran on."""
    measured = _production(events, workers, detector) if device == "cpu" else _on_device(events, detector, device)
    about = {"benchmark": "simulate", "sample": "ttbar", "detector": detector, "device": device}
    return {**about, **measured, **hardware(device)}


def _production(events: int, workers: int, detector: str) -> dict[str, Any]:
    settings = ttbar(_SIMULATE_SEED, detector=detector, events=events, workers=workers)
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as folder:
        summary = produce(settings, Path(folder) / "dataset")
    who = resource.RUSAGE_SELF if workers == 1 else resource.RUSAGE_CHILDREN
    peak = resource.getrusage(who).ru_maxrss / 1024
    # After the production, which pays for the imports itself as every worker does: block by block, the first to warm up.
    source, moments = SimulatedBlocks(settings), []
    for index in range(_BLOCKS + 1):
        start = time.perf_counter()
        generated = source.generate(index)
        middle = time.perf_counter()
        source.measure(generated, index)
        moments.append((middle - start, time.perf_counter() - middle))
    source.close()
    stages = 1000.0 * np.sum(moments[1:], axis=0) / (_BLOCKS * settings.production.block_events)
    return {
        "events": events,
        "workers": workers,
        "events_per_second": summary["events_per_second"],
        "events_per_second_per_core": round(summary["events_per_second"] / workers, 2),
        "peak_mb_per_worker": round(peak, 1),
        "kilobytes_per_event": round(summary["bytes"] / summary["events"] / 1000, 1),
        "milliseconds_per_event": dict(zip(("generate", "detector"), stages.round(3).tolist(), strict=True)),
    }


def _on_device(events: int, detector: str, device: str) -> dict[str, Any]:
    place = choose_device(device)
    geometry = load_detector(detector)
    generator = make_generator(ttbar(_SIMULATE_SEED).generator, *geometry.tracker_cylinder)
    count = max(1, events // GPU_BLOCK_EVENTS)
    blocks = [generator.generate(index * GPU_BLOCK_EVENTS, GPU_BLOCK_EVENTS) for index in range(count)]
    simulator = Detector(geometry, device)
    simulator.simulate(blocks[0], 0)  # allocations and kernel loading stay out of the number
    synchronize(place)
    start = time.perf_counter()
    hits = sum(len(simulator.simulate(block, seed)["hit"].event) for seed, block in enumerate(blocks))
    synchronize(place)
    seconds = time.perf_counter() - start
    total = count * GPU_BLOCK_EVENTS
    return {
        "events": total,
        "block_events": GPU_BLOCK_EVENTS,
        "events_per_second": round(total / seconds, 1),
        "mean_hits": round(hits / total, 1),
        "peak_gpu_mb": round(peak_memory(place) / 2**20, 1),
    }


def baseline(events: int, detector: str, constants: str | None = None) -> dict[str, Any]:
    """Events per second on ttbar and milliseconds per event of pions, on one core, simulation not counted."""
    torch.set_num_threads(1)
    geometry = load_detector(detector)
    known = load_constants(constants or geometry.name)
    simulator = Detector(geometry)
    generator = make_generator(ttbar(_BASELINE_SEED).generator, *geometry.tracker_cylinder)

    def milliseconds(block: EventBlock) -> float:
        return median_milliseconds(lambda: reconstruct_block(block, known), least_seconds=0.0)[1] / len(block)

    tops = simulator.simulate_block(generator.generate(0, events), _BASELINE_SEED)
    reconstruct_block(tops.take(0, 1), known)  # compiles the loops
    rows = []
    for pions in PIONS:
        block = simulator.simulate_block(many_pions(pions, max(events // pions, 4)), _BASELINE_SEED)
        rows.append({"pions": pions, "milliseconds_per_event": round(milliseconds(block), 3)})
    return {
        "benchmark": "baseline",
        "detector": detector,
        "events": events,
        "events_per_second_per_core": round(1000.0 / milliseconds(tops), 1),
        "pions": rows,
        "exponent": growth(rows, "pions", "milliseconds_per_event"),
        "published_exponent": [1.4, 1.8],
        **hardware("cpu"),
    }


def many_pions(pions: int, events: int) -> GeneratedEvents:
    """Events of charged pions of 1 to 20 GeV, uniform over the barrel."""
    rng = np.random.default_rng(pions)
    count = pions * events
    energy = rng.uniform(1.0, 20.0, count)
    momentum = np.sqrt(energy**2 - _PION_MASS**2)
    cosine, azimuth = rng.uniform(-0.7, 0.7, count), rng.uniform(-np.pi, np.pi, count)
    transverse = momentum * np.sqrt(1.0 - cosine**2)
    direction = (transverse * np.cos(azimuth), transverse * np.sin(azimuth), momentum * cosine)
    charges = rng.choice([_PION, -_PION], count).astype(np.int32)
    return at_origin(np.arange(events), np.full(events, pions), charges, *direction, energy)


def _costs(answer: Callable[[Any], object], event_of: Callable[[int], Any], num_elements: int) -> dict[str, float]:
    """Of an event with so many elements, in this process, which must be fresh for the memory to be right."""
    with torch.inference_mode():
        answer(event_of(_WARM_UP_ELEMENTS))
        event = event_of(num_elements)
        peak = peak_megabytes(lambda: answer(event))
        cpu, wall = median_milliseconds(lambda: answer(event))
    return {"cpu_ms_per_event": round(cpu, 3), "wall_ms_per_event": round(wall, 3), "peak_mb": round(peak, 1)}


def time_models(backbones: Sequence[str] = (), elements: Sequence[int] = ()) -> dict[str, Any]:
    """Rows of backbone and number of elements, and the exponents of the growth of the processor time."""
    if unknown := sorted(set(backbones) - set(BACKBONES)):
        raise UsageError(f"no backbone named {unknown[0]!r}; choose from {', '.join(BACKBONES)}")
    notes = ["attention is quadratic: by default up to 16,384 elements"] if not elements else []
    names = list(backbones or BACKBONES)
    if shipped.SHIPPED in names and not shipped.is_there():
        names.remove(shipped.SHIPPED)
        notes.append(f"no shipped model at {shipped.MODEL.name}: not measured")
    rows, exponents = [], {}
    for name in names:
        kind = load_model(shipped.MODEL).model.settings.backbone if name == shipped.SHIPPED else name
        most = _QUADRATIC_UP_TO if kind == "attention" else max(MODEL_ELEMENTS)
        counts = elements or [count for count in MODEL_ELEMENTS if count <= most]
        measured = [in_fresh_process(measure_model, name, count) for count in counts]
        fitted = [row for row in measured if _FITTED[0] <= row["num_elements"] <= _FITTED[1]]
        if len(fitted) >= 3:
            exponents[name] = growth(fitted, "num_elements", "cpu_ms_per_event")
        rows += measured
    return {
        "benchmark": "model",
        "batch": 1,
        "threads": _THREADS,
        "precision": "float32",
        "rows": rows,
        "exponents": exponents,
        "notes": notes,
        **hardware("cpu"),
    }


def measure_model(backbone: str, num_elements: int) -> dict[str, Any]:
    """One row."""
    torch.set_num_threads(_THREADS)
    keep_freed_memory()  # one event after the other needs the same buffers; else half the time goes into page faults
    torch.manual_seed(1)
    model = (
        load_model(shipped.MODEL).model
        if backbone == shipped.SHIPPED
        else Model(ModelSettings.model_validate({"backbone": backbone, "activation": "relu"})).eval()
    )
    costs = _costs(model.predict, lambda count: random_elements([count], model.settings.calorimeter), num_elements)
    return {"backbone": backbone, "num_elements": num_elements, "parameters": model.num_parameters, **costs}


def time_engines(
    engines: Sequence[str] = (), elements: Sequence[int] = (), events: int = 200, model: Path | None = None
) -> dict[str, Any]:
    """Rows of engine and number of elements, and events per second of `ringflow reconstruct`, from file to file."""
    if unknown := sorted(set(engines) - set(ENGINES)):
        raise UsageError(f"no engine named {unknown[0]!r}; choose from {', '.join(ENGINES)}")
    path, names, counts = shipped.model_file(model), list(engines or ENGINES), elements or INFER_ELEMENTS
    if set(names) != {"torch"}:
        export.require_onnx()
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as name:
        dataset = Path(name) / "dataset"
        say(f"simulating {events} ttbar events")
        produce(ttbar(_INFER_SEED, events=events, keep_hits=False), dataset)
        files = _files(path, dataset, names)
        rounds = [
            {
                (name, count): in_fresh_process(measure_engine, name, files[name], dataset, count)
                for count in counts
                for name in names
            }
            for _ in range(_ROUNDS)
        ]
        torch.set_num_threads(_THREADS)
        whole = {
            name: reconstruct(
                dataset, dataset.parent / f"{name}.parquet", model=files[name], threads=_THREADS, device="cpu"
            )
            for name in names
        }
    return {
        "benchmark": "infer",
        "model": shipped.SHIPPED if path == shipped.MODEL else path.name,
        "batch": 1,
        "threads": _THREADS,
        "rows": [
            max((found[name, count] for found in rounds), key=lambda row: float(row["events_per_second"]))
            for name in names
            for count in counts
        ],
        "file_to_file_events": events,
        "file_to_file_events_per_second": {name: found["events_per_second"] for name, found in whole.items()},
        **hardware("cpu"),
    }


def _files(path: Path, dataset: Path, engines: Sequence[str]) -> dict[str, Path]:
    """The file each engine takes."""
    files = {"torch": path, "onnx": dataset.with_name("float32.onnx"), "onnx-int8": dataset.with_name("int8.onnx")}
    if set(engines) != {"torch"}:
        say("exporting the model")
        described = export.write_onnx(files["onnx"], load_model(path))
        if "onnx-int8" in engines:
            blocks = Dataset(dataset).events(columns=list(described.kinds))
            export.write_int8(files["onnx-int8"], files["onnx"], blocks, _CALIBRATION_EVENTS)
    return files


def measure_engine(engine: str, file: Path, dataset: Path, num_elements: int) -> dict[str, Any]:
    """One row."""
    torch.set_num_threads(_THREADS)
    keep_freed_memory()
    answer: Callable[[dict[str, npt.NDArray[np.float32]]], object]
    if engine == "torch":
        loaded = load_model(file)
        graph, inputs = export.EventGraph(loaded).eval(), export.describe(loaded).inputs
        answer = lambda event: graph(*map(torch.from_numpy, event.values()))  # noqa: E731
    else:
        runtime = EventRuntime(file, _THREADS)
        answer, inputs = runtime.run, runtime.description.inputs
    block = next(Dataset(dataset).events(columns=list(inputs)))
    costs = _costs(answer, lambda count: draw_event(block, inputs, count), num_elements)
    speed = round(1000.0 / costs.pop("wall_ms_per_event"), 2)
    return {"engine": engine, "num_elements": num_elements, "events_per_second": speed, **costs}


def draw_event(block: EventBlock, inputs: Mapping[str, Any], num_elements: int) -> dict[str, npt.NDArray[np.float32]]:
    """An event of so many elements, drawn from those of real ones in their shares of tracks and others."""
    events = list(event_values(block, inputs))
    rng = np.random.default_rng(_INFER_SEED)
    tables = {kind: np.concatenate([event[kind] for event in events]) for kind in inputs}
    tracks = round(num_elements * len(tables["track"]) / sum(map(len, tables.values())))
    counts = dict(zip(inputs, (tracks, num_elements - tracks), strict=True))
    return {kind: table[rng.integers(0, len(table), counts[kind])] for kind, table in tables.items()}

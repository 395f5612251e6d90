"""`ringflow bench model` and `ringflow bench infer`: what a network costs on a CPU, event by event.

Batch 1, two threads, float32, each row in a process of its own. `cpu_ms_per_event` is the processor time of all threads, the
median of repeated runs; `wall_ms_per_event` is what a clock on the wall says. `peak_mb` is how far the resident memory rises in
the first run of the measured event, after a small one: buffers that are freed on the way count, weights and the event do not.

`model` has a row per backbone and number of elements, and how the time grows with it. `infer` has one per engine: every one
computes the same function, from raw detector values to particles, as an exported file does: `torch` is the traced program run
eagerly, `onnx` the file, `onnx-int8` the file in int8. Its rows are the fastest of three rounds in which the engines take
turns: what else a machine does comes and goes, and must not hit one of them alone.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.processes import keep_freed_memory
from ringflow.bench.measure import in_fresh_process, median_milliseconds, peak_megabytes
from ringflow.data.read import Dataset
from ringflow.elements.batch import random_elements
from ringflow.event.block import EventBlock
from ringflow.infer import export, shipped
from ringflow.infer.runtime import EventRuntime, event_values
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.train.device import hardware

BACKBONES = ("graph", "kernel", "attention", "mlp", shipped.SHIPPED)
MODEL_ELEMENTS = (128, 256, 512, 1024, 4096, 8192, 16_384, 50_000)
#: The exponents are fitted between these numbers of elements, if at least three were measured.
_FITTED = (1_000, 50_000)
_QUADRATIC_UP_TO = 16_384
ENGINES = ("torch", "onnx", "onnx-int8")
INFER_ELEMENTS = (64, 128, 512, 2048, 8192)
_THREADS = 2
_WARM_UP_ELEMENTS = 32
_SEED, _CALIBRATION_EVENTS, _ROUNDS = 77, 50, 3


def time_models(backbones: Sequence[str] = (), elements: Sequence[int] = ()) -> dict[str, Any]:
    """Rows of backbone and number of elements, and the exponents of the growth of the processor time."""
    if unknown := sorted(set(backbones) - set(BACKBONES)):
        raise UsageError(f"no backbone named {unknown[0]!r}; choose from {', '.join(BACKBONES)}")
    notes = ["attention is quadratic: by default up to 16,384 elements"] if not elements else []
    names = list(backbones or BACKBONES)
    if shipped.SHIPPED in names and not shipped.is_there():
        names.remove(shipped.SHIPPED)
        notes.append(f"no shipped model at {shipped.MODEL.name}: not measured")
    rows = [in_fresh_process(measure_model, name, count) for name in names for count in elements or _elements_of(name)]
    return {
        "benchmark": "model",
        "batch": 1,
        "threads": _THREADS,
        "precision": "float32",
        "rows": rows,
        "exponents": {name: slope for name in names if (slope := _exponent(rows, name)) is not None},
        "notes": notes,
        **hardware("cpu"),
    }


def _elements_of(backbone: str) -> list[int]:
    kind = load_model(shipped.MODEL).model.settings.backbone if backbone == shipped.SHIPPED else backbone
    return [count for count in MODEL_ELEMENTS if kind != "attention" or count <= _QUADRATIC_UP_TO]


def _exponent(rows: Sequence[Mapping[str, Any]], backbone: str) -> float | None:
    """Slope of log processor time over log elements; None if fewer than three rows are in the fitted range."""
    low, high = _FITTED
    chosen = [row for row in rows if row["backbone"] == backbone and low <= row["num_elements"] <= high]
    if len(chosen) < 3:
        return None
    sizes, times = ([row[key] for row in chosen] for key in ("num_elements", "cpu_ms_per_event"))
    return round(float(np.polyfit(np.log(sizes), np.log(times), 1)[0]), 3)


def measure_model(backbone: str, num_elements: int) -> dict[str, Any]:
    """One row, in this process, which must be fresh for the memory to be right."""
    torch.set_num_threads(_THREADS)
    keep_freed_memory()  # one event after the other needs the same buffers; else half the time goes into page faults
    torch.manual_seed(1)
    model = (
        load_model(shipped.MODEL).model
        if backbone == shipped.SHIPPED
        else Model(ModelSettings.model_validate({"backbone": backbone, "activation": "relu"})).eval()
    )
    event, small = (random_elements([count], model.settings.calorimeter) for count in (num_elements, _WARM_UP_ELEMENTS))
    with torch.inference_mode():
        model.predict(small)
        peak = peak_megabytes(lambda: model.predict(event))
        cpu, wall = median_milliseconds(lambda: model.predict(event))
    return {
        "backbone": backbone,
        "num_elements": num_elements,
        "parameters": model.num_parameters,
        "cpu_ms_per_event": round(cpu, 3),
        "wall_ms_per_event": round(wall, 3),
        "peak_mb": round(peak, 1),
    }


def time_engines(
    engines: Sequence[str] = (), elements: Sequence[int] = (), events: int = 200, model: Path | None = None
) -> dict[str, Any]:
    """Rows of engine and number of elements, and events per second of `ringflow reconstruct`, from file to file."""
    if unknown := sorted(set(engines) - set(ENGINES)):
        raise UsageError(f"no engine named {unknown[0]!r}; choose from {', '.join(ENGINES)}")
    path, names, counts = shipped.model_file(model), list(engines or ENGINES), elements or INFER_ELEMENTS
    if set(names) != {"torch"}:
        export.require_onnx()
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as folder:
        dataset = _dataset(Path(folder) / "dataset", events)
        files = _files(path, Path(folder), dataset, names)
        rounds = [
            {
                (name, count): in_fresh_process(measure_engine, name, files[name], dataset, count)
                for count in counts
                for name in names
            }
            for _ in range(_ROUNDS)
        ]
        file_to_file = {name: _file_to_file(name, files[name], dataset) for name in names}
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
        "file_to_file_events_per_second": file_to_file,
        **hardware("cpu"),
    }


def _dataset(folder: Path, events: int) -> Path:
    from ringflow.bench.events import ttbar
    from ringflow.recipes.simulate import simulate

    say(f"simulating {events} ttbar events")
    simulate(ttbar(_SEED, events=events, keep_hits=False), folder)
    return folder


def _files(path: Path, folder: Path, dataset: Path, engines: Sequence[str]) -> dict[str, Path]:
    """The file each engine takes."""
    files = {"torch": path, "onnx": folder / "float32.onnx", "onnx-int8": folder / "int8.onnx"}
    if {"onnx", "onnx-int8"} & set(engines):
        say("exporting the model")
        described = export.write_onnx(files["onnx"], load_model(path))
        if "onnx-int8" in engines:
            blocks = Dataset(dataset).events(columns=list(described.kinds))
            export.write_int8(files["onnx-int8"], files["onnx"], blocks, _CALIBRATION_EVENTS)
    return files


def measure_engine(engine: str, file: Path, dataset: Path, num_elements: int) -> dict[str, Any]:
    """One row, in this process, which must be fresh for the memory to be right."""
    keep_freed_memory()
    answer, inputs = _open(engine, file)
    block = next(Dataset(dataset).events(columns=list(inputs)))
    answer(draw_event(block, inputs, _WARM_UP_ELEMENTS))
    event = draw_event(block, inputs, num_elements)
    peak = peak_megabytes(lambda: answer(event))
    cpu, wall = median_milliseconds(lambda: answer(event))
    return {
        "engine": engine,
        "num_elements": num_elements,
        "events_per_second": round(1000.0 / wall, 2),
        "cpu_ms_per_event": round(cpu, 3),
        "peak_mb": round(peak, 1),
    }


def _open(engine: str, file: Path) -> tuple[Callable[[dict[str, Any]], object], Mapping[str, Any]]:
    """A call that reconstructs one event, and the inputs it takes."""
    if engine != "torch":
        runtime = EventRuntime(file, _THREADS)
        return runtime.run, runtime.description.inputs
    torch.set_num_threads(_THREADS)
    loaded = load_model(file)
    graph = export.EventGraph(loaded).eval()

    def answer(event: dict[str, npt.NDArray[np.float32]]) -> object:
        with torch.inference_mode():
            return graph(*(torch.from_numpy(table) for table in event.values()))

    return answer, export.describe(loaded).inputs


def draw_event(block: EventBlock, inputs: Mapping[str, Any], num_elements: int) -> dict[str, npt.NDArray[np.float32]]:
    """An event of so many elements, drawn from those of real ones in their shares of tracks and others."""
    events = list(event_values(block, inputs))
    rng = np.random.default_rng(_SEED)
    tables = {kind: np.concatenate([event[kind] for event in events]) for kind in inputs}
    tracks = round(num_elements * len(tables["track"]) / sum(map(len, tables.values())))
    counts = dict(zip(inputs, (tracks, num_elements - tracks), strict=True))
    return {kind: table[rng.integers(0, len(table), counts[kind])] for kind, table in tables.items()}


def _file_to_file(engine: str, file: Path, dataset: Path) -> float:
    """Reading, features, network, decoding and writing."""
    from ringflow.recipes.reconstruct import reconstruct

    torch.set_num_threads(_THREADS)
    out = dataset.parent / f"{engine}.parquet"
    return float(reconstruct(dataset, out, model=file, threads=_THREADS, device="cpu")["events_per_second"])

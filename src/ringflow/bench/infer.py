"""`ringflow bench infer`: what an event costs by engine, and how many events a file-to-file reconstruction makes in a second.

The rows are of one event at a time on two threads, in memory, each measured in a process of its own. Every engine computes the
same function, from raw detector values to particles, as an exported file does: `torch` is the traced program run eagerly,
`onnx` the file, `onnx-int8` the file in int8. Times are medians of repeated runs, the fastest of three rounds in which the
engines take turns: what else a machine does comes and goes, and must not hit one of them alone.
`peak_mb` is how far the resident memory rises in the first event of that size.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.processes import keep_freed_memory
from ringflow.bench.model import peak_megabytes
from ringflow.bench.record import hardware
from ringflow.infer import shipped
from ringflow.infer.shipped import model_file

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ringflow.event.block import EventBlock

ENGINES = ("torch", "onnx", "onnx-int8")
ELEMENTS = (64, 128, 512, 2048, 8192)
_THREADS = 2
_SAMPLE, _SEED = "ttbar", 77
_CALIBRATION_EVENTS = 50
_LEAST_REPEATS = 3
_LEAST_SECONDS = 1.0
_ROUNDS = 3
_WARM_UP_ELEMENTS = 32


def run(
    engines: Sequence[str] = (), elements: Sequence[int] = (), events: int = 200, model: Path | None = None
) -> dict[str, Any]:
    """Rows of engine and number of elements, and events per second from file to file of the float engines."""
    if unknown := sorted(set(engines) - set(ENGINES)):
        raise UsageError(f"no engine named {unknown[0]!r}; choose from {', '.join(ENGINES)}")
    path, names = model_file(model), list(engines or ENGINES)
    if set(names) != {"torch"}:
        from ringflow.infer.export import require_onnx

        require_onnx()
    with tempfile.TemporaryDirectory(prefix="ringflow-bench-") as folder:
        dataset = _simulate(Path(folder) / "dataset", events)
        files = _files(path, Path(folder), dataset, names)
        rows = _rows(files, dataset, names, elements or ELEMENTS)
        file_to_file = {name: _file_to_file(name, files[name], dataset) for name in names}
    return {
        "benchmark": "infer",
        "model": "shipped" if path == shipped.MODEL else path.name,
        "batch": 1,
        "threads": _THREADS,
        "rows": rows,
        "file_to_file_events": events,
        "file_to_file_events_per_second": file_to_file,
        **hardware("cpu"),
    }


def _rows(
    files: Mapping[str, Path], dataset: Path, engines: Sequence[str], elements: Sequence[int]
) -> list[dict[str, Any]]:
    """The best round of every engine and number of elements."""
    cases = [(name, count) for name in engines for count in elements]
    rounds = [
        {(name, count): _measured_apart(name, files[name], dataset, count) for count in elements for name in engines}
        for _ in range(_ROUNDS)
    ]
    return [max((found[case] for found in rounds), key=lambda row: row["events_per_second"]) for case in cases]


def measure(engine: str, file: Path, dataset: Path, num_elements: int) -> dict[str, Any]:
    """One row, in this process, which must be fresh for the memory to be right."""
    keep_freed_memory()
    answer, inputs = _open(engine, file)
    block = _first_block(dataset, tuple(inputs))
    answer(_event(block, inputs, _WARM_UP_ELEMENTS))
    event = _event(block, inputs, num_elements)
    peak = peak_megabytes(lambda: answer(event))
    cpu: list[float] = []
    wall: list[float] = []
    end = time.perf_counter() + _LEAST_SECONDS
    while len(cpu) < _LEAST_REPEATS or time.perf_counter() < end:
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        answer(event)
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    return {
        "engine": engine,
        "num_elements": num_elements,
        "events_per_second": round(1.0 / statistics.median(wall), 2),
        "cpu_ms_per_event": round(1000.0 * statistics.median(cpu), 3),
        "peak_mb": round(peak, 1),
    }


def _simulate(folder: Path, events: int) -> Path:
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings

    say(f"simulating {events} {_SAMPLE} events")
    settings = SimulateSettings(
        generator=GeneratorSettings(sample=_SAMPLE, seed=_SEED),
        production=ProductionSettings(events=events, keep_hits=False),
    )
    simulate(settings, folder)
    return folder


def _files(path: Path, folder: Path, dataset: Path, engines: Sequence[str]) -> dict[str, Path]:
    """The file each engine takes."""
    from ringflow.data.read import Dataset
    from ringflow.infer.export import write_int8, write_onnx
    from ringflow.models.file import load_model

    files = {"torch": path, "onnx": folder / "float32.onnx", "onnx-int8": folder / "int8.onnx"}
    if {"onnx", "onnx-int8"} & set(engines):
        say("exporting the model")
        described = write_onnx(files["onnx"], load_model(path))
        if "onnx-int8" in engines:
            blocks = Dataset(dataset).events(columns=list(described.kinds))
            write_int8(files["onnx-int8"], files["onnx"], blocks, _CALIBRATION_EVENTS)
    return files


def _open(engine: str, file: Path) -> tuple[Callable[[dict[str, Any]], object], dict[str, Any]]:
    """A call that reconstructs one event, and the inputs it takes."""
    if engine != "torch":
        from ringflow.infer.runtime import EventRuntime

        runtime = EventRuntime(file, _THREADS)
        return runtime.run, runtime.description.inputs
    import torch

    from ringflow.infer.export import EventGraph, describe
    from ringflow.models.file import load_model

    torch.set_num_threads(_THREADS)
    loaded = load_model(file)
    graph = EventGraph(loaded).eval()

    def answer(event: dict[str, npt.NDArray[np.float32]]) -> object:
        with torch.inference_mode():
            return graph(*(torch.from_numpy(table) for table in event.values()))

    return answer, describe(loaded).inputs


def _first_block(dataset: Path, kinds: Sequence[str]) -> EventBlock:
    from ringflow.data.read import Dataset

    return next(Dataset(dataset).events(columns=list(kinds)))


def _event(block: EventBlock, inputs: dict[str, Any], num_elements: int) -> dict[str, npt.NDArray[np.float32]]:
    """An event of so many elements, drawn from those of real ones in their shares of tracks and others."""
    import numpy as np

    from ringflow.infer.runtime import event_values

    events = list(event_values(block, inputs))
    rng = np.random.default_rng(_SEED)
    tables = {kind: np.concatenate([event[kind] for event in events]) for kind in inputs}
    tracks = round(num_elements * len(tables["track"]) / sum(map(len, tables.values())))
    counts = dict(zip(inputs, (tracks, num_elements - tracks), strict=True))
    return {kind: table[rng.integers(0, len(table), counts[kind])] for kind, table in tables.items()}


def _measured_apart(engine: str, file: Path, dataset: Path, num_elements: int) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads and the memory of this process
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, engine, file, dataset, num_elements).result()


def _file_to_file(engine: str, file: Path, dataset: Path) -> float:
    """Events per second of `ringflow reconstruct`: reading, features, network, decoding and writing."""
    import torch

    from ringflow.recipes.reconstruct import reconstruct

    torch.set_num_threads(_THREADS)
    out = dataset.parent / f"{engine}.parquet"
    return float(reconstruct(dataset, out, model=file, threads=_THREADS, device="cpu")["events_per_second"])

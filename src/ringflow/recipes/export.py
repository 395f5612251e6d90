"""Export: from a trained network to one ONNX file, which is compared with the network before it appears.

In int8 a table says what is given up and what is gained: jets and particles against speed and size, on the same events.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.export.check import Comparison, compare
from ringflow.export.description import Description
from ringflow.export.onnx import write_onnx
from ringflow.export.quantize import write_int8
from ringflow.export.runtime import EventRuntime
from ringflow.models.file import LoadedModel, load_model
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.inputs import open_input
from ringflow.recipes.models import model_file
from ringflow.recipes.reconstruct import reconstruct
from ringflow.recipes.reconstructions import has_truth
from ringflow.recipes.simulate import SimulatedBlocks
from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings

#: Events the file is compared on, and those that ranges of int8 are measured on, unless the user says otherwise.
CHECKED_EVENTS = 200
CALIBRATION_EVENTS = 200
#: What is simulated to compare on where no dataset is given.
_SAMPLE, _SIMULATED_EVENTS, _SEED = "ttbar", 20, 20_260
_FIGURES = ("jet_median", "jet_iqr_over_median", "particle_f1")


def export(
    model: Path | None,
    out: Path,
    *,
    check: Path | None = None,
    events: int = CHECKED_EVENTS,
    int8: bool = False,
    calibrate: Path | None = None,
) -> dict[str, Any]:
    """Write a model as ONNX. A float32 file that differs from the network does not appear: `ok` is false."""
    _require(out, int8, calibrate)
    path = model_file(model)
    if path.suffix == ".onnx":
        raise UsageError(f"{path} is exported already; give a model file, the folder of a run, or `shipped`")
    loaded = load_model(path)
    if int8 and calibrate is not None:
        Dataset(calibrate)  # a wrong folder is told before the work
    blocks = _blocks(loaded, check, events)
    with tempfile.TemporaryDirectory(prefix="ringflow-export-") as folder:
        full = Path(folder) / "float32.onnx"
        say("tracing the network")
        described = write_onnx(full, loaded)
        say("comparing with the network")
        compared = compare(loaded, EventRuntime(full), blocks)
        result = {**_summary(out, described, compared), "cost": None}
        made = full
        if int8 and calibrate is not None and compared.ok:
            made = Path(folder) / "int8.onnx"
            say("measuring ranges for int8")
            given = open_input(calibrate, None, CALIBRATION_EVENTS, None)
            described = write_int8(made, full, given.blocks(described.kinds), CALIBRATION_EVENTS)
            result["precision"] = described.precision
            result["cost"] = _cost([full, made], check or calibrate, events)
        if compared.ok:
            with write_errors(out):
                out.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(out, made.read_bytes())
            result["bytes"] = out.stat().st_size
    return result


def _require(out: Path, int8: bool, calibrate: Path | None) -> None:
    if out.suffix != ".onnx":
        raise UsageError(f"the name of an ONNX file ends in .onnx, not like {out}; choose another")
    if int8 and calibrate is None:
        raise UsageError("--int8 needs events to measure ranges on; give --calibrate DATASET")
    if calibrate is not None and not int8:
        raise UsageError(f"--calibrate {calibrate} is for --int8; leave it out or give both")


def _blocks(loaded: LoadedModel, check: Path | None, events: int) -> Iterator[EventBlock]:
    """Events to compare on: those of a dataset, or newly simulated ones."""
    if check is not None:
        return open_input(check, None, events, None).blocks(loaded.model.kinds)
    return _simulated(str(loaded.card.get("detector") or "clic"), loaded.model.kinds)


def _simulated(detector: str, kinds: Sequence[str]) -> Iterator[EventBlock]:
    """Events of the detector that the network was trained for."""
    settings = SimulateSettings(
        detector=detector,
        generator=GeneratorSettings(sample=_SAMPLE, seed=_SEED),
        production=ProductionSettings(events=_SIMULATED_EVENTS, block_events=_SIMULATED_EVENTS),
    )
    source = SimulatedBlocks(settings)
    block = source.block(0)
    source.close()
    yield EventBlock(block.event_number, {kind: block[kind] for kind in kinds})


def _summary(out: Path, described: Description, compared: Comparison) -> dict[str, Any]:
    return {
        "path": str(out),
        "bytes": None,
        "precision": described.precision,
        "detector": described.detector,
        "threshold": described.threshold,
        "weights_sha256": described.weights_sha256,
        "inputs": {kind: [column.name for column in columns] for kind, columns in described.inputs.items()},
        "check": {"events": compared.events, "elements": compared.elements, "rows": compared.rows()},
        "ok": compared.ok,
    }


def _cost(files: Sequence[Path], dataset: Path, events: int) -> list[dict[str, Any]]:
    """A row per file: size, speed, and the physics on the same events."""
    rows, made = [], []
    for file in files:
        candidates = file.with_suffix(".parquet")
        done = reconstruct(dataset, candidates, model=file, events=events)
        made.append(candidates)
        rows.append(
            {
                "precision": file.stem,
                "bytes": file.stat().st_size,
                "events_per_second": done["events_per_second"],
                "events": done["events"],
            }
        )
    if not has_truth(Dataset(dataset)):
        say(f"{dataset} has no truth: what int8 costs in physics is not known")
        return rows
    names = [file.stem for file in files]
    results = evaluate([dataset], candidates=made, reconstructions=names, events=events)
    figures = next(iter(results["samples"].values()))["reconstructions"]
    return [{**row, **{name: figures[row["precision"]][name]["value"] for name in _FIGURES}} for row in rows]

"""Export: from a trained network to one ONNX file, which is compared with the network before it appears anywhere.

In int8 a table says what is given up and what is gained: jets and particles against speed and size, on the same events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.rundir import require_suffix, temporary_folder, write_atomic
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.infer.export import (
    DEFAULT_NAME,
    Comparison,
    compare,
    describe,
    require_onnx,
    require_place,
    write_int8,
    write_onnx,
    write_repository,
)
from ringflow.infer.inputs import open_input
from ringflow.infer.runtime import Description, EventRuntime
from ringflow.infer.session import load_for
from ringflow.infer.shipped import model_file
from ringflow.models.file import LoadedModel
from ringflow.recipes.cost import cost
from ringflow.sim.blocks import SimulatedBlocks
from ringflow.sim.geometry import detector_names
from ringflow.sim.settings import GeneratorSettings, ProductionSettings, SimulateSettings

#: Events the file is compared on, and those that ranges of int8 are measured on, unless the user says otherwise.
CHECKED_EVENTS = 200
CALIBRATION_EVENTS = 200
#: What is simulated to compare on where no dataset is given.
_SAMPLE, _SIMULATED_EVENTS, _SEED = "ttbar", 20, 20_260


def export(
    model: Path | None,
    out: Path | None = None,
    *,
    triton: Path | None = None,
    name: str | None = None,
    check: Path | None = None,
    events: int = CHECKED_EVENTS,
    portable: bool = False,
    int8: bool = False,
    calibrate: Path | None = None,
) -> dict[str, Any]:
    """Write a model as ONNX, as a file, into a repository of Triton, or both.

    A float32 file that differs from the network does not appear: `ok` is false.
    """
    _require(out, triton, name, int8, calibrate)
    require_onnx()
    path = model_file(model)
    if path.suffix == ".onnx":
        raise UsageError(f"{path} is exported already; give a model file, the folder of a run, or `shipped`")
    loaded = load_for(path, None)
    if int8 and calibrate is not None:
        Dataset(calibrate)  # a wrong folder is told before the work
    if triton is not None:
        require_place(triton, name or DEFAULT_NAME, describe(loaded))
    blocks = _blocks(loaded, check, events)
    beside = out or Path(str(triton)) / (name or DEFAULT_NAME)
    with temporary_folder(beside) as folder:
        full = folder / "float32.onnx"
        say("tracing the network")
        described = write_onnx(full, loaded, portable=portable)
        say("comparing with the network")
        compared = compare(loaded, EventRuntime(full), blocks)
        result = {**_summary(described, compared), "cost": None}
        made = full
        if int8 and calibrate is not None and compared.ok:
            made = folder / "int8.onnx"
            say("measuring ranges for int8")
            given = open_input(calibrate, None, CALIBRATION_EVENTS, None)
            described = write_int8(made, full, given.blocks(described.kinds), CALIBRATION_EVENTS)
            result["precision"] = described.precision
            result["cost"] = cost({"float32": full, "int8": made}, check or calibrate, events, "precision")
        if compared.ok:
            result["bytes"] = made.stat().st_size
            if out is not None:
                write_atomic(out, made.read_bytes())
                result["path"] = str(out)
            if triton is not None:
                result["triton"] = str(write_repository(triton, name or DEFAULT_NAME, made))
    return result


def _require(out: Path | None, triton: Path | None, name: str | None, int8: bool, calibrate: Path | None) -> None:
    if out is None and triton is None:
        raise UsageError("nothing to write; give -o FILE, --triton FOLDER, or both")
    if out is not None:
        require_suffix(out, ".onnx")
    if name is not None and triton is None:
        raise UsageError(f"--name {name} is for --triton; leave it out or give both")
    if int8 and calibrate is None:
        raise UsageError("--int8 needs events to measure ranges on; give --calibrate DATASET")
    if calibrate is not None and not int8:
        raise UsageError(f"--calibrate {calibrate} is for --int8; leave it out or give both")


def _blocks(loaded: LoadedModel, check: Path | None, events: int) -> Iterator[EventBlock]:
    """Events to compare on: those of a dataset, or newly simulated ones."""
    if check is not None:
        return open_input(check, None, events, None).blocks(loaded.model.kinds)
    return _simulated(loaded.card.get("detector"), loaded.model.kinds)


def _simulated(known: object, kinds: Sequence[str]) -> Iterator[EventBlock]:
    """Events of the detector that the network was trained for, or of another one where that is none of ours."""
    detector = known if isinstance(known, str) and known in detector_names() else "clic"
    settings = SimulateSettings(
        detector=detector,
        generator=GeneratorSettings(sample=_SAMPLE, seed=_SEED),
        production=ProductionSettings(events=_SIMULATED_EVENTS, block_events=_SIMULATED_EVENTS),
    )
    source = SimulatedBlocks(settings)
    block = source.block(0)
    source.close()
    yield EventBlock(block.event_number, {kind: block[kind] for kind in kinds})


def _summary(described: Description, compared: Comparison) -> dict[str, Any]:
    return {
        "path": None,
        "triton": None,
        "bytes": None,
        "precision": described.precision,
        "detector": described.detector,
        "threshold": described.threshold,
        "weights_sha256": described.weights_sha256,
        "inputs": {kind: [column.name for column in columns] for kind, columns in described.inputs.items()},
        "check": {"events": compared.events, "elements": compared.elements, "rows": compared.rows()},
        "ok": compared.ok,
    }

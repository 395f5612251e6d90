"""What `run.json` says of a run: settings, code, versions, which data, and what computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ringflow.base.provenance import collect
from ringflow.train.data import describe_data
from ringflow.train.device import choose_device, hardware
from ringflow.train.runs import RUN_FILE, has_checkpoint
from ringflow.train.settings import TrainSettings


def run_record(settings: TrainSettings, out: Path, processes: int) -> dict[str, Any]:
    """The record of a start. Where a training goes on with other code, that of its earlier starts is kept."""
    start = [Path(settings.start)] if settings.start and Path(settings.start).is_file() else []
    record = collect(settings, {"training": settings.seed}, start)
    record["data"] = describe_data(settings)
    record["machine"] = describe_machine(settings, processes)
    before = _earlier(out) if has_checkpoint(out) else {}
    codes = [*before.get("earlier", []), before.get("code")]
    record["earlier"] = [code for code in codes if code and code != record["code"]]
    return record


def describe_machine(settings: TrainSettings, processes: int) -> dict[str, Any]:
    """What shows in the last bits of a network."""
    device = choose_device(settings.compute.device)
    described = hardware(str(device))
    kept: dict[str, Any] = {name: described[name] for name in ("processor", "accelerator") if name in described}
    return {"device": device.type, "processes": processes, "threads": torch.get_num_threads(), **kept}


def _earlier(out: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((out / RUN_FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found

"""Benchmark records: a number is worth nothing without the machine, the commit and the settings it was measured with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ringflow.train.device import hardware

__all__ = ["hardware", "write_record"]


def write_record(result: dict[str, Any], folder: Path, name: str) -> Path:
    """Keep a result as `<folder>/<name>.json`."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(result, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path

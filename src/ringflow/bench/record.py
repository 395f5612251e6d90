"""Benchmark records: a number is worth nothing without the machine, the commit and the settings it was measured with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.base.rundir import write_atomic
from ringflow.train.device import hardware

__all__ = ["hardware", "write_record"]


def write_record(result: Mapping[str, Any], path: Path) -> Path:
    """Keep a result as JSON; its path."""
    write_atomic(path, json.dumps(result, indent=2) + "\n")
    return path

"""The machine that a number was measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ringflow import __version__
from ringflow.base.provenance import code_version, package_version


def hardware(device: str) -> dict[str, Any]:
    """Processor, cores, accelerator, and versions of what was timed."""
    described: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "ringflow": __version__,
        "code": code_version(),
    }
    if device != "cpu":
        import torch

        # Most kinds of accelerators can say what they are called; one that cannot is known by its kind.
        name_of = getattr(torch.get_device_module(device), "get_device_name", None)
        described["accelerator"] = name_of() if name_of else device
    return described


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )

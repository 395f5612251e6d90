"""The model that comes with the package. Free of torch, so that looking for it costs nothing."""

from __future__ import annotations

from pathlib import Path

MODEL = Path(__file__).parent.parent / "weights" / "clic.safetensors"


def is_there() -> bool:
    """Whether this installation has it."""
    return MODEL.is_file()

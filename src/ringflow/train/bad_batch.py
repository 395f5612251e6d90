"""A batch that made the loss NaN, in a file to look at."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from safetensors.torch import save

from ringflow.base.rundir import write_atomic
from ringflow.elements.batch import ElementBatch
from ringflow.train.step import Record


def save_bad_batch(path: Path, batch: ElementBatch, record: Record) -> Path:
    """Write the tensors of a batch under the names of their fields; step, positions and loss are in the metadata."""
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name != "targets"}
    if batch.targets is not None:
        tensors |= {f"targets.{field.name}": getattr(batch.targets, field.name) for field in fields(batch.targets)}
    metadata = {"step": str(record.step)}
    metadata["positions"] = json.dumps(record.positions)
    metadata |= {f"value.{name}": str(value) for name, value in record.values.items()}
    write_atomic(path, save({name: value.cpu().contiguous() for name, value in tensors.items()}, metadata=metadata))
    return path

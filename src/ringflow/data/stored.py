"""Finished elements as plain tensors, small enough to keep on disk or to send to another process.

Parquet gives about 5,000 events a second and core, features of them another 20,000; a file of finished elements is mapped
into memory at once and copied at 40,000 a second and core (ttbar, 150 elements per event, 35 kB).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ringflow.base.rundir import write_atomic
from ringflow.elements.batch import ElementBatch, ElementTargets

#: To be raised when the meaning of a stored column changes under the same name.
STORED_VERSION = 1


def to_tensors(batch: ElementBatch) -> dict[str, Tensor]:
    """The columns of a batch with targets; codes take one byte each."""
    targets = batch.targets
    assert targets is not None, "only what is learned from is stored"
    return {
        "kind": batch.kind_N.to(torch.int8),
        "features": batch.features_NF,
        "position": batch.position_N2,
        "reference": batch.reference_N4,
        "charge": batch.charge_N.to(torch.int8),
        "offsets": batch.offsets_B,
        "label": targets.label_N.to(torch.int8),
        "target_charge": targets.charge_N.to(torch.int8),
        "momentum": targets.momentum_N4,
    }


def from_tensors(columns: dict[str, Tensor]) -> ElementBatch:
    """The batch again."""
    targets = ElementTargets(columns["label"].long(), columns["target_charge"].long(), columns["momentum"])
    return ElementBatch(
        columns["kind"].long(),
        columns["features"],
        columns["position"],
        columns["reference"],
        columns["charge"].long(),
        columns["offsets"],
        targets,
    )


def stored(path: Path, make: Callable[[], ElementBatch]) -> ElementBatch:
    """What the file holds; made and written first if it is not there or cannot be read."""
    try:
        return from_tensors(load_file(path))
    except (OSError, SafetensorError, KeyError):
        batch = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, save({name: column.contiguous() for name, column in to_tensors(batch).items()}))
    return batch

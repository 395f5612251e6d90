"""Small networks and their exports, made once per process: tracing takes seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def small_model() -> Callable[..., Any]:
    """A network with random outputs, the same for the same settings; with a card of the detector `fake`."""
    from fixtures.networks import random_network
    from ringflow.models.file import LoadedModel

    def make(backbone: str = "attention", calorimeter: str = "cluster") -> LoadedModel:
        model = random_network(backbone=backbone, calorimeter=calorimeter, graph={"bin_size": 4})
        return LoadedModel(model, 0.5, {"detector": "fake", "data": "made up"})

    return make


@pytest.fixture(scope="session")
def small_onnx(small_model: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The exported file of such a network, which all workers of a run share; nobody writes to it."""
    from filelock import FileLock

    from ringflow.infer.export import write_onnx

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    @cache
    def make(backbone: str = "attention", calorimeter: str = "cluster") -> Path:
        path: Path = folder / f"{backbone}-{calorimeter}.onnx"
        with FileLock(f"{path}.lock"):
            if not path.is_file():
                write_onnx(path, small_model(backbone, calorimeter))
        return path

    return make

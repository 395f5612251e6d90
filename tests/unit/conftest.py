"""Small networks and their exports, made once per process: tracing takes seconds."""

from __future__ import annotations

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
    """The exported file of such a network; nobody writes to it."""
    from ringflow.infer.export import write_onnx

    @cache
    def make(backbone: str = "attention", calorimeter: str = "cluster") -> Path:
        path: Path = tmp_path_factory.mktemp("onnx") / f"{backbone}.onnx"
        write_onnx(path, small_model(backbone, calorimeter))
        return path

    return make

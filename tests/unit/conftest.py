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
    import torch

    from ringflow.models.file import LoadedModel
    from ringflow.models.model import Model
    from ringflow.models.settings import ModelSettings

    def make(backbone: str = "attention", calorimeter: str = "cluster") -> LoadedModel:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            settings = {"backbone": backbone, "calorimeter": calorimeter, "graph": {"bin_size": 4}}
            shape = {"width": 16, "layers": 1, "heads": 2, "hidden": 16}
            model = Model(ModelSettings.model_validate({**settings, **shape})).eval()
            torch.nn.init.normal_(model.heads.out.weight, std=1.0)
            torch.nn.init.constant_(model.heads.out.bias[:1], 1.0)  # some say yes, some say no
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

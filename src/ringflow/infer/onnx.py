"""Write a network as one ONNX file: weights, scaling, features and decoding inside, what it is in its properties.

write_onnx(path, load_model(Path("model.safetensors")), example_block)

Tracing takes ten to twenty seconds, whatever the size of the network.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ringflow import __version__
from ringflow.base.rundir import write_atomic
from ringflow.elements.features import essential_columns
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.infer.description import Description, InputColumn
from ringflow.infer.graph import EventGraph, input_columns, output_names
from ringflow.infer.operators import TRANSLATIONS
from ringflow.launch.frameworks import framework
from ringflow.models.file import LoadedModel
from ringflow.models.model import Model

#: Elements of the made-up event that is traced; the file takes any number.
_TRACED = (5, 7)


def require_onnx() -> None:
    """One line where a part of the extra is missing: before the work, because tracing and comparing take a while."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        framework(package, "onnx")


def write_onnx(path: Path, loaded: LoadedModel, *, portable: bool = False) -> Description:
    """Write a model in float32; it appears whole or not at all. A portable one has operators of the standard only."""
    require_onnx()
    described = describe(loaded)
    proto = _trace(EventGraph(loaded, portable=portable).eval(), described.kinds)
    write_proto(path, proto, described)
    return described


def describe(loaded: LoadedModel) -> Description:
    """What the file of a model says of itself."""
    inputs = {
        kind: tuple(
            InputColumn(column.name, column.unit, column.meaning, column.name in essential_columns(kind))
            for column in input_columns(kind)
        )
        for kind in loaded.model.kinds
    }
    detector = loaded.card.get("detector")
    return Description(
        inputs,
        PARTICLE_CLASSES,
        loaded.threshold,
        str(detector) if detector else None,
        weights_hash(loaded.model),
        __version__,
        card=loaded.card,
    )


def weights_hash(model: Model) -> str:
    """Fingerprint of the weights and of the fitted scaling, by name."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()


def write_proto(path: Path, proto: Any, described: Description) -> None:
    """Write a graph with its description, and without traces of the machine that made it."""
    del proto.metadata_props[:]
    for key, value in described.properties().items():
        proto.metadata_props.add(key=key, value=value)
    proto.producer_name, proto.producer_version = "ringflow", __version__
    write_atomic(path, proto.SerializeToString(deterministic=True))


def _trace(graph: EventGraph, kinds: tuple[str, str]) -> Any:
    """The graph as ONNX, for any number of tracks and calorimeter objects."""
    generator = torch.Generator().manual_seed(1)
    example = tuple(
        torch.rand(rows, len(input_columns(kind)), generator=generator) + 1.0
        for rows, kind in zip(_TRACED, kinds, strict=True)
    )
    any_number = {0: torch.export.Dim.DYNAMIC}
    with torch.no_grad(), _quiet():
        program = torch.onnx.export(
            graph,
            example,
            dynamo=True,
            dynamic_shapes={"track": any_number, "calorimeter": any_number},
            input_names=list(kinds),
            output_names=list(output_names(kinds[1])),
            custom_translation_table=TRANSLATIONS,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    _clean(proto, kinds)
    return proto


def _clean(proto: Any, kinds: tuple[str, str]) -> None:
    """Drop what the tracer noted beside every operation, and give the axes names that say something."""
    for part in (proto.graph, *proto.graph.node, *proto.graph.initializer, *proto.graph.value_info):
        del part.metadata_props[:]
    del proto.graph.value_info[:]  # shapes of intermediates in the names of the tracer
    proto.graph.name = "ringflow"
    for value in (*proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]
        first = value.type.tensor_type.shape.dim[0]
        is_element = value.name.startswith("element_")
        first.dim_param = f"{value.name}s" if value.name in kinds else "elements" if is_element else "candidates"


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter says that torchvision is not there, and warns of its own parts."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)

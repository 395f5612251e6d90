"""Exported files give what the network gives, for every backbone and for events of any size, and say what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.fake_events import emptied, fake_block, replaced, without
from ringflow import __version__
from ringflow.base.errors import DatasetError
from ringflow.elements.features import FEATURES
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.infer import export as check
from ringflow.infer.export import (
    TRANSLATIONS,
    EventGraph,
    OneEventGraphMixer,
    compare,
    describe,
    for_one_event,
    input_columns,
    output_names,
    weights_hash,
    write_int8,
    write_onnx,
)
from ringflow.infer.runtime import EventRuntime
from ringflow.models.attention import Layout
from ringflow.models.graph import GraphMixer
from ringflow.models.settings import ModelSettings


def events() -> EventBlock:
    """Events of a few elements, some without tracks, without clusters or without anything, and one of many elements."""
    many = concatenate([fake_block(100, 12)])
    merged = {name: Collection(part.counts.sum(keepdims=True), part.columns) for name, part in many.collections.items()}
    return concatenate(
        [
            fake_block(0, 4),
            emptied(fake_block(4, 1), "track"),
            emptied(fake_block(5, 1), "cluster", "hit"),
            emptied(fake_block(6, 1), "track", "cluster", "hit"),
            EventBlock(np.array([7]), merged),
            fake_block(8, 2),
        ]
    )


@pytest.mark.parametrize(
    ("backbone", "calorimeter"),
    [
        ("attention", "cluster"),
        ("graph", "cluster"),
        ("mlp", "hit"),
        *(pytest.param(name, "cluster", marks=pytest.mark.heavy) for name in ("kernel", "mlp")),
    ],
)
def test_a_file_is_the_network(
    backbone: str, calorimeter: str, small_model: Callable[..., Any], small_onnx: Callable[..., Path]
):
    runtime = EventRuntime(small_onnx(backbone, calorimeter))
    assert (runtime.description.kinds, runtime.outputs) == (("track", calorimeter), output_names(calorimeter))
    found = compare(small_model(backbone, calorimeter), runtime, [events(), fake_block(20, 10)])
    assert found.ok, found
    assert found.events == 20
    assert found.elements > 150
    assert found.momentum > 0  # two programs, not one


def test_what_is_missing_is_missing(small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    runtime = EventRuntime(small_onnx())
    block = without(fake_block(0, 5), "track", "ndf", "dedx", "reaches_calo", "time")
    block = without(block, "cluster", "num_hits", "energy_hadronic", "peak_x")
    found = compare(small_model(), runtime, [block])
    assert found.ok, found
    [first, *_] = runtime.events(block)
    names = [column.name for column in runtime.description.inputs["track"]]
    assert np.isnan(first["track"][:, names.index("ndf")]).all()
    assert not np.isnan(first["track"][:, names.index("pt")]).any()


def test_a_single_missing_value_is_missing(small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    """NaN through a clamp must not become a number, in neither program."""
    block = fake_block(0, 1)
    runtime = EventRuntime(small_onnx())
    [event] = runtime.events(block)
    column = [c.name for c in runtime.description.inputs["track"]].index("ndf")
    event["track"][0, column] = np.nan
    with torch.inference_mode():
        graph = EventGraph(small_model())
        expected = graph(*(torch.from_numpy(table) for table in event.values()))
        features, _, _ = graph._elements({kind: torch.from_numpy(table) for kind, table in event.items()})
    missing = [feature.name for feature, gone in zip(FEATURES["track"], features[0].isnan(), strict=False) if gone]
    assert missing == ["log_chi2_ndf"]
    got = runtime.run(event)
    np.testing.assert_allclose(got["element_probability"], expected[0], atol=1e-5)


def test_an_event_of_nothing_gets_an_empty_answer(small_onnx: Callable[..., Path]):
    runtime = EventRuntime(small_onnx("graph"))
    nothing = {kind: np.zeros((0, len(columns)), np.float32) for kind, columns in runtime.description.inputs.items()}
    answer = runtime.run(nothing)
    assert {name: len(values) for name, values in answer.items()} == dict.fromkeys(output_names("cluster"), 0)
    assert answer["candidate_momentum"].shape == (0, 4)
    assert answer["candidate_label"].dtype == np.int64


@pytest.mark.parametrize("backbone", ["attention", "graph"])
def test_the_comparison_sees_other_weights(
    backbone: str, small_model: Callable[..., Any], small_onnx: Callable[..., Path]
):
    other = small_model(backbone)
    with torch.no_grad():
        other.model.heads.out.bias[0] += 0.01
    found = compare(other, EventRuntime(small_onnx(backbone)), [fake_block(0, 5)])
    assert not found.ok
    assert 1e-4 < found.probability < 0.01
    assert (found.momentum < 1e-4, found.undecided) == (True, 0)
    with torch.no_grad():
        other.model.heads.out.bias[2] += 100.0
    assert compare(other, EventRuntime(small_onnx(backbone)), [fake_block(0, 5)]).label > 0


def test_the_comparison_sees_wrong_candidates(
    small_model: Callable[..., Any], small_onnx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    runtime = EventRuntime(small_onnx())
    run = runtime.run

    def confused(event: Any, outputs: Any = None) -> Any:
        answer = run(event, outputs)
        return {**answer, "candidate_label": answer["candidate_label"] + 1}

    monkeypatch.setattr(runtime, "run", confused)
    assert compare(small_model(), runtime, [fake_block(0, 3)]).candidate > 0


def test_rounding_may_decide_a_few_events_of_the_learned_graph(
    small_model: Callable[..., Any], small_onnx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    loaded, runtime = small_model("graph"), EventRuntime(small_onnx("graph"))
    difference, calls = check._difference, []

    def turned(given: Any, batch: Any, answers: Any) -> Any:
        """The network on exact numbers is off in one event."""
        calls.append(batch)
        exact = torch.equal(batch.position_N2, check.from_block(block).take(torch.tensor([2])).position_N2)
        found = difference(given, batch, answers)
        return check.replace(found, probability=0.5) if len(calls) == 1 or exact else found

    block = fake_block(0, 5)
    monkeypatch.setattr(check, "_difference", turned)
    found = compare(loaded, runtime, [block])
    assert found.ok
    assert (found.undecided, found.events) == (1, 5)
    assert not check.Comparison(events=500, undecided=6).ok
    assert check.Comparison(events=500, undecided=5).ok


def test_a_file_says_what_it_is(small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    import onnx

    loaded, path = small_model(), small_onnx()
    described = EventRuntime(path).description
    assert described == describe(loaded)
    assert described.class_names == PARTICLE_CLASSES
    assert (described.detector, described.threshold, described.ringflow) == ("fake", 0.5, __version__)
    assert described.card["data"] == "made up"
    assert described.weights_sha256 == weights_hash(loaded.model)
    pt = described.inputs["track"][0]
    assert (pt.name, pt.unit, pt.required) == ("pt", "GeV", True)
    assert not next(column for column in described.inputs["track"] if column.name == "dedx").required
    assert [column.name for column in described.inputs["cluster"]] == [c.name for c in input_columns("cluster")]
    content = path.read_bytes()
    assert b"site-packages" not in content
    assert str(Path(__file__).parents[3]).encode() not in content
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    assert [value.type.tensor_type.shape.dim[0].dim_param for value in proto.graph.input] == ["tracks", "clusters"]
    assert [value.name for value in proto.graph.output] == list(output_names("cluster"))


def test_other_weights_have_another_hash(small_model: Callable[..., Any]):
    loaded, other = small_model(), small_model()
    assert weights_hash(loaded.model) == weights_hash(other.model)
    other.model.embedding.mean_F[0] += 1.0
    assert weights_hash(loaded.model) != weights_hash(other.model)


def test_a_portable_file_has_operators_of_the_standard_only(
    small_model: Callable[..., Any], tmp_path: Path, small_onnx: Any
):
    import onnx

    def foreign(path: Path) -> set[str]:
        return {node.op_type for node in onnx.load(path).graph.node if node.domain}

    assert foreign(small_onnx()) == {"MultiHeadAttention"}
    path = tmp_path / "portable.onnx"
    write_onnx(path, small_model(), portable=True)
    assert not foreign(path)
    assert compare(small_model(), EventRuntime(path), [events()]).ok


class Angles(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.atan2(y, x), torch.asinh(x), torch.hypot(x, y), torch.asinh(x.float())


@pytest.fixture(scope="module")
def answer() -> Any:
    import onnxruntime

    rows = {0: torch.export.Dim.DYNAMIC}
    example = torch.rand(2, 5, dtype=torch.float64)
    program = torch.onnx.export(
        Angles(),
        tuple(example),
        dynamo=True,
        dynamic_shapes={"x": rows, "y": rows},
        custom_translation_table=TRANSLATIONS,
        verbose=False,
    )
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return lambda x, y: session.run(None, {"x": x, "y": y})


@pytest.mark.filterwarnings("ignore")
def test_all_directions(answer: Any):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 20_000)) * 10.0 ** rng.uniform(-4, 4, (2, 20_000))
    axes = np.array([[1, -1, 0, 0, 0, 1, -1], [0, 0, 1, -1, 0, 1, -1]], np.float64)  # and the origin
    x, y = np.concatenate([axes, [x, y]], axis=1)
    angle, asinh, length, small = answer(x, y)
    np.testing.assert_allclose(angle, np.arctan2(y, x), atol=1e-15, rtol=1e-14)
    np.testing.assert_allclose(asinh, np.arcsinh(x), atol=1e-15, rtol=1e-11)
    np.testing.assert_allclose(length, np.hypot(x, y), rtol=1e-14)
    assert small.dtype == np.float32
    np.testing.assert_allclose(small, np.arcsinh(x.astype(np.float32)), atol=1e-7, rtol=3e-7)


SETTINGS = ModelSettings.model_validate({"backbone": "graph", "width": 16, "heads": 2, "graph": {"bin_size": 4}})


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 33, 120])
@pytest.mark.parametrize("equal", [0, 11])
def test_the_learned_graph_of_one_event(rows: int, equal: int):
    torch.manual_seed(rows)
    mixer = GraphMixer(SETTINGS).eval()
    exportable = for_one_event(mixer, SETTINGS, portable=True)
    assert isinstance(exportable, OneEventGraphMixer)
    query, key, value = torch.randn(3, rows, 2, 16)
    hashed = torch.randint(0, 1 << 18, (rows,))
    hashed[: min(equal, rows)] = 7  # elements that are alike stay together, up to a point
    query[: min(equal, rows)], key[: min(equal, rows)], value[: min(equal, rows)] = query[0], key[0], value[0]
    layout = Layout(torch.tensor([0, rows], dtype=torch.int32), torch.zeros(rows, dtype=torch.int64), rows)
    expected = mixer.attend(query, key, value, hashed, layout)
    torch.testing.assert_close(exportable.attend(query, key, value, hashed, layout), expected, atol=1e-6, rtol=1e-5)


def test_dense_layers_in_int8(small_model: Callable[..., Any], small_onnx: Callable[..., Path], tmp_path: Path):
    import onnx

    path = tmp_path / "int8.onnx"
    described = write_int8(path, small_onnx(), iter([fake_block(0, 20)]), 15)
    assert described.precision == "int8"
    runtime = EventRuntime(path)
    assert runtime.description == described
    kinds = {value.name: value.data_type for value in onnx.load(path).graph.initializer}
    integers = {
        name for name, kind in kinds.items() if kind == onnx.TensorProto.INT8 and name.endswith("weight_quantized")
    }
    layers = ("mixer.to_qkv", "mixer.to_out", "feed_forward.0", "feed_forward.2")
    assert integers == {
        *(f"model.blocks.0.{layer}.weight_quantized" for layer in layers),
        "model.heads.hidden.0.weight_quantized",
        "model.embedding.layers.2.weight_quantized",
    }
    found = compare(small_model(), runtime, [fake_block(30, 10)])
    assert 1e-4 < found.probability < 0.2  # it is not the same, but nearly


def test_the_ranges_are_those_of_the_events(small_onnx: Callable[..., Path], tmp_path: Path):
    quiet = fake_block(0, 20)
    answers = []
    for block in (quiet, replaced(quiet, "cluster", "energy", 1e4 * quiet["cluster"]["energy"])):
        write_int8(tmp_path / "int8.onnx", small_onnx(), [block], 20)
        runtime = EventRuntime(tmp_path / "int8.onnx")
        [event] = runtime.events(fake_block(30, 1))
        answers.append(runtime.run(event)["element_probability"])
    assert not np.array_equal(*answers)


def test_no_events_to_calibrate_on(small_onnx: Callable[..., Path], tmp_path: Path):
    for blocks in ([], [emptied(fake_block(0, 3))]):
        with pytest.raises(DatasetError, match="no event with elements to calibrate on"):
            write_int8(tmp_path / "int8.onnx", small_onnx(), blocks, 10)
    assert not (tmp_path / "int8.onnx").exists()

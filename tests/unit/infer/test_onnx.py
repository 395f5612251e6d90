"""Exported files give what the network gives, for every backbone and for events of any size, and say what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.fake_events import fake_block
from ringflow import __version__
from ringflow.elements.features import FEATURES
from ringflow.event.block import Collection, EventBlock, concatenate
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.infer import export as check
from ringflow.infer.export import EventGraph, compare, describe, input_columns, output_names, weights_hash, write_onnx
from ringflow.infer.runtime import EventRuntime

BACKBONES = ("attention", "kernel", "graph", "mlp")


def without(block: EventBlock, collection: str, *columns: str) -> EventBlock:
    """The block without some columns."""
    part = block[collection]
    kept = {name: values for name, values in part.columns.items() if name not in columns}
    return EventBlock(block.event_number, {**block.collections, collection: Collection(part.counts, kept)})


def emptied(block: EventBlock, *collections: str) -> EventBlock:
    """The block with no objects in some collections."""
    parts = {
        name: Collection(0 * block[name].counts, {c: v[:0] for c, v in block[name].columns.items()})
        for name in collections
    }
    return EventBlock(block.event_number, {**block.collections, **parts})


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


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_file_is_the_network(backbone: str, small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    runtime = EventRuntime(small_onnx(backbone))
    found = compare(small_model(backbone), runtime, [events(), fake_block(20, 10)])
    assert found.ok, found
    assert found.events == 20
    assert found.elements > 150
    assert found.momentum > 0  # two programs, not one


def test_a_network_on_hits(small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    runtime = EventRuntime(small_onnx("mlp", "hit"))
    assert runtime.description.kinds == ("track", "hit")
    assert runtime.outputs == output_names("hit")
    found = compare(small_model("mlp", "hit"), runtime, [events()])
    assert found.ok, found
    assert found.elements > 200


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


def test_the_comparison_sees_other_weights(small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    other = small_model()
    with torch.no_grad():
        other.model.heads.out.bias[0] += 0.01
    found = compare(other, EventRuntime(small_onnx()), [fake_block(0, 10)])
    assert not found.ok
    assert 1e-4 < found.probability < 0.01
    assert found.momentum < 1e-4
    with torch.no_grad():
        other.model.heads.out.bias[2] += 100.0
    assert compare(other, EventRuntime(small_onnx()), [fake_block(0, 10)]).label > 0


def test_the_comparison_sees_wrong_candidates(
    small_model: Callable[..., Any], small_onnx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    runtime = EventRuntime(small_onnx())
    run = runtime.run

    def confused(event: Any, outputs: Any = None) -> Any:
        answer = run(event, outputs)
        return {**answer, "candidate_label": answer["candidate_label"] + 1}

    assert compare(small_model(), runtime, [fake_block(0, 3)]).candidate == 0
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


def test_other_backbones_have_no_excuse(
    small_model: Callable[..., Any], small_onnx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(check, "_event_by_event", lambda *given: check.Comparison())
    other = small_model("mlp")
    with torch.no_grad():
        other.model.heads.out.bias[0] += 0.01
    assert not compare(other, EventRuntime(small_onnx("mlp")), [fake_block(0, 3)]).ok


def test_a_graph_of_other_weights_is_not_excused(small_model: Callable[..., Any], small_onnx: Callable[..., Path]):
    other = small_model("graph")
    with torch.no_grad():
        other.model.heads.out.bias[0] += 0.01
    found = compare(other, EventRuntime(small_onnx("graph")), [fake_block(0, 3)])
    assert not found.ok
    assert found.undecided == 0


def test_nearly_equal_classes_are_a_tie():
    probabilities = torch.tensor([[0.5, 0.49995, 0.0], [0.5, 0.4, 0.1]])
    assert check._tied(probabilities).tolist() == [True, False]


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

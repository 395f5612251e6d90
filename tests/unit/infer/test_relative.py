"""Networks that see elements relative to their detector: they work everywhere once they know it, and are refused before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.detectors import events_in
from fixtures.networks import random_network
from ringflow.base.errors import RingflowError, UsageError
from ringflow.data.write import to_table
from ringflow.elements.batch import from_block
from ringflow.event.block import EventBlock
from ringflow.infer.export import EventGraph, compare, input_columns, write_onnx
from ringflow.infer.remote import TableReconstruction, carry
from ringflow.infer.runtime import EventRuntime
from ringflow.infer.session import load_for, open_session
from ringflow.models.file import LoadedModel, load_model, save_model
from ringflow.models.uncertainty import UncertaintyHead, file_beside, save_uncertainty
from ringflow.sim.geometry import load_detector
from ringflow.sim.tracker import frame_of

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def unbound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that can take elements of any detector."""
    path = tmp_path_factory.mktemp("models") / "several.safetensors"
    model = random_network(features="relative")
    block = events_in("clic", 5)
    model.bind(frame_of(load_detector("clic")))
    model.embedding.fit(model.see(from_block(block)).features_NF)
    model.bind(None)
    save_model(path, model, threshold=0.5, card={"detector": "clic,cld"})
    return path


@pytest.fixture(scope="module")
def bound(unbound: Path) -> Path:
    """The same for one detector, with everything that a frame can have."""
    loaded = load_model(unbound)
    changes = {"ecal_scale": 1.1, "hcal_scale": 0.9, "matched": {"cluster_mean_depth": [(0.0, 0.5), (4.0, 5.0)]}}
    loaded.model.bind(frame_of(load_detector("cld")).model_copy(update=changes))
    path = unbound.with_name("one.safetensors")
    save_model(path, loaded.model, threshold=0.5, card={"detector": "cld"})
    return path


def test_the_same_network_says_something_else_in_another_detector(unbound: Path, bound: Path) -> None:
    block = events_in("clic", 5)
    found = [open_session(unbound, detector=name).reconstruct(block)["px"] for name in ("clic", "cld")]
    found.append(
        open_session(bound, detector="clic").reconstruct(block)["px"]
    )  # it knows its detector, whatever is said
    assert len({column.tobytes() for column in found}) == 3
    assert open_session(bound).reconstruct(block)["px"].tobytes() == found[2].tobytes()
    model = load_for(unbound, "clic").model
    plain = from_block(block)
    assert not torch.equal(model.see(plain).features_NF.nan_to_num(), plain.features_NF.nan_to_num())


def test_an_event_of_nothing_has_no_candidates(bound: Path) -> None:
    block = events_in("clic", 5)
    empty = block.take(0, 0)
    assert len(open_session(bound).reconstruct(empty)) == 0
    for kind in ("track", "cluster"):  # or one kind of elements alone
        part = EventBlock(
            block.event_number,
            {other: block[other] if other == kind else cut(block, other) for other in ("track", "cluster")},
        )
        assert len(open_session(bound).reconstruct(part)) > 0


def cut(block: EventBlock, kind: str) -> Any:
    none = np.zeros(len(block), np.int64)
    return type(block[kind])(none, {name: values[:0] for name, values in block[kind].columns.items()})


@pytest.mark.parametrize("detector", [None, "other"])
def test_which_detector_has_to_be_told(unbound: Path, detector: str | None) -> None:
    known = "which detector events are of" if detector is None else "the detector 'other'"
    for opened in (
        lambda: open_session(unbound, detector=detector),
        lambda: open_session(unbound, engine="onnx", detector=detector),
        lambda: carry(unbound, detector=detector),
        lambda: carry(unbound, engine="onnx", detector=detector),
    ):
        with pytest.raises(UsageError, match=known) as caught:
            opened()
        assert "ringflow adapt DATASET --model" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_commands_that_get_no_events_say_so_at_once(unbound: Path, tmp_path: Path, command: Command) -> None:
    for words in (
        ["serve", "--model", unbound, "--port", 0, "--engine", "torch"],
        ["export", unbound, "-o", tmp_path / "model.onnx"],
        ["export", unbound, "--triton", tmp_path / "models"],
    ):
        done = command(*words)
        assert done.code == 2, done.stderr
        assert (
            done.stderr.strip().splitlines()[-1].startswith("ringflow: error: several.safetensors does not know which")
        )
    assert not any(tmp_path.iterdir())


def test_nothing_takes_elements_of_nobody_knows_where(unbound: Path) -> None:
    loaded = load_model(unbound)
    with pytest.raises(UsageError, match="was not told which one"):
        loaded.model.see(from_block(events_in("clic", 5)))
    with pytest.raises(UsageError, match="was not told which one"):
        EventGraph(loaded)


def head_of(path: Path) -> UncertaintyHead:
    model = load_for(path, "cld").model
    known = model.predict_with_state(model.see(from_block(events_in("cld", 5))))[1]
    return UncertaintyHead(known.shape[1])


def test_workers_see_what_a_session_here_sees(unbound: Path, tmp_path: Path) -> None:
    path = tmp_path / "several.safetensors"
    path.write_bytes(unbound.read_bytes())
    torch.manual_seed(1)
    save_uncertainty(file_beside(path), head_of(path), path, {})
    block = events_in("cld", 5)
    columns = {kind: tuple(block[kind].columns) for kind in ("track", "cluster")}
    carried = carry(path, detector="cld")
    assert carried.uncertainty is not None
    table = TableReconstruction(carried)(to_table(block, columns))
    here = open_session(path, detector="cld", uncertainty=file_beside(path)).reconstruct(block)
    for name in ("px", "energy_error"):
        assert np.array_equal(np.concatenate(table[f"candidate_{name}"].to_numpy()), here[name])


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_the_graph_to_export_says_the_same(calorimeter: str, bound: Path) -> None:
    block = events_in("cld", 5)
    loaded = load_model(bound)
    if calorimeter == "hit":
        loaded = LoadedModel(random_network(features="relative", calorimeter="hit"), 0.5, {})
        loaded.model.bind(frame_of(load_detector("cld")))
    graph = EventGraph(loaded)
    event = block.take(0, 1)
    raw = []
    for kind in ("track", calorimeter):
        columns = [torch.from_numpy(event[kind][column.name]) for column in input_columns(kind)]
        raw.append(torch.stack([column.float() for column in columns], dim=1))
    probability = graph(*raw)[0]
    expected = loaded.model.predict(loaded.model.see(from_block(event, calorimeter))).particle_N.sigmoid()
    assert torch.allclose(probability, expected, atol=1e-4)


def test_an_exported_file_sees_the_same(bound: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "model.onnx"
    loaded = LoadedModel(random_network(features="relative", backbone="mlp"), 0.5, {})
    loaded.model.bind(load_model(bound).model.get_submodule("frame").settings)
    write_onnx(path, loaded)
    compared = compare(loaded, EventRuntime(path), [events_in("cld", 5)])
    assert compared.ok, compared.rows()
    loaded.model.bind(frame_of(load_detector("cld")))
    assert not compare(loaded, EventRuntime(path), [events_in("cld", 5)]).ok


def test_a_wrong_file_of_uncertainties_is_told_before_any_worker(unbound: Path, bound: Path, tmp_path: Path) -> None:
    errors = tmp_path / "errors.safetensors"
    save_uncertainty(errors, head_of(bound), bound, {})
    with pytest.raises(RingflowError, match="belongs to another model"):
        carry(unbound, uncertainty=errors, detector="clic")

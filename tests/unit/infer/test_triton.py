"""A model repository as Triton reads it: the configuration is parsed with Triton's own message."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.infer import export
from ringflow.infer.export import require_place, write_repository
from ringflow.infer.runtime import EventRuntime


@cache
def message() -> Any:
    """Triton's configuration of a model; its module alone, since the package around it wants grpc."""
    found = importlib.util.find_spec("tritonclient")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("tritonclient is not installed")
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(path: Path) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(path.read_text(encoding="utf-8"), message().ModelConfig())


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("calorimeter", ["cluster", "hit"])
def test_the_configuration_says_what_the_file_takes_and_gives(
    calorimeter: str, small_onnx: Callable[..., Path], tmp_path: Path
) -> None:
    model = small_onnx("mlp" if calorimeter == "hit" else "attention", calorimeter)
    placed = write_repository(tmp_path / "new" / "models", "flow", model)
    assert placed == tmp_path / "new" / "models" / "flow" / "1" / "model.onnx"
    assert placed.read_bytes() == model.read_bytes()
    assert files(tmp_path / "new") == ["models/flow/1/model.onnx", "models/flow/config.pbtxt"]

    config = parsed(placed.parents[1] / "config.pbtxt")
    runtime = EventRuntime(model)
    kinds = message().DataType
    assert (config.name, config.backend, config.max_batch_size) == ("flow", "onnxruntime", 0)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [
        (kind, kinds.Value("TYPE_FP32"), [-1, len(columns)]) for kind, columns in runtime.description.inputs.items()
    ]
    whole, real = kinds.Value("TYPE_INT64"), kinds.Value("TYPE_FP32")
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [
        ("candidate_label", whole, [-1]),
        ("candidate_charge", whole, [-1]),
        ("candidate_momentum", real, [-1, 4]),
        ("candidate_track", whole, [-1]),
        (f"candidate_{calorimeter}", whole, [-1]),
    ]
    assert [group.kind for group in config.instance_group] == [message().ModelInstanceGroup.Kind.Value("KIND_CPU")]
    assert config.version_policy.latest.num_versions == 1
    facts = {key: value.string_value for key, value in config.parameters.items()}
    assert json.loads(facts["class_names"]) == list(runtime.description.class_names)
    assert json.loads(facts["columns"])["track"][:2] == ["pt", "eta"]
    assert facts["detector"] == "fake"


def test_another_export_is_a_new_version_and_touches_nothing_else(
    small_onnx: Callable[..., Path], tmp_path: Path
) -> None:
    other = tmp_path / "other" / "1" / "model.plan"
    other.parent.mkdir(parents=True)
    other.write_text("somebody else's")
    first = write_repository(tmp_path, "flow", small_onnx())
    config = tmp_path / "flow" / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 7"))
    (tmp_path / "flow" / "9").mkdir()
    (tmp_path / "flow" / "notes").mkdir()
    second = write_repository(tmp_path, "flow", small_onnx())
    assert second.parent.name == "10"
    assert first.read_bytes() == second.read_bytes()
    assert parsed(config).instance_group[0].count == 7
    assert other.read_text() == "somebody else's"
    assert files(tmp_path) == ["flow/1/model.onnx", "flow/10/model.onnx", "flow/config.pbtxt", "other/1/model.plan"]
    config.unlink()
    write_repository(tmp_path, "flow", small_onnx())
    assert parsed(config).name == "flow"


def test_two_writers_get_two_versions(
    small_onnx: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_repository(tmp_path, "flow", small_onnx())
    write_repository(tmp_path, "flow", small_onnx())
    monkeypatch.setattr(export, "_versions", lambda entry: [1])  # as it was before the other one was done
    assert write_repository(tmp_path, "flow", small_onnx()).parent.name == "3"


def test_nothing_appears_when_the_work_fails(
    small_onnx: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, model: Path) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "model_config", broken)
    with pytest.raises(FailureError, match=r"cannot write .*flow: the disk is full"):
        write_repository(tmp_path, "flow", small_onnx())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("place", "name", "message"),
    [
        *((".", name, "is no name for a model; use letters, digits") for name in ("", ".hidden", "a/b", "a b", "é")),
        (".", "hits", r"model.onnx has other columns or classes .* choose another --name"),
        (".", "other", "was not written by `ringflow export`; choose another --name"),
        (".", "empty", "empty is there, but not by `ringflow export`"),
        ("hits/config.pbtxt", "flow", "is a file, not a folder"),
    ],
)
def test_places_that_are_taken(
    place: str, name: str, message: str, small_onnx: Callable[..., Path], tmp_path: Path
) -> None:
    described = EventRuntime(small_onnx()).description
    write_repository(tmp_path, "hits", small_onnx("mlp", "hit"))
    write_repository(tmp_path, "flow", small_onnx())
    write_repository(tmp_path, "other", small_onnx()).write_text("something else")
    (tmp_path / "empty").mkdir()
    require_place(tmp_path / "new", "flow", described)
    require_place(tmp_path, "flow", described)
    with pytest.raises(UsageError, match=message):
        require_place(tmp_path / place, name, described)

"""Put an exported file into a model repository of the Triton inference server.

DIR/<name>/config.pbtxt     inputs, candidates, where to run; written once, so that changes by hand stay
DIR/<name>/1/model.onnx     the file; an export of the same name later on becomes version 2, and so on
"""

from __future__ import annotations

import errno
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.infer.runtime import Description, EventRuntime
from ringflow.launch.frameworks import framework

DEFAULT_NAME = "ringflow"
CONFIG_FILE, MODEL_FILE = "config.pbtxt", "model.onnx"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
#: A folder that is taken: two writers at a time wanted the same one.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
#: Numbers of types in ONNX, and what Triton calls them.
_TYPES = {1: "TYPE_FP32", 7: "TYPE_INT64"}


def require_place(repository: Path, name: str, described: Description) -> None:
    """Whether a file can go there: the name is one, and what has it already takes and gives the same."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a model; use letters, digits, _, - and .")
    if repository.exists() and not repository.is_dir():
        raise UsageError(f"{repository} is a file, not a folder; choose another model repository")
    entry = repository / name
    if not entry.exists():
        return
    versions = _versions(entry)
    if not versions or not (newest := entry / str(versions[-1]) / MODEL_FILE).is_file():
        raise UsageError(f"{entry} is there, but not by `ringflow export`; choose another --name")
    try:
        there = EventRuntime(newest).description
    except InputFileError:
        raise UsageError(f"{newest} was not written by `ringflow export`; choose another --name") from None
    if (there.columns, there.class_names) != (described.columns, described.class_names):
        raise UsageError(f"{newest} has other columns or classes than this model; choose another --name")


def write_repository(repository: Path, name: str, model: Path) -> Path:
    """Put a file into a repository; the place of its new version, which appears whole."""
    entry = repository / name
    with write_errors(entry):
        repository.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".part", dir=repository) as folder:
            new = Path(folder) / name
            (new / "1").mkdir(parents=True)
            write_atomic(new / "1" / MODEL_FILE, model.read_bytes())
            config = model_config(name, model)
            write_atomic(new / CONFIG_FILE, config)
            if not entry.exists() and _renamed(new, entry):
                return entry / "1" / MODEL_FILE
            if not (entry / CONFIG_FILE).exists():
                write_atomic(entry / CONFIG_FILE, config)
            version = max(_versions(entry), default=0) + 1
            while not _renamed(new / "1", entry / str(version)):
                version += 1
            return entry / str(version) / MODEL_FILE


def model_config(name: str, model: Path) -> str:
    """The text of config.pbtxt: one event per request, tables of any number of rows in, candidates out."""
    proto = framework("onnx", "onnx").load(model, load_external_data=False)
    described = Description.read({entry.key: entry.value for entry in proto.metadata_props}, model)
    candidates = [output for output in proto.graph.output if output.name.startswith("candidate_")]
    facts = {
        "class_names": json.dumps(described.class_names),
        "columns": json.dumps(described.columns),
        "detector": described.detector or "",
    }
    # What JSON escapes stays escaped in a string of the text format.
    quoted = {key: fact.replace("\\", "\\\\").replace('"', '\\"') for key, fact in facts.items()}
    lines = (
        f'name: "{name}"',
        'backend: "onnxruntime"',
        "max_batch_size: 0",
        _tensors("input", proto.graph.input),
        _tensors("output", candidates),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        "version_policy { latest { num_versions: 1 } }",
        *(f'parameters {{ key: "{key}" value {{ string_value: "{fact}" }} }}' for key, fact in quoted.items()),
    )
    return "\n".join(lines) + "\n"


def _tensors(field: str, values: Sequence[Any]) -> str:
    lines = []
    for value in values:
        kind = value.type.tensor_type
        dims = ", ".join(str(dim.dim_value) if dim.HasField("dim_value") else "-1" for dim in kind.shape.dim)
        lines.append(f'  {{ name: "{value.name}" data_type: {_TYPES[kind.elem_type]} dims: [ {dims} ] }}')
    return f"{field} [\n" + ",\n".join(lines) + "\n]"


def _versions(entry: Path) -> list[int]:
    """Numbers of the versions that are there, rising."""
    folders = entry.iterdir() if entry.is_dir() else ()
    return sorted(int(path.name) for path in folders if path.is_dir() and re.fullmatch(r"[1-9]\d*", path.name))


def _renamed(source: Path, target: Path) -> bool:
    """Move a folder to its name; false if somebody else has taken it."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True

"""Without an extra: a command that needs it says so in one line before it works, and all others do without."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_events import write_fake_dataset

SPACE = """
["optimizer.rate"]
type = "float"
low = 0.001
high = 0.01
"""
TUNE = (
    "tune",
    "clic_tiny",
    "data=data",
    "detector=fake",
    "length.events=10",
    "--space",
    "space.toml",
    "--trials",
    "1",
)
TRAIN = ("train", "clic_tiny", "data=data", "--out", "run")
#: What is missing, the extra that has it, and the command that needs it.
CASES = [
    ("onnx", "onnx", ("export", "shipped", "-o", "model.onnx")),
    ("onnxscript", "onnx", ("export", "shipped", "--triton", "models")),
    ("onnxruntime", "onnx", ("reconstruct", "data", "-o", "out.parquet", "--engine", "onnx")),
    ("onnx", "onnx", ("bench", "infer")),
    ("starlette", "serve", ("serve", "--port", "0")),
    ("uvicorn", "serve", ("bench", "serve", "--requests", "1")),
    ("captum", "explain", ("explain", "data", "--events", "1")),
    ("optuna", "tune", (*TUNE, "--out", "study")),
    ("cmaes", "tune", (*TUNE, "--search", "cmaes", "--out", "study")),
    ("optuna", "tune", ("bench", "tune")),
    ("ray", "ray", (*TUNE, "--search", "random", "--executor", "ray", "--out", "study")),
    ("ray", "ray", ("launch", "ray", "--", *TRAIN)),
    ("ray", "ray", ("reconstruct", "data", "-o", "out.parquet", "--on", "ray", "--force")),
    ("pyspark", "spark", ("launch", "spark", "--", *TRAIN)),
    ("pyspark", "spark", ("reconstruct", "data", "-o", "out.parquet", "--on", "spark", "--force")),
    ("pyspark", "spark", ("perceptron", "data", "--out", "perceptron")),
    ("mpiexec", "mpi", ("launch", "mpi", "--", *TRAIN)),
]
WITHOUT = """
import sys
from importlib.machinery import PathFinder

class WithoutSome(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in {missing!r} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutSome
from ringflow.cli import main
for words in {commands!r}:
    if main(words):
        sys.exit(f"failed without {missing!r}: {{words}}")
"""


@pytest.mark.parametrize(("missing", "extra", "words"), CASES)
def test_a_command_names_the_extra_that_it_lacks(
    missing: str,
    extra: str,
    words: tuple[str, ...],
    command: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_fake_dataset(tmp_path / "data")
    (tmp_path / "space.toml").write_text(SPACE)
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    if missing == "mpiexec":
        monkeypatch.setenv("PATH", "/nowhere")
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
    done = command(*words)
    assert done.code == 1
    said = f"{missing} is not installed; pip install 'ringflow[{extra}]'"
    assert said in done.stderr.splitlines()[-1]
    before = [line for line in done.stderr.splitlines()[:-1] if not line.startswith(("WARNING: the network", "  "))]
    assert before == [], "it began to work"
    assert not (tmp_path / "run").exists()


def test_the_core_does_without_any_extra(tmp_path: Path) -> None:
    declared = [
        line for line in importlib.metadata.requires("ringflow") or [] if "extra ==" in line and "dev" not in line
    ]
    modules = {"prometheus-client": "prometheus_client"}
    named = {re.split(r"[^\w-]", line)[0].lower() for line in declared}
    missing = {modules.get(name, name) for name in named}
    assert {"onnx", "ray", "pyspark", "optuna", "captum", "starlette", "pandas"} <= missing
    short = ("length.events=4", "length.validation_events=1", "compute.device=cpu")
    commands = (
        ("config",),
        ("simulate", "ttbar", "--events", "10", "production.block_events=5", "--out", "data"),
        ("check", "data"),
        ("train", "clic_tiny", "data=data", *short, "--out", "run"),
        ("reconstruct", "data", "--model", "run", "-o", "out.parquet"),
        ("evaluate", "data", "--candidates", "out.parquet", "--out", "report"),
        ("display", "data", "--static", "page", "--events", "1"),
        ("trace", "run"),
    )
    code = WITHOUT.format(missing=missing, commands=commands)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

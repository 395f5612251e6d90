"""Help, settings and checks start fast: what is slow to import is not imported. Nothing here measures time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ringflow"
SLOW = ("torch", "numba", "numpy", "pyarrow", "awkward", "scipy", "matplotlib", "pydantic", "onnx", "onnxruntime")


def modules(pattern: str) -> list[str]:
    paths = sorted(SOURCE.glob(pattern))
    return ["ringflow." + ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths]


def slow_imports(code: str) -> list[str]:
    """Slow packages in memory after some code has run in a fresh interpreter."""
    report = f"; import json, sys; sys.stderr.write(json.dumps([m for m in {SLOW} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return list(json.loads(done.stderr.splitlines()[-1]))


def test_the_command_table_imports_nothing_slow() -> None:
    assert slow_imports("import ringflow.cli") == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["simulate", "--help"], ["bench", "simulate", "--help"]])
def test_help_imports_nothing_slow(words: list[str]) -> None:
    assert slow_imports(f"from ringflow.cli import main; main({words})") == []


def test_vocabulary_base_and_settings_import_no_torch() -> None:
    names = [*modules("base/*.py"), *modules("event/*.py"), *modules("**/settings.py")]
    assert "ringflow.sim.settings" in names
    assert "torch" not in slow_imports("import " + ", ".join(names))


def test_a_settings_typo_is_found_before_torch_is_loaded() -> None:
    words = ["simulate", "ttbar", "--out", "nowhere", "production.event=1"]
    assert "torch" not in slow_imports(f"from ringflow.cli import main; assert main({words}) == 2")


def test_the_guard_sees_an_import() -> None:
    assert slow_imports("import numpy") == ["numpy"]

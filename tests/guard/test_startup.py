"""Help, settings and checks start fast: what is slow to import is not imported. Nothing here measures time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ringflow.data.outside import write_dataset

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


@pytest.mark.parametrize(
    "words",
    [
        "reconstruct events.txt --out out.parquet",
        "reconstruct events.hepmc3 --out out.parquet",
        "reconstruct nosuch --out out.parquet",
        "reconstruct nosuch.root --out out.csv",
        "reconstruct DATASET --out out.parquet --model nosuch",
        "evaluate DATASET --model nosuch",
        "evaluate events.hepmc3",
        "export shipped --out model.bin",
        "export nosuch --out model.onnx",
        "serve --model nosuch",
        "explain DATASET --model nosuch",
        "explain events.txt",
        "uncertainty nosuch DATASET",
        "uncertainty shipped events.hepmc3",
        "prune nosuch --out run",
        "display DATASET --model nosuch --static page",
        "display events.txt --static page",
        "display events.hepmc3 --static page",
    ],
)
def test_a_wrong_name_is_told_before_torch_is_loaded(words: str, tmp_path: Path) -> None:
    for name in ("events.txt", "events.hepmc3"):
        (tmp_path / name).write_text("HepMC::Version 3.02.05\n")
    write_dataset(tmp_path / "DATASET", detector="mine", tracks={"pt": [[1.0]]}, clusters={"energy": [[1.0]]})
    code = (
        f"import os; os.chdir({str(tmp_path)!r}); from ringflow.cli import main; assert main({words.split()}) in (1, 2)"
    )
    assert "torch" not in slow_imports(code)


def test_the_guard_sees_an_import() -> None:
    assert slow_imports("import numpy") == ["numpy"]

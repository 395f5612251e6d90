"""Help, settings and checks start fast: what is slow to import is not imported. Nothing here measures time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ringflow.data.outside import write_dataset

SOURCE = Path(__file__).parents[2] / "src" / "ringflow"
SLOW = ("torch", "numba", "numpy", "pyarrow", "awkward", "scipy", "matplotlib", "pydantic", "onnx", "onnxruntime")


def modules(pattern: str) -> list[str]:
    paths = sorted(SOURCE.glob(pattern))
    return ["ringflow." + ".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in paths]


def slow_imports(code: str) -> list[str]:
    """Slow packages in memory after some code has run in a fresh interpreter."""
    report = f"\nimport json, sys; sys.stderr.write(json.dumps([m for m in {SLOW} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return list(json.loads(done.stderr.splitlines()[-1]))


def test_help_imports_nothing_slow() -> None:
    calls = [["--help"], ["--version"], ["simulate", "--help"], ["bench", "simulate", "--help"]]
    assert slow_imports(f"from ringflow.cli import main; print([main(words) for words in {calls}])") == []


def test_vocabulary_base_and_settings_import_no_torch() -> None:
    names = [*modules("base/*.py"), *modules("event/*.py"), *modules("**/settings.py")]
    assert "ringflow.sim.settings" in names
    assert "torch" not in slow_imports("import " + ", ".join(names))


def test_a_settings_typo_is_found_before_torch_is_loaded() -> None:
    words = ["simulate", "ttbar", "--out", "nowhere", "production.event=1"]
    assert "torch" not in slow_imports(f"from ringflow.cli import main; assert main({words}) == 2")


#: Each is wrong in a name of a file, a format or a model.
WRONG_NAMES = """
reconstruct events.txt --out out.parquet
reconstruct events.hepmc3 --out out.parquet
reconstruct nosuch --out out.parquet
reconstruct nosuch.root --out out.csv
reconstruct DATASET --out out.parquet --model nosuch
evaluate DATASET --model nosuch
evaluate events.hepmc3
export shipped --out model.bin
export nosuch --out model.onnx
serve --model nosuch
explain DATASET --model nosuch
explain events.txt
uncertainty nosuch DATASET
uncertainty shipped events.hepmc3
prune nosuch --out run
display DATASET --model nosuch --static page
display events.txt --static page
display events.hepmc3 --static page
"""


def test_a_wrong_name_is_told_before_torch_is_loaded(tmp_path: Path) -> None:
    for name in ("events.txt", "events.hepmc3"):
        (tmp_path / name).write_text("HepMC::Version 3.02.05\n")
    write_dataset(tmp_path / "DATASET", detector="mine", tracks={"pt": [[1.0]]}, clusters={"energy": [[1.0]]})
    commands = [line.split() for line in WRONG_NAMES.strip().splitlines()]
    code = f"""
import os, sys
from ringflow.cli import main
os.chdir({str(tmp_path)!r})
for words in {commands}:
    assert main(words) in (1, 2) and "torch" not in sys.modules, words
"""
    assert "torch" not in slow_imports(code)


def test_the_guard_sees_an_import() -> None:
    assert slow_imports("import numpy") == ["numpy"]

"""Imports go downwards only. `lint-imports` checks the same with the whole graph; this is quick and needs no cache."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ringflow"


def ranks() -> dict[str, int]:
    """Area -> its height, from the contract that import-linter reads."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {area.strip(" ()"): height for height, layer in enumerate(reversed(layers)) for area in layer.split("|")}


def imported(source: str) -> Iterator[str]:
    """Modules a source text imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from ringflow import data` names the area behind the import
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(area: str, source: str) -> list[str]:
    """Imports of an area that go upwards or sideways."""
    height = ranks()
    targets = [name for name in imported(source) if name.startswith("ringflow.")]
    areas = [(name, name.split(".")[1]) for name in targets]
    return [name for name, other in areas if other != area and other in height and height[other] >= height[area]]


def test_imports_go_downwards() -> None:
    wrong = {}
    for path in SOURCE.rglob("*.py"):
        area = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if area != "__init__":
            assert area in ranks(), f"{area} is in no layer of pyproject.toml"
            if found := upward(area, path.read_text(encoding="utf-8")):
                wrong[str(path.relative_to(ROOT))] = found
    assert wrong == {}


def test_the_guard_sees_an_import_upwards_and_sideways() -> None:
    assert upward("base", "def f():\n    from ringflow.sim import settings") == ["ringflow.sim.settings"]
    assert upward("sim", "from ringflow import data") == ["ringflow.data"]
    assert upward("recipes", "import ringflow.data.read\nfrom ringflow import __version__") == []

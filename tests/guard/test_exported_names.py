"""What other code imports from `base` is explained, and its errors are one tree."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

import ringflow
from ringflow.base import errors

BASE = sorted(path.stem for path in (Path(ringflow.__file__).parent / "base").glob("[a-z]*.py"))


@pytest.mark.parametrize("name", BASE)
def test_what_base_offers_is_explained(name: str) -> None:
    module = importlib.import_module(f"ringflow.base.{name}")
    made_here = {
        key: value
        for key, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__
    }
    assert [key for key, value in made_here.items() if not key.startswith("_") and not inspect.getdoc(value)] == []


def test_the_tree_of_errors_is_drawn() -> None:
    drawn = set(re.findall(r"\b(\w+Error)\b", errors.__doc__ or ""))
    assert drawn == {name for name, value in vars(errors).items() if inspect.isclass(value)}


def test_a_class_name_exists_once() -> None:
    source = Path(ringflow.__file__).parent
    named = [
        re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE) for path in source.rglob("*.py")
    ]
    found = Counter(name for names in named for name in names if not name.startswith("_"))
    assert [name for name, times in found.items() if times > 1] == []

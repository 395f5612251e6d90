"""Every command explains itself and speaks JSON, and the documentation says the same. Which they are is a golden record."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.cli import app

SCRIPT = Path(__file__).parents[2] / "docs" / "reference" / "commands.py"
MADE = runpy.run_path(str(SCRIPT))
ALL = dict(MADE["commands"](app))
each_command = pytest.mark.parametrize("name", ALL)


@each_command
def test_a_command_has_help(name: str, command: Callable[..., Any]) -> None:
    done = command(*name.split(), "--help")
    assert done.code == 0
    assert f"Usage: ringflow {name}" in done.stdout
    assert ALL[name].help.strip().splitlines()[0].endswith(".")


@each_command
def test_every_option_is_explained_and_one_is_json(name: str) -> None:
    options = ALL[name].assemble_argument_collection(parse_docstring=True)
    assert [option.name for option in options if option.name != "*" and not option.parameter.help] == []
    assert "--json" in [option.name for option in options]


def test_the_reference_is_made_of_the_commands() -> None:
    """If not: `python docs/reference/commands.py`."""
    assert SCRIPT.with_suffix(".md").read_text(encoding="utf-8") == MADE["reference"]()
    assert set(MADE["MORE"]) <= set(ALL)

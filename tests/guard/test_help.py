"""Every command explains itself and speaks JSON, and the documentation knows it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from ringflow.cli import app

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
COMMANDS = {
    "bench baseline",
    "bench infer",
    "bench loader",
    "bench model",
    "bench scaling",
    "bench serve",
    "bench simulate",
    "bench train",
    "bench tune",
    "calibrate",
    "check",
    "config",
    "convert",
    "demo",
    "display",
    "doctor",
    "evaluate",
    "explain",
    "export",
    "launch local",
    "launch mpi",
    "launch ray",
    "launch slurm",
    "launch spark",
    "perceptron",
    "prune",
    "reconstruct",
    "reproduce",
    "scaling-model",
    "serve",
    "simulate",
    "trace",
    "train",
    "tune",
    "tune best",
    "tune panda-evaluate",
    "tune panda-space",
    "tune panda-steer",
    "tune replay",
    "tune report",
    "tune resume",
    "uncertainty",
    "validate",
}


def commands(group: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command that does something, with the words that call it."""
    for name in group:
        if not name.startswith("-") and group[name].show:
            inner = group[name]
            if inner.default_command is not None:
                yield (*path, name), inner
            yield from commands(inner, (*path, name))


ALL = dict(commands(app))
each_command = pytest.mark.parametrize("path", ALL, ids=" ".join)


def options(path: tuple[str, ...]) -> list[Any]:
    found = ALL[path].assemble_argument_collection(parse_docstring=True)
    return [option for option in found if option.name != "*"]  # which stands for several


def test_the_commands_are_these() -> None:
    assert {" ".join(path) for path in ALL} == COMMANDS


@each_command
def test_a_command_has_help(path: tuple[str, ...], command: Callable[..., Any]) -> None:
    done = command(*path, "--help")
    assert done.code == 0
    assert "Usage: ringflow " + " ".join(path) in done.stdout
    assert ALL[path].help.strip().splitlines()[0].endswith(".")


@each_command
def test_every_option_is_explained(path: tuple[str, ...]) -> None:
    assert [option.name for option in options(path) if not option.parameter.help] == []


@each_command
def test_a_command_speaks_json(path: tuple[str, ...]) -> None:
    assert "--json" in [option.name for option in options(path)]


@each_command
def test_the_reference_names_the_command_and_its_options(path: tuple[str, ...]) -> None:
    text = REFERENCE.read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `ringflow ([\w -]+)`\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))
    section = sections[" ".join(path)]
    named = {option.name for option in options(path) if option.name.startswith("--")}
    assert named - {"--json"} == set(re.findall(r"^\| `(--[\w-]+)", section, flags=re.MULTILINE))

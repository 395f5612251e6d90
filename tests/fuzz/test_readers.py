"""Broken and hostile files of every kind: the right result, or one line; never a traceback, a hang, or other values.

A few hundred cases, the same ones for the same commit; with `-m heavy` tens of thousands, other ones every time.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.mutations import apply, mutations
from fuzz.readers import KINDS, Kind
from ringflow.base.errors import RingflowError

#: What one file may take.
SECONDS, MEGABYTES = 20, 600
#: Per kind, with `-m heavy`.
MANY = int(os.environ.get("RINGFLOW_FUZZ", "2000"))
CORPUS = Path(__file__).parent / "corpus"


@cache
def good(name: str, place: Path) -> tuple[Path, bytes, Any]:
    """A good file of a kind, what is in it, and what its reader makes of it."""
    folder = Path(mkdtemp(dir=place))
    path = KINDS[name].make(folder)
    return path, path.read_bytes(), KINDS[name].read(path)


@contextmanager
def bounded() -> Iterator[None]:
    """An error if the time or the memory of a case runs out."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MEGABYTES, f"it took {grown:.0f} MB"


def read(kind: Kind, path: Path) -> Any:
    """What the reader makes of a file, or its line as an error of ours."""
    try:
        with bounded():
            return kind.read(path)
    except RingflowError as error:
        line = str(error)
        assert line, "an error without a word"
        assert line.isprintable(), f"{line!r} is no line"
        return error


def try_broken(name: str, place: Path, changes: Any) -> None:
    kind = KINDS[name]
    path, content, expected = good(name, place)
    broken = apply(content, changes)
    path.write_bytes(broken)
    try:
        found = read(kind, path)
    finally:
        path.write_bytes(content)
    if broken == content or (kind.checked and not isinstance(found, RingflowError)):
        assert found == expected, "other values without a word"


def _fuzz(name: str, place: Path, examples: int, *, same: bool) -> None:
    ignored = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]

    @settings(max_examples=examples, derandomize=same, database=None, deadline=None, suppress_health_check=ignored)
    @given(st.data())
    def every(data: st.DataObject) -> None:
        try_broken(name, place, data.draw(mutations(KINDS[name].ways)))

    every()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", KINDS)
def test_a_broken_file_is_one_line_or_right(name: str, place: Path) -> None:
    _fuzz(name, place, KINDS[name].examples, same=True)


@pytest.mark.heavy
@pytest.mark.parametrize("name", KINDS)
def test_many_broken_files_are_one_line_or_right(name: str, place: Path) -> None:
    _fuzz(name, place, MANY, same=False)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["candidates", "model", "onnx", "shard", "checkpoint"])
def test_every_flipped_bit_is_found(name: str, place: Path) -> None:
    """400 single bits, evenly over the file: none of them changes anything without a word."""
    kind = KINDS[name]
    path, content, expected = good(name, place)
    silent = []
    for number in range(400):
        at, bit = number * len(content) // 400, number % 8
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        found = read(kind, path)
        if not isinstance(found, RingflowError) and found != expected:
            silent.append((at, bit))
    path.write_bytes(content)
    assert silent == []

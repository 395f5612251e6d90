"""Broken and hostile files of every kind: the right result, or one line; never a traceback, a hang, or other values.

A few hundred cases, the same ones for the same commit; with `-m heavy` tens of thousands, other ones every time.
"""

from __future__ import annotations

import operator
import os
import resource
import signal
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.mutations import apply, edit, mutations
from fuzz.readers import KINDS, Kind
from ringflow.base.errors import RingflowError

#: What one file may take.
SECONDS, MEGABYTES = 20, 600
#: Characters of an error.
MOST_WORDS = 3000
#: Per kind, with `-m heavy`.
MANY = int(os.environ.get("RINGFLOW_FUZZ", "2000"))
#: Files that gave a traceback, a crash, a hang or other values once, as changes of good ones; see `edit`.
CORPUS = [
    {"kind": kind, **case}
    for path in sorted((Path(__file__).parent / "corpus").glob("*.toml"))
    for kind, cases in tomllib.loads(path.read_text(encoding="utf-8")).items()
    for case in cases
]


class Good(NamedTuple):
    """Something good of a kind, the file in it that is broken and its content, and what the reader makes of it."""

    root: Path
    file: Path
    content: bytes
    read: Any


@cache
def made(make: Callable[[Path], Path], place: Path) -> Path:
    return make(Path(mkdtemp(dir=place)))


@cache
def good(name: str, place: Path) -> Good:
    kind = KINDS[name]
    root = made(kind.make, place)
    folder = root if root.is_dir() else root.parent
    file = min(folder.glob(kind.file)) if kind.file else root
    return Good(root, file, file.read_bytes(), kind.read(root))


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


def read(kind: Kind, root: Path) -> Any:
    """What the reader makes of it, or its line as an error of ours."""
    try:
        with bounded():
            found = kind.read(root)
    except RingflowError as error:
        found = error
    assert not isinstance(found, RingflowError) or 10 < len(str(found)) < MOST_WORDS, "too few words, or too many"
    return found


def broken(name: str, place: Path, content: bytes) -> Any:
    """What the reader makes of other content."""
    kind, given = KINDS[name], good(name, place)
    before = set(given.file.parent.iterdir())
    given.file.write_bytes(content)
    try:
        return read(kind, given.root)
    finally:
        given.file.unlink(missing_ok=True)
        for file in set(given.file.parent.iterdir()) - before:  # a cache that was made again
            file.unlink()
        given.file.write_bytes(given.content)


def try_broken(name: str, place: Path, changes: Any) -> None:
    given = good(name, place)
    content = apply(given.content, changes)
    found = broken(name, place, content)
    if content == given.content or (KINDS[name].checked and not isinstance(found, RingflowError)):
        right = operator.eq if content == given.content else KINDS[name].right
        assert right(found, given.read), "other values without a word"


def _fuzz(name: str, place: Path, examples: int, *, same: bool) -> None:
    good(name, place)
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


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: f"{case['kind']}: {case['what']}")
def test_what_was_broken_once_is_one_line_or_right(case: dict[str, Any], place: Path) -> None:
    given = good(case["kind"], place)
    content = edit(given.content, case)
    assert content != given.content
    found = broken(case["kind"], place, content)
    if "says" in case:
        assert isinstance(found, RingflowError)
        assert case["says"] in str(found)
    elif KINDS[case["kind"]].checked:
        assert isinstance(found, RingflowError) or KINDS[case["kind"]].right(found, given.read)


@pytest.mark.heavy
@pytest.mark.parametrize("name", KINDS)
def test_many_broken_files_are_one_line_or_right(name: str, place: Path) -> None:
    _fuzz(name, place, MANY, same=False)


#: Kinds that say by checksums whether they are what was written.
FLIPPED = ("candidates", "model", "uncertainty", "onnx", "shard", "packed", "elements", "checkpoint")


def _silent(name: str, place: Path, flips: int) -> list[tuple[int, int]]:
    """Bits, evenly over the file, that change something without a word."""
    given, silent = good(name, place), []
    for number in range(flips):
        at, bit = number * len(given.content) // flips, number % 8
        found = broken(
            name, place, given.content[:at] + bytes([given.content[at] ^ 1 << bit]) + given.content[at + 1 :]
        )
        if not isinstance(found, RingflowError) and found != given.read:
            silent.append((at, bit))
    return silent


@pytest.mark.parametrize("name", FLIPPED)
def test_a_flipped_bit_is_found(name: str, place: Path) -> None:
    assert _silent(name, place, 10) == []


@pytest.mark.heavy
@pytest.mark.parametrize("name", FLIPPED)
def test_every_flipped_bit_is_found(name: str, place: Path) -> None:
    assert _silent(name, place, 400) == []

"""Random access to the events of a HepMC3 file: plain, gzip or zstandard, whatever its name ends in.

The file is scanned once for the lines that start an event (nothing is parsed, 16 bytes per event are kept); an event is then
parsed from its own bytes. Reading forwards never goes back to the start of a compressed file, so that several processes that
each take every n-th block cost one decompression each.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import InputFileError

_CHUNK = 1 << 22
_START = b"HepMC::Asciiv3-START_EVENT_LISTING"
_END = b"HepMC::Asciiv3-END_EVENT_LISTING"
_NUMBER = rb" [-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
_EVENT_LINE = re.compile(rb"E -?\d+ (\d+) (\d+)\s")
# Both begin with a literal, which the search is fast for, and leave the line break to the next line.
_PARTICLE_LINE = re.compile(rb"\nP \d+ (-?\d+) -?\d+(?:" + _NUMBER + rb"){5} -?\d+(?=\s)")
_VERTEX_LINE = re.compile(rb"\nV -\d+ -?\d+ \[[\d,]*\](?: @(?:" + _NUMBER + rb"){4})?(?=\s)")
_FETCH_AGAIN = "make or copy the file again"


class HepMCFile:
    """The events of one file, by number from 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise InputFileError(f"{path}: no such HepMC file; check the path")
        self._stream: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def sha256(self) -> str:
        """Hash of the file as it lies on disk."""
        with self.path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def read(self, number: int) -> Any:
        """Event `number` as a `pyhepmc.GenEvent`."""
        from pyhepmc.io import ReaderAscii, pyiostream

        header = self._header
        first, last = (int(offset) for offset in self._spans[number])
        text = self._bytes(first, last)
        event = None
        if _is_whole(text):
            with _quiet_hepmc():
                event = ReaderAscii(pyiostream(io.BytesIO(header + text + _END + b"\n"))).read()
        if event is None:
            raise InputFileError(f"{self.path}: event {number} is damaged and cannot be read; {_FETCH_AGAIN}")
        return event

    def _bytes(self, first: int, last: int) -> bytes:
        with self._reading_errors():
            if self._stream is None or self._stream.tell() > first:
                self._close()
                self._stream = _open(self.path)
            self._stream.seek(first)
            return self._stream.read(last - first)

    @cached_property
    def _header(self) -> bytes:
        return self._bytes(0, int(self._spans[0, 0]))

    @cached_property
    def _spans(self) -> npt.NDArray[np.int64]:
        """First byte of every event and the byte after its last, in the decompressed file."""
        beginning = self._bytes(0, 4096)
        if _START not in beginning:
            what = "is not a HepMC3 ASCII file" if beginning else "is empty, or nothing in it can be unpacked"
            raise InputFileError(f"{self.path}: {what}; give one with 'HepMC::Asciiv3' in its first lines")
        with self._reading_errors(), _open(self.path) as stream:
            marks = list(_line_marks(stream))
        if marks[-1][1] != _END:
            raise InputFileError(f"{self.path}: is truncated, its last line is missing; {_FETCH_AGAIN}")
        spans = [(begin, end) for (begin, mark), (end, _) in pairwise(marks) if mark == b"E "]
        if not spans:
            raise InputFileError(f"{self.path}: holds no events; check how the file was made")
        return np.array(spans, dtype=np.int64)

    @contextmanager
    def _reading_errors(self) -> Iterator[None]:
        import zstandard

        try:
            yield
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            reason = " ".join(str(error).split())
            raise InputFileError(f"{self.path}: cannot be read to its end ({reason}); {_FETCH_AGAIN}") from None

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self._close()


def _open(path: Path) -> BinaryIO:
    """The decompressed bytes; what they are packed with is told by the first bytes of the file."""
    with path.open("rb") as raw:
        magic = raw.read(4)
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if magic == b"\x28\xb5\x2f\xfd":
        import zstandard

        stream = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True)
        return cast(BinaryIO, stream)
    return path.open("rb")


def _line_marks(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Where events start and listings start and end: offset of the line, and how it begins."""
    # A line break in front makes every line follow one: the break before a line has the offset of the line.
    offset, rest = 0, b"\n"
    while rest:
        chunk = stream.read(_CHUNK)
        text = rest + chunk
        cut = text.rfind(b"\n") if chunk else len(text)
        found = [(at, mark) for mark in (b"E ", _START, _END) for at in _find_all(text[:cut], b"\n" + mark)]
        yield from ((offset + at, mark) for at, mark in sorted(found))
        offset, rest = offset + cut, text[cut:]


def _find_all(text: bytes, pattern: bytes) -> Iterator[int]:
    position = text.find(pattern)
    while position >= 0:
        yield position
        position = text.find(pattern, position + 1)


def _is_whole(text: bytes) -> bool:
    """Whether an event has the numbers of vertices and particles it announces (`E number vertices particles`).

    HepMC3 reads a word as the number 0 and prints what it finds amiss, so that the lines are checked before it sees them.
    """
    announced = _EVENT_LINE.match(text)
    if announced is None:
        return False
    mothers = _PARTICLE_LINE.findall(text)
    num_listed = text.count(b"\nV ")
    # A vertex with one incoming particle and no position has no line: its particles name the mother instead.
    num_implied = len({mother for mother in mothers if int(mother) > 0})
    return (
        len(_VERTEX_LINE.findall(text)) == num_listed
        and num_listed + num_implied == int(announced[1])
        and len(mothers) == int(announced[2])
    )


@contextmanager
def _quiet_hepmc() -> Iterator[None]:
    """HepMC3 prints its complaints; ours are raised."""
    from pyhepmc import Setup

    before = Setup.print_errors, Setup.print_warnings, Setup.debug_level
    Setup.print_errors, Setup.print_warnings, Setup.debug_level = False, False, 0
    try:
        yield
    finally:
        Setup.print_errors, Setup.print_warnings, Setup.debug_level = before

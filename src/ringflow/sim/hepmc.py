"""Events from a HepMC3 file, brought to the definition of a final state that the samples obey.

Short-lived particles decay inside the tracker cylinder and nowhere else: a decay outside is undone, a missing one is made.
Pions, charged kaons, K0L, muons and neutrons are left to the detector, so that their decays are undone wherever they are.
Cost on one core: about 1 ms per event of 60 final particles.

The file may be plain, gzip or zstandard, whatever its name ends in. It is scanned once for the lines that start an event
(nothing is parsed, 16 bytes per event are kept); an event is then parsed from its own bytes. Reading forwards never goes back
to the start of a compressed file, so that several processes that each take every n-th block cost one decompression each.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from ringflow.base.errors import FailureError, InputFileError
from ringflow.base.provenance import describe_input
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.generator import GeneratedEvents
from ringflow.sim.pythia import COLUMNS, Columns, Cylinder, Decayer

_FINAL, _DECAYED = 1, 2  # HepMC status codes
_LEFT_TO_DETECTOR = (13, 211, 321, 130, 2112)
_PARTONS = (1, 2, 3, 4, 5, 6, 21)


_CHUNK = 1 << 22
_START = b"HepMC::Asciiv3-START_EVENT_LISTING"
_END = b"HepMC::Asciiv3-END_EVENT_LISTING"
_NUMBER = rb" [-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
_EVENT_LINE = re.compile(rb"E -?\d+ (\d+) (\d+)\s")
# Both begin with a literal, which the search is fast for, and leave the line break to the next line.
_PARTICLE_LINE = re.compile(rb"\nP \d+ (-?\d+) -?\d+(?:" + _NUMBER + rb"){5} -?\d+(?=\s)")
_VERTEX_LINE = re.compile(rb"\nV -\d+ -?\d+ \[[\d,]*\](?: @(?:" + _NUMBER + rb"){4})?(?=\s)")
_FETCH_AGAIN = "make or copy the file again"


class HepMCGenerator:
    """The events of a file, numbered from 0; event weights are not used."""

    def __init__(self, path: Path, seed: int, cylinder: Cylinder) -> None:
        if not path.is_file():
            raise InputFileError(f"{path}: no such HepMC file; check the path")
        self._path, self._seed, self._cylinder = path, seed, cylinder
        self._stream: BinaryIO | None = None
        self._place = 0  # in the decompressed file

    @property
    def num_available(self) -> int:
        """Events in the file."""
        return len(self._spans)

    @cached_property
    def _decayer(self) -> Decayer:
        return Decayer(self._cylinder)

    def generate(self, start: int, count: int) -> GeneratedEvents:
        """Events number `start` to `start + count - 1`, fewer at the end of the file."""
        numbers = np.arange(start, max(start, min(start + count, self.num_available)), dtype=np.int64)
        events = [self._event(int(number)) for number in numbers]
        counts = np.array([len(event["pdg"]) for event in events], dtype=np.int64)
        columns = {key: np.concatenate([event[key] for event in events] or [np.zeros(0)]) for key in COLUMNS}
        columns["pdg"] = columns["pdg"].astype(np.int32)
        return GeneratedEvents(numbers, counts, **columns, interaction=np.zeros(counts.sum(), dtype=np.int16))

    def describe(self) -> Mapping[str, object]:
        """The file, its hash, and what decays the particles it left undecayed."""
        return {
            "kind": "hepmc",
            "file": self._path.name,
            "sha256": describe_input(self._path)["sha256"],
            "events": self.num_available,
            "seed": self._seed,
            "pyhepmc": version("pyhepmc"),
            "pythia8mc": version("pythia8mc"),
        }

    def _event(self, number: int) -> Columns:
        where = f"{self._path}: event {number}"
        particles, settled = final_state(_history(self._read(number, where)), self._cylinder, where)
        decayer = self._decayer
        try:
            return decayer.decay(particles, settled, ("hepmc", self._seed, number))
        except FailureError as error:
            raise InputFileError(f"{where}: {error}") from None

    def _read(self, number: int, where: str) -> Any:
        """An event as a `pyhepmc.GenEvent`."""
        from pyhepmc.io import ReaderAscii, pyiostream

        first, last = self._spans[number].tolist()
        header, text = self._header, self._bytes(first, last)
        event = None
        if _is_whole(text):
            with _quiet_hepmc():
                event = ReaderAscii(pyiostream(io.BytesIO(header + text + _END + b"\n"))).read()
        if event is None:
            raise InputFileError(f"{where} is damaged and cannot be read; {_FETCH_AGAIN}")
        return event

    @cached_property
    def _header(self) -> bytes:
        return self._bytes(0, int(self._spans[0, 0]))

    @cached_property
    def _spans(self) -> npt.NDArray[np.int64]:
        """First byte of every event and the byte after its last, in the decompressed file."""
        beginning = self._bytes(0, 4096)
        if _START not in beginning:
            what = "is not a HepMC3 ASCII file" if beginning else "is empty, or nothing in it can be unpacked"
            raise InputFileError(f"{self._path}: {what}; give one with 'HepMC::Asciiv3' in its first lines")
        spans, begin, place, last = [], -1, 0, b""
        with self._reading_errors(), _open(self._path) as stream:
            for line in stream:
                if line.startswith((b"E ", b"HepMC::")):
                    if begin >= 0:
                        spans.append((begin, place))
                    begin = place if line.startswith(b"E ") else -1
                    last = line
                place += len(line)
        if not last.startswith(_END):
            raise InputFileError(f"{self._path}: is truncated, its last line is missing; {_FETCH_AGAIN}")
        if not spans:
            raise InputFileError(f"{self._path}: holds no events; check how the file was made")
        return np.array(spans, dtype=np.int64)

    def _bytes(self, first: int, last: int) -> bytes:
        with self._reading_errors():
            if self._stream is None or self._place > first:
                self._close()
                self._stream, self._place = _open(self._path), 0
            if self._stream.seekable():
                self._place = self._stream.seek(first)
            while self._place < first and (dropped := self._stream.read(min(first - self._place, _CHUNK))):
                self._place += len(dropped)
            text = self._stream.read(last - first)
            self._place += len(text)
            return text

    @contextmanager
    def _reading_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, zlib.error) as error:
            reason = " ".join(str(error).split())
            raise InputFileError(f"{self._path}: cannot be read to its end ({reason}); {_FETCH_AGAIN}") from None

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self._close()


class _History(NamedTuple):
    """All particles of an event, and the vertices they begin and end at; vertex 0 stands for "none"."""

    pdg: npt.NDArray[np.int32]
    status: npt.NDArray[np.int32]
    momentum: npt.NDArray[np.float64]  # px, py, pz, energy (GeV)
    born: npt.NDArray[np.int64]
    died: npt.NDArray[np.int64]
    places: npt.NDArray[np.float64]  # x, y, z, ct of every vertex (mm), of the event itself for vertex 0


def _history(event: Any) -> _History:
    """Take a `pyhepmc.GenEvent` apart."""
    from pyhepmc import GenEventData, Units

    event.set_units(Units.GEV, Units.MM)
    particles, vertices, data = event.numpy.particles, event.numpy.vertices, GenEventData()
    event.write_data(data)
    # A link goes from a particle (above 0) to the vertex where it ends (below 0), or from a vertex to a new particle.
    source, target = np.asarray(data.links1, dtype=np.int64), np.asarray(data.links2, dtype=np.int64)
    born, died = np.zeros((2, len(particles.pid)), dtype=np.int64)
    born[target[target > 0] - 1] = -source[target > 0]
    died[source[source > 0] - 1] = -target[source > 0]
    places = np.empty((len(vertices.id) + 1, 4))
    places[0] = tuple(event.event_pos())
    # A vertex without a position of its own answers with that of its ancestors. The vertices come in no order.
    places[-vertices.id] = np.stack([vertices.x, vertices.y, vertices.z, vertices.t], axis=1)
    momentum = np.stack([particles.px, particles.py, particles.pz, particles.e])
    return _History(particles.pid, particles.status, momentum, born, died, places)


def final_state(history: _History, cylinder: Cylinder, where: str) -> tuple[Columns, npt.NDArray[np.bool_]]:
    """Columns of the particles that leave the generator, and which of them are known to decay outside the cylinder."""
    status, born = history.status, history.born
    beyond = _beyond_generator(history, cylinder)
    whole = beyond[history.died] & ~beyond[born]
    final = ((status == _FINAL) & ~beyond[born]) | whole
    x, y, z, ct = history.places[born[final]].T
    values = (history.pdg[final], *history.momentum[:, final], x, y, z, ct / SPEED_OF_LIGHT)
    columns = dict(zip(COLUMNS, values, strict=True))
    if np.any(whole & ~np.isin(status, (_FINAL, _DECAYED))):
        raise InputFileError(f"{where} collides outside the tracker; check the positions and their unit")
    if not final.any():
        raise InputFileError(f"{where} holds no final particles; check that they have status 1")
    if not all(np.isfinite(column).all() for column in values):
        raise InputFileError(f"{where} holds momenta or positions that are not finite; check how the file was made")
    if partons := sorted(set(np.abs(columns["pdg"]).tolist()) & set(_PARTONS)):
        raise InputFileError(f"{where} ends with quarks or gluons (PDG {partons[0]}); hadronise the events first")
    return columns, (whole & (status == _DECAYED))[final]


def _beyond_generator(history: _History, cylinder: Cylinder) -> npt.NDArray[np.bool_]:
    """Vertices that are the detector's to make: outside the cylinder, the end of a long-lived particle, or after such."""
    pdg, status, born, died = history.pdg, history.status, history.born, history.died
    x, y, z, _ = history.places.T
    radius, half_length = cylinder
    beyond: npt.NDArray[np.bool_] = ~((np.hypot(x, y) <= radius) & (np.abs(z) <= half_length))
    # A file may go on behind a final particle, with what a detector simulation made of it.
    beyond[died[status == _FINAL]] = True
    mother = np.zeros(len(beyond), dtype=np.int64)
    mother[died[status == _DECAYED]] = pdg[status == _DECAYED]
    # A particle that comes out again only changed its momentum.
    changed = np.zeros(len(beyond), dtype=bool)
    changed[born[pdg == mother[born]]] = True
    is_decay = np.bincount(died, minlength=len(beyond)) == 1
    beyond |= is_decay & np.isin(np.abs(mother), _LEFT_TO_DETECTOR) & ~changed
    beyond[0] = False
    before = 0
    while beyond.sum() > before:
        before = int(beyond.sum())
        beyond[died[beyond[born]]] = True
        beyond[0] = False
    return beyond


def _open(path: Path) -> BinaryIO:
    """The decompressed bytes; what they are packed with is told by the first bytes of the file."""
    with path.open("rb") as raw:
        magic = raw.read(4)
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if magic == b"\x28\xb5\x2f\xfd":
        import pyarrow

        return cast(BinaryIO, io.BufferedReader(pyarrow.input_stream(path, compression="zstd"), _CHUNK))
    return path.open("rb")


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

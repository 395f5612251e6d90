"""Events from a HepMC3 file, brought to the definition of a final state that the samples obey.

Short-lived particles decay inside the tracker cylinder and nowhere else: a decay outside is undone, a missing one is made.
Pions, charged kaons, K0L, muons and neutrons are left to the detector, so that their decays are undone wherever they are.
Cost on one core: about 1 ms per event of 60 final particles.

The file may be plain, gzip or zstandard, whatever its name ends in. It is scanned once for the lines that start an event
(nothing is parsed, 24 bytes per event are kept); an event is then parsed from its own bytes. Reading forwards never goes back
to the start of a compressed file, so that several processes that each take every n-th block cost one decompression each.

The lines are parsed here, and not by HepMC3 itself: that takes a word for the number 0, and a link to a particle or vertex
that is not there, or from one to itself, ends the process. What a file may ask for is bounded: see `_LONGEST_LINE` and below.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, cast

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
#: Bytes of a line (an attribute may be a whole run card) and of an event (one of heavy ions has some ten million).
_LONGEST_LINE, _LARGEST_EVENT = 1 << 24, 1 << 27
#: Times its size that a file may unpack to, and bytes that any may: text of events packs to a fifth, of equal ones to less.
_MOST_GROWTH, _FREE_GROWTH = 200, 1 << 24
#: Possessive, and of bounded length: a line that does not match costs no more than one that does.
_NUMBER = rb" [-+]?(?:\d{1,40}+(?:\.\d{0,40}+)?|\.\d{1,40}+)(?:[eE][-+]?\d{1,9}+)?"
_INTEGER = rb"-?\d{1,10}+"
_EVENT_LINE = re.compile(rb"E " + _INTEGER + rb" (\d{1,9}) (\d{1,9})(?: @((?:" + _NUMBER + rb"){4}))?[ \r]*\n")
_UNITS_LINE = re.compile(rb"\nU (GEV|MEV) (MM|CM)(?=[ \r]*\n)")
# All begin with a literal, which the search is fast for, and leave the line break to the next line.
_PARTICLE_LINE = re.compile(
    rb"\nP (\d{1,9}+ " + _INTEGER + rb" " + _INTEGER + rb"(?:" + _NUMBER + rb"){5} " + _INTEGER + rb")(?=[ \r]*\n)"
)
_VERTEX_LINE = re.compile(
    rb"\nV -(\d{1,9}+) "
    + _INTEGER
    + rb" \[((?:\d{1,9}+(?:,\d{1,9}+)*+)?)\](?: @((?:"
    + _NUMBER
    + rb"){4}))?(?=[ \r]*\n)"
)
#: HepMC3 says so of events in which a particle is its own ancestor.
_CYCLES_LINE = re.compile(rb"\nA 0 cycles [1-9]")
_OTHER_LINE = re.compile(rb"\n(?:[A-Z] |[ \r]*(?=\n|\Z))")
_KNOWN_LINES = {b"U ": _UNITS_LINE, b"P ": _PARTICLE_LINE, b"V ": _VERTEX_LINE}
_GEV, _MM = {b"GEV": 1.0, b"MEV": 1e-3}, {b"MM": 1.0, b"CM": 10.0}
_LARGEST_CODE = np.iinfo(np.int32).max
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
            "pythia8mc": version("pythia8mc"),
        }

    def _event(self, number: int) -> Columns:
        where = f"{self._path}: event {number}"
        first, last, line = self._spans[number].tolist()
        history = read_event(self._bytes(first, last), where, line)
        particles, settled = final_state(history, self._cylinder, where)
        decayer = self._decayer
        try:
            return decayer.decay(particles, settled, ("hepmc", self._seed, number))
        except FailureError as error:
            raise InputFileError(f"{where}: {error}") from None

    @cached_property
    def _spans(self) -> npt.NDArray[np.int64]:
        """First byte of every event, the byte after its last, both in the decompressed file, and its first line, from 1."""
        beginning = self._bytes(0, 4096)
        if _START not in beginning:
            what = "is not a HepMC3 ASCII file" if beginning else "is empty, or nothing in it can be unpacked"
            raise InputFileError(f"{self._path}: {what}; give one with 'HepMC::Asciiv3' in its first lines")
        spans, begin, begin_line, place, end = array("q"), -1, 0, 0, b""
        size = self._path.stat().st_size
        most = max(_MOST_GROWTH * size, _FREE_GROWTH)
        with self._reading_errors(), _open(self._path) as stream:
            for number, line in enumerate(iter(partial(stream.readline, _LONGEST_LINE + 1), b""), 1):
                if line.startswith((b"E ", b"HepMC::")):
                    if begin >= 0:
                        spans.extend((begin, place, begin_line))
                    begin, begin_line = place if line.startswith(b"E ") else -1, number
                    end = line
                place += len(line)
                if len(line) > _LONGEST_LINE:
                    self._refuse(number, f"begins with {_shown(line)} and is longer than {_LONGEST_LINE} bytes")
                if begin >= 0 and place - begin > _LARGEST_EVENT:
                    self._refuse(begin_line, f"starts an event of more than {_LARGEST_EVENT} bytes")
                if place > most:
                    self._refuse(number, f"is more than {place} bytes into a file of {size}, more than events pack to")
        if not end.startswith(_END):
            raise InputFileError(f"{self._path}: is truncated, its last line is missing; {_FETCH_AGAIN}")
        if not spans:
            raise InputFileError(f"{self._path}: holds no events; check how the file was made")
        return np.frombuffer(spans, dtype=np.int64).reshape(-1, 3)

    def _refuse(self, line: int, what: str) -> NoReturn:
        raise InputFileError(f"{self._path}: line {line} {what}; {_FETCH_AGAIN}")

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
        except (OSError, EOFError, ValueError, zlib.error) as error:
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


def read_event(text: bytes, where: str, line: int = 1) -> _History:
    """The particles and vertices of an event; `line` is the number of its first line, for what is said of a wrong one."""

    def refuse(place: int, why: str) -> NoReturn:
        """`place` is that of the line in the text, or of the line break before it."""
        place += text.startswith(b"\n", place)
        number, value = line + text.count(b"\n", 0, place), text[place:].partition(b"\n")[0]
        raise InputFileError(f"{where} is damaged: {why} in line {number}, {_shown(value)}; {_FETCH_AGAIN}")

    def nth(tag: bytes, number: int) -> int:
        """Place of the n-th line of a kind."""
        return next(found.start() for at, found in enumerate(re.finditer(b"\n" + tag + b" ", text)) if at == number)

    begins = _EVENT_LINE.match(text)
    if begins is None:
        refuse(0, "no numbers of an event, its vertices and its particles")
    num_vertices, num_particles = int(begins[1]), int(begins[2])
    units = _UNITS_LINE.findall(text)
    listed, particles = _VERTEX_LINE.findall(text), _PARTICLE_LINE.findall(text)
    for start in re.finditer(rb"\n", text) if _has_others(text, len(units), len(listed), len(particles)) else ():
        kind = _KNOWN_LINES.get(text[start.end() : start.end() + 2], _OTHER_LINE)
        if not kind.match(text, start.start()):
            refuse(start.start(), "what is no line of HepMC3")

    fields = np.array([float(word) for one in particles for word in one.split()]).reshape(-1, 9)
    number, parent, pdg, status = (fields[:, column].astype(np.int64) for column in (0, 1, 2, 8))
    ids = np.array([int(one[0]) for one in listed], dtype=np.int64)
    mothers, implied = np.unique(parent[parent > 0], return_inverse=True)
    # A vertex with one incoming particle and no position has no line: its particles name the mother instead.
    if (len(ids) + len(mothers), len(particles)) != (num_vertices, num_particles):
        there = f"{len(ids) + len(mothers)} vertices and {len(particles)} particles"
        refuse(0, f"not the {there} that follow")
    if np.any(wrong := number != np.arange(1, num_particles + 1)):
        refuse(nth(b"P", int(np.argmax(wrong))), "a particle out of order")
    if np.any(wrong := np.maximum(np.abs(pdg), np.abs(status)) > _LARGEST_CODE):
        refuse(nth(b"P", int(np.argmax(wrong))), "a PDG number or status that is none")
    # Vertices are counted from 1 here, first those that have a line.
    vertex_of = np.zeros(num_vertices + 1, dtype=np.int64)
    if np.any(wrong := (ids < 1) | (ids > num_vertices)):
        refuse(nth(b"V", int(np.argmax(wrong))), f"a number of a vertex that is not from -{num_vertices} to -1")
    vertex_of[ids] = np.arange(1, len(ids) + 1)
    if np.any(wrong := vertex_of[ids] != np.arange(1, len(ids) + 1)):
        refuse(nth(b"V", int(np.argmax(wrong))), "a vertex that comes again")
    made_at = -np.minimum(parent, 0)
    wrong = (parent > num_particles) | (made_at > num_vertices)
    if np.any(wrong := wrong | ((made_at > 0) & (vertex_of[np.where(wrong, 0, made_at)] == 0))):
        refuse(nth(b"P", int(np.argmax(wrong))), "a mother or vertex that the event does not have")
    born = vertex_of[made_at]
    born[parent > 0] = len(ids) + 1 + implied

    entering = [np.array([*map(int, one[1].split(b",") if one[1] else ())], dtype=np.int64) for one in listed]
    ends = np.concatenate([*entering, mothers]).astype(np.int64)
    at = np.repeat(np.arange(1, num_vertices + 1), [*map(len, entering), *(1 for _ in mothers)])
    if np.any(wrong := (ends < 1) | (ends > num_particles)):
        refuse(nth(b"V", int(at[np.argmax(wrong)]) - 1), f"a particle that is not from 1 to {num_particles}")
    died = np.zeros(num_particles, dtype=np.int64)
    died[ends - 1] = at
    if np.any(wrong := died[ends - 1] != at):
        refuse(nth(b"V", int(at[np.argmax(wrong)]) - 1), "a particle that ends at another vertex, too")

    energy, length = units[-1] if units else (b"GEV", b"MM")
    gev, mm = _GEV[energy], _MM[length]
    places = np.zeros((num_vertices + 1, 4))
    given = [one[2] or b"0 0 0 0" for one in listed]
    places[: len(ids) + 1] = np.array(
        [[float(word) for word in one.split()] for one in (begins[3] or b"0 0 0 0", *given)]
    )
    # A vertex without a position is where the first particle that enters it was made; not so in an event with cycles.
    nowhere = np.logical_not(places.any(axis=1))
    nowhere[0] = False
    source = np.arange(num_vertices + 1)
    source[nowhere] = 0
    if not _CYCLES_LINE.search(text):
        first = np.zeros(num_vertices + 1, dtype=np.int64)
        first[at[::-1]] = born[ends[::-1] - 1]
        source[nowhere] = first[nowhere]
        for _ in range(num_vertices.bit_length()):
            source = source[source]
        if np.any(wrong := nowhere[source]):
            refuse(0, f"a particle that is its own ancestor (of {int(wrong.sum())} vertices)")
    return _History(
        pdg.astype(np.int32), status.astype(np.int32), fields[:, 3:7].T * gev, born, died, places[source] * mm
    )


def _has_others(text: bytes, num_units: int, num_vertices: int, num_particles: int) -> bool:
    """Whether an event has lines that are of no kind, or not as their kind."""
    num_others = len(_OTHER_LINE.findall(text))
    known = sum(text.count(b"\n" + tag) for tag in _KNOWN_LINES)
    return num_others != text.count(b"\n") or known > num_units + num_vertices + num_particles


def _shown(line: bytes) -> str:
    """The beginning of a line, for a message."""
    text = line[:80].decode("ascii", errors="backslashreplace").rstrip()
    return repr(text) + ("..." if len(line) > 80 else "")


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

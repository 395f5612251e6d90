"""Events from a HepMC3, HepMC2 or LHE file, brought to the definition of a final state that the samples obey.

Short-lived particles decay inside the tracker cylinder and nowhere else: a decay outside is undone, a missing one is made.
Pions, charged kaons, K0L, muons and neutrons are left to the detector, so that their decays are undone wherever they are.
Cost on one core: about 1 ms per event of 60 final particles.

Partons of an LHE file are showered and hadronised by Pythia first, see `sim.lhe`.

The file may be plain, gzip or zstandard, whatever its name ends in. It is scanned once for the lines that start an event
(nothing is parsed, 24 bytes per event are kept); an event is then parsed from its own bytes. Reading forwards never goes back
to the start of a compressed file, so that several processes that each take every n-th block cost one decompression each.

The lines are parsed here, and not by HepMC3 itself: that takes a word for the number 0, and a link to a particle or vertex
that is not there, or from one to itself, ends the process; so it is with its readers of HepMC2 and LHE. What a file may ask
for is bounded: see `_LONGEST_LINE` and below.
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
from ringflow.sim.lhe import PartonShower, read_beams, read_partons
from ringflow.sim.lines import FETCH_AGAIN, INTEGER, NUMBER, refuse_line, shown
from ringflow.sim.pythia import COLUMNS, Columns, Cylinder, Decayer

_FINAL, _DECAYED = 1, 2  # HepMC status codes
_LEFT_TO_DETECTOR = (13, 211, 321, 130, 2112)
_PARTONS = (1, 2, 3, 4, 5, 6, 21)


_CHUNK = 1 << 22


class _Format(NamedTuple):
    """How a kind of file is told from others, and where its events begin and end."""

    kind: str  # in the provenance
    start: re.Pattern[bytes]  # in the first bytes of a file
    event: tuple[bytes, ...]  # an event's first line begins with one of them
    after: tuple[bytes, ...]  # the line behind an event begins with one of them, unless it is that of the next one
    end: bytes  # what the last line begins with


_HEPMC3 = _Format(
    "hepmc", re.compile(rb"HepMC::Asciiv3-START_EVENT_LISTING"), (b"E ",), (b"HepMC::",), b"HepMC::Asciiv3-END"
)
_HEPMC2 = _Format(
    "hepmc2", re.compile(rb"HepMC::IO_GenEvent-START_EVENT_LISTING"), (b"E ",), (b"HepMC::",), b"HepMC::IO_GenEvent-END"
)
_LHE = _Format(
    "lhe",
    re.compile(rb"\A\s*(?:<\?xml[^>]*>\s*)?<LesHouchesEvents[\s>]"),
    (b"<event>", b"<event "),
    (b"</event",),
    b"</LesHouchesEvents",
)
_FORMATS = (_HEPMC3, _HEPMC2, _LHE)
#: Binary files of generators, by their first bytes, and what to do with one.
_BINARY = (
    # A record of SIO: its length, and the mark of all of them.
    (
        re.compile(rb".{4}\xab\xad\xca\xfe", re.DOTALL),
        "is an LCIO file; lcio2edm4hep (of k4EDM4hep2LcioConv) makes an EDM4hep file of it, which ringflow convert reads if it "
        "holds reconstructed events. To simulate events, have the generator write HepMC3 or HepMC2 (Whizard: "
        "sample_format = hepmc)",
    ),
    # A header of MCFIO: number 1, its length, and its version as a text of three to eight letters.
    (
        re.compile(rb"\x00{3}\x01.{4}\x00{3}[\x03-\x08]\d+\.\d", re.DOTALL),
        "is a stdhep file, which is not read; have the generator write HepMC3 or HepMC2 instead (Whizard: sample_format = "
        "hepmc). stdhepjob (of LCIO) makes an LCIO file of it, and no HepMC file",
    ),
)
#: Bytes of a line (an attribute may be a whole run card) and of an event (one of heavy ions has some ten million).
_LONGEST_LINE, _LARGEST_EVENT = 1 << 24, 1 << 27
#: Times its size that a file may unpack to, and bytes that any may: text of events packs to a fifth, of equal ones to less.
_MOST_GROWTH, _FREE_GROWTH = 200, 1 << 24
#: Bytes of a line, on average over so many: empty ones pack to nothing, and each takes its time.
_SHORTEST_LINES, _MANY_LINES = 8, 1 << 20
_NUMBER, _INTEGER = rb" " + NUMBER, INTEGER
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
_Kinds = Mapping[bytes, re.Pattern[bytes]]
_KNOWN_LINES: _Kinds = {b"U ": _UNITS_LINE, b"P ": _PARTICLE_LINE, b"V ": _VERTEX_LINE}
# The same of HepMC2, whose particles follow the vertex they begin at, or end at if they have no other.
_EVENT_LINE_2 = re.compile(
    rb"E " + _INTEGER + rb" " + _INTEGER + rb"(?: \S{1,40}+){3} " + _INTEGER + rb" " + _INTEGER
    # The beams, random numbers and weights that follow are not used.
    + rb" (\d{1,9}+) " + _INTEGER + rb" " + _INTEGER + rb" [^\n]*+\n"
)  # fmt: skip
_PARTICLE_LINE_2 = re.compile(
    rb"\nP " + _INTEGER + rb" (" + _INTEGER + rb"(?:" + _NUMBER + rb"){5} " + _INTEGER + rb")(?:" + _NUMBER + rb"){2}"
    # The vertex where it ends, and the numbers of its colours.
    + rb" (0|-\d{1,9}+) \d{1,3}+(?: " + _INTEGER + rb")*+(?=[ \r]*\n)"
)  # fmt: skip
_VERTEX_LINE_2 = re.compile(
    rb"\nV -(\d{1,9}+) " + _INTEGER + rb"((?:" + _NUMBER + rb"){4}) (\d{1,9}+) (\d{1,9}+) \d{1,9}+"
    + rb"(?: \S{1,40}+)*+(?=[ \r]*\n)"
)  # fmt: skip
_KNOWN_LINES_2: _Kinds = {b"U ": _UNITS_LINE, b"P ": _PARTICLE_LINE_2, b"V ": _VERTEX_LINE_2}
_GEV, _MM = {b"GEV": 1.0, b"MEV": 1e-3}, {b"MM": 1.0, b"CM": 10.0}
_LARGEST_CODE = np.iinfo(np.int32).max


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

    @cached_property
    def _shower(self) -> PartonShower:
        head = self._bytes(0, int(self._spans[0, 0]))
        return PartonShower(read_beams(head, str(self._path)), self._cylinder)

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
        described = {
            "kind": self._format.kind,
            "file": self._path.name,
            "sha256": describe_input(self._path)["sha256"],
            "events": self.num_available,
            "seed": self._seed,
            "pythia8mc": version("pythia8mc"),
        }
        return {**described, "settings": self._shower.settings} if self._format is _LHE else described

    def _event(self, number: int) -> Columns:
        where = f"{self._path}: event {number}"
        first, last, line = self._spans[number].tolist()
        text = self._bytes(first, last)
        try:
            if self._format is _LHE:
                return self._shower.event(read_partons(text, where, line), ("lhe", self._seed, number))
            history = (read_event if self._format is _HEPMC3 else read_event_2)(text, where, line)
            particles, settled = final_state(history, self._cylinder, where)
            return self._decayer.decay(particles, settled, ("hepmc", self._seed, number))
        except InputFileError:
            raise
        except FailureError as error:
            raise InputFileError(f"{where}: {error}") from None

    @cached_property
    def _format(self) -> _Format:
        """What the first bytes say that it is."""
        beginning = self._bytes(0, 4096)
        if found := next((one for one in _FORMATS if one.start.search(beginning)), None):
            return found
        if known := next((what for magic, what in _BINARY if magic.match(beginning)), None):
            raise InputFileError(f"{self._path} {known}")
        what = "is no HepMC3, HepMC2 or LHE file" if beginning else "is empty, or nothing in it can be unpacked"
        known = "'HepMC::Asciiv3', 'HepMC::IO_GenEvent' or '<LesHouchesEvents'"
        raise InputFileError(f"{self._path}: {what}; give one with {known} in its first lines")

    @cached_property
    def _spans(self) -> npt.NDArray[np.int64]:
        """First byte of every event, the byte after its last, both in the decompressed file, and its first line, from 1."""
        kind = self._format
        spans, begin, begin_line, place, end = array("q"), -1, 0, 0, b""
        size = self._path.stat().st_size
        most, marks = max(_MOST_GROWTH * size, _FREE_GROWTH), (*kind.event, *kind.after, kind.end)
        with self._reading_errors(), _open(self._path) as stream:
            for number, line in enumerate(iter(partial(stream.readline, _LONGEST_LINE + 1), b""), 1):
                told = line.lstrip() if kind is _LHE else line
                if told.startswith(marks):
                    if begin >= 0:
                        spans.extend((begin, place, begin_line))
                    begin, begin_line = place if told.startswith(kind.event) else -1, number
                    end = told
                place += len(line)
                if len(line) > _LONGEST_LINE:
                    self._refuse(number, f"begins with {shown(line)} and is longer than {_LONGEST_LINE} bytes")
                if begin >= 0 and place - begin > _LARGEST_EVENT:
                    self._refuse(begin_line, f"starts an event of more than {_LARGEST_EVENT} bytes")
                if number > _MANY_LINES and place < _SHORTEST_LINES * number:
                    self._refuse(number, f"is {place} bytes into the file, which has no lines of events")
                if begin < 0 and not spans and place > _LARGEST_EVENT:
                    self._refuse(number, f"is {place} bytes into the file, and no event has begun")
                if place > most:
                    self._refuse(number, f"is more than {place} bytes into a file of {size}, more than events pack to")
        if not end.startswith(kind.end):
            raise InputFileError(f"{self._path}: is truncated, its last line is missing; {FETCH_AGAIN}")
        if not spans:
            raise InputFileError(f"{self._path}: holds no events; check how the file was made")
        return np.frombuffer(spans, dtype=np.int64).reshape(-1, 3)

    def _refuse(self, line: int, what: str) -> NoReturn:
        raise InputFileError(f"{self._path}: line {line} {what}; {FETCH_AGAIN}")

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
            raise InputFileError(f"{self._path}: cannot be read to its end ({reason}); {FETCH_AGAIN}") from None

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
    """The particles and vertices of an event of HepMC3; `line` is the number of its first line, for what is said of a wrong
    one."""
    refuse, nth = partial(refuse_line, text, where, line), partial(_nth, text)
    begins = _EVENT_LINE.match(text)
    if begins is None:
        refuse(0, "no numbers of an event, its vertices and its particles")
    num_vertices, num_particles = int(begins[1]), int(begins[2])
    units = _UNITS_LINE.findall(text)
    listed, particles = _VERTEX_LINE.findall(text), _PARTICLE_LINE.findall(text)
    if (wrong_line := _other_line(text, _KNOWN_LINES, len(units) + len(listed) + len(particles))) >= 0:
        refuse(wrong_line, "what is no line of HepMC3")

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

    places = np.zeros((num_vertices + 1, 4))
    given = [one[2] or b"0 0 0 0" for one in listed]
    places[: len(ids) + 1] = np.array(
        [[float(word) for word in one.split()] for one in (begins[3] or b"0 0 0 0", *given)]
    )
    if not _CYCLES_LINE.search(text):
        places, lost = _placed(places, born, ends - 1, at)
        if lost:
            refuse(0, f"a particle that is its own ancestor (of {lost} vertices)")
    else:  # nobody's place is known from another
        places[1:][~places[1:].any(axis=1)] = places[0]
    return _in_units(units, pdg, status, fields[:, 3:7], born, died, places)


def read_event_2(text: bytes, where: str, line: int = 1) -> _History:
    """The same of HepMC2, in which the particles of a vertex follow its line: those that only end there, those that begin."""
    refuse, nth = partial(refuse_line, text, where, line), partial(_nth, text)
    begins = _EVENT_LINE_2.match(text)
    if begins is None:
        refuse(0, "no numbers of an event of HepMC2")
    num_vertices = int(begins[1])
    units, particles, listed = (pattern.findall(text) for pattern in _KNOWN_LINES_2.values())
    if (wrong_line := _other_line(text, _KNOWN_LINES_2, len(units) + len(listed) + len(particles))) >= 0:
        refuse(wrong_line, "what is no line of HepMC2")
    if len(listed) != num_vertices:
        refuse(0, f"not the {len(listed)} vertices that follow")

    fields = np.array([float(word) for one in particles for word in one[0].split()]).reshape(-1, 7)
    pdg, status = fields[:, 0].astype(np.int64), fields[:, 6].astype(np.int64)
    if np.any(wrong := np.maximum(np.abs(pdg), np.abs(status)) > _LARGEST_CODE):
        refuse(nth(b"P", int(np.argmax(wrong))), "a PDG number or status that is none")
    ids = np.array([int(one[0]) for one in listed], dtype=np.int64)
    known, first = np.unique(ids, return_index=True)
    if len(known) != len(ids):
        again = np.setdiff1d(np.arange(len(ids)), first)
        refuse(nth(b"V", int(again[0])), "a vertex that comes again")
    entering, leaving = (np.array([int(one[field]) for one in listed], dtype=np.int64) for field in (2, 3))
    vertices, there = (
        np.array([found.start() for found in re.finditer(b"\n" + tag + b" ", text)], dtype=np.int64)
        for tag in (b"V", b"P")
    )
    vertex = np.searchsorted(vertices, there)  # how many vertices stand before a particle
    if np.any(wrong := np.bincount(vertex, minlength=num_vertices + 1)[1:] != entering + leaving):
        refuse(nth(b"V", int(np.argmax(wrong))), "not the numbers of particles that follow")
    if np.any(vertex == 0):
        refuse(nth(b"P", 0), "a particle before the first vertex")
    place_there = np.arange(len(vertex)) - np.searchsorted(vertex, vertex)
    enters = place_there < np.concatenate([[0], entering])[vertex]
    ending = np.array([-int(one[1]) for one in particles], dtype=np.int64)
    row = np.searchsorted(known, ending).clip(max=max(len(known) - 1, 0))
    if np.any(wrong := (ending > 0) & (known[row] != ending) if len(known) else ending > 0):
        refuse(nth(b"P", int(np.argmax(wrong))), "a vertex that the event does not have")
    died = np.where(ending > 0, first[row] + 1, 0) if len(known) else ending
    if np.any(wrong := enters & (died != vertex)):
        refuse(nth(b"P", int(np.argmax(wrong))), "a particle that ends at another vertex than that it stands at")
    born = np.where(enters, 0, vertex)
    if np.any(wrong := (died == born) & (born > 0)):
        refuse(nth(b"P", int(np.argmax(wrong))), "a particle that ends where it begins")

    places = np.zeros((num_vertices + 1, 4))
    places[1:] = np.array([[float(word) for word in one[1].split()] for one in listed]).reshape(-1, 4)
    ends = np.flatnonzero(died)
    places, lost = _placed(places, born, ends, died[ends])
    if lost:
        refuse(0, f"a particle that is its own ancestor (of {lost} vertices)")
    return _in_units(units, pdg, status, fields[:, 1:5], born, died, places)


def _placed(
    places: npt.NDArray[np.float64], born: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], at: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], int]:
    """Places of vertices, those without one where the first particle that ends there was made, and how many never end at one
    that has; particles `ends` end `at` vertices."""
    nowhere = np.logical_not(places.any(axis=1))
    nowhere[0] = False
    first = np.zeros(len(places), dtype=np.int64)
    first[at[::-1]] = born[ends[::-1]]
    source = np.where(nowhere, first, np.arange(len(places)))
    for _ in range(len(places).bit_length()):
        source = source[source]
    return places[source], int(nowhere[source].sum())


def _in_units(
    units: list[tuple[bytes, bytes]],
    pdg: npt.NDArray[np.int64],
    status: npt.NDArray[np.int64],
    momentum: npt.NDArray[np.float64],
    born: npt.NDArray[np.int64],
    died: npt.NDArray[np.int64],
    places: npt.NDArray[np.float64],
) -> _History:
    energy, length = units[-1] if units else (b"GEV", b"MM")
    gev, mm = _GEV[energy], _MM[length]
    return _History(pdg.astype(np.int32), status.astype(np.int32), momentum.T * gev, born, died, places * mm)


def _nth(text: bytes, tag: bytes, number: int) -> int:
    """Place of the n-th line of a kind."""
    return next(found.start() for at, found in enumerate(re.finditer(b"\n" + tag + b" ", text)) if at == number)


def _other_line(text: bytes, kinds: _Kinds, num_known: int) -> int:
    """Place of the first line that is of no kind, or not as its kind; -1 for none."""
    known = sum(text.count(b"\n" + tag) for tag in kinds)
    if len(_OTHER_LINE.findall(text)) == text.count(b"\n") and known <= num_known:
        return -1
    lines = (found.start() for found in re.finditer(rb"\n", text))
    return next((at for at in lines if not kinds.get(text[at + 1 : at + 3], _OTHER_LINE).match(text, at)), -1)


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

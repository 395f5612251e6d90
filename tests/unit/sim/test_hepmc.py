from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
import pyhepmc
import pytest
from pyhepmc import GenEvent, GenParticle, GenVertex, Units

from ringflow.base.errors import InputFileError
from ringflow.event.particles import SPEED_OF_LIGHT, properties
from ringflow.sim import hepmc as hepmc_file
from ringflow.sim.generator import GeneratedEvents
from ringflow.sim.hepmc import HepMCGenerator

zstd = partial(pyarrow.compress, codec="zstd", asbytes=True)
CYLINDER = (1486.0, 2190.0)
Vector = tuple[float, float, float]


def particle(pdg: int, momentum: Vector, status: int = 1) -> GenParticle:
    energy = (sum(p * p for p in momentum) + properties(pdg).mass ** 2) ** 0.5
    return GenParticle((*momentum, energy), pdg, status)


class EventBuilder:
    """Beams that collide at a place, and decays after it; momentum need not be conserved for what is tested."""

    def __init__(self, place: Vector | None = None) -> None:
        self.event = GenEvent(Units.GEV, Units.MM)
        self.collision = self.vertex([particle(11, (0, 0, 45), 4), particle(-11, (0, 0, -45), 4)], place)

    def vertex(self, incoming: Sequence[GenParticle], place: Vector | None = None) -> GenVertex:
        vertex = GenVertex() if place is None else GenVertex((*place, sum(x * x for x in place) ** 0.5))
        for entering in incoming:
            vertex.add_particle_in(entering)
        self.event.add_vertex(vertex)
        return vertex

    def emit(self, vertex: GenVertex, pdg: int, momentum: Vector, status: int = 1) -> GenParticle:
        leaving = particle(pdg, momentum, status)
        vertex.add_particle_out(leaving)
        return leaving

    def decay(self, mother: GenParticle, place: Vector, *products: tuple[int, Vector]) -> GenVertex:
        vertex = self.vertex([mother], place)
        for pdg, momentum in products:
            self.emit(vertex, pdg, momentum)
        return vertex


def emitted(pdg: int, momentum: Vector, status: int = 1, place: Vector | None = None) -> EventBuilder:
    """A collision that makes one particle."""
    builder = EventBuilder(place)
    builder.emit(builder.collision, pdg, momentum, status)
    return builder


def decayed(pdg: int, momentum: Vector, place: Vector, *products: tuple[int, Vector]) -> EventBuilder:
    """A collision that makes one particle, and its decay."""
    builder = EventBuilder()
    builder.decay(builder.emit(builder.collision, pdg, momentum, 2), place, *products)
    return builder


def simple(energy: float) -> GenEvent:
    """Two photons: an event known by its energy."""
    builder = emitted(22, (energy, 0, 0))
    builder.emit(builder.collision, 22, (-energy, 0, 0))
    return builder.event


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_events(*events: GenEvent, name: str = "events.hepmc3") -> Path:
        path = tmp_path / name
        with pyhepmc.open(path, "w") as file:
            for event in events:
                file.write(event)
        return path

    return write_events


def read(path: Path, seed: int = 1) -> GeneratedEvents:
    generator = HepMCGenerator(path, seed, CYLINDER)
    return generator.generate(0, generator.num_available)


def pdg_of(events: GeneratedEvents) -> list[int]:
    return sorted(events.pdg.tolist())


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstandard"])
def test_packed_files_are_read_in_any_order(write: Callable[..., Path], pack: Callable[[bytes], bytes]) -> None:
    path = write(*(simple(10.0 + number) for number in range(30)))
    path.write_bytes(pack(path.read_bytes()))
    generator = HepMCGenerator(path, 1, CYLINDER)
    assert generator.num_available == 30
    for start in (20, 3, 0, 29, 5):
        events = generator.generate(start, 2)
        assert events.energy[0] == 10.0 + start


def test_files_put_one_after_the_other_are_one(write: Callable[..., Path]) -> None:
    first, second = (write(*(simple(energy + n) for n in range(3)), name=f"{energy}") for energy in (10.0, 20.0))
    first.write_bytes(first.read_bytes() + second.read_bytes())
    assert read(first).energy[::2].tolist() == [10.0, 11.0, 12.0, 20.0, 21.0, 22.0]


def test_a_sequential_reader_decompresses_once(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(*(simple(10.0 + number) for number in range(20)))
    path.write_bytes(zstd(path.read_bytes()))
    generator = HepMCGenerator(path, 1, CYLINDER)
    generator.generate(0, 1)
    opened = []
    original = hepmc_file._open
    monkeypatch.setattr(hepmc_file, "_open", lambda path: opened.append(path) or original(path))
    for start in range(1, 20, 3):
        generator.generate(start, 1)
    assert opened == []
    generator.generate(0, 1)
    assert len(opened) == 1


def _flipped_checksum(data: bytes) -> bytes:
    packed = bytearray(gzip.compress(data))
    packed[-6] ^= 0xFF
    return bytes(packed)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: b"event,px,py\n1,2,3\n", "is no HepMC3, HepMC2 or LHE file"),
        (lambda data: data[: data.rindex(b"HepMC::Asciiv3-END")], "is truncated"),
        (lambda data: gzip.compress(data)[: len(gzip.compress(data)) // 2], "cannot be read to its end"),
        (_flipped_checksum, "cannot be read to its end"),
        (lambda data: zstd(data)[:-20], "cannot be read to its end"),
        (lambda data: data[: data.index(b"\nE ") + 1] + b"HepMC::Asciiv3-END_EVENT_LISTING\n", "holds no events"),
    ],
)
def test_a_broken_file_is_one_clear_line(
    write: Callable[..., Path], damage: Callable[[bytes], bytes], complaint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(*(simple(10.0 + number) for number in range(400)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputFileError) as error:
        read(path)
    message = str(error.value)
    assert message.startswith(f"{path}: {complaint}")
    assert ";" in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"E 3 1 4", b"E 3 1 5"),
        (b"P 3 -1 22 1.3", b"P 3 -1 22 what"),
        (b"P 3 -1 22 1.3", b"P 3 -1 22 1.3.1"),
        (b"P 3 -1 22", b"P 4 -1 22"),
        (b"P 3 -1 22", b"P 3 -2 22"),
        (b"P 3 -1 22", b"P 3 5 22"),
        (b"P 3 -1 22", b"P 3 -1 2147483648"),
        (b"V -1 0 [1,2]", b"V -1 0 [1,"),
        (b"V -1 0 [1,2]", b"V -1 0 [1,5]"),  # ends the process in HepMC3
        (b"V -1 0 [1,2]", b"V -1 0 [0,2]"),
        (b"V -1 0 [1,2]", b"V -2 0 [1,2]"),
        (b"V -1 0 [1,2]", b"V -1 0 [3,2]"),  # made where it ends
        (b"V -1 0 [1,2]", b"V -1 0 [1,2] @ 0 0 0 what"),
        (b"V -1 0 [1,2]", b"V -1 0 [1,2] and more"),
        (b"U GEV MM", b"U GEV KM"),
        (b"U GEV MM", b"nothing"),
    ],
)
def test_a_damaged_event_is_named(
    write: Callable[..., Path], old: bytes, new: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    events = [simple(10.0 + number) for number in range(5)]
    for number, event in enumerate(events):
        event.event_number = number
    path = write(*events)
    text = path.read_bytes()
    at = text.index(b"\nE 3 ")
    assert old in text[at:]
    path.write_bytes(text[:at] + text[at:].replace(old, new, 1))
    generator = HepMCGenerator(path, 1, CYLINDER)
    assert generator.generate(2, 1).energy.tolist() == [12.0, 12.0]
    with pytest.raises(
        InputFileError, match=r"events\.hepmc3: event 3 is damaged: .* in line \d+, '.*'(\.\.\.)?; make"
    ) as error:
        generator.generate(3, 1)
    line, value = re.search(r" in line (\d+), '(.*)'", str(error.value)).groups()
    changed = path.read_bytes().splitlines()[int(line) - 1].decode()
    assert changed.startswith(value.rstrip("."))
    assert new.decode() in changed or changed.startswith("E 3 ")
    assert generator.generate(4, 1).energy.tolist() == [14.0, 14.0]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstandard"])
def test_a_line_or_an_event_without_end_is_refused(
    write: Callable[..., Path], pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hepmc_file, "_LONGEST_LINE", 2000)
    monkeypatch.setattr(hepmc_file, "_LARGEST_EVENT", 3000)
    path = write(simple(10.0))
    head, end, rest = path.read_bytes().partition(b"HepMC::Asciiv3-END")
    path.write_bytes(pack(head + b"A 0 long " + b"x" * 2000 + b"\n" + end + rest))
    with pytest.raises(InputFileError, match=r"hepmc3: line \d+ begins with 'A 0 long xx.*longer than 2000 bytes"):
        read(path)
    path.write_bytes(pack(head + b"A 0 short\n" * 400 + end + rest))
    with pytest.raises(InputFileError, match=r"hepmc3: line \d+ starts an event of more than 3000 bytes"):
        read(path)


@pytest.mark.parametrize("pack", [gzip.compress, zstd], ids=["gzip", "zstandard"])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    write: Callable[..., Path], pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hepmc_file, "_FREE_GROWTH", 1 << 16)
    path = write(simple(10.0))
    path.write_bytes(pack(path.read_bytes() + b"\n" * (1 << 20)))
    with pytest.raises(InputFileError, match=rf"line \d+ is more than \d+ bytes into a file of {path.stat().st_size},"):
        read(path)


def test_lines_without_end_that_hold_nothing_are_refused(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hepmc_file, "_MANY_LINES", 1000)
    path = write(simple(10.0))
    path.write_bytes(zstd(path.read_bytes() + b"\n" * 1000))
    with pytest.raises(InputFileError, match=r"line 1\d{3} is \d+ bytes into the file, which has no lines of events"):
        read(path)


def test_a_particle_that_is_its_own_ancestor_is_refused_unless_the_file_says_so(write: Callable[..., Path]) -> None:
    path = write(emitted(22, (1.0, 0, 0), place=(0.0, 0.0, 3.0)).event)
    text = path.read_bytes()
    photon = next(line for line in text.splitlines() if line.startswith(b"P 3 "))
    loop = b"\n".join([photon, *(b"P %d %d 23 0 0 0 1 1 2" % pair for pair in ((4, 5), (5, 4)))])
    path.write_bytes(text.replace(b" 1 3\n", b" 3 5\n", 1).replace(photon, loop))
    with pytest.raises(InputFileError, match="is its own ancestor"):
        read(path)
    path.write_bytes(path.read_bytes().replace(b"\nP 1 ", b"\nA 0 cycles 1\nP 1 ", 1))
    assert read(path).z.tolist() == [3.0]


# --- HepMC2 -----------------------------------------------------------------------------------------------------------


def as_hepmc2(path: Path) -> Path:
    """The same events as HepMC2, written by the library; and, from those, as HepMC3 again."""
    old = path.with_suffix(".hepmc2")
    with pyhepmc.open(path) as events, pyhepmc.open(old, "w", format="hepmc2") as file:
        for event in events:
            file.write(event)
    with pyhepmc.open(old) as events, pyhepmc.open(path, "w") as file:
        for event in events:
            file.write(event)
    return old


def _of_many_vertices() -> EventBuilder:
    builder = EventBuilder(place=(0.0, 0.0, 3.0))
    second = builder.vertex([builder.emit(builder.collision, 23, (0, 0, 0), status=2)])
    kaon = builder.emit(second, 310, (5.0, 1.0, 0), status=2)
    builder.emit(second, -521, (1.0, 2.0, -1.0))
    builder.decay(kaon, (50.0, 10.0, 3.0), (211, (3.0, 1.0, 0)), (-211, (2.0, 0, 0)))
    return builder


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd], ids=["plain", "gzip", "zstandard"])
def test_hepmc2_is_what_the_library_makes_hepmc3_of(write: Callable[..., Path], pack: Callable[[bytes], bytes]) -> None:
    converted = _of_many_vertices()
    converted.event.set_units(Units.MEV, Units.CM)
    far = decayed(310, (30.0, 0, 1.0), (1700.0, 0, 50.0), (22, (0.25, 0, 0)), (22, (0.25, 0, 0)))
    path = write(simple(10.0), _of_many_vertices().event, converted.event, far.event)
    old = as_hepmc2(path)
    assert b"U MEV CM" in old.read_bytes()
    old.write_bytes(pack(old.read_bytes() * 2))
    found, expected = read(old), read(path)
    assert (len(expected), len(found), found.pdg[-1]) == (4, 8, 310)
    assert found.counts[:4].tolist() == expected.counts.tolist()  # further ones have other numbers, and other decays
    for name in ("pdg", "px", "py", "pz", "energy", "x", "y", "z", "time"):
        assert getattr(found, name)[: len(expected.pdg)].tolist() == getattr(expected, name).tolist(), name
    assert HepMCGenerator(old, 1, CYLINDER).describe()["kind"] == "hepmc2"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"E 3 0", b"E 3 x"),
        (b"V -2 0", b"V -1 0"),
        (b"V -2 0", b"V 2 0"),
        (b" 0 2 0\nP", b" 0 3 0\nP"),
        (b"P 10003 310", b"P 10003 2147483648"),
        (b"P 10003 310", b"P 10003 K0S"),
        (b"P 10003 310", b"V 10003 310"),
        (b" 2 0 0 -2 0\n", b" 2 0 0 -7 0\n"),
        (b" 2 0 0 -2 0\n", b" 2 0 0 2 0\n"),
        (b" 2 0 0 -2 0\n", b" 2 0 0 -1 0\n"),  # made where it ends
        (b" 4 0 0 -1 0\n", b" 4 0 0 -2 0\n"),  # stands at one vertex and ends at another
        (b"U GEV MM", b"U GEV KM"),
    ],
)
def test_a_damaged_event_of_hepmc2_is_named(
    write: Callable[..., Path], old: bytes, new: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    builders = [
        decayed(310, (5.0 + number, 0, 0), (9.0, 0, 0), (22, (1.0, 0, 0)), (22, (2.0, 0, 0))) for number in range(5)
    ]
    for number, builder in enumerate(builders):
        builder.event.event_number = number
    path = as_hepmc2(write(*(builder.event for builder in builders)))
    capfd.readouterr()
    text = path.read_bytes()
    at = text.index(b"\nE 3 ")
    assert old in text[at:], text[at:].decode()
    path.write_bytes(text[:at] + text[at:].replace(old, new, 1))
    generator = HepMCGenerator(path, 1, CYLINDER)
    with pytest.raises(
        InputFileError, match=r"events\.hepmc2: event 3 is damaged: .* in line \d+, '.*'(\.\.\.)?; make"
    ) as error:
        generator.generate(3, 1)
    line, value = re.search(r" in line (\d+), '(.*?)'", str(error.value)).groups()
    assert path.read_bytes().splitlines()[int(line) - 1].decode().startswith(value.rstrip("."))
    assert len(generator.generate(2, 1)) == len(generator.generate(4, 1)) == 1
    assert capfd.readouterr() == ("", "")


def test_hepmc2_without_units_has_gev_and_mm_and_ends_with_no_partons(write: Callable[..., Path]) -> None:
    path = as_hepmc2(write(emitted(22, (1.0, 0, 0), place=(0.0, 0.0, 3.0)).event))
    path.write_bytes(path.read_bytes().replace(b"U GEV MM\n", b""))
    assert (read(path).energy.tolist(), read(path).z.tolist()) == ([1.0], [3.0])
    path = as_hepmc2(write(emitted(21, (1.0, 0, 0)).event))
    with pytest.raises(InputFileError, match="ends with quarks or gluons"):
        read(path)
    path.write_bytes(path.read_bytes().replace(b"HepMC::IO_GenEvent-END_EVENT_LISTING", b""))
    with pytest.raises(InputFileError, match="is truncated"):
        read(path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\0\0\0\x28\xab\xad\xca\xfe\0\0\0\1", r"is an LCIO file; lcio2edm4hep \(of k4EDM4hep2LcioConv\) makes"),
        (
            b"\0\0\0\1\0\0\0\xa4\0\0\0\0042.01\0\0\0\5title",
            "is a stdhep file, which is not read; have the generator write",
        ),
    ],
)
def test_binary_files_are_known_and_what_to_do_is_said(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "events"
    path.write_bytes(content)
    with pytest.raises(InputFileError, match=what) as error:
        read(path)
    assert "\n" not in str(error.value)


def test_a_file_in_which_no_event_begins_is_refused(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hepmc_file, "_LARGEST_EVENT", 3000)
    path = write(simple(10.0))
    head, begin, rest = path.read_bytes().partition(b"E 0 ")
    path.write_bytes(head + b"A more\n" * 500 + begin + rest)
    with pytest.raises(InputFileError, match="bytes into the file, and no event has begun"):
        read(path)


# --- the final state --------------------------------------------------------------------------------------------------


def test_units_become_gev_mm_and_ns(write: Callable[..., Path]) -> None:
    builder = decayed(310, (5.0, 0, 0), (299.792458, 0, 0), (22, (3.0, 4.0, 0)))
    builder.event.set_units(Units.MEV, Units.CM)
    path = write(builder.event)
    assert b"U MEV CM" in path.read_bytes()
    events = read(path)
    found = [float(column[0]) for column in (events.px, events.py, events.energy, events.x, events.time)]
    assert found == pytest.approx([3.0, 4.0, 5.0, 299.792458, 1.0])
    assert pdg_of(events) == [22]


def test_a_vertex_without_a_position_is_where_its_ancestors_are(write: Callable[..., Path]) -> None:
    builder = EventBuilder(place=(0.0, 0.0, 3.0))
    second = builder.vertex([builder.emit(builder.collision, 23, (0, 0, 0), status=2)])
    builder.emit(second, 22, (1.0, 0, 0))
    assert read(write(builder.event)).z.tolist() == [3.0]


def _comes_back() -> EventBuilder:
    builder = EventBuilder()
    lost = builder.emit(builder.collision, 3122, (30.0, 0, 0), status=2)
    outer = builder.decay(lost, (1700.0, 0, 0), (22, (35.0, 0, 0)))
    back = builder.emit(outer, 310, (-5.0, 0, 0), status=2)
    builder.decay(back, (1000.0, 0, 0), (22, (-2.0, 0, 0)), (22, (-3.0, 0, 0)))
    return builder


TO_ELECTRON = ((11, (0.5, 1.0, 0)), (-12, (0.5, 1.0, 0)))
TO_PHOTONS = ((22, (0.25, 0, 0)), (22, (0.25, 0, 0)))


@pytest.mark.parametrize(
    ("builder", "pdg", "px"),
    [
        (decayed(310, (30.0, 0, 1.0), (1700.0, 0, 50.0), *TO_PHOTONS), [310], [30.0]),
        (decayed(310, (0, 30.0, 0), (0, 700.0, 0), *TO_PHOTONS), [22, 22], [0.25, 0.25]),
        # A slow K0S known to live long is not decayed after all: it would if it were asked again.
        (decayed(310, (0.5, 0, 0), (1700.0, 0, 0), *TO_PHOTONS), [310], [0.5]),
        (_comes_back(), [3122], [30.0]),  # what comes back from outside is not counted twice
        *((decayed(pdg, (1.0, 2.0, 0), (100.0, 200.0, 0), *TO_ELECTRON), [pdg], [1.0]) for pdg in (13, -211, 130)),
        (decayed(211, (1.0, 0, 0), (0, 0, 0), (211, (1.1, 0, 0))), [211], [1.1]),  # it only changed its momentum
    ],
)
def test_decays_are_undone_outside_the_tracker_and_of_long_lived_particles(
    write: Callable[..., Path], builder: EventBuilder, pdg: list[int], px: list[float]
) -> None:
    events = read(write(builder.event))
    assert pdg_of(events) == pdg
    assert events.px.tolist() == px
    assert np.hypot(events.x, events.y).max() <= 700.0


@pytest.mark.parametrize("pdg", [15, 310, 3334, -511])
def test_undecayed_short_lived_particles_decay(write: Callable[..., Path], pdg: int) -> None:
    builders = [emitted(pdg, (1.0, 2.0, -1.0), place=(0.0, 0.0, 2.0)) for _ in range(8)]
    for builder in builders:
        builder.emit(builder.collision, 130, (0.0, 1.0, 0.0))
    made = read(write(*(builder.event for builder in builders)))
    others = np.isin(np.arange(len(made.pdg)), np.cumsum(made.counts) - made.counts)
    assert pdg not in made.pdg
    assert (made.pdg[others] == 130).all()
    row = np.repeat(np.arange(8), made.counts)
    mother = particle(pdg, (1.0, 2.0, -1.0)).momentum
    for column, of_mother, of_other in (
        (made.px, mother.px, 0.0),
        (made.py, mother.py, 1.0),
        (made.pz, mother.pz, 0.0),
        (made.energy, mother.e, (1.0 + properties(130).mass ** 2) ** 0.5),
    ):
        assert np.bincount(row, column) == pytest.approx(of_mother + of_other, abs=1e-5)
    distance = np.sqrt(made.x**2 + made.y**2 + (made.z - 2.0) ** 2)[~others]
    assert (distance <= made.time[~others] * SPEED_OF_LIGHT + 1e-9).all()
    if properties(pdg).ctau > 10:
        assert distance.max() > 1.0


def test_a_decay_starts_from_the_time_of_its_vertex(write: Callable[..., Path]) -> None:
    builder = decayed(310, (0, 5.0, 0), (0, 2 * SPEED_OF_LIGHT, 0), (111, (0, 5.0, 0)))
    events = read(write(builder.event))
    assert 22 in events.pdg
    assert events.time == pytest.approx(2.0, abs=1e-3)
    assert events.y == pytest.approx(2 * SPEED_OF_LIGHT, abs=1e-3)


def test_the_mean_flight_of_a_k0s_is_its_decay_length(write: Callable[..., Path]) -> None:
    made = read(write(*(emitted(310, (0, 0.5, 0)).event for _ in range(150))))
    first = made.y[np.cumsum(made.counts) - made.counts]
    expected = 0.5 / properties(310).mass * properties(310).ctau
    assert first.mean() == pytest.approx(expected, rel=4 / np.sqrt(150))


def given_by(pdg: int, momentum: tuple[float, float, float, float]) -> EventBuilder:
    """A collision that makes a particle of any energy."""
    builder = EventBuilder()
    builder.collision.add_particle_out(GenParticle(momentum, pdg, 1))
    return builder


def test_what_pythia_does_not_know_is_left_alone_and_rounded_digits_do_not_stop_a_decay(
    write: Callable[..., Path],
) -> None:
    assert read(write(given_by(9999999, (3, 0, 0, 5)).event)).pdg.tolist() == [9999999]
    events = read(write(given_by(111, (900.0, 0, 0, 900.0)).event))
    assert 22 in events.pdg
    assert events.energy.sum() == pytest.approx(900.0, rel=1e-6)


@pytest.mark.parametrize(
    ("builder", "complaint"),
    [
        (emitted(21, (1.0, 0, 0)), r" ends with quarks or gluons \(PDG 21\)"),
        (emitted(22, (1.0, 0, 0), status=2), " holds no final particles"),
        (emitted(22, (1.0, 0, 0), place=(0.0, 0.0, 5000.0)), " collides outside the tracker"),
        (given_by(511, (1.0, 0, 0, 1.01)), r": PDG 511 has a mass of 0\.142 GeV, not 5\.28"),
    ],
)
def test_an_event_that_cannot_be_used_is_named(
    write: Callable[..., Path], builder: EventBuilder, complaint: str
) -> None:
    with pytest.raises(InputFileError, match=rf"events\.hepmc3: event 1.*({complaint})"):
        read(write(simple(10.0), builder.event))


def test_a_number_too_large_to_read_is_reported(write: Callable[..., Path]) -> None:
    path = write(simple(10.0))
    path.write_bytes(path.read_bytes().replace(b" 1.0000000000000000e+01", b" 1.0000000000000000e+999"))
    with pytest.raises(InputFileError, match="event 0 holds momenta or positions that are not finite"):
        read(path)

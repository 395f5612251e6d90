"""Partons of LHE files: showered with all their momentum, and refused where they are not as the accord has them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.lhe_files import Row, quarks, two_w, write_lhe
from ringflow.base.errors import InputFileError
from ringflow.sim import lhe as lhe_file
from ringflow.sim.generator import GeneratedEvents
from ringflow.sim.hepmc import HepMCGenerator

CYLINDER = (1486.0, 2190.0)


def opened(path: Path, seed: int = 1) -> HepMCGenerator:
    return HepMCGenerator(path, seed, CYLINDER)


def read(path: Path, seed: int = 1) -> GeneratedEvents:
    generator = opened(path, seed)
    return generator.generate(0, generator.num_available)


def sums(events: GeneratedEvents) -> np.ndarray:
    event = np.repeat(np.arange(len(events)), events.counts)
    return np.stack([np.bincount(event, column) for column in (events.px, events.py, events.pz, events.energy)], axis=1)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_partons_become_hadrons_with_all_their_momentum(
    tmp_path: Path, pack: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_lhe(tmp_path / "events.lhe", quarks(100.0), two_w(100.0), quarks(100.0, phi=2.0))
    path.write_bytes(pack(path.read_bytes()))
    generator = opened(path)
    assert generator.num_available == 3
    events = generator.generate(0, 3)
    assert sums(events) == pytest.approx(np.array([[0, 0, 0, 200.0]] * 3), abs=1e-5)
    assert not set(np.abs(events.pdg).tolist()) & {*range(1, 7), 21, 24, 111}
    assert events.counts.min() > 5
    leptons = events.pdg[events.counts[0] : events.counts[0] + events.counts[1]].tolist()
    assert {13, -14} <= set(leptons)
    described = generator.describe()
    assert (described["kind"], described["events"]) == ("lhe", 3)
    assert "PartonLevel:ISR = off" in described["settings"]
    assert capfd.readouterr() == ("", "")


def test_an_event_depends_on_seed_and_number_alone(tmp_path: Path) -> None:
    path = write_lhe(tmp_path / "events.lhe", *(quarks(100.0) for _ in range(4)))
    events, ends = read(path), np.cumsum(read(path).counts)
    alone = opened(path).generate(2, 1)
    assert np.array_equal(alone.px, events.px[ends[1] : ends[2]])
    assert len({len(part) for part in np.split(events.px, ends)}) > 1, "equal partons, other showers"
    assert not np.array_equal(read(path, seed=2).counts, events.counts)


def test_what_the_leptons_lost_before_they_collided_goes_along_the_beam(tmp_path: Path) -> None:
    events = read(write_lhe(tmp_path / "events.lhe", quarks(100.0, 60.0)))
    assert sums(events)[0] == pytest.approx([0, 0, 0, 200.0], abs=1e-5)
    along = (events.pdg == 22) & (np.hypot(events.px, events.py) < 1e-9)
    assert events.pz[along].tolist() == pytest.approx([-40.0])


def test_what_is_not_decayed_decays(tmp_path: Path) -> None:
    rows = [row if row[0] != -24 else (*row[:1], 1, *row[2:]) for row in two_w(100.0)[:-2]]
    events = read(write_lhe(tmp_path / "events.lhe", rows))
    assert 24 not in np.abs(events.pdg)
    assert sums(events)[0] == pytest.approx([0, 0, 0, 200.0], abs=1e-5)


def test_beams_and_their_remnants_which_whizard_writes_are_left_out(tmp_path: Path) -> None:
    electron, positron, *others = quarks(100.0, 60.0)
    beams = [(row[0], -9, *row[2:]) for row in quarks(100.0)[:2]]
    lost: Row = (22, 3, 2, 0, 0, 0, np.array([0.0, 0.0, -40.0, 40.0]), 0.0)
    entering = [(*row[:2], mother, 0, *row[4:]) for mother, row in ((1, electron), (2, positron))]
    outgoing = [(*row[:2], 3, 4, *row[4:]) for row in others]
    whizard = read(write_lhe(tmp_path / "whizard.lhe", [*beams, *entering, lost, *outgoing]))
    plain = read(write_lhe(tmp_path / "plain.lhe", [electron, positron, *others]))
    for name in ("pdg", "px", "energy"):
        assert np.array_equal(getattr(whizard, name), getattr(plain, name))


def changed(rows: list[Row], row: int, **values: object) -> list[Row]:
    names = ("pdg", "status", "mother", "other", "colour", "anticolour", "momentum", "mass")
    rows[row] = tuple(values.get(name, value) for name, value in zip(names, rows[row], strict=True))  # type: ignore[assignment]
    return rows


FAST = np.array([0.0, 0.0, 60.0, 60.0])


@pytest.mark.parametrize(
    ("rows", "why", "row"),
    [
        (changed(quarks(100.0), 2, status=4), "another status", 2),
        (changed(quarks(100.0), 1, status=1), "another status", 1),
        (changed(quarks(100.0), 2, mother=4), "other mothers", 2),
        (changed(quarks(100.0), 2, mother=-4), "other mothers", 2),
        (changed(two_w(100.0), 4, mother=5, other=5), "other mothers", 4),  # its own
        (changed(two_w(100.0), 4, mother=6, other=6), "other mothers", 4),  # a later one
        (changed(two_w(100.0), 6, mother=5), "other mothers", 6),  # of one that did not decay
        (changed(quarks(100.0), 2, mother=99), "a number out of range", 2),
        (changed(quarks(100.0), 2, colour=502), "momentum or colour", 0),
        (changed(quarks(100.0), 3, pdg=2, colour=501, anticolour=0), "momentum or colour", 0),  # two ends of one kind
        (changed(quarks(100.0), 2, colour=0), "colours that are not", 2),
        (changed(quarks(100.0), 3, pdg=21, colour=501), "colours that are not", 3),
        (changed(quarks(100.0), 2, pdg=11), "colours that are not", 2),
        (changed(two_w(100.0), 4, colour=502), "momentum or colour", 2),
        (changed(quarks(100.0), 2, momentum=FAST), "momentum or colour", 0),
        (changed(two_w(100.0), 6, momentum=FAST), "momentum or colour", 3),
        (changed(quarks(100.0), 0, momentum=np.array([60.0, 0.0, 80.0, 100.0])), "no direction along its beam", 0),
        (changed(quarks(100.0), 1, momentum=np.array([0.0, 0.0, 100.0, 100.0])), "no direction along its beam", 1),
        (changed(quarks(100.0), 2, mass=50.0), "a mass that is not", 2),
        (changed(quarks(100.0), 2, mass=-1.0), "no mass", 2),
        (changed(quarks(100.0), 2, momentum=-FAST), "no momentum and energy", 2),
        (quarks(100.0)[:2], "not 3 to 1000 particles", -1),
        (changed(quarks(100.0)[:3], 2, status=3), "not 3 particles that take part", -1),
        (two_w(100.0)[:4], "momentum or colour", 2),  # a W that decayed to nothing
    ],
)
def test_an_event_that_is_none_is_named_before_pythia_sees_it(
    tmp_path: Path, rows: list[Row], why: str, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lhe(tmp_path / "events.lhe", quarks(100.0), rows)
    monkeypatch.setattr(lhe_file, "start_pythia", None)
    with pytest.raises(
        InputFileError, match=rf"events\.lhe: event 1 is damaged: .*{why}.* in line (\d+), '.*'"
    ) as error:
        opened(path).generate(1, 1)
    second = path.read_text().splitlines().index("<event>", 10) + 1
    assert f" in line {second + 2 + row}, " in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("\n4 1 +1", "\n5 1 +1", "no particle of LHE in line 15, '<rwgt>'"),
        ("\n4 1 +1", "\nfour 1 +1", "no number of particles and scale in line 10"),
        ("\n4 1 +1", "\n999999999 1 +1", "not 3 to 1000 particles in line 10"),
        (" +0.0000000000e+00 0.0000e+00 9.0", " nan 0.0000e+00 9.0", "no particle of LHE in line 11"),
        ("0.0000e+00 9.0", "-1.0 9.0", "a lifetime that is not from 0 to 10000 mm in line 11"),
        ("0.0000e+00 9.0", "1e999 9.0", "a lifetime that is not from 0 to 10000 mm in line 11"),
        ("+1.0000000000e+02", "+1.0e+999", "no momentum and energy in line 11"),
    ],
)
def test_words_that_are_no_numbers_are_named(tmp_path: Path, old: str, new: str, why: str) -> None:
    path = write_lhe(tmp_path / "events.lhe", quarks(100.0))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputFileError) as error:
        read(path)
    assert f"events.lhe: event 0 is damaged: {why}" in str(error.value)


@pytest.mark.parametrize(
    ("beam", "why"),
    [
        ((22, 22, 100.0, 100.0), "beams of PDG 22 and 22 are not showered"),
        ((11, 2212, 100.0, 100.0), "beams of PDG 11 and 2212 are not showered"),
        ((11, -11, 0.0, 0.0), "beams of 0 and 0 GeV, not from 5 to 5000 GeV"),
        ((11, -11, 50.0, 100.0), "event 0: a particle of 100 GeV comes in with a beam of 50 GeV"),
    ],
)
def test_beams_that_cannot_be_are_refused(tmp_path: Path, beam: tuple[int, int, float, float], why: str) -> None:
    with pytest.raises(InputFileError, match=why):
        read(write_lhe(tmp_path / "events.lhe", quarks(100.0), beam=beam))


@pytest.mark.parametrize("pdg", [211, 443, 0, 90, 1000021])
def test_what_pythia_might_not_end_with_is_refused(tmp_path: Path, pdg: int) -> None:
    """It looks for decays of a hadron of a strange mass for ever."""
    rows = changed(changed(quarks(100.0), 2, pdg=pdg, colour=0), 3, pdg=pdg, anticolour=0)
    with pytest.raises(InputFileError, match=f"event 0: PDG {pdg} is not what Pythia is given"):
        read(write_lhe(tmp_path / "events.lhe", rows))


def test_a_file_is_whole_and_tells_its_beams(tmp_path: Path) -> None:
    path = write_lhe(tmp_path / "events.lhe", quarks(100.0))
    text = path.read_text()
    path.write_text(text.replace("<init>", "<other>"))
    with pytest.raises(InputFileError, match="no beams in an <init> block"):
        read(path)
    path.write_text(text.replace("</LesHouchesEvents>", ""))
    with pytest.raises(InputFileError, match="is truncated, its last line is missing"):
        read(path)
    path.write_text(text[: text.index("\n<event>\n")] + "\n</LesHouchesEvents>\n")
    with pytest.raises(InputFileError, match="holds no events"):
        read(path)

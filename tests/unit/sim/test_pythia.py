from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ringflow.base.errors import FailureError
from ringflow.event.particles import NEUTRINOS, SPEED_OF_LIGHT, lookup
from ringflow.sim.generator import Collision, GeneratedEvents, sample
from ringflow.sim.pythia import Cylinder, PythiaGenerator, PythiaSource, reseed, start_pythia

CYLINDER = (1486.0, 2190.0)
# gamma_gamma and ttbar_pu10 take seconds to start: they share one generator below.
QUICK = ("ttbar", "zh", "zuds_91", "ttbar@500", "qq@20", "ww@157", "zh@3000")


def collision(name: str) -> Collision:
    definition = sample(name)
    assert isinstance(definition, Collision)
    return definition


def generator(name: str, seed: int = 1, cylinder: Cylinder = CYLINDER) -> PythiaGenerator:
    return PythiaGenerator(name, collision(name), seed, cylinder)


def rows_of(events: GeneratedEvents) -> np.ndarray:
    return np.repeat(np.arange(len(events)), events.counts)


def assert_conserved(events: GeneratedEvents, groups: np.ndarray, cm_energy: float) -> None:
    """Every group of particles has the four-momentum and the charge of the colliding beams."""
    _, group = np.unique(groups, return_inverse=True)
    assert np.bincount(group, events.energy) == pytest.approx(cm_energy, abs=1e-6)
    for component in (events.px, events.py, events.pz):
        assert np.abs(np.bincount(group, component)).max() < 1e-6
    assert np.abs(np.bincount(group, lookup(events.pdg, "charge"))).max() < 1e-9


@pytest.mark.parametrize("name", QUICK)
def test_four_momentum_and_charge_are_conserved(name: str) -> None:
    events = generator(name).generate(0, 25)
    assert (events.interaction == 0).all()
    assert_conserved(events, rows_of(events), collision(name).cm_energy)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("ttbar", {24: {1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16}, 6: {5, 3, 1, 24}}),
        ("qq", {23: {1, 2, 3, 4, 5}}),
        ("zh", {23: {1, 2, 3, 4, 5, 12, 14, 16}, 25: {5}}),
        ("ww", {24: {1, 2, 3, 4, 5}}),
    ],
)
def test_bosons_and_tops_decay_as_the_sample_says(name: str, allowed: dict[int, set[int]]) -> None:
    pythia = start_pythia(PythiaSource(collision(name), CYLINDER).settings)
    seen: dict[int, set[int]] = {mother: set() for mother in allowed}
    for number in range(60):
        reseed(pythia, number)
        assert pythia.next()
        record = pythia.process
        for made in record:
            pdg, mother = made.idAbs(), record[made.mother1()].idAbs()
            if made.mother1() > 0 and made.statusAbs() > 21 and mother in seen and pdg != mother:
                seen[mother].add(pdg)
    for mother, daughters in seen.items():
        assert daughters
        assert daughters <= allowed[mother]
    if name == "zh":
        assert seen[23] & {12, 14, 16}
        assert seen[23] & {1, 2, 3, 4, 5}


def test_ttbar_is_as_busy_as_it_should_be_and_timed_in_nanoseconds() -> None:
    """135 visible particles at 500 GeV in full simulation; multiplicity rises slower than the energy."""
    events = generator("ttbar").generate(0, 60)
    visible = ~np.isin(np.abs(events.pdg), NEUTRINOS)
    assert 95 < visible.sum() / 60 < 120
    assert 0.40 < (lookup(events.pdg[visible], "charge") != 0).mean() < 0.52
    energy = np.bincount(rows_of(events)[visible], events.energy[visible])
    assert 300 < energy.mean() < 345
    distance = np.sqrt(events.x**2 + events.y**2 + events.z**2)
    far = distance > 200.0
    speed = distance[far] / (events.time[far] * SPEED_OF_LIGHT)
    assert far.sum() > 20
    assert speed.max() <= 1.0 + 1e-9
    assert np.median(speed) > 0.9


def test_short_lived_particles_decay_inside_the_cylinder_only() -> None:
    k0s, lambda0 = 310, 3122
    wide = generator("qq").generate(0, 80)
    narrow = generator("qq", cylinder=(1.0, 1.0)).generate(0, 80)
    in_wide, in_narrow = (np.isin(np.abs(events.pdg), (k0s, lambda0)).sum() for events in (wide, narrow))
    assert in_wide < 0.2 * in_narrow
    assert np.hypot(narrow.x, narrow.y).max() <= 1.0
    assert np.hypot(wide.x, wide.y).max() > 100.0
    # Neither pi0, taus nor charm and bottom ever reach the detector, long-lived ones always do.
    assert not np.isin(np.abs(wide.pdg), (15, 111, 411, 421, 511, 521)).any()
    assert {130, 211, 321, 2112} <= set(np.abs(wide.pdg).tolist())


def test_an_event_that_fails_is_made_again_with_other_numbers() -> None:
    """An energy check at the limit of rounding fails some of the events; the others must not move."""
    plain = collision("zuds_91")
    picky = plain.model_copy(update={"pythia": (*plain.pythia, "Check:epTolErr = 1e-15")})
    names = [("retry", number) for number in range(60)]
    counts, columns = PythiaSource(plain, CYLINDER).events(names)
    source = PythiaSource(picky, CYLINDER)
    picky_counts, picky_columns = source.events(names)
    assert len(picky_counts) == 60

    def split(sizes: np.ndarray, flat: dict[str, np.ndarray]) -> list[list[float]]:
        return [part.tolist() for part in np.split(flat["px"], np.cumsum(sizes)[:-1])]

    events, picky_events = split(counts, columns), split(picky_counts, picky_columns)
    moved = [row for row in range(60) if events[row] != picky_events[row]]
    assert 0 < len(moved) < 60
    assert source.events([names[moved[0]]])[1]["px"].tolist() == picky_events[moved[0]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Check:epTolErr = 1e-30", r"Pythia failed 20 times to make event zuds_91/7/0/0; use another seed"),
        ("NoSuch:thing = on", r"Pythia does not accept 'NoSuch:thing = on'"),
    ],
)
def test_what_pythia_cannot_do_is_named(line: str, message: str) -> None:
    plain = collision("zuds_91")
    wrong = plain.model_copy(update={"pythia": (*plain.pythia, line)})
    with pytest.raises(FailureError, match=message):
        PythiaGenerator("zuds_91", wrong, 7, CYLINDER).generate(0, 2)


def test_a_wrong_data_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHIA8DATA", str(tmp_path))
    with pytest.raises(FailureError, match=f"PYTHIA8DATA={tmp_path} holds no Index.xml"):
        generator("qq").generate(0, 1)
    assert capfd.readouterr() == ("", "")


def test_keys_beyond_the_seeds_of_pythia_make_other_numbers() -> None:
    """Pythia takes 9e8 seeds; two keys that share one must still differ."""
    pythia = start_pythia(PythiaSource(collision("qq"), CYLINDER).settings)
    drawn = []
    for key in (5, 5 + 900_000_000, 5 + 7 * 900_000_000, 2**64 - 1):
        reseed(pythia, key)
        drawn.append(tuple(pythia.rndm.flat() for _ in range(20)))
    assert len({numbers[0] for numbers in drawn}) == len(drawn)
    assert all(0 < number < 1 for numbers in drawn for number in numbers)


@pytest.fixture(scope="module")
def overlaid() -> GeneratedEvents:
    return generator("ttbar_pu10").generate(0, 60)


def num_overlaid(events: GeneratedEvents) -> np.ndarray:
    largest = np.zeros(len(events), dtype=int)
    np.maximum.at(largest, rows_of(events), events.interaction)
    return largest


def test_interactions_are_poisson_numbered_and_each_conserves_momentum(overlaid: GeneratedEvents) -> None:
    numbers = num_overlaid(overlaid)
    assert numbers.mean() == pytest.approx(10.0, abs=4 * np.sqrt(10 / 60))
    assert 4.5 < numbers.var() < 20
    group = rows_of(overlaid) * 1000 + overlaid.interaction
    assert len(np.unique(group)) == (1 + numbers).sum()
    assert_conserved(overlaid, group, 380.0)
    # Within an event the collision comes first, then the overlaid interactions in order.
    assert (np.diff(group) >= 0).all()


def test_the_overlay_moves_nothing_in_the_collision(overlaid: GeneratedEvents) -> None:
    bare = collision("ttbar_pu10").model_copy(update={"overlay": None})
    alone = PythiaGenerator("ttbar_pu10", bare, 1, CYLINDER).generate(0, 60)
    assert np.array_equal(overlaid.px[overlaid.interaction == 0], alone.px)

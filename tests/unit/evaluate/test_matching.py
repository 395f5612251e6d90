"""Pairs are one to one, the most there can be, and of least cost."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from fixtures.hand_made import Particle, momenta_of
from ringflow.evaluate.matching import Pairs, match_jets, match_particles
from ringflow.evaluate.momenta import Momenta

# Everything within a few tenths, so that many pairs compete.
particle = st.tuples(
    st.floats(1.0, 2.0), st.floats(-0.12, 0.12), st.floats(-0.12, 0.12).map(lambda phi: np.pi + phi), st.just(1)
)
event = st.lists(particle, max_size=5)


def distance_of(true: Particle, reco: Particle) -> float:
    azimuth = abs((true[2] - reco[2] + np.pi) % (2 * np.pi) - np.pi)
    return float(np.hypot(true[1] - reco[1], azimuth))


def on_the_edge(true: Particle, reco: Particle) -> bool:
    """Whether rounding decides."""
    return abs(distance_of(true, reco) - 0.1) < 1e-9 or abs(abs(reco[0] - true[0]) - 0.5 * true[0]) < 1e-9


def cost(true: Particle, reco: Particle) -> float | None:
    """The definition, for one pair; None where it is not allowed."""
    distance = distance_of(true, reco)
    if distance >= 0.1 or abs(reco[0] - true[0]) >= 0.5 * true[0]:
        return None
    return float((distance / 0.1) ** 2 + (np.log(reco[0] / true[0]) / np.log(2)) ** 2)


def best_by_trying(truth: list[Particle], reco: list[Particle]) -> tuple[int, float]:
    """Most pairs, then least cost, over every way to assign."""
    slots = [*range(len(reco)), *[None] * len(truth)]
    best = (0, 0.0)
    for chosen in set(permutations(slots, len(truth))):
        costs = [None if n is None else cost(true, reco[n]) for true, n in zip(truth, chosen, strict=True)]
        taken = [c for c in costs if c is not None]
        best = min(best, (-len(taken), sum(taken)))
    return -best[0], best[1]


def as_set(pairs: Pairs) -> set[tuple[int, int]]:
    return set(zip(pairs.truth.tolist(), pairs.reco.tolist(), strict=True))


@given(event.filter(lambda e: len(e) < 4), event.filter(lambda e: len(e) < 4))
def test_pairs_are_what_trying_everything_gives(truth: list[Particle], reco: list[Particle]) -> None:
    assume(not any(on_the_edge(t, r) for t in truth for r in reco))
    pairs = match_particles(momenta_of([truth]), momenta_of([reco]))
    number, least = best_by_trying(truth, reco)
    costs = [cost(truth[t], reco[r]) for t, r in as_set(pairs)]
    assert len(costs) == number
    assert None not in costs
    assert np.isclose(sum(c for c in costs if c is not None), least, atol=1e-6)


@given(st.lists(st.tuples(event, event), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_pairs_are_one_to_one_in_one_event_and_do_not_depend_on_the_order(events, random) -> None:
    truth, reco = momenta_of([t for t, _ in events]), momenta_of([r for _, r in events])
    pairs = match_particles(truth, reco)
    assert len(set(pairs.truth.tolist())) == len(pairs.truth) == len(set(pairs.reco.tolist()))
    assert np.array_equal(truth.event[pairs.truth], reco.event[pairs.reco])

    shuffled = [random.sample(r, len(r)) for _, r in events]
    again = match_particles(truth, other := momenta_of(shuffled))
    assert {(t, reco.px[r], reco.pz[r]) for t, r in as_set(pairs)} == {
        (t, other.px[r], other.pz[r]) for t, r in as_set(again)
    }


def test_limits_of_distance_and_momentum() -> None:
    truth = momenta_of([[(2.0, 0.0, 0.0, 1)]])
    limits = ((2.0, 0.099, 1), (2.0, 0.101, 0), (2.99, 0.0, 1), (3.01, 0.0, 0), (1.01, 0, 1), (0.99, 0, 0))
    for pt, eta, accepted in limits:
        assert len(match_particles(truth, momenta_of([[(pt, eta, 0.0, 1)]])).truth) == accepted, (pt, eta)
    assert len(match_jets(truth, momenta_of([[(9.0, 0.0, 0.0, 0)]])).truth) == 1
    before, behind = momenta_of([[(1.0, 0.0, np.pi - 0.01, 1)]]), momenta_of([[(1.0, 0.0, -np.pi + 0.01, 1)]])
    assert as_set(match_jets(before, behind)) == {(0, 0)}  # azimuth goes round


def test_empty_events_and_neighbouring_events_are_kept_apart() -> None:
    one: list[Particle] = [(1.0, 0.0, 0.0, 1)]
    assert as_set(match_particles(momenta_of([[], one, []]), momenta_of([one, [], one]))) == set()
    assert as_set(match_particles(momenta_of([[], one, []]), momenta_of([one, one, []]))) == {(0, 1)}
    nothing = momenta_of([[], []])
    assert as_set(match_particles(nothing, nothing)) == set()


def test_a_momentum_along_the_beam_has_a_finite_direction() -> None:
    along = Momenta(np.array([2]), *np.zeros((2, 2)), np.array([5.0, 0.0]), np.array([5.0, 0.0]), np.ones(2, np.int64))
    assert np.isfinite(along.eta).all()
    assert as_set(match_particles(along, along)) == set()  # without pT there is no |dpT| / pT

"""Jets of events one can do in the head."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from fixtures.hand_made import momenta_of
from ringflow.evaluate.jets import find_jets, force_jets

PAIR = [(10.0, 0.0, 0.0, 1), (5.0, 0.1, 0.1, 3), (20.0, 0.0, 3.0, 2), (2.0, 0.0, 1.5, 3)]


def test_near_particles_are_one_jet_and_soft_ones_none() -> None:
    particles, jets = momenta_of([PAIR]), find_jets(momenta_of([[], PAIR, [], [(7.0, 0.0, 0.0, 1)], []]))
    assert jets.counts.tolist() == [0, 2, 0, 1, 0]  # the particle of 2 GeV is below the threshold
    assert jets.px[1] == pytest.approx(particles.px[:2].sum())
    assert jets.energy[1] == pytest.approx(particles.energy[:2].sum())
    assert jets.pt[0] > jets.pt[1]
    assert jets.pt[2] == pytest.approx(7.0)
    assert find_jets(momenta_of([[], []])).counts.tolist() == [0, 0]


def test_hard_particles_gather_soft_ones_before_those_gather_each_other() -> None:
    """With p = -1 the first soft particle goes to the hard one; with p = 1 the two soft ones would stay together."""
    jets = find_jets(momenta_of([[(30.0, 0.0, 0.0, 1), (1.0, 0.0, 0.3, 1), (1.0, 0.0, 0.55, 1)]]))
    assert jets.counts.tolist() == [1]
    assert jets.energy[0] == pytest.approx(31.0)


def test_forced_jets_hold_everything_and_need_enough_particles() -> None:
    particles = momenta_of([PAIR[:1], PAIR, []])
    jets, enough = force_jets(particles, 2)
    assert enough.tolist() == [False, True, False]
    assert jets.shape == (1, 2, 4)
    assert np.allclose(jets[0].sum(axis=0), particles.sums()[1])
    assert force_jets(momenta_of([[]]), 2)[0].shape == (0, 2, 4)


def test_stdout_stays_empty() -> None:
    code = (
        "from fixtures.hand_made import momenta_of;"
        "from ringflow.evaluate.jets import find_jets; find_jets(momenta_of([[(10.0, 0.0, 0.0, 1)]]))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == ""

"""Truth: the vectorised assignment against the definition applied particle by particle, and exact accounting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ringflow.elements.truth import TruthInput, assign_targets
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, NEUTRAL_HADRON, NONE, PHOTON


@dataclass
class Expected:
    owner_of: dict[int, int]
    element_of: dict[int, tuple[str, int]]
    label_of: dict[int, int]


def random_event(seed: int, particles: int, elements: int) -> TruthInput:
    rng = np.random.default_rng(seed)
    label = rng.choice([NONE, CHARGED_HADRON, NEUTRAL_HADRON, PHOTON, ELECTRON, MUON], particles)
    charge = np.where(np.isin(label, [CHARGED_HADRON, ELECTRON, MUON]), rng.choice([-1, 1], particles), 0)
    momentum = rng.normal(0, 2, (particles, 3)) * rng.exponential(1, (particles, 1))
    energy = np.sqrt((momentum**2).sum(1)) + 0.1
    tracks = [p for p in range(particles) if charge[p] for _ in range(rng.choice([0, 1, 1, 2]))]
    links = [(e, p) for e in range(elements) for p in range(particles) if label[p] != NONE and rng.random() < 0.25]
    share = rng.exponential(0.3, len(links)) ** 2
    return TruthInput(
        label=torch.as_tensor(label),
        charge=torch.as_tensor(charge),
        momentum=torch.as_tensor(np.column_stack([momentum, energy])),
        track_particle=torch.as_tensor(np.array(tracks, dtype=np.int64)),
        track_quality=torch.as_tensor(rng.permutation(len(tracks)).astype(np.float64)),
        link_element=torch.as_tensor(np.array([e for e, _ in links], dtype=np.int64)),
        link_particle=torch.as_tensor(np.array([p for _, p in links], dtype=np.int64)),
        link_energy=torch.as_tensor(share),
        num_elements=elements,
    )


def by_definition(event: TruthInput) -> Expected:
    """The seven points, one particle at a time."""
    momentum = event.momentum.numpy()
    label, charge = event.label.tolist(), event.charge.tolist()
    deposits: dict[int, dict[int, float]] = {p: {} for p in range(len(label))}
    for e, p, energy in zip(
        event.link_element.tolist(), event.link_particle.tolist(), event.link_energy.tolist(), strict=True
    ):
        deposits[p][e] = deposits[p].get(e, 0.0) + energy
    tracks: dict[int, list[int]] = {p: [] for p in range(len(label))}
    for t, p in enumerate(event.track_particle.tolist()):
        tracks[p].append(t)

    def visible(p: int) -> bool:
        left = sum(deposits[p].values())
        return label[p] != NONE and bool(tracks[p] or left > 0.1 * momentum[p, 3] or (charge[p] and left > 0.5))

    def final_label(p: int) -> int:
        soft_lepton = label[p] in (ELECTRON, MUON) and np.hypot(*momentum[p, :2]) < 1.0
        if tracks[p]:
            return CHARGED_HADRON if soft_lepton else label[p]
        if soft_lepton or label[p] in (CHARGED_HADRON, MUON):
            return NEUTRAL_HADRON
        return PHOTON if label[p] == ELECTRON else label[p]

    seen = [p for p in range(len(label)) if visible(p)]
    expected = Expected({}, {}, {p: final_label(p) for p in seen})
    groups: dict[int, list[int]] = {}
    alone: list[list[int]] = []
    for p in seen:
        if tracks[p]:
            best = max(tracks[p], key=lambda t: float(event.track_quality[t]))
            expected.owner_of[p], expected.element_of[p] = p, ("track", best)
            continue
        best = max(deposits[p], key=lambda e: deposits[p][e])
        if deposits[p][best] >= 0.9 * sum(deposits[p].values()):
            groups.setdefault(best, []).append(p)
        else:
            alone.append([p])
    entities = [*groups.values(), *alone]
    entities.sort(key=lambda members: -sum(momentum[p, 3] for p in members))
    taken: dict[int, int] = {}
    for members in entities:
        leader = max(members, key=lambda p: momentum[p, 3])
        wanted = max(deposits[leader], key=lambda e: deposits[leader][e])
        owner = taken.setdefault(wanted, leader)
        for p in members:
            expected.owner_of[p] = owner
        if owner == leader:
            expected.element_of[leader] = ("element", wanted)
    return expected


events = st.builds(random_event, st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 6))


@settings(max_examples=150, deadline=None)
@given(events)
def test_assignment_is_the_definition(event: TruthInput):
    expected = by_definition(event)
    found = assign_targets(event, "cluster")
    owners = {p: int(found.owner[t]) for p, t in enumerate(found.target_of.tolist()) if t >= 0}
    assert owners == expected.owner_of
    for row, owner in enumerate(found.owner.tolist()):
        track, element = int(found.columns["track"][row]), int(found.columns["cluster"][row])
        assert (("track", track) if track >= 0 else ("element", element)) == expected.element_of[owner]
        assert int(found.columns["label"][row]) == expected.label_of[owner]
    labels = {p: value for p, value in enumerate(found.particle_label.tolist()) if value != NONE}
    assert labels == expected.label_of


@settings(max_examples=100, deadline=None)
@given(events)
def test_targets_carry_exactly_the_visible_four_momentum(event: TruthInput):
    found = assign_targets(event, "cluster")
    visible = event.momentum[found.target_of >= 0].sum(0)
    carried = torch.stack([found.columns[name].sum() for name in ("px", "py", "pz", "energy")])
    torch.testing.assert_close(carried, visible, rtol=1e-12, atol=1e-12)
    assert int(found.columns["num_particles"].sum()) == int((found.target_of >= 0).sum())


def test_particles_that_cannot_be_told_apart_claim_their_element_together():
    """Two photons of 3 GeV in one element are more than a hadron of 5 GeV that left a third elsewhere."""
    momentum = [[0.0, 0.0, energy, energy] for energy in (3.0, 3.0, 5.0)]
    event = TruthInput(
        label=torch.tensor([PHOTON, PHOTON, NEUTRAL_HADRON]),
        charge=torch.zeros(3, dtype=torch.int64),
        momentum=torch.tensor(momentum, dtype=torch.float64),
        track_particle=torch.zeros(0, dtype=torch.int64),
        track_quality=torch.zeros(0, dtype=torch.float64),
        link_element=torch.tensor([0, 0, 0, 1]),
        link_particle=torch.tensor([0, 1, 2, 2]),
        link_energy=torch.tensor([3.0, 3.0, 3.0, 1.5]),
        num_elements=2,
    )
    found = assign_targets(event, "cluster")
    columns = {name: found.columns[name].tolist() for name in ("label", "cluster", "energy", "num_particles")}
    assert columns == {"label": [PHOTON], "cluster": [0], "energy": [11.0], "num_particles": [3]}

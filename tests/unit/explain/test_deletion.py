"""The deletion test sees a true explanation, and sees through a false one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ringflow.explain.attribution import LEAST_CANDIDATES, Change, Explainer, deletions, distances, only, verdicts

Make = Callable[..., Any]


def test_a_true_explanation_passes_and_its_opposite_fails(listening: Make, events: Make) -> None:
    explainer = Explainer(replace(listening(), threshold=0.0), output="particle", steps=8)  # all are candidates
    true, false = [], []
    for number, event in enumerate(events(12, merged=5)):
        why = explainer.explain(event)
        true += deletions(explainer, event, why, number, taken=1)
        quiet = replace(why, relevance=1.0 / (np.abs(why.relevance) + 1e-3))
        false += deletions(explainer, event, quiet, number, taken=1)

    def judged(changes: list[Change]) -> list[bool]:
        return [row["ok"] for row in verdicts(changes) if row["judged"]]

    assert len(judged(true)) >= 2
    assert all(judged(true))
    assert not any(judged(false))


def test_without_talk_nothing_changes_unless_the_own_element_is_hidden(listening: Make, events: Make) -> None:
    explainer = Explainer(listening("mlp"), steps=4)
    event = events(1, first=3)[0]
    changes = deletions(explainer, event, explainer.explain(event), 0, taken=1)
    assert changes
    for change in changes:
        assert max(change.change["removed", name] for name in ("relevant", "random", "nearest")) < 1e-5
        assert change.change["hidden", "random"] < 1e-5
        assert change.change["hidden", "relevant"] == pytest.approx(change.change["hidden", "nearest"])
        assert change.change["hidden", "relevant"] > 1e-3


def test_random_elements_are_those_of_the_event_number_and_small_events_are_left_alone(
    listening: Make, events: Make
) -> None:
    explainer = Explainer(listening(), steps=2)
    event = events(1, first=3)[0]
    why = explainer.explain(event)
    again = [deletions(explainer, event, why, number, taken=2)[0].change["removed", "random"] for number in (1, 1, 2)]
    assert again[0] == again[1] != again[2]
    small = only(event, torch.arange(2))
    assert deletions(explainer, small, explainer.explain(small), 0, taken=2) == []


def made_up(number: int, label: int, chosen: float, control: float) -> Change:
    change = {
        (way, name): chosen if name == "relevant" else control
        for way in ("removed", "hidden")
        for name in ("relevant", "random", "nearest")
    }
    return Change(number, label, change)


def test_verdicts_have_intervals_and_spare_classes_with_few_candidates() -> None:
    draw = np.random.default_rng(1)
    many = [made_up(n, 1, 2.0 + draw.normal(0, 0.1), 1.0) for n in range(50)]
    none = [made_up(n, 2, 1.0 + draw.normal(0, 0.1), 1.0) for n in range(50)]
    few = [made_up(n, 5, 2.0, 1.0) for n in range(LEAST_CANDIDATES - 1)]
    rows = {(row["class"], row["elements"], row["control"]): row for row in verdicts(many + none + few)}
    assert len(rows) == 12
    first = rows["charged hadron", "removed", "random"]
    assert first["judged"]
    assert first["ok"]
    assert first["low"] < first["difference"] < first["high"]
    assert first["high"] - first["low"] == pytest.approx(4 * 0.1 / 50**0.5, rel=0.5)
    assert rows["neutral hadron", "removed", "random"]["judged"]
    assert not rows["neutral hadron", "removed", "random"]["ok"]
    assert not rows["muon", "removed", "random"]["judged"]
    assert not rows["charged hadron", "removed", "nearest"]["judged"]


def test_distances_go_around_the_beam(events: Make) -> None:
    event = events(1)[0]
    position = torch.zeros_like(event.position_N2)
    position[0] = torch.tensor([0.3, 3.1])
    position[1] = torch.tensor([0.3, -3.1])
    apart = distances(replace(event, position_N2=position))
    assert apart[0, 1] == pytest.approx(2 * np.pi - 6.2, abs=1e-5)
    assert np.allclose(apart, apart.T)
    assert apart[2, 3] == 0.0

from __future__ import annotations

from ringflow.sim.generator import event_key


def test_keys_stay_what_they_are() -> None:
    """A changed key is a changed event in every dataset: it needs a reason and a line in the changelog."""
    assert event_key("ttbar", 1, 0, 0, 0) == KEY


def test_names_do_not_run_into_each_other() -> None:
    names = [("ttbar", seed, number, k) for seed in range(12) for number in range(120) for k in range(3)]
    assert len({event_key(*name) for name in names}) == len(names)


KEY = 15421359989377640731

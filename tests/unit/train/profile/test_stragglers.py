"""A rank is named only if others really wait for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ringflow.train.profile.stragglers import stragglers
from ringflow.train.profile.table import StepTable

MakeTable = Callable[..., StepTable]


def test_a_slow_rank_is_named_with_what_it_costs(make_table: MakeTable):
    (found,) = stragglers(make_table(slow=2, delay=12.0))
    assert (found.rank, found.slower_in) == (2, "data")
    assert found.share == pytest.approx(1.0, abs=0.02)
    assert found.late_ms == pytest.approx(12.0, abs=1.0)
    assert found.slower_ms == pytest.approx(12.0, abs=1.0)
    assert found.others_wait == pytest.approx(0.12, abs=0.02)
    assert str(found).startswith("rank 2 is late in ")
    assert str(found).endswith("more than they for 'data'")


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_chance_names_nobody(make_table: MakeTable, ranks: int):
    assert stragglers(make_table(slow=0, ranks=ranks)) == []


@pytest.mark.parametrize(
    "what",
    [
        pytest.param({"delay": 1.0, "jitter": 0.1}, id="too little to matter"),
        pytest.param({"delay": 30.0, "share": 0.1}, id="too seldom"),
        pytest.param({"delay": 30.0, "steps": 9}, id="too few steps"),
        pytest.param({"ranks": 1, "slow": 0}, id="nobody else"),
    ],
)
def test_what_is_not_significant_is_not_told(make_table: MakeTable, what: dict[str, float]):
    assert stragglers(make_table(**what)) == []


def test_two_slow_ranks_are_both_named(make_table: MakeTable):
    table = make_table(ranks=8, slow=1, delay=20.0, jitter=2.0)
    for name in ("late_ms", "data_ms"):
        table[name][:, 6] = table[name][::-1, 1]
    assert {one.rank for one in stragglers(table)} == {1, 6}

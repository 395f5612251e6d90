"""Tables and findings: digits that mean something, and winners only where the intervals say so."""

from __future__ import annotations

from typing import Any

import pytest

from ringflow.evaluate.metrics import BY_KEY, MISSING, written
from ringflow.evaluate.report import best_of, findings, sample_rows, topic_tables

WIDTH = "jet_iqr_over_median"


def measured(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"value": value, "lo": low, "hi": high}


def around(value: float, error: float) -> dict[str, float | None]:
    return measured(value, value - error, value + error)


@pytest.mark.parametrize(
    ("value", "text", "key"),
    [
        (around(0.062137, 0.0012), "0.0621 ± 0.0012", WIDTH),
        (around(0.062137, 0.0061), "0.062 ± 0.006", WIDTH),
        (around(12.3456, 0.5), "12.3 ± 0.5", WIDTH),
        (around(1234.5, 25.0), "1234 ± 25", WIDTH),
        (measured(0.0621, 0.0601, 0.0661), "0.0621 +0.0040 −0.0020", WIDTH),
        (measured(0.010, 0.011, 0.013), "0.0100 +0.0030 −0.0000", WIDTH),  # an interval beside its value
        (around(1.0, 0.0), "1", WIDTH),
        (measured(0.5, None, None), "0.5", WIDTH),
        (measured(None, None, None), MISSING, WIDTH),
        (measured(float("nan"), 0.0, 1.0), MISSING, WIDTH),
        (None, MISSING, WIDTH),
        (around(1.0, 0.0), "100 %", "particle_efficiency"),
        (around(0.9412, 0.002), "94.12 ± 0.20 %", "particle_efficiency"),
        (around(2.71, 0.12), "2.71 ± 0.12 GeV", "missing_momentum_error"),
    ],
)
def test_a_value_is_written_with_the_digits_its_interval_deserves(value: Any, text: str, key: str) -> None:
    assert written(value, BY_KEY[key]) == text


CLEAR = {"target": around(0.0, 0.001), "perfect": around(0.02, 0.001), "baseline": around(0.06, 0.001)}


@pytest.mark.parametrize(
    ("parts", "better", "won", "best"),
    [
        ({"baseline": around(0.06, 0.001), "model": around(0.05, 0.001)}, "lower", None, "model"),
        ({"baseline": around(0.06, 0.006), "model": around(0.05, 0.006)}, "lower", None, None),
        ({"baseline": around(0.06, 0.006), "model": around(0.05, 0.006)}, "lower", True, "model"),
        ({"baseline": around(0.06, 0.001), "model": around(0.05, 0.001)}, "lower", False, None),
        ({"baseline": around(0.9, 0.01), "model": around(0.8, 0.01)}, "higher", None, "baseline"),
        ({"baseline": around(0.97, 0.01), "model": around(1.005, 0.01)}, "one", None, "model"),
        ({"baseline": around(0.97, 0.01), "model": around(0.9, 0.01)}, "one", None, "baseline"),
        (CLEAR, "lower", None, None),  # what uses the truth does not compete
        ({**CLEAR, "model": around(0.05, 0.001)}, "lower", None, "model"),
        ({"baseline": None, "model": around(0.05, 0.001)}, "lower", None, None),
    ],
)
def test_the_best_is_marked_only_where_intervals_or_a_paired_comparison_say_so(
    parts: Any, better: str, won: bool | None, best: str | None
) -> None:
    pairs = {} if won is None else {("model", "baseline"): won, ("baseline", "model"): False}
    assert best_of(parts, better, pairs) == best


def test_rows_leave_out_what_nobody_has(scored: dict[str, Any]) -> None:
    metrics = scored["reconstructions"]
    rows = {row.metric.key: row for row in sample_rows(metrics, scored["comparisons"])}
    assert next(iter(rows)) == WIDTH
    assert "rms90_jer" not in rows
    assert rows["particle_f1"].best == "model"
    for row in scored["comparisons"]:
        row |= {"ratio": around(0.9, 0.2), "better": None}
    assert sample_rows(metrics, scored["comparisons"])[0].best is None  # undecided, whatever the single intervals say
    tables = topic_tables(metrics)
    assert list(tables) == [
        "Jets", "Missing momentum, energy and masses", "Charged hadrons", "Neutral hadrons", "Photons", "Electrons", "Muons",
    ]  # fmt: skip
    assert tables["Jets"][2][0].group == "5–10 GeV"
    for name in ("target", "perfect", "baseline"):
        del metrics[name]["masses"]
    metrics["model"]["masses"] = {"W": {"median": around(80.4, 0.1)}}
    (mass,) = topic_tables(metrics)["Missing momentum, energy and masses"][2]
    assert (mass.group, list(mass.cells.values())) == ("W", [MISSING, MISSING, MISSING, "80.40 ± 0.10 GeV"])
    assert sample_rows({}, []) == []
    assert topic_tables({}) == {}


def test_everyone_is_held_against_the_rules(scored: dict[str, Any]) -> None:
    found = {finding.metric.key: finding for finding in findings("ttbar", scored)}
    assert {(one.challenger, one.reference) for one in found.values()} == {("model", "baseline")}
    assert {one.tone for one in found.values()} == {"better"}
    assert "missing_momentum_error" not in found  # no headline
    del scored["reconstructions"]["model"]
    alone = list(findings("ttbar", scored))
    assert {(one.reference, one.tone) for one in alone} == {("perfect", "worse")}
    assert "times" in alone[0].change
    del scored["reconstructions"]["perfect"]
    assert list(findings("ttbar", scored)) == []


@pytest.mark.parametrize(
    ("first", "second", "ratio", "change", "tone"),
    [
        ("baseline", "model", measured(0.8, 0.5, 1.25), "−20 % [−50, +25]", "open"),
        ("model", "baseline", measured(1.25, 0.8, 2.0), "−20 % [−50, +25]", "open"),
        ("baseline", "model", measured(1.02, 1.015, 1.025), "+2.0 % [+1.5, +2.5]", "worse"),
        ("baseline", "model", measured(0.3, 0.3, 0.3), "too few entries", "open"),  # no width is no evidence
        ("baseline", "model", measured(2.6, 2.5, 2.7), "2.60 times [2.50, 2.70]", "worse"),
    ],
)
def test_a_change_is_the_paired_ratio(
    scored: dict[str, Any], first: str, second: str, ratio: Any, change: str, tone: str
) -> None:
    scored["comparisons"] = [{"metric": WIDTH, "first": first, "second": second, "ratio": ratio, "better": "model"}]
    (found,) = findings("ttbar", scored)
    assert (found.change.replace("\u00a0", " "), found.tone) == (change, tone)

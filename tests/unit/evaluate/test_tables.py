"""Tables and verdict: digits that mean something, and winners only where the intervals say so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ringflow.evaluate.tables import (
    METRICS,
    MISSING,
    best_of,
    class_rows,
    jet_bin_rows,
    mass_rows,
    metric_rows,
    verdict,
    written,
)

MakeMetrics = Callable[..., dict[str, Any]]
BY_KEY = {metric.key: metric for metric in METRICS}
WIDTH, EFFICIENCY = BY_KEY["jet_iqr_over_median"], BY_KEY["particle_efficiency"]


def measured(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"value": value, "lo": low, "hi": high}


def around(value: float, error: float) -> dict[str, float | None]:
    return measured(value, value - error, value + error)


@pytest.fixture
def samples(made_up_metrics: MakeMetrics) -> dict[str, dict[str, Any]]:
    names = ("target", "perfect", "baseline", "model")
    return {"ttbar": {"reconstructions": {name: made_up_metrics(name) for name in names}}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (around(0.062137, 0.0012), "0.0621 ± 0.0012"),
        (around(0.062137, 0.0061), "0.062 ± 0.006"),
        (around(12.3456, 0.5), "12.3 ± 0.5"),
        (around(1234.5, 25.0), "1234 ± 25"),
        (measured(0.0621, 0.0601, 0.0661), "0.0621 +0.0040 −0.0020"),
        (around(1.0, 0.0), "1"),
        (measured(0.5, None, None), "0.5"),
        (measured(None, None, None), MISSING),
        (measured(float("nan"), 0.0, 1.0), MISSING),
        (None, MISSING),
    ],
)
def test_a_value_is_written_with_the_digits_its_interval_deserves(value: Any, text: str) -> None:
    assert written(value, WIDTH) == text


def test_percent_and_units() -> None:
    assert written(around(1.0, 0.0), EFFICIENCY) == "100 %"
    assert written(around(0.9412, 0.002), EFFICIENCY) == "94.12 ± 0.20 %"
    assert written(around(2.71, 0.12), BY_KEY["missing_momentum_error"]) == "2.71 ± 0.12 GeV"


def test_a_value_outside_its_interval_has_no_negative_uncertainty() -> None:
    assert "−0.0" in written(measured(0.010, 0.011, 0.013), WIDTH)
    assert "--" not in written(measured(0.010, 0.011, 0.013), WIDTH)


def test_the_best_is_marked_only_where_intervals_are_apart() -> None:
    assert best_of({"baseline": around(0.06, 0.001), "model": around(0.05, 0.001)}, "lower", {}) == "model"
    assert best_of({"baseline": around(0.06, 0.006), "model": around(0.05, 0.006)}, "lower", {}) is None
    assert best_of({"baseline": around(0.9, 0.01), "model": around(0.8, 0.01)}, "higher", {}) == "baseline"
    assert best_of({"baseline": around(0.97, 0.01), "model": around(1.005, 0.01)}, "one", {}) == "model"
    assert best_of({"baseline": around(0.97, 0.01), "model": around(0.9, 0.01)}, "one", {}) == "baseline"


def test_bounds_do_not_compete_and_one_alone_is_not_best() -> None:
    clear = {"target": around(0.0, 0.001), "perfect": around(0.02, 0.001), "baseline": around(0.06, 0.001)}
    assert best_of(clear, "lower", {}) is None
    assert best_of({**clear, "model": around(0.05, 0.001)}, "lower", {}) == "model"
    assert best_of({"baseline": None, "model": around(0.05, 0.001)}, "lower", {}) is None


def test_a_paired_comparison_decides_where_there_is_one(samples: dict[str, dict[str, Any]]) -> None:
    close = {"baseline": around(0.06, 0.006), "model": around(0.05, 0.006)}
    assert best_of(close, "lower", {("model", "baseline"): True, ("baseline", "model"): False}) == "model"
    far = {"baseline": around(0.06, 0.001), "model": around(0.05, 0.001)}
    assert best_of(far, "lower", {("model", "baseline"): False, ("baseline", "model"): False}) is None
    undecided = {"metric": WIDTH.key, "first": "baseline", "second": "model", "ratio": around(0.9, 0.2), "better": None}
    rows = {row.metric.key: row for row in metric_rows(samples["ttbar"]["reconstructions"], [undecided])}
    assert not any(cell.best for cell in rows[WIDTH.key].cells)
    assert [cell.best for cell in rows["particle_f1"].cells] == [False, False, False, True]


def test_rows_leave_out_what_nobody_has(samples: dict[str, dict[str, Any]]) -> None:
    reconstructions = samples["ttbar"]["reconstructions"]
    keys = [row.metric.key for row in metric_rows(reconstructions, [])]
    assert "rms90_jer" not in keys
    assert keys[0] == WIDTH.key
    assert {row.group for row in class_rows(reconstructions)} >= {"photon", "neutral hadron"}
    assert jet_bin_rows(reconstructions)[0].group == "5–10 GeV"
    assert len(jet_bin_rows(reconstructions)) == 7 * 3
    assert mass_rows(reconstructions) == []
    reconstructions["model"]["masses"] = {"W": {"median": around(80.4, 0.1), "iqr_over_median": around(0.1, 0.01)}}
    assert [cell.text for cell in mass_rows(reconstructions)[0].cells] == [
        MISSING,
        MISSING,
        MISSING,
        "80.40 ± 0.10 GeV",
    ]
    assert metric_rows({}, []) == class_rows({}) == []


def test_the_verdict_says_who_is_better_by_how_much(samples: dict[str, dict[str, Any]]) -> None:
    found = verdict(samples)
    assert found.headline == "Model is better than rule-based PF in all 6 metrics."
    assert found.lead == "Jet response width: model against rule-based PF −31\u00a0%\u00a0[−32,\u00a0−29] on ttbar."
    first = found.findings[0]
    assert (first.metric.key, first.challenger, first.reference, first.tone) == (
        WIDTH.key,
        "model",
        "baseline",
        "better",
    )
    assert first.gap == "50\u00a0%\u00a0[47,\u00a053]"
    assert any("median response of 1.0000, within 1 % of 1" in sentence for sentence in found.sentences)


def test_the_verdict_turns_with_the_numbers(samples: dict[str, dict[str, Any]]) -> None:
    reconstructions = samples["ttbar"]["reconstructions"]
    reconstructions["baseline"], reconstructions["model"] = reconstructions["model"], reconstructions["baseline"]
    assert verdict(samples).headline == "Model is worse than rule-based PF in all 6 metrics."
    reconstructions["model"] = reconstructions["baseline"]
    found = verdict(samples)
    assert (
        found.headline == "Model is better than rule-based PF in 0 of 6 metrics and worse in 0; 6 cannot be told apart."
    )
    assert "cannot be told from" in found.sentences[0]


@pytest.mark.parametrize("turned", [False, True])
def test_a_paired_ratio_replaces_that_of_the_intervals(samples: dict[str, dict[str, Any]], turned: bool) -> None:
    ratio, names = ({"value": 0.8, "lo": 0.5, "hi": 1.25}, ("baseline", "model"))
    if turned:
        ratio, names = ({"value": 1.25, "lo": 0.8, "hi": 2.0}, ("model", "baseline"))
    samples["ttbar"]["comparisons"] = [
        {"metric": WIDTH.key, "first": names[0], "second": names[1], "ratio": ratio, "better": None}
    ]
    first = verdict(samples).findings[0]
    assert first.change.replace("\u00a0", " ") == "−20 % [−50, +25]"
    assert first.tone == "open"


def test_the_rules_alone_are_held_against_the_bound(samples: dict[str, dict[str, Any]]) -> None:
    del samples["ttbar"]["reconstructions"]["model"]
    found = verdict(samples)
    assert (
        found.headline
        == "Rule-based PF falls short of perfect PF, which knows the true associations, in 6 of 6 metrics."
    )
    assert found.findings[0].change.replace("\u00a0", " ") == "2.60 times [2.50, 2.70]"
    assert {finding.gap for finding in found.findings} == {""}


def test_with_nothing_to_compare_it_says_so(made_up_metrics: MakeMetrics) -> None:
    target = {"ttbar": {"reconstructions": {"target": made_up_metrics("target")}}}
    found = verdict(target)
    assert found.headline == "Only truth target was evaluated: there is nothing to compare."
    assert found.findings == []
    assert verdict({}).headline == "Nothing was evaluated."
    a, b = ({**made_up_metrics(name), WIDTH.key: None} for name in ("baseline", "model"))
    findings = verdict({"ttbar": {"reconstructions": {"a": a, "b": b}}}).findings
    assert {(finding.challenger, finding.reference) for finding in findings} == {("b", "a")}
    assert WIDTH.key not in [finding.metric.key for finding in findings]  # what is missing is left out


def test_a_truth_that_does_not_close_is_called_out(made_up_metrics: MakeMetrics) -> None:
    broken = {**made_up_metrics("target"), "jet_median": around(0.95, 0.001)}
    (sentence,) = verdict({"ttbar": {"reconstructions": {"target": broken}}}).sentences
    assert "not within 1 % of 1" in sentence


def test_an_interval_without_width_is_no_evidence(samples: dict[str, dict[str, Any]]) -> None:
    one_entry = measured(0.3, 0.3, 0.3)
    reconstructions = samples["ttbar"]["reconstructions"]
    reconstructions["baseline"][WIDTH.key], reconstructions["model"][WIDTH.key] = around(0.5, 0.0), one_entry
    samples["ttbar"]["comparisons"] = [
        {"metric": WIDTH.key, "first": "baseline", "second": "model", "ratio": one_entry, "better": "model"}
    ]
    first = verdict(samples).findings[0]
    assert (first.metric.key, first.tone, first.change) == (WIDTH.key, "open", "too few entries")
    (row, *_) = metric_rows(reconstructions, samples["ttbar"]["comparisons"])
    assert not any(cell.best for cell in row.cells)

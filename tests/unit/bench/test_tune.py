"""The figures of `ringflow bench tune`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures.synthetic_study import make_study
from ringflow.base.errors import InputFileError, UsageError
from ringflow.bench import tune as bench
from ringflow.bench.tune import compare_with_random, driver_cost, run_studies, timeline
from ringflow.tune.record import JournalRow, StudyRecord


def test_the_record_has_all_figures(
    tmp_path: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "DEVICES", (16, 32, 64))
    monkeypatch.setattr(bench, "_MANY_TRIALS", 200)
    monkeypatch.setattr(bench, "driver_cost", lambda: driver_cost(12, rounds=1))
    random = make_study(tmp_path / "random", 16, scheduler="none", seed=4)
    asha = make_study(tmp_path / "asha", 64, scheduler="asha", seed=12)
    words = ("--random", random, "--asha-tpe", asha, "--out", tmp_path / "tune.json", "--json")
    kept = json.loads(command("bench", "tune", *words).stdout)
    assert kept == json.loads((tmp_path / "tune.json").read_text())
    record = Path(__file__).parents[3] / "benchmarks" / "results" / "tune_cpu.json"
    assert list(json.loads(record.read_text())) == list(kept), "the record is of another bench tune"
    # The hard case is told first, of the whole study as of the first good network.
    cases = ("4_trials_per_device_batch_penalty", "1_trial_per_device_free_batches")
    figures = [f"{what}_speedup_over_asha_{case}" for what in ("study", "good_network") for case in cases]
    assert [key for key in kept if "speedup_over_asha" in key] == figures
    hard, easy = (kept[key] for key in figures[:2])
    assert list(hard["rasda"]) == list(easy["rasda-idle"]) == ["16", "32", "64"]
    assert max(hard["rasda"].values()) < min(easy["rasda"].values())
    assert min(*easy["rasda"].values(), *easy["rasda-idle"].values()) > 1.5
    assert kept["best_over_asha"]["rasda"]["64"] == 1.0  # at equal quality: trials are longer by what batches cost
    assert 0.0 < kept["driver_overhead"] < 1.0
    assert kept["replay_trials_per_second"] > 10.0
    for case, trials in zip(cases, ("4 times as many", "As many"), strict=True):
        assert f"{trials} trials as can begin at once." in kept["assumptions"][case]
    table = {
        (row["scheduler"], row["trials_per_device"], row["penalty"], row["hours"]): row["equal_quality"]
        for row in kept["speedup_by_assumption"]
    }
    assert len(table) == 2 * 2 * 3 * 4
    assert table["rasda", 1, 0.0, 8.0] > table["rasda", 1, 0.5, 8.0] > table["rasda", 1, 1.0, 8.0]
    assert table["rasda", 1, 0.0, 8.0] > table["rasda", 1, 0.0, 1 / 12]
    found = compare_with_random([random], [asha])
    assert kept["random_compute_until_its_best_over_asha_tpe"] == found["until_its_best"]
    assert kept["random_whole_compute_over_asha_tpe"] == found["whole"] > found["until_its_best"]
    bench.show(kept)
    said = capsys.readouterr().err
    assert "rasda-idle" in said
    assert f"{found['until_its_best']:.2f} until random search had its best" in said


def test_compute_is_that_of_all_trials_until_then() -> None:
    goes_on = {"verdict": "continue", "until": 100, "workers": 1}
    ends = {"verdict": "stop", "until": 0, "workers": 1}
    told: list[tuple[float, str, int, dict[str, Any]]] = [
        (0.0, "added", 0, {"point": {}, **goes_on}),
        (0.0, "begun", 0, {"workers": 2}),
        (1.0, "added", 1, {"point": {}, **goes_on}),
        (1.0, "begun", 1, {"workers": 1}),
        (5.0, "reported", 1, {"resource": 25, "value": None, "figures": {}, **goes_on}),
        (6.0, "reported", 0, {"resource": 100, "value": 2.0, "figures": {}, **ends}),
        (7.0, "reported", 1, {"resource": 100, "value": 1.5, "figures": {}, **ends}),
    ]
    record = StudyRecord(100, [JournalRow(number, *row) for number, row in enumerate(told)])
    # At 6 s: 2 processes for 6 s and one for 5 s. At 7 s: 12 + 6. What is not finite is no report, but its events count.
    assert [tuple(reached) for reached in timeline(record)] == [(2.0, 17.0, 125), (1.5, 18.0, 200)]


def test_random_search_against_asha(tmp_path: Path) -> None:
    random = [make_study(tmp_path / f"random{seed}", 16, scheduler="none", seed=seed) for seed in (3, 4)]
    asha = [make_study(tmp_path / f"asha{seed}", 64, scheduler="asha", seed=seed) for seed in (11, 12)]
    found = compare_with_random(random, asha)
    assert found["until_its_best"] == pytest.approx(math.prod(pair["until_its_best"] for pair in found["pairs"]) ** 0.5)
    for pair in found["pairs"]:
        used = pair["random_device_seconds_until_its_best"] / pair["asha_device_seconds_until_as_good"]
        assert pair["until_its_best"] == pytest.approx(used)
        assert pair["asha_best"] <= pair["target"]
        assert pair["whole"] >= pair["until_its_best"]
    lost = compare_with_random(random[:1], [make_study(tmp_path / "poor", 1, scheduler="asha", seed=5)])
    assert lost["until_its_best"] == 0.0
    assert lost["pairs"][0]["asha_device_seconds_until_as_good"] is None
    unfinished = make_study(tmp_path / "unfinished", 8, scheduler="asha", until=0.5)
    for one, other, error, message in (
        (random, [], UsageError, "2 studies with random search and 0 others are no pairs"),
        (asha, random, UsageError, "has the scheduler asha, not none"),
        (random[:1], [unfinished], UsageError, "is not finished"),
        ([tmp_path], asha[:1], InputFileError, "holds no study"),
    ):
        with pytest.raises(error, match=message):
            compare_with_random(one, other)


@pytest.mark.heavy
def test_real_studies_in_small(tmp_path: Path) -> None:
    random, asha = run_studies(tmp_path, seeds=(1,), trials=(3, 4), events=320, workers=1)
    found = compare_with_random(random, asha)
    assert found["pairs"][0]["trials"] == [3, 4]
    again = run_studies(tmp_path, seeds=(1,), trials=(3, 4), events=320, workers=1)
    assert again == (random, asha)  # nothing is left to do

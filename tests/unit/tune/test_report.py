"""The page of a study: whole, true, and alone; shares of settings, where the truth is known."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from fixtures.synthetic_study import make_study, sample, write_rows
from ringflow.base.errors import InputFileError, UsageError
from ringflow.tune.folder import StudyFolder
from ringflow.tune.record import Reported, TrialRecord
from ringflow.tune.report import STATES, Axis, StudyView, importances, lanes_of, value_axis, write_report
from ringflow.tune.space import Choice, Range, Space


def page_of(study: Path) -> str:
    return write_report(study).read_text(encoding="utf-8")


def view_of(study: Path) -> StudyView:
    return StudyView(StudyFolder(study))


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert found
    told: dict[str, Any] = json.loads(found[1])
    return told


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("studies") / "small", 24, failures=0.05)


@pytest.fixture(scope="module")
def page(study: Path) -> str:
    return page_of(study)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"scheduler": "rasda", "objectives": ("loss", "cpu_ms", "jets"), "most_workers": 16}
    return make_study(tmp_path_factory.mktemp("studies") / "grown", 40, processes=16, **settings)


def test_it_says_who_is_best_and_with_what(study: Path, page: str) -> None:
    best = StudyFolder(study).record().best
    assert best is not None
    assert f"Best loss: {best.value:.5g}, trial {best.number}" in page
    for name in best.point:
        assert f'<th scope="row">{name}</th>' in page
    assert f"ringflow tune best {study} &gt; best.toml" in page
    for section in ("summary", "history", "parallel", "importance", "cost", "trials", "failures", "origin"):
        assert f'id="{section}"' in page


def test_it_needs_nothing_else_and_runs_nothing_else(page: str) -> None:
    links = re.findall(r'(?:src|href|url)\s*[=(]\s*["\']?([^"\')\s>]+)', page)
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert script
    expected = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{expected}'" in page
    assert re.search(r"\son\w+=", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)) is None
    if shutil.which("node"):
        subprocess.run(["node", "--check"], input=script[1].encode(), check=True, timeout=60)
    # What trials said cannot become markup.
    assert "&lt;b&gt;80 GiB&lt;/b&gt; wanted" in page
    assert "<b>80 GiB" not in page


def test_the_pictures_and_the_table_are_there_without_scripts(study: Path, page: str) -> None:
    assert page.count("<img ") == 3 + 2 + 7 + 1 + 2
    body = page[page.index('id="table"') :]
    rows = re.findall(r'<tr><th scope="row" class="number">(\d+)</th>', body[: body.index("</table>")])
    view = view_of(study)
    assert [int(row) for row in rows] == [trial.number for trial in view.best_first()]
    assert view.best is not None
    assert int(rows[0]) == view.best.number


def test_the_data_of_the_page_are_those_of_the_trials(study: Path, page: str) -> None:
    data, trials = data_of(page), StudyFolder(study).record().trials
    columns = data["columns"]
    assert columns["number"] == [trial.number for trial in trials]
    assert [list(STATES)[index] for index in columns["state"]] == [trial.state for trial in trials]
    for trial in trials:
        told = columns["o0"][trial.number]
        finite = trial.value is not None and math.isfinite(trial.value)
        assert told == pytest.approx(trial.value, 1e-5) if finite else told is None
        for index, parameter in enumerate(data["parameters"]):
            value = columns[f"p{index}"][trial.number]
            if value is not None and parameter["options"]:
                value = parameter["options"][int(value)]
            assert value == trial.point.get(parameter["name"])


def test_what_is_pointed_at_is_where_it_was_drawn(page: str) -> None:
    links = [json.loads(link) for link in re.findall(r"data-link='(.*?)'", page)]
    assert [(link["x"]["column"], link["y"]["column"]) for link in links] == [
        ("number", "o0"), *((f"p{index}", "o0") for index in range(7)),
    ]  # fmt: skip
    for link in links:
        assert 0 < link["x"]["from"] < link["x"]["to"] <= 640
        assert link["y"]["from"] > link["y"]["to"] > 0  # from the bottom up
    (axes,) = [json.loads(axes) for axes in re.findall(r"data-axes='(.*?)'", page)]
    assert [axis["column"] for axis in axes] == [*(f"p{index}" for index in range(7)), "o0"]
    assert all(left["at"] < right["at"] for left, right in pairwise(axes))


def test_a_few_values_that_are_far_too_large_do_not_press_the_others_together() -> None:
    axis = value_axis("loss", [1.0, 1.1, 1.2, 1.3, 1.4, 1e6, math.nan], "o0")
    assert 1.4 < axis.high < 5.0
    assert axis.place(1e6) == 1.0
    assert value_axis("loss", [1.0, 10.0, 100.0, 1000.0], "o0").log
    assert Axis("rate", 1e-4, 1e-2, log=True).place(1e-3) == pytest.approx(0.5)
    # Words from outside are no formulas.
    axes = Figure().subplots()
    Axis("start", -0.5, 0.5, options=("$\\bad$",)).show(axes, "x")
    axes.figure.draw_without_rendering()


def test_every_device_second_is_told_at_one_rung(study: Path, grown: Path) -> None:
    for view in (view_of(study), view_of(grown)):
        spent = math.fsum(seconds for by_state in view.costs.values() for seconds in by_state.values())
        assert spent == pytest.approx(view.record.device_seconds)
        saving = view.saving()
        assert saving is not None
        assert 0 < saving[0] < saving[1]
        bars = lanes_of(view.segments)
        assert max(high for *_, lanes in bars for _, high in lanes) <= 16
        had = sum((end - start) * (high - low) for _, start, end, lanes in bars for low, high in lanes)
        assert had == pytest.approx(view.record.device_seconds)


def test_trials_are_compared_after_the_same_number_of_events(study: Path) -> None:
    view = view_of(study)
    middle = view.against_median()
    assert middle is not None
    assert view.best is not None
    assert middle.best == view.best.reports[view.rungs.index(middle.resource)].value
    at_rung = sorted(
        r.value for t in view.trials for r in t.reports if r.resource == middle.resource and r.value == r.value
    )
    assert at_rung[0] < middle.theirs < at_rung[-1]
    assert middle.gain == pytest.approx(1 - middle.best / middle.theirs)
    # A trial that comes a step after the rung is at the rung.
    view.best.reports[:] = [report._replace(resource=report.resource + 1) for report in view.best.reports]
    assert view.against_median() == middle


def test_trials_that_grew_and_the_front_are_shown(grown: Path) -> None:
    page = page_of(grown)
    assert "small numbers say where it got more" in page
    front = page[page.index('id="front"') : page.index('id="cost"')]
    assert front.count("<img ") == 2
    assert front.count("<tbody>") == 1
    assert "trial 0, which has the settings as they were" in page


def test_a_study_that_goes_on_can_be_looked_at(tmp_path: Path) -> None:
    page = page_of(make_study(tmp_path / "half", 24, scheduler="asha-promote", until=0.5))
    assert "the study is not at its end" in page
    assert re.search(r"\bnan\b", page) is None
    assert "No trial has a value yet" in page_of(make_study(tmp_path / "young", 4, until=0.0))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds files that ringflow did not make"):
        write_report(tmp_path / "young", tmp_path / "mine")
    with pytest.raises(InputFileError, match="holds no study"):
        write_report(tmp_path / "mine")


def test_an_empty_study_and_one_without_any_finite_value_have_a_page(tmp_path: Path) -> None:
    study = make_study(tmp_path / "empty", 3, until=0.0)
    folder = StudyFolder(study)
    folder.journal.unlink()
    write_rows(folder, [])
    assert "No trial has a value yet" in page_of(study)
    point = {"optimizer.rate": 0.01, "model.backbone": "mlp", "model.width": 64, "model.layers": 8}
    point |= {"model.dropout": 0.1, "optimizer.weight_decay": 0.01}
    told: dict[str, Any] = {"verdict": "continue", "until": 2000, "workers": 1}
    words = {"resource": 2000, "value": None, "figures": {}, "reason": "became NaN or infinite"}
    rows = [
        (1e9 + number, kind, number, data)
        for number in range(3)
        for kind, data in (
            ("added", {"point": point, **told}),
            ("begun", {"workers": 1}),
            ("reported", {**words, **told, "verdict": "stop"}),
        )
    ]
    write_rows(folder, rows)
    page = page_of(study)
    assert "No trial has a value yet" in page
    assert page.count("became NaN or infinite") == 3


@pytest.mark.heavy
def test_the_page_of_very_many_trials_stays_small(tmp_path: Path) -> None:
    page = page_of(make_study(tmp_path / "large", 600, processes=16))
    assert len(page) < 1_000_000
    assert len(data_of(page)["columns"]["number"]) == 600
    assert "The first 200 of 600 trials, best first." in page


SPACE = Space(
    [
        Range("a", 0.0, 1.0),
        Range("b", 1e-3, 1.0, log=True),
        Choice("kind", ("x", "y")),
        Range("only_y", 0.0, 1.0, when={"kind": ("y",)}),
        Range("nothing", 0, 9, whole=True),
    ]
)


def trials_of(value: Callable[[dict[str, Any]], float], count: int = 300) -> list[TrialRecord]:
    rng = np.random.default_rng(1)
    points = [sample(SPACE, rng) for _ in range(count)]
    return [
        TrialRecord(n, point, 0.0, "complete", reports=[Reported(100, value(point), {}, 1, 1.0, "stop")])
        for n, point in enumerate(points)
    ]


def test_what_matters_more_has_a_larger_share_and_conditions_count() -> None:
    shares = importances(SPACE, trials_of(lambda point: 5.0 + point["a"]))
    assert next(iter(shares)) == "a"
    assert shares["a"] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) == {parameter.name for parameter in SPACE.parameters}
    found = importances(SPACE, trials_of(lambda point: 2 * point["a"] + np.log10(point["b"]) / 3, 600))
    assert found["a"] > found["b"] > found["nothing"]
    found = importances(SPACE, trials_of(lambda point: -3 * point["only_y"] if point["kind"] == "y" else 0.0, 600))
    assert found["only_y"] + found["kind"] > 0.8
    diverged = trials_of(lambda point: float("nan") if point["a"] > 0.3 else point["a"])
    assert importances(SPACE, diverged)["a"] > 0.8


def test_few_trials_and_equal_trials_tell_nothing() -> None:
    assert importances(SPACE, trials_of(lambda point: point["a"], 7)) == {}
    assert importances(SPACE, [TrialRecord(n, sample(SPACE, np.random.default_rng(n)), 0.0) for n in range(20)]) == {}
    assert set(importances(SPACE, trials_of(lambda point: 1.0, 30)).values()) == {0.0}


def test_a_page_killed_while_it_is_drawn_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = make_study(tmp_path / "study", 4)
    out = tmp_path / "page"

    def killed(*words: object, **more: object) -> str:
        (out / ".index.html.half").write_text("half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ringflow.tune.report.pages.render", killed)
        with pytest.raises(KeyboardInterrupt):
            write_report(study, out)
    assert write_report(study, out).is_file()

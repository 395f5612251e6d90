"""The command: averages, one event, files and a page; and one line for a wrong wish."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import InputFileError, UsageError
from ringflow.cli.inspection import How
from ringflow.cli.inspection import explain as explain_command
from ringflow.explain.attribution import Explainer
from ringflow.explain.run import DISTANCES, Averages, ExplainRequest, explain, some_of_every_class
from ringflow.models.file import save_model


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_dataset(tmp_path_factory.mktemp("explain") / "dataset", events=12)


@pytest.fixture(scope="module")
def weights(listening: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("models")

    def make(backbone: str) -> Path:
        save_model(folder / f"{backbone}.safetensors", listening(backbone).model, threshold=0.0)
        return folder / f"{backbone}.safetensors"

    return make


def test_many_events_are_averaged_tested_and_drawn(
    dataset: Path, weights: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "why"
    for _ in range(2):  # the second time into the same folder
        code = explain_command(
            dataset, model=weights("attention"), events=8, how=How(steps=3), out=folder, as_json=True
        )
    printed = capsys.readouterr()
    result = json.loads(printed.out.split("\n}\n")[0] + "}")
    assert code == int(not result["ok"])
    assert (result["events"], len(result["single"])) == (8, 8)
    assert result["incomplete"] > 0
    assert {row["class"] for row in result["classes"]} == {row["class"] for row in result["deletion"]}
    for row in result["classes"]:
        assert row["own"] + row["track"] + row["cluster"] == pytest.approx(1.0)
        features = [one for one in result["features"] if one["class"] == row["class"]]
        assert sum(one["own"] for one in features) == pytest.approx(row["own"])
        assert sum(one["own"] + one["others"] for one in features) == pytest.approx(1.0)
        apart = [one["share"] for one in result["distances"] if one["class"] == row["class"]]
        assert sum(apart) == pytest.approx(1.0 - row["own"])
    text = (folder / "index.html").read_text()
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert text.count("<img ") == 4
    assert json.loads((folder / "explanations.json").read_text())["classes"] == result["classes"]
    assert {path.stem for path in (folder / "figures").glob("*.png")} == {"shares", "distance", "features", "deletion"}
    assert "made: " in printed.err


def test_one_event_is_told_in_full(
    dataset: Path, weights: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        explain_command(
            dataset, model=weights("attention"), event=9, how=How(steps=3, target="energy"), out=tmp_path / "w"
        )
        == 0
    )
    assert "Event 9" in capsys.readouterr().err
    result = explain(ExplainRequest(dataset, weights("attention"), event=9, steps=3, output="energy"))
    (single,) = result["single"]
    assert (single["index"], single["event_number"]) == (9, 9)
    assert result["deletion"] == []
    assert len(single["candidates"]) == len(single["elements"])  # the threshold is zero
    for place, one in enumerate(single["candidates"]):
        assert one["candidate"] == one["element"] == place
        assert one["listens_to"][0]["share"] >= one["listens_to"][1]["share"]
        assert sum(one["groups"].values()) == pytest.approx(one["output"] - one["at_baseline"] + one["error"], abs=1e-4)
    kinds = [element["kind"] for element in single["elements"]]
    assert kinds == sorted(kinds, reverse=True)  # tracks first
    assert single["elements"][kinds.index("cluster")]["number"] == 0
    assert "Event 9" in (tmp_path / "w" / "index.html").read_text()


def test_links_and_graph_are_written_by_event(
    dataset: Path, weights: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "links.json"
    explain_command(dataset, model=weights("graph"), events=3, how=How(steps=2), links=path, graph=True)
    shown = f"next: ringflow display {dataset} --links {path} --model {weights('graph')}"
    assert capsys.readouterr().err.splitlines()[-1] == shown
    written = json.loads(path.read_text())
    assert [event["index"] for event in written["events"]] == [0, 1, 2]
    assert written["model"]["file"] == "graph.safetensors"
    for event in written["events"]:
        assert event["links"][0]["reconstruction"] == "model"
        assert [one["candidate"] for one in event["links"]] == list(range(len(event["links"])))
        assert event["graph"][0]["edges"]


def test_wrong_wishes_are_told_in_one_line(dataset: Path, weights: Callable[[str], Path], tmp_path: Path) -> None:
    model = weights("attention")
    with pytest.raises(UsageError, match="--event 12: there are 12 events here, counted from 0"):
        explain_command(dataset, model=model, event=12)
    with pytest.raises(UsageError, match="--event 1 is one event and --events 5 are many"):
        explain_command(dataset, model=model, event=1, events=5)
    with pytest.raises(UsageError, match="give that too"):
        explain_command(dataset, model=model, graph=True)
    with pytest.raises(UsageError, match="backbone 'attention', which makes no graph"):
        explain_command(dataset, model=model, graph=True, links=tmp_path / "links.json")
    with pytest.raises(InputFileError, match="no model at"):
        explain_command(dataset, model=tmp_path / "none.safetensors")
    with pytest.raises(InputFileError, match="nothing at"):
        explain_command(tmp_path / "none", model=model)
    exported = tmp_path / "model.onnx"
    exported.write_bytes(b"onnx")
    with pytest.raises(UsageError, match="has no gradients"):
        explain_command(dataset, model=exported)


def test_rare_classes_are_drawn_as_often_as_common_ones() -> None:
    labels = np.array([1] * 50 + [5] * 2)
    chosen = some_of_every_class(labels, 4, 7)
    assert labels[chosen].tolist() == [1, 1, 1, 1, 5, 5]
    assert np.array_equal(chosen, some_of_every_class(labels, 4, 7))
    assert not np.array_equal(chosen, some_of_every_class(labels, 4, 8))
    assert len(some_of_every_class(np.zeros(0, np.int64), 4, 7)) == 0


def test_averages_count_elements_where_they_are(
    listening: Callable[..., Any], events: Callable[..., list[Any]]
) -> None:
    explainer = Explainer(listening("mlp"), steps=2)
    averages = Averages(explainer.loaded.model.kinds)
    number = 0
    for event in events(6):
        why = explainer.explain(event)
        averages.add(event, why)
        number += len(why) * (event.num_elements - 1)
    rows = averages.classes()
    assert rows
    assert all(row["own"] == pytest.approx(1.0) for row in rows)
    found = averages.distances()
    counted = sum(
        row["elements"] * next(one["candidates"] for one in rows if one["class"] == row["class"]) for row in found
    )
    assert counted == pytest.approx(number)
    assert [row["from"] for row in found[: len(DISTANCES) - 1]] == list(DISTANCES[:-1])

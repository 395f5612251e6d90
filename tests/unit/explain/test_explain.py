"""The command: averages, one event, files and a page; and one line for a wrong wish."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.fake_events import fake_block, write_fake_dataset
from ringflow.base.errors import InputFileError, UsageError
from ringflow.cli.inspection import How
from ringflow.cli.inspection import explain as explain_command
from ringflow.elements.batch import from_block
from ringflow.evaluate.plots import png
from ringflow.explain import pages
from ringflow.explain.attribution import Decided, Explainer, Relevance, only
from ringflow.explain.run import DISTANCES, Averages, explain, graph_edges, links_of, some_of_every_class
from ringflow.models.file import save_model
from ringflow.models.graph import bins_of, hash_keys
from ringflow.models.model import Model
from ringflow.train.loss import losses
from ringflow.train.settings import LossSettings

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_dataset(tmp_path_factory.mktemp("explain") / "dataset", events=12)


@pytest.fixture(scope="module")
def weights(listening: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("models")

    def make(backbone: str) -> Path:
        save_model(folder / f"{backbone}.safetensors", listening(backbone).model, threshold=0.0)
        return folder / f"{backbone}.safetensors"

    return make


def test_many_events_are_averaged_tested_and_drawn(
    dataset: Path, weights: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "why"
    code = explain_command(dataset, model=weights("attention"), events=5, how=How(steps=3), out=folder, as_json=True)
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert code == int(not result["ok"])
    assert (result["events"], len(result["single"])) == (5, 5)
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
    dataset: Path, weights: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = How(steps=3, target="energy")
    assert explain_command(dataset, model=weights("attention"), event=9, how=how, out=tmp_path / "w") == 0
    assert "Event 9" in capsys.readouterr().err
    result = explain(dataset, model=weights("attention"), event=9, steps=3, target="energy")
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
    dataset: Path, weights: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"event": 12}, "--event 12: there are 12 events here, counted from 0"),
        ({"event": 1, "events": 5}, "--event 1 is one event and --events 5 are many"),
        ({"graph": True}, "give that too"),
        ({"graph": True, "links": Path("links.json")}, "backbone 'attention', which makes no graph"),
        ({"model": Path("none.safetensors")}, "no model at"),
        ({"source": Path("none")}, "nothing at"),
        ({"model": Path("model.onnx")}, "has no gradients"),
    ],
)
def test_wrong_wishes_are_told_in_one_line(
    dataset: Path, weights: Make, tmp_path: Path, given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"onnx")
    given = {"model": weights("attention"), **given}
    with pytest.raises((UsageError, InputFileError), match=said):
        explain_command(given.pop("source", dataset), **given)


def test_rare_classes_are_drawn_as_often_as_common_ones() -> None:
    labels = np.array([1] * 50 + [5] * 2)
    chosen = some_of_every_class(labels, 4, 7)
    assert labels[chosen].tolist() == [1, 1, 1, 1, 5, 5]
    assert np.array_equal(chosen, some_of_every_class(labels, 4, 7))
    assert not np.array_equal(chosen, some_of_every_class(labels, 4, 8))
    assert len(some_of_every_class(np.zeros(0, np.int64), 4, 7)) == 0


def test_a_network_that_listens_to_nothing_is_drawn() -> None:
    shares = [{"class": "photon", "from": 0.0, "to": 0.1, "elements": 5, "share_of_one": 0.0}]
    nothing = {"class": "photon", "elements": "removed", "change": 0.0, "change_of_control": 0.0}
    for figure in (
        pages.distance(shares),
        pages.deletion([{**nothing, "control": how} for how in ("random", "nearest")]),
    ):
        assert figure.axes[0].get_yscale() == "linear"
        assert png(figure)


def test_averages_count_elements_where_they_are(listening: Make, events: Make) -> None:
    explainer = Explainer(listening("mlp"), steps=2)
    averages = Averages(explainer.loaded.model.kinds)
    number = 0
    for event in events(6):
        why = explainer.explain(event)
        averages.add(event, why)
        number += len(why) * (event.num_elements - 1)
    rows, found = averages.tables()["classes"], averages.tables()["distances"]
    assert rows
    assert all(row["own"] == pytest.approx(1.0) for row in rows)
    counted = sum(
        row["elements"] * next(one["candidates"] for one in rows if one["class"] == row["class"]) for row in found
    )
    assert counted == pytest.approx(number)
    assert [row["from"] for row in found[: len(DISTANCES) - 1]] == list(DISTANCES[:-1])


def made_up(relevance: list[list[list[float]]]) -> Relevance:
    table = np.array(relevance, np.float32)
    candidates = len(table)
    nothing = torch.zeros(candidates, dtype=torch.int64)
    made = Decided(nothing, nothing, nothing, torch.zeros(candidates, 4), nothing == 0)
    return Relevance(made, table, np.zeros(candidates, np.float32), np.zeros(candidates, np.float32))


def test_lines_go_to_the_loudest_elements_with_their_sign() -> None:
    why = made_up([[[3.0, 0.0], [-1.0, -5.0], [1.0, -0.5], [0.0, 0.0]], [[0.0, 0.0]] * 4])
    found = links_of(why, most=2)
    assert found[0] == {
        "reconstruction": "model",
        "candidate": 0,
        "elements": [[1, pytest.approx(-6 / 10.5, abs=1e-4)], [0, pytest.approx(3 / 10.5, abs=1e-4)]],
    }
    assert found[1]["elements"] == []  # nothing says anything
    assert [element for element, _ in links_of(why)[0]["elements"]] == [1, 0, 2]
    assert links_of(why, least=0.5)[0]["elements"] == [[1, pytest.approx(-6 / 10.5, abs=1e-4)]]


def trained_graph(listening: Make, elements: Any) -> Model:
    """A few steps of a training, so that its graph is a learned one."""
    model: Model = listening("graph").model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(5):
        optimiser.zero_grad()
        losses(model.predict(elements), elements, LossSettings())["total"].backward()
        optimiser.step()
    return model.eval()


def test_edges_are_the_weights_that_the_network_uses(listening: Make, events: Make) -> None:
    model = trained_graph(listening, from_block(fake_block(0, 20), with_targets=True))
    event = max(events(12), key=lambda one: one.num_elements)
    mixer = model.blocks[0].mixer
    assert event.num_elements > mixer.bin_size  # several bins
    seen: dict[str, Any] = {}
    convolve = mixer._convolve

    def watch(space: Any, value: Any, hashed: Any, layout: Any) -> Any:
        # Values that are one for one element only show who listens to it; a head takes so many of them at a time.
        width = value.shape[-1]
        one_hot = torch.nn.functional.pad(torch.eye(len(space)), (0, -len(space) % width))
        parts = [part[:, None].expand(-1, space.shape[1], -1) for part in one_hot.split(width, dim=1)]
        heard = torch.cat([convolve(space, part, hashed, layout).mean(1) for part in parts], dim=1)
        seen["weight"] = heard[:, : len(space)]
        seen["bins"] = bins_of(hashed, layout, mixer.bin_size)
        assert hash_keys(space.detach().flatten(1), mixer.hash_KD).equal(hashed)
        return convolve(space, value, hashed, layout)

    mixer._convolve = watch
    with torch.no_grad():
        before = model.predict(event)
    del mixer._convolve
    (layer,) = graph_edges(model, event, least=0.0)
    expected = seen["weight"]
    assert layer["layer"] == 0
    weight = torch.zeros(event.num_elements, event.num_elements)
    for listening_element, heard, value in layer["edges"]:
        weight[listening_element, heard] = value
    off_diagonal = ~torch.eye(len(weight), dtype=torch.bool)
    torch.testing.assert_close(weight[off_diagonal], expected[off_diagonal], atol=1e-4, rtol=0)
    assert (weight[off_diagonal] == 0).any()  # elements of different bins do not hear each other
    strong = graph_edges(model, event, least=0.2)[0]["edges"]
    assert 0 < len(strong) < len(layer["edges"])
    assert [edge[2] for edge in strong] == sorted((edge[2] for edge in strong), reverse=True)
    with torch.no_grad():  # nothing is left behind
        assert torch.equal(model.predict(event).particle_N, before.particle_N)


def test_an_event_of_one_bin_is_joined_as_a_whole(listening: Make, events: Make) -> None:
    model = listening("graph").model
    event = only(events(1)[0], torch.arange(3))
    (layer,) = graph_edges(model, event, least=0.0)
    assert len(layer["edges"]) == 6
    total = torch.zeros(3)
    for heard_by, _, value in layer["edges"]:
        total[heard_by] += value
    assert (total < 1.0).all()  # the rest is what an element hears of itself

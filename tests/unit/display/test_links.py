"""Explanations in the display: the file of `ringflow explain --links` is read, checked and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import InputFileError, UsageError
from ringflow.base.provenance import describe_input
from ringflow.display.events import MOST_EDGES, LinkFile
from ringflow.display.phoenix import phoenix_event, phoenix_scene, write_phoenix
from ringflow.display.source import open_source
from ringflow.infer.shipped import MODEL
from ringflow.models.file import save_model

Make = Callable[..., Any]


def link(candidate: int = 0, elements: Any = ((0, 0.6), (1, -0.2)), reconstruction: str = "model") -> dict[str, Any]:
    return {"reconstruction": reconstruction, "candidate": candidate, "elements": [list(one) for one in elements]}


def event(index: int = 1, number: int | None = None, links: Any = (), **more: Any) -> dict[str, Any]:
    return {"index": index, "event_number": index if number is None else number, "links": list(links), **more}


@pytest.fixture
def written(shown: Path, tmp_path: Path) -> Make:
    """Writes a file as `ringflow explain` does, of the dataset that is shown."""

    def write(*events: dict[str, Any], model: Path = MODEL, source: object = None) -> Path:
        origin = {"source": str(source or shown), "model": describe_input(model), "output": "class", "method": "any"}
        path = tmp_path / "links.json"
        path.write_text(json.dumps({**origin, "events": events}))
        return path

    return write


@pytest.fixture(scope="module")
def network(small_model: Make, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """A file with a network of the backbone `graph` that takes clusters or hits, and makes a candidate of every element."""

    def make(calorimeter: str) -> Path:
        path: Path = tmp_path_factory.mktemp("models") / f"{calorimeter}.safetensors"
        save_model(path, small_model("graph", calorimeter).model, threshold=0.0)
        return path

    return make


def test_an_event_has_its_lines_and_others_have_none(shown: Path, written: Make) -> None:
    links = [link(), link(2, [(3, 0.5)])]
    source = open_source(shown, links=written(event(1, links=links)))
    assert source.explained == (1,)
    assert source.notes == ()
    assert source.scene(1)["links"] == links
    assert source.scene(1)["graph"] == []
    assert source.scene(0)["links"] == []
    assert open_source(shown).explained == ()
    path = written(event(0, number=2, links=[link()]))  # the first of a split: its number decides
    source = open_source(shown, links=path)
    assert source.explained == (2,)
    assert source.scene(2)["links"] == [link()]
    assert open_source(shown, links=path, events=2).explained == ()


def test_the_strongest_edges_come_first(shown: Path, written: Make) -> None:
    edges = [[0, 1, 0.001], *([[1, 2, 0.2]] * MOST_EDGES), [2, 3, 0.7]]
    layers = [{"layer": 0, "edges": edges}, {"layer": 1, "edges": []}]
    graph = open_source(shown, links=written(event(0, graph=layers))).scene(0)["graph"]
    assert [one["layer"] for one in graph] == [0, 1]
    assert graph[0]["edges"][:2] == [[2, 3, 0.7], [1, 2, 0.2]]
    assert len(graph[0]["edges"]) == MOST_EDGES
    assert [0, 1, 0.001] not in graph[0]["edges"]


def test_what_explain_writes_is_shown(shown: Path, network: Make, tmp_path: Path) -> None:
    pytest.importorskip("captum", exc_type=ImportError)
    from ringflow.cli.inspection import How
    from ringflow.cli.inspection import explain as explain_command

    path, model = tmp_path / "links.json", network("cluster")
    explain_command(shown, model=model, event=2, how=How(method="input-x-gradient"), links=path, graph=True)
    source = open_source(shown, model=model, links=path)
    assert (source.explained, source.notes) == ((2,), ())
    scene = source.scene(2)
    made = {one["name"]: one for one in scene["reconstructions"]}["model"]
    assert [one["candidate"] for one in scene["links"]] == list(range(len(made["candidates"]["label"])))
    assert [one["layer"] for one in scene["graph"]] == [0]
    assert scene["graph"][0]["edges"]
    tracks = len(scene["tracks"]["lines"])
    own = [max(track, tracks + cluster if cluster >= 0 else -1)
           for track, cluster in zip(made["candidates"]["track"], made["candidates"]["cluster"], strict=True)]  # fmt: skip
    named = [own[one["candidate"]] in [element for element, _ in one["elements"]] for one in scene["links"]]
    assert sum(named) > 0.8 * len(named)  # nearly everybody listens to the own element


def test_a_network_may_take_hits(shown: Path, written: Make, network: Make, tmp_path: Path) -> None:
    scene, model = open_source(shown).scene(1), network("hit")
    last = len(scene["tracks"]["lines"]) + len(scene["hits"]["x"]) - 1
    found = open_source(shown, model=model, links=written(event(1, links=[link(0, [(last, 0.4)])]), model=model))
    assert found.scene(1)["calorimeter"] == "hit"
    assert found.scene(0)["calorimeter"] == "cluster"
    beyond = written(event(1, links=[link(0, [(last + 1, 0.4)])]), model=model)
    with pytest.raises(InputFileError, match=f"has element {last + 1} of event 1, which has {last + 1} "):
        open_source(shown, model=model, links=beyond).scene(1)


def test_phoenix_files_keep_them(shown: Path, written: Make, tmp_path: Path) -> None:
    graph = [{"layer": 0, "edges": [[0, 1, 0.5]]}]
    scene = open_source(shown, links=written(event(1, links=[link()], graph=graph))).scene(1)
    write_phoenix(tmp_path / "event.json", [scene])
    again = open_source(tmp_path / "event.json").scene(0)
    assert (again["links"], again["graph"], again["calorimeter"]) == ([link()], graph, "cluster")
    older = phoenix_event(scene)
    older["ringflow"] = json.dumps(
        {name: part for name, part in json.loads(older["ringflow"]).items() if name != "graph"}
    )
    assert phoenix_scene("older", older, 0)["graph"] == []
    with pytest.raises(UsageError, match=r"--links .*links\.json does not go with"):
        open_source(tmp_path / "event.json", links=written())


def test_what_was_made_of_something_else_is_noted(shown: Path, written: Make, network: Make, tmp_path: Path) -> None:
    other = network("cluster")
    notes = open_source(shown, links=written(event(), model=other, source="data/other")).notes
    assert len(notes) == 2
    assert "another model (cluster.safetensors)" in notes[0]
    assert "was made of data/other, not of" in notes[1]
    assert open_source(shown, links=written(event(), source=f"elsewhere/{shown.name}")).notes == ()
    (tmp_path / shown.name).mkdir()  # of the same name, but there
    assert len(open_source(shown, links=written(event(), source=tmp_path / shown.name)).notes) == 1


def of_events(*events: Any) -> str:
    return json.dumps({"source": "a", "model": {"file": "m", "sha256": "0"}, "events": events})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("no json", "Invalid JSON"),
        ("[]", "not a file of `ringflow explain --links`"),
        ("{}", "source: Field required"),
        (of_events(1), "events.0: "),
        (of_events(event(links=[link(-1)])), "events.0.links.0.candidate: "),
        (of_events(event(links=[link(0, [(0, float("nan"))])])), "events.0.links.0.elements.0.1: "),
        (of_events(event(graph=[{"layer": 0, "edges": [[0, 1]]}])), "events.0.graph.0.edges.0.2: "),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputFileError) as error:
        LinkFile.read(path)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_points_to_nothing_is_refused(shown: Path, written: Make, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"cannot read .*none\.json"):
        open_source(shown, links=tmp_path / "none.json")
    made = {one["name"]: len(one["candidates"]["label"]) for one in open_source(shown).scene(1)["reconstructions"]}
    for words, one in {
        r"has event 77, which .*jets lacks": event(0, number=77),
        f"has candidate {made['model']} of event 1": event(links=[link(made["model"])]),
        "is about 'mine', which is not shown": event(links=[link(reconstruction="mine")]),
        "has element 100000 of event 1": event(links=[link(0, [(100000, 0.1)])]),
        "has element 99999 of event 1": event(graph=[{"layer": 0, "edges": [[0, 99999, 0.1]]}]),
    }.items():
        with pytest.raises(InputFileError, match=words):
            open_source(shown, links=written(one)).scene(1)


def test_the_command_begins_where_the_lines_are(shown: Path, written: Make, tmp_path: Path, command: Make) -> None:
    path = written(event(2, links=[link()]))
    files = ("--phoenix", tmp_path / "event.json", "--static", tmp_path / "page")
    assert command("display", shown, "--links", path, *files).code == 0
    (key,) = json.loads((tmp_path / "event.json").read_text())
    assert key == "event 2"
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert '"explained":[2]' in page
    assert 'data-scene="1"' not in page
    command("display", shown, "--links", path, "--event", 0, "--events", 1, "--static", tmp_path / "page")
    assert '"explained":[]' in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")

"""Spaces as PanDA writes them: there, back, and what is wrong with one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from cyclopts import App

from ringflow.base.errors import SettingsError
from ringflow.cli.tuning import panda_evaluate, panda_space, panda_steer
from ringflow.tune.panda import from_panda, to_panda
from ringflow.tune.parameter import Choice, Range
from ringflow.tune.space import Space
from ringflow.tune.space_file import parse_space, read_space

SPACE = """
["optimizer.rate"]
type = "float"
low = 1e-4
high = 1e-2
log = true

["model.dropout"]
type = "float"
low = 0.0
high = 0.3

["loss.jet"]
type = "float"
low = 0.5
high = 2.0
step = 0.25

["model.layers"]
type = "int"
low = 1
high = 8

["model.width"]
type = "int"
low = 64
high = 256
step = 16

["model.backbone"]
type = "choice"
values = ["attention", "graph"]

["optimizer.betas"]
type = "choice"
values = [[0.9, 0.98], [0.9, 0.999]]

["model.graph.bin_size"]
type = "int"
low = 32
high = 256
log = true
when = { "model.backbone" = "graph" }
"""


def error_of(words: object) -> str:
    with pytest.raises(SettingsError) as caught:
        from_panda(words, "space.json")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("space.json")
    return message


def test_there_and_back() -> None:
    space = parse_space(SPACE)
    text = json.dumps(to_panda(space), allow_nan=False)
    back = from_panda(json.loads(text))
    assert len(back) == 8
    for before, after in zip(space.parameters, back.parameters, strict=True):
        if isinstance(before, Choice):
            assert list(map(str, before.options)) == list(map(str, after.values(None)))
        else:
            assert before == after


def test_words_are_those_of_phpo(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(SPACE)
    panda_space(tmp_path / "space.toml", out=tmp_path / "space.json")
    words = json.loads((tmp_path / "space.json").read_text())
    assert words["optimizer.rate"] == {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-2}}
    assert words["model.dropout"] == {"method": "uniform", "dimension": {"low": 0.0, "high": 0.3}}
    assert words["model.layers"] == {"method": "uniformint", "dimension": {"low": 1, "high": 8}}
    assert words["model.width"] == {"method": "quniform", "dimension": {"low": 64, "high": 256, "q": 16}}
    categories = {"categories": ["attention", "graph"], "grid_search": 0}
    assert words["model.backbone"] == {"method": "categorical", "dimension": categories}
    assert words["model.graph.bin_size"]["when"] == {"model.backbone": ["graph"]}


def test_steps_that_are_no_multiples_are_listed() -> None:
    space = Space([Range("model.width", 40, 80, whole=True, step=16)])
    words = to_panda(space)["model.width"]
    assert words["dimension"]["categories"] == [40, 56, 72]
    (width,) = from_panda({"model.width": words}).parameters
    assert width.values(None) == [40, 56, 72]


def test_others_write_more_than_is_needed() -> None:
    words = {
        "optimizer.rate": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-2, "base": 10}},
        "model.layers": {"method": "categorical", "dimension": {"categories": [1, 1, 2], "grid_search": 0}},
        "model.width": {"method": "quniform", "dimension": {"low": 60.0, "high": 130.0, "q": 32.0}},
    }
    rate, layers, width = from_panda(words).parameters
    assert rate == Range("optimizer.rate", 1e-4, 1e-2, log=True)
    assert layers == Choice("model.layers", (1, 2))
    assert width.values(None) == [64, 96, 128]
    assert all(isinstance(value, int) for value in width.values(None))


@pytest.mark.parametrize(
    ("name", "entry", "said"),
    [
        ("optimizer.rate", {"method": "normal", "dimension": {}}, "unknown method 'normal'; choose from categorical"),
        ("optimizer.rate", {"method": ["uniform"], "dimension": {}}, r"unknown method \['uniform'\]"),
        ("optimizer.rate", {"dimension": {}}, "unknown method None"),
        ("optimizer.rate", 3, "= 3 is no parameter"),
        ("optimizer.rate", {"method": "uniform"}, "dimension = None must hold low, high"),
        ("optimizer.rate", {"method": "uniform", "dimension": {"low": 1}}, "needs 'high'"),
        ("optimizer.rate", {"method": "uniform", "dimension": {"low": 1, "high": 2, "q": 1}}, "'q' means nothing"),
        ("optimizer.rate", {"method": "uniform", "dimension": {"low": "1", "high": 2}}, "low = '1' is not a number"),
        ("optimizer.rate", {"method": "uniform", "dimension": {"low": 2, "high": 1}}, "low 2 is above high 1"),
        ("optimizer.rate", {"method": "uniform", "dimension": {"low": float("nan"), "high": 1}}, "nan is not a number"),
        ("optimizer.rate", {"method": "quniform", "dimension": {"low": 1, "high": 2, "q": 0}}, "q = 0 must be more"),
        ("optimizer.rate", {"method": "quniform", "dimension": {"low": 1, "high": 2, "q": 5}}, "no multiple of q = 5"),
        ("optimizer.rate", {"method": "qloguniform", "dimension": {"low": 1, "high": 9, "q": 2}}, "takes q = 1 only"),
        ("optimizer.rate", {"method": "uniform", "dimension": {}, "prior": 1}, "'prior' means nothing"),
        ("model.layers", {"method": "uniform", "dimension": {"low": 1, "high": 4}}, "model.layers is a whole number"),
        ("model.layers", {"method": "uniformint", "dimension": {"low": 1.5, "high": 4}}, "must be a whole number"),
        ("model.layers", {"method": "categorical", "dimension": {"categories": 4}}, "must be a list"),
        ("model.layers", {"method": "categorical", "dimension": {"categories": [1, None]}}, "None is no value"),
        ("model.layers", {"method": "categorical", "dimension": {"categories": []}}, "at least one value"),
        ("model.layer", {"method": "uniformint", "dimension": {"low": 1, "high": 4}}, "did you mean \"model.layers\""),
        ("batch_size", {"method": "uniformint", "dimension": {"low": 1, "high": 4}}, "unknown setting 'batch_size'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line(name: str, entry: object, said: str) -> None:
    message = error_of({name: entry})
    assert name in message
    with pytest.raises(SettingsError, match=said):
        from_panda({name: entry})


def test_conditions_are_checked() -> None:
    layers = {"method": "uniformint", "dimension": {"low": 1, "high": 4}}
    assert "when = 3 must be a table" in error_of({"model.layers": {**layers, "when": 3}})
    assert "which is not in the space" in error_of({"model.layers": {**layers, "when": {"model.backbone": "graph"}}})
    assert "None is no value" in error_of({"model.layers": {**layers, "when": {"model.backbone": None}}})


@pytest.mark.parametrize("words", [None, {}, [], "space"])
def test_no_space_at_all(words: object) -> None:
    assert "names no settings" in error_of(words)


def test_the_example_is_whole() -> None:
    example = Path(__file__).parents[3] / "examples" / "panda"
    words = json.loads((example / "space.json").read_text())
    assert words == to_panda(read_space(example / "space.toml"))
    task = json.loads((example / "config.json").read_text())
    assert task["searchSpaceFile"] == "space.json"
    app = App(name="tune")
    app.command(panda_steer)
    app.command(panda_evaluate)
    steering = shlex.split(task["steeringExec"])[2].replace("%MAX_POINTS", "48").replace("%NUM_POINTS", "12")
    for line, command in ((steering, panda_steer), (task["evaluationExec"], panda_evaluate)):
        program, group, *rest = shlex.split(line)
        assert (program, group) == ("ringflow", "tune")
        chosen, bound, _ = app.parse_args(rest, exit_on_error=False, print_error=False)
        assert chosen is command
        assert bound.args[0] == "clic_small"

"""PanDA's steering, played through as iDDS does it, and everything that can be wrong with its files."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import UsageError
from ringflow.cli.tuning import panda_steer
from ringflow.train.settings import TrainSettings
from ringflow.tune.panda import Asked, read_asked, steer
from ringflow.tune.parameter import Range
from ringflow.tune.space import Space

RATE = {"optimizer.rate": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-1}}}
LAYERS = {"model.layers": {"method": "uniformint", "dimension": {"low": 1, "high": 6}}}
OPT_SPACE = {**RATE, **LAYERS}
SPACE = Space([Range("optimizer.rate", 1e-4, 1e-1, log=True), Range("model.layers", 1, 6, whole=True)])
TINY = TrainSettings.resolve("clic_tiny")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, as a job has one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(points: object, most: int = 20, new: int = 4, **options: Any) -> Any:
    """One call of the steering: its file in, its file out."""
    Path("in.json").write_text(json.dumps({"points": points, "opt_space": OPT_SPACE}))
    panda_steer(
        "clic_tiny", max_points=most, num_points=new, in_file=Path("in.json"), out_file=Path("out.json"), **options
    )
    return json.loads(Path("out.json").read_text())


def output(path: str = "output.json") -> Any:
    return json.loads(Path(path).read_text())


def test_a_search_as_idds_runs_it(here: Path) -> None:
    points: list[list[Any]] = []
    for _ in range(30):
        new = ask(points, most=30, new=4)
        if not new:
            break
        points += [[point, None] for point in new]
        # Jobs end in any order: two of the points stay under way.
        for entry in points[:-2]:
            point = entry[0]
            entry[1] = (math.log10(point["optimizer.rate"]) + 2.5) ** 2 + 0.1 * (point["model.layers"] - 4) ** 2
    assert len(points) == 30
    assert all(SPACE.holds(point) for point, _ in points)
    assert len({json.dumps(point) for point, _ in points}) == 30
    losses = [loss for _, loss in points if loss is not None]
    assert min(losses[8:]) < min(losses[:8])


def test_the_same_question_has_the_same_answer(here: Path) -> None:
    points = [[{"optimizer.rate": 10.0 ** -(1.2 + number / 5), "model.layers": 3}, 1.0 + number] for number in range(9)]
    assert ask(points) == ask(points) != ask(points, seed=2)
    # A point that is under way is known: it changes what is asked next.
    assert ask([*points, [{"optimizer.rate": 0.05, "model.layers": 2}, None]]) != ask(points)


def test_never_more_points_than_there_are_to_be(here: Path) -> None:
    point = {"optimizer.rate": 1e-3, "model.layers": 2}
    assert len(ask([[point, None]], most=3, new=4)) == 2
    assert ask([[point, None], [point, 1.0], [point, None]], most=3) == []


def test_a_space_that_is_used_up_ends_the_search() -> None:
    layers = Space([Range("model.layers", 1, 3, whole=True)])
    found = steer(Asked([({"model.layers": 2}, None)]), layers, TINY, max_points=9, num_points=9, search="random")
    assert sorted(point["model.layers"] for point in found) == [1, 3]  # type: ignore[type-var]


def test_points_that_the_settings_refuse_are_not_chosen() -> None:
    widths = Space([Range("model.width", 20, 70, whole=True)])
    found = steer(Asked([]), widths, TINY, max_points=3, num_points=3, search="random")
    assert [point["model.width"] for point in found if point["model.width"] % 16] == []  # type: ignore[operator]


@pytest.mark.parametrize("loss", [1e5, 1e30, math.inf, math.nan])
def test_a_point_that_was_given_up_is_one_that_diverged(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    seen: list[Any] = []

    class Listener:
        def ask(self, trial: int, known: list[Any]) -> None:
            seen.extend(known)

    monkeypatch.setattr("ringflow.tune.panda.make_search", lambda *words, **options: Listener())
    point = {"optimizer.rate": 1e-3, "model.layers": 2}
    assert steer(Asked([(point, loss), (point, 3.0)]), SPACE, TINY, max_points=9, num_points=1) == []
    assert math.isnan(seen[0].value)
    assert seen[1].value == 3.0


def test_the_first_call_may_have_no_input(here: Path) -> None:
    space = here / "space.toml"
    space.write_text("['model.layers']\ntype = 'int'\nlow = 1\nhigh = 3\n")
    for text in (None, "", " \n"):
        if text is not None:
            Path("in.json").write_text(text)
        panda_steer(max_points=2, num_points=2, in_file=Path("in.json"), out_file=Path("out.json"), space=str(space))
        assert len(output("out.json")) == 2
    with pytest.raises(UsageError, match=r"in.json holds no opt_space; give --space"):
        panda_steer(max_points=2, num_points=2, in_file=Path("in.json"), out_file=Path("out.json"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "in.json is not JSON"),
        ("[]", "in.json is not what iDDS writes"),
        ('{"points": {}}', "in.json is not what iDDS writes"),
        ('{"points": [[{}]]}', r"point 0 must be \[settings, loss\]"),
        ('{"points": [[3, 1.0]]}', "settings of point 0 must be a table"),
        ('{"points": [[[1, {}], 1.0]]}', "point 0 belongs to a segmented task"),
        ('{"points": [[{}, "low"]]}', "loss of point 0 must be a number or null, not 'low'"),
        ('{"points": [], "opt_space": null}', "holds no opt_space"),
        ('{"points": [], "opt_space": {"model.layers": {"method": "poisson"}}}', "unknown method 'poisson'"),
        (json.dumps({"points": [[{"model.layers": 9}, 1]], "opt_space": LAYERS}), "model.layers = 9 is none of"),
        (json.dumps({"points": [[{"lr": 9}, 1]], "opt_space": LAYERS}), "there is no lr in it; there are model.layers"),
        (json.dumps({"points": [[{}, 1]], "opt_space": LAYERS}), "point 0 is not of the space: it has no model.layers"),
    ],
)  # fmt: skip
def test_a_wrong_input_is_one_line_and_nothing_is_written(here: Path, text: str, said: str) -> None:
    Path("in.json").write_text(text)
    with pytest.raises(UsageError, match=said) as caught:
        panda_steer("clic_tiny", max_points=9, num_points=2, in_file=Path("in.json"), out_file=Path("out.json"))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert os.listdir(here) == ["in.json"]


def test_an_input_that_is_no_text(here: Path) -> None:
    Path("in.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"in.json cannot be read"):
        read_asked(Path("in.json"))

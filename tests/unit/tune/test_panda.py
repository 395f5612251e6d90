"""PanDA's two ends, played through as iDDS does it; its spaces; and everything that can be wrong with its files."""

from __future__ import annotations

import json
import math
import os
import shlex
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import FailureError, InputFileError, SettingsError, StoppedError, UsageError
from ringflow.cli.tuning import panda_evaluate, panda_space, panda_steer
from ringflow.train import run as training
from ringflow.train.settings import TrainSettings
from ringflow.tune import panda
from ringflow.tune.panda import NO_LOSS, Asked, evaluated, from_panda, read_datasets, stay_in, steer, to_panda
from ringflow.tune.space import Choice, Range, Space, parse_space, read_space

LAYERS = {"model.layers": {"method": "uniformint", "dimension": {"low": 1, "high": 6}}}
OPT_SPACE = {"optimizer.rate": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-1}}, **LAYERS}
SPACE = Space([Range("optimizer.rate", 1e-4, 1e-1, log=True), Range("model.layers", 1, 6, whole=True)])
TINY = TrainSettings.resolve("clic_tiny")
#: A training of less than a second.
SMALL = ("detector=fake", "model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16", "length.events=60")
SMALL += ("length.validate_every=30", "length.validation_events=4", "compute.batch_elements=100", "compute.device=cpu")
#: Every kind of parameter.
TABLES = """
"optimizer.rate" = { type = "float", low = 1e-4, high = 1e-2, log = true }
"model.dropout" = { type = "float", low = 0.0, high = 0.3 }
"loss.jet" = { type = "float", low = 0.5, high = 2.0, step = 0.25 }
"model.layers" = { type = "int", low = 1, high = 8 }
"model.width" = { type = "int", low = 64, high = 256, step = 16 }
"model.backbone" = { type = "choice", values = ["attention", "graph"] }
"optimizer.betas" = { type = "choice", values = [[0.9, 0.98], [0.9, 0.999]] }
"model.graph.bin_size" = { type = "int", low = 32, high = 256, log = true, when = { "model.backbone" = "graph" } }
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, as a job has one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def brought(here: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with a dataset that PanDA brought."""
    dataset = write_fake_dataset(tmp_path_factory.mktemp("brought") / "dataset", events=40)
    with tarfile.open("fake.tar", "w") as packed:
        packed.add(dataset, "fake")
    Path("input_ds.json").write_text('["fake.tar"]')
    return here


def ask(points: object, most: int = 20, new: int = 4, *words: str, space: object = OPT_SPACE, **options: Any) -> Any:
    """One call of the steering: its file in, its file out."""
    Path("in.json").write_text(json.dumps({"points": points, "opt_space": space}))
    files = {"in_file": Path("in.json"), "out_file": Path("out.json")}
    panda_steer("clic_tiny", *words, max_points=most, num_points=new, **files, **options)
    return json.loads(Path("out.json").read_text())


def output() -> Any:
    return json.loads(Path("output.json").read_text())


def test_a_search_as_idds_runs_it(here: Path) -> None:
    points: list[list[Any]] = []
    while new := ask(points, most=30, new=4):
        points += [[point, None] for point in new]
        # Jobs end in any order: two of the points stay under way.
        for entry in points[:-2]:
            point = entry[0]
            entry[1] = (math.log10(point["optimizer.rate"]) + 2.5) ** 2 + 0.1 * (point["model.layers"] - 4) ** 2
    assert len({json.dumps(point) for point, _ in points}) == len(points) == 30
    assert all(SPACE.holds(point) for point, _ in points)
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
    few = Space([Range("model.layers", 1, 3, whole=True)])
    found = steer(Asked(points=[({"model.layers": 2}, None)]), few, TINY, max_points=9, num_points=9, search="random")
    assert [point["model.layers"] for point in found] in ([1, 3], [3, 1])
    # Points that the settings refuse are not chosen.
    widths = Space([Range("model.width", 20, 70, whole=True)])
    found = steer(Asked(), widths, TINY, max_points=3, num_points=3, search="random")
    assert {point["model.width"] for point in found} <= {32, 48, 64}


@pytest.mark.parametrize("loss", [1e5, math.inf, math.nan])
def test_a_point_that_was_given_up_is_one_that_diverged(monkeypatch: pytest.MonkeyPatch, loss: float) -> None:
    seen: list[Any] = []

    class Listener:
        def ask(self, trial: int, known: list[Any]) -> None:
            seen.extend(known)

    monkeypatch.setattr(panda, "Search", lambda *words, **options: Listener())
    point = {"optimizer.rate": 1e-3, "model.layers": 2}
    assert steer(Asked(points=[(point, loss), (point, 3.0)]), SPACE, TINY, max_points=9, num_points=1) == []
    assert math.isnan(seen[0].value)
    assert seen[1].value == 3.0


def test_the_first_call_may_have_no_input(here: Path) -> None:
    Path("space.toml").write_text("['model.layers']\ntype = 'int'\nlow = 1\nhigh = 3\n")
    call: dict[str, Any] = {"max_points": 2, "num_points": 2, "in_file": Path("in.json"), "out_file": Path("out.json")}
    for text in (None, " \n"):
        if text is not None:
            Path("in.json").write_text(text)
        panda_steer(space="space.toml", **call)
        assert len(json.loads(Path("out.json").read_text())) == 2
    with pytest.raises(UsageError, match=r"in.json holds no opt_space; give --space"):
        panda_steer(**call)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"\xff\xfe\x00", "in.json cannot be read"),
        (b"[]", "in.json is not what iDDS writes"),
        (b'{"points": [[{}]]}', r"not what iDDS writes: points\.0"),
        (b'{"points": [[[1, {}], 1.0]]}', "point 0 belongs to a segmented task"),
        (b'{"points": [[{}, "low"]]}', r"points\.0\.1\.\S+: .*, not 'low'"),
        (b'{"points": [], "opt_space": {"model.layers": {"method": "poisson"}}}', "method: .*'uniformint'.* 'poisson'"),
        (json.dumps({"points": [[{"model.layers": 9}, 1]], "opt_space": LAYERS}).encode(), "point 0 is not .* 9}"),
        (json.dumps({"points": [[{"lr": 9}, 1]], "opt_space": LAYERS}).encode(), "'lr': 9}; there are model.layers"),
        (json.dumps({"points": [[{}, 1]], "opt_space": LAYERS}).encode(), "point 0 is not of the space"),
    ],
)
def test_a_wrong_input_is_one_line_and_nothing_is_written(here: Path, text: bytes, said: str) -> None:
    Path("in.json").write_bytes(text)
    with pytest.raises(UsageError, match=said) as caught:
        panda_steer("clic_tiny", max_points=9, num_points=2, in_file=Path("in.json"), out_file=Path("out.json"))
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    assert os.listdir(here) == ["in.json"]


def test_a_training_from_point_to_loss(brought: Path) -> None:
    Path("input.json").write_text('{"optimizer.rate": 0.002}')
    panda_evaluate("clic_tiny", *SMALL, metrics=Path("metrics.tgz"))
    first = output()
    assert first["status"] == 0
    lines = [json.loads(line) for line in Path("run/history.jsonl").read_text().splitlines()]
    assert first["loss"] in [line.get("loss") for line in lines]
    assert TrainSettings.resolve(Path("run/settings.toml")).optimizer.rate == 0.002
    with tarfile.open("metrics.tgz") as packed:
        assert "run/history.jsonl" in packed.getnames()
    # A further try of the same point goes on; the next point of the same job begins anew.
    weights = Path("run/model.safetensors").stat().st_mtime_ns
    panda_evaluate("clic_tiny", *SMALL, objective="parameters")
    assert Path("run/model.safetensors").stat().st_mtime_ns == weights
    assert output()["loss"] > 1000
    Path("input.json").write_text('{"optimizer.rate": 0.003}')
    with pytest.raises(UsageError, match="a validation has no figure 'jat'"):
        panda_evaluate("clic_tiny", *SMALL, objective="jat")
    assert TrainSettings.resolve(Path("run/settings.toml")).optimizer.rate == 0.003
    assert (output()["status"], output()["loss"]) == (2, NO_LOSS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "input.json does not exist"),
        ("{", "input.json is not JSON"),
        ('{"optimizer.rate": null}', "optimizer.rate: None is no value of a setting"),
        ('{"optimizer.rte": 1}', "unknown setting 'optimizer.rte'; did you mean"),
        ('{"model.heads": 5}', "must be a multiple of"),
    ],
)
def test_a_point_that_cannot_be_trained_tells_so(here: Path, text: str | None, said: str) -> None:
    if text is not None:
        Path("input.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        panda_evaluate("clic_tiny", "data=sim:qq")
    assert (output()["status"], output()["loss"]) == (2, NO_LOSS)
    assert said.split("'")[0] in output()["message"]
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (FailureError("loss became NaN or infinite at step 3"), 1, "loss became NaN or infinite at step 3"),
        (StoppedError("stopped by a signal"), 75, "stopped by a signal"),
        (MemoryError("no\nmore"), 1, "MemoryError: no more"),
        (KeyboardInterrupt(), 1, "KeyboardInterrupt: "),
    ],
)
def test_whatever_goes_wrong_is_told(
    here: Path, monkeypatch: Any, error: BaseException, status: int, message: str
) -> None:
    def train(*_: object, **__: object) -> None:
        # Who is killed in here leaves at least this.
        assert output()["status"] == 1
        assert "killed" in output()["message"]
        raise error

    monkeypatch.setattr(training, "train", train)
    Path("input.json").write_text("{}")
    with pytest.raises(type(error)):
        panda_evaluate("clic_tiny", "data=sim:qq")
    assert output() == {"status": status, "loss": NO_LOSS, "message": message.strip()}


def test_only_a_finite_loss_counts_and_only_the_first_process_tells_it(here: Path, monkeypatch: Any) -> None:
    with pytest.raises(FailureError, match="ended with an objective of nan"):
        evaluated(Path("output.json"), lambda: math.nan)
    assert output()["status"] == 1
    Path("output.json").unlink()
    monkeypatch.setenv("RANK", "1")
    assert evaluated(Path("output.json"), lambda: 1.0) == 1.0
    assert not Path("output.json").exists()


def test_data_that_panda_brought(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("ttbar").mkdir()
    Path("ttbar/manifest.json").write_text("{}")
    with tarfile.open("qq.tar.gz", "w:gz") as packed:
        packed.add("ttbar", "some/qq")
    names = Path("input_ds.json")
    assert read_datasets(names, here) is None
    names.write_text('["ttbar/manifest.json", "ttbar/shard-00000.parquet", "qq.tar.gz"]')
    for _ in range(2):  # a retry finds it unpacked
        assert read_datasets(names, Path()) == "ttbar,datasets/qq/some/qq"
    seen: list[str] = []
    monkeypatch.setattr(
        training, "train", lambda settings, *_, **__: seen.append(settings.data) or {"best": {"loss": 1.0}}
    )
    Path("input.json").write_text("{}")
    panda_evaluate("clic_tiny")
    panda_evaluate("clic_tiny", "data=sim:zh")
    assert seen == ["ttbar,datasets/qq/some/qq", "sim:zh"]
    Path("broken.tgz").write_bytes(b"no archive")
    for text, error, said in (
        ("[3]", UsageError, "must hold a list of file names"),
        ('["shard-0.parquet"]', UsageError, "names no dataset"),
        ('["gone.tar"]', InputFileError, "gone.tar is not there"),
        ('["broken.tgz"]', InputFileError, "broken.tgz cannot be unpacked"),
    ):
        names.write_text(text)
        with pytest.raises(error, match=said):
            read_datasets(names, here)
    assert [path.name for path in Path("datasets").glob("[a-z]*")] == ["qq"]


def test_libraries_write_below_the_working_folder_only_if_they_must(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    known = dict(os.environ)
    stay_in(here)
    assert dict(os.environ) == known
    monkeypatch.setattr(os, "environ", {**known, "HOME": "/nonexistent", "MPLCONFIGDIR": "/mine"})
    stay_in(here)
    assert os.environ["HOME"] == str(here / ".home")
    assert os.environ["NUMBA_CACHE_DIR"].startswith(str(here))
    assert os.environ["MPLCONFIGDIR"] == "/mine"


def test_spaces_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_text(TABLES)
    panda_space(str(tmp_path / "space.toml"), out=tmp_path / "space.json")
    words = json.loads((tmp_path / "space.json").read_text())
    assert words["optimizer.rate"] == {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-2}}
    assert words["model.dropout"] == {"method": "uniform", "dimension": {"low": 0.0, "high": 0.3}}
    assert words["model.layers"] == {"method": "uniformint", "dimension": {"low": 1, "high": 8}}
    assert words["model.width"] == {"method": "quniform", "dimension": {"low": 64, "high": 256, "q": 16}}
    categories = {"categories": ["attention", "graph"], "grid_search": 0}
    assert words["model.backbone"] == {"method": "categorical", "dimension": categories}
    assert words["model.graph.bin_size"]["when"] == {"model.backbone": ["graph"]}
    space, back = parse_space(TABLES), from_panda(words)
    assert len(back.parameters) == 8
    for before, after in zip(space.parameters, back.parameters, strict=True):
        if isinstance(before, Choice):
            assert list(map(str, before.options)) == list(map(str, after.values(None)))
        else:
            assert before == after
    # Others write more than is needed.
    more = {
        "optimizer.rate": {"method": "loguniform", "dimension": {"low": 1e-4, "high": 1e-2, "base": 10}},
        "model.layers": {"method": "categorical", "dimension": {"categories": [1, 1, 2], "grid_search": 0}},
        "model.width": {"method": "quniform", "dimension": {"low": 60.0, "high": 130.0, "q": 32.0}},
    }
    rate, layers, width = from_panda(more).parameters
    assert rate == Range("optimizer.rate", 1e-4, 1e-2, log=True)
    assert layers == Choice("model.layers", (1, 2))
    assert [(value, type(value)) for value in width.values(None)] == [(64, int), (96, int), (128, int)]
    # Steps that are no multiples are listed.
    listed = to_panda(Space([Range("model.width", 40, 80, whole=True, step=16)]))
    assert listed["model.width"]["dimension"]["categories"] == [40, 56, 72]
    assert from_panda(listed).parameters[0].values(None) == [40, 56, 72]


UNIFORM = {"method": "uniform", "dimension": {"low": 1, "high": 2}}


@pytest.mark.parametrize(
    ("name", "entry", "said"),
    [
        ("optimizer.rate", {**UNIFORM, "method": ["uniform"]}, "method: .*'categorical'"),
        ("optimizer.rate", {**UNIFORM, "dimension": {"low": 1}}, "the dimension of 'uniform' holds high, low, not low"),
        ("optimizer.rate", {**UNIFORM, "dimension": {"low": 1, "high": 2, "mu": 1}}, "holds high, low, not high, low, mu"),
        ("optimizer.rate", {**UNIFORM, "dimension": {"low": "1", "high": 2}}, "low.*, not '1'"),
        ("optimizer.rate", {"method": "quniform", "dimension": {"low": 1, "high": 2, "q": 0}}, r"q\S* .* greater than 0"),
        ("optimizer.rate", {"method": "quniform", "dimension": {"low": 1, "high": 2, "q": 5}}, "no multiple of q = 5"),
        ("optimizer.rate", {"method": "qloguniform", "dimension": {"low": 1, "high": 9, "q": 2}}, "takes q = 1 only"),
        ("model.layers", UNIFORM, "input should be a valid integer"),
        ("model.layers", {"method": "categorical", "dimension": {"categories": [1, None]}}, "None is no value"),
        ("model.layer", LAYERS["model.layers"], "did you mean \"model.layers\""),
        ("model.layers", {**LAYERS["model.layers"], "when": {"model.backbone": "graph"}}, "which is not in the space"),
        ("model.layers", {**LAYERS["model.layers"], "when": {"model.backbone": [[None]]}}, "None is no value"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_space_is_told_in_one_line(name: str, entry: object, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        from_panda({name: entry}, "space.json")
    assert str(caught.value).startswith("space.json: ")
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"space\.json names no settings"):
        from_panda({}, "space.json")


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

"""The commands that PanDA's `phpo` calls, and the one that writes a space for it. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ringflow.base.log import say
from ringflow.base.options import Count, Json, Overrides
from ringflow.base.output import finish, print_json

if TYPE_CHECKING:
    from ringflow.tune.space import Space

Preset = Annotated[str, Parameter(help="Name of a preset or settings file that the points vary.")]
SpaceName = Annotated[str, Parameter(help="What is varied, see `ringflow tune`; else the opt_space of the input.")]


def panda_steer(
    preset: Preset | None = None,
    /,
    *overrides: Overrides,
    max_points: Annotated[Count, Parameter(help="Points in all: %MAX_POINTS of phpo.")],
    num_points: Annotated[Count, Parameter(help="New points at most: %NUM_POINTS of phpo.")],
    in_file: Annotated[Path, Parameter(help="Points so far and their losses: %IN of phpo.")],
    out_file: Annotated[Path, Parameter(help="File for the new points: %OUT of phpo.")],
    space: SpaceName | None = None,
    search: Annotated[
        Literal["grid", "random", "evolution", "tpe", "gp", "forest"], Parameter(help="How points are chosen.")
    ] = "tpe",
    seed: Annotated[
        int, Parameter(validator=Number(gte=0), help="The same seed and the same input give the same points.")
    ] = 1,
    given_up: Annotated[float, Parameter(help="Losses from here on stand for points that PanDA gave up.")] = 1e5,
    as_json: Json = False,
) -> None:
    """Choose new points for a search that PanDA and iDDS run: the steering of `phpo`.

    Points without a loss are being evaluated, and no other one is put beside them. An empty list ends the search. Points that
    the settings refuse, for example a width that the heads do not divide, are never chosen.
    """
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.panda.steering import read_asked, space_of, steer, write_points

    if preset is not None and "=" in preset:  # no preset: an override comes first
        overrides, preset = (preset, *overrides), None
    settings = TrainSettings.resolve(preset, overrides)
    asked = read_asked(in_file)
    given = None if space is None else _read_space(space)
    points = steer(
        asked,
        space_of(asked, given, in_file),
        settings,
        max_points=max_points,
        num_points=num_points,
        search=search,
        seed=seed,
        given_up=given_up,
    )
    write_points(out_file, points)
    if as_json:
        print_json(points)
    losses = sum(loss is not None for _, loss in asked.points)
    say(f"{len(points)} new points after {len(asked.points)}, of which {losses} have a loss")
    finish(out_file, "ringflow tune panda-evaluate --help")


def panda_evaluate(
    preset: Preset | None = None,
    /,
    *overrides: Overrides,
    in_file: Annotated[Path, Parameter(help="One point: settings and values.")] = Path("input.json"),
    out_file: Annotated[Path, Parameter(help="File for status, loss and message.")] = Path("output.json"),
    datasets_file: Annotated[
        Path, Parameter(help="List of the training files that PanDA brought; not read if data= is given.")
    ] = Path("input_ds.json"),
    objective: Annotated[
        str, Parameter(help="What is made small: loss, jets, or another figure of a validation.")
    ] = "loss",
    out: Annotated[Path, Parameter(help="Folder of the run; name it in checkPointToSave of phpo.")] = Path("run"),
    metrics: Annotated[
        Path | None, Parameter(help="Archive for the history of the training: evaluationMetrics of phpo.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train with one point of a search that PanDA and iDDS run: the evaluation of `phpo`.

    The result file is written in any case; its status is 0 if the training came to its end. A training of the same point that
    is there already is gone on with. Nothing is written outside of the working folder.
    """
    from ringflow.tune.panda.evaluation import Evaluation, evaluated, stay_in

    if preset is not None and "=" in preset:
        overrides, preset = (preset, *overrides), None
    evaluation = Evaluation(preset, overrides, in_file, datasets_file, objective, out, metrics)

    def loss() -> float:
        stay_in(Path())
        return evaluation.loss()

    found = evaluated(out_file, loss)
    if as_json:
        print_json({"status": 0, "loss": found})
    say(f"{objective}: {found:.6g}")
    finish(out_file, "ringflow tune panda-steer --help")


def panda_space(
    space: Annotated[str, Parameter(help="What is varied, as `ringflow tune` reads it.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="JSON file: searchSpaceFile of phpo.")],
    as_json: Json = False,
) -> None:
    """Write a space for PanDA's `phpo`, checked against the settings of a training."""
    import json

    from ringflow.base.rundir import write_atomic
    from ringflow.tune.panda.space import to_panda

    written = to_panda(_read_space(space))
    write_atomic(out, json.dumps(written, indent=2) + "\n")
    if as_json:
        print_json(written)
    finish(out, f"phpo --searchSpaceFile {out} ...")


def _read_space(space: str) -> Space:
    from ringflow.tune.space_file import read_space, space_path

    return read_space(space_path(space))

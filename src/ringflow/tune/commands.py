"""`ringflow tune`: search for better settings. Every command imports its work late."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.log import say, table
from ringflow.base.options import Json, Overrides, Several, Switch
from ringflow.base.output import finish, print_json, show_summary
from ringflow.tune.executors.work_command import work
from ringflow.tune.options import Place, Plan
from ringflow.tune.panda.commands import panda_evaluate, panda_space, panda_steer
from ringflow.tune.replay.command import replay_command

tune = App(name="tune")

StudyPath = Annotated[Path, Parameter(help="Folder of a study.")]
_LOCAL, _PLAN = Place(), Plan()


@tune.default
def tune_command(
    preset: Annotated[
        str | None, Parameter(help="Preset or settings file to start from; `ringflow config` lists the presets.")
    ] = None,
    /,
    *overrides: Overrides,
    space: Annotated[
        str, Parameter(help="Settings to vary: `training` or `network`, which are shipped, or a TOML file.")
    ] = "training",
    out: Annotated[Path | None, Parameter(help="Folder of the study; studies/PRESET unless given.")] = None,
    plan: Plan = _PLAN,
    place: Place = _LOCAL,
    warm_start: Annotated[tuple[Path, ...], Several, Parameter(help="Earlier studies to learn from.")] = (),
    overwrite: Annotated[bool, Switch, Parameter(help="Replace an earlier study.")] = False,
    as_json: Json = False,
) -> None:
    """Search for better settings of a training: many trials, of which the bad ones end early.

    An interrupted study goes on when the same command is given again, or with `ringflow tune resume STUDY`.

    ringflow tune clic_tiny data=data/ttbar --trials 24
    """
    if preset is not None and "=" in preset:  # no preset: an override comes first
        overrides, preset = (preset, *overrides), None
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.create import create
    from ringflow.tune.space_file import space_path

    training = TrainSettings.resolve(preset, overrides)
    folder = out or Path("studies") / Path(preset or "study").stem
    settings = plan.settings(training, place)
    made = create(training, settings, space_path(space), folder, warm_start=warm_start, overwrite=overwrite)
    _run(made.path, place, as_json=as_json, allow_changes=False)


@tune.command
def resume(
    study: StudyPath,
    /,
    *,
    place: Place = _LOCAL,
    allow_changes: Annotated[
        bool, Switch, Parameter(help="Go on although the data or the version of ringflow are others.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Go on with a study that was interrupted."""
    _run(study, place, as_json=as_json, allow_changes=allow_changes)


@tune.command
def report(
    study: StudyPath,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Folder for the page; STUDY/report unless given.")] = None,
    as_json: Json = False,
) -> None:
    """Write a page about a study: history, importances, rungs, cost and all trials. It may still be running."""
    from ringflow.tune.report.page import write_report

    page = write_report(study, out)
    if as_json:
        print_json({"page": str(page)})
    finish(page, f"ringflow tune best {study} > best.toml")


@tune.command
def best(
    study: StudyPath,
    /,
    *,
    objective: Annotated[
        str | None, Parameter(help="Best in which of several objectives; the first unless given.")
    ] = None,
    trial: Annotated[int | None, Parameter(validator=Number(gte=0), help="Another trial than the best one.")] = None,
    front: Annotated[bool, Switch, Parameter(help="Show the trials that no other one is better than in all.")] = False,
    as_json: Json = False,
) -> None:
    """Print the settings of the best trial, as a settings file: `ringflow tune best STUDY > best.toml`."""
    import tomllib

    from ringflow.tune.best import best_settings, front_rows

    if front:
        rows = front_rows(study)
        if as_json:
            print_json(rows)
        else:
            cells = [[f"{cell:.5g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
            table(f"Front of {study}", list(rows[0]), cells)
        return
    text = best_settings(study, objective, trial)
    if as_json:
        print_json(tomllib.loads(text))
    else:
        sys.stdout.write(text)
    shown = as_json or sys.stdout.isatty()
    say(f"next: {f'ringflow tune best {study} > best.toml' if shown else 'ringflow train best.toml --out runs/tuned'}")


for name, work_of in (
    ("replay", replay_command),
    ("panda-steer", panda_steer),
    ("panda-evaluate", panda_evaluate),
    ("panda-space", panda_space),
):
    tune.command(work_of, name=name)
tune.command(work, name="work", show=False)


def _run(study: Path, place: Place, *, as_json: bool, allow_changes: bool) -> None:
    from ringflow.tune.folder import StudyFolder
    from ringflow.tune.run import run

    result = run(StudyFolder(study), place, allow_changes=allow_changes)
    show_summary("Study", result, as_json=as_json)
    finish(study, f"ringflow tune report {study}")

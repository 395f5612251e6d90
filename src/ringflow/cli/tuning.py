"""`ringflow tune` and its commands: search for better settings. Every command imports its work late."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base import options
from ringflow.base.log import say
from ringflow.base.options import Count, Flag, Json, Natural, Paths, about
from ringflow.base.output import finish, print_json, show_or_print, show_summary, show_table
from ringflow.base.rundir import write_atomic
from ringflow.tune import SearchName
from ringflow.tune.options import ExecutorOptions, Plan

if TYPE_CHECKING:
    from ringflow.tune.space import Space

tune = App(name="tune")

StudyPath = Annotated[Path, about("Folder of a study.")]
_LOCAL, _PLAN = ExecutorOptions(), Plan()


@tune.default
def tune_command(
    preset: Annotated[str | None, about("Preset or settings file to start from; see `ringflow config`.")] = None,
    /,
    *overrides: options.Overrides,
    space: Annotated[str, about("What to vary: `training`, `network` (shipped), or a TOML file.")] = "training",
    out: Annotated[Path | None, about("Folder of the study; studies/PRESET unless given.")] = None,
    plan: Plan = _PLAN,
    place: ExecutorOptions = _LOCAL,
    warm_start: Annotated[Paths, about("Earlier studies to learn from.")] = (),
    overwrite: Annotated[Flag, about("Replace an earlier study.")] = False,
    as_json: Json = False,
) -> None:
    """Search for better settings of a training: many trials, of which the bad ones end early.

    An interrupted study goes on when the same command is given again, or with `ringflow tune resume STUDY`.

    ringflow tune clic_tiny data=data/ttbar --trials 24
    """
    preset, overrides = options.without_start(preset, overrides)
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.folder import create
    from ringflow.tune.space import space_path

    training = TrainSettings.resolve(preset, overrides)
    folder = out or Path("studies") / Path(preset or "study").stem
    settings = plan.settings(training, place)
    made = create(training, settings, space_path(space), folder, warm_start=warm_start, overwrite=overwrite)
    _run(made.path, place, as_json=as_json)


@tune.command
def resume(
    study: StudyPath,
    /,
    *overrides: Annotated[str, about("Where its data are now, as data=FOLDER.")],
    place: ExecutorOptions = _LOCAL,
    retry: Annotated[Literal["failed"] | None, about("Also try the settings of trials that failed again.")] = None,
    allow_changes: Annotated[Flag, about("Go on although the data or the version of ringflow are others.")] = False,
    as_json: Json = False,
) -> None:
    """Go on with a study that was interrupted.

    A study that was moved finds its data where they lay as seen from it; `data=FOLDER` says where they are otherwise.
    """
    _run(study, place, overrides, as_json=as_json, retry=retry is not None, allow_changes=allow_changes)


@tune.command
def report(
    study: StudyPath,
    /,
    *,
    out: Annotated[Path | None, about("Folder for the page; STUDY/report unless given.")] = None,
    as_json: Json = False,
) -> None:
    """Write a page about a study: history, importances, rungs, cost and all trials. It may still be running."""
    from ringflow.tune.report import write_report

    page = write_report(study, out)
    if as_json:
        print_json({"page": str(page)})
    finish(page, f"ringflow tune best {study} > best.toml")


@tune.command
def best(
    study: StudyPath,
    /,
    *,
    objective: Annotated[str | None, about("Best in which of several objectives; the first unless given.")] = None,
    trial: Annotated[Natural | None, about("Another trial than the best one.")] = None,
    front: Annotated[Flag, about("Show the trials that no other one is better than in all.")] = False,
    as_json: Json = False,
) -> None:
    """Print the settings of the best trial, as a settings file: `ringflow tune best STUDY > best.toml`."""
    import tomllib

    from ringflow.tune.table import best_settings, front_rows

    if front:
        rows = front_rows(study)
        show_or_print(rows, lambda _: show_table(f"Front of {study}", [_short(row) for row in rows]), as_json=as_json)
        return
    text = best_settings(study, objective, trial)
    if as_json:
        print_json(tomllib.loads(text))
    else:
        sys.stdout.write(text)
    shown = as_json or sys.stdout.isatty()
    say(f"next: {f'ringflow tune best {study} > best.toml' if shown else 'ringflow train best.toml --out runs/tuned'}")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{cell:.5g}" if isinstance(cell, float) else cell for name, cell in row.items()}


def _run(study: Path, place: ExecutorOptions, overrides: Sequence[str] = (), *, as_json: bool, **how: bool) -> None:
    from ringflow.tune.folder import StudyFolder
    from ringflow.tune.study import run

    result = run(StudyFolder(study), place, overrides=overrides, **how)
    show_summary("Study", result, as_json=as_json)
    finish(study, f"ringflow tune report {study}")


@tune.command(name="replay")
def replay_command(
    study: Annotated[Path | None, about("Folder of a study; trainings that come with us unless given.")] = None,
    /,
    *overrides: options.Overrides,
    devices: Annotated[options.Counts, about("Numbers of devices; 64, 256 and 1,024 unless given.")] = (),
    scheduler: Annotated[
        str | None,
        about(
            "With commas: none, halving, hyperband, asha, asha-promote, rasda, rasda-idle; the study's own, asha, rasda, "
            "rasda-idle, hyperband and none unless given."
        ),
    ] = None,
    trials: Annotated[Count | None, about("Trials; as many as can begin at once unless given.")] = None,
    hours: Annotated[options.Positive | None, about("Of a trial on one device; as in the study, or 2.")] = None,
    hardware: Annotated[str, about("Cluster as in `ringflow scaling-model`, or a TOML file.")] = "h200",
    initial_workers: Annotated[Count | None, about("Devices of a trial, at first; as in the study, or 1.")] = None,
    penalty: Annotated[
        float,
        Parameter(
            validator=Number(gte=0, lte=1),
            help="0: an event teaches as much in a larger batch. 1: only the number of steps counts.",
        ),
    ] = 0.0,
    lengthen: Annotated[Flag, about("Show trials on more devices the events that --penalty costs.")] = False,
    reload_seconds: Annotated[options.NotNegative, about("To load a network again, beside the start.")] = 10.0,
    growth: Annotated[
        Literal["wait", "take"], about("Trials that are to grow wait for all devices, or take what is free.")
    ] = "wait",
    turn: Annotated[Natural, about("All trials begin together and take turns of so many events; 0: they do not.")] = 0,
    orders: Annotated[Count | None, about("Random orders of the trials to average over; 5 or fewer.")] = None,
    seed: Annotated[Natural, about("Of these orders.")] = 0,
    out: Annotated[Path | None, about("Folder for a page with figures.")] = None,
    as_json: Json = False,
) -> None:
    """Replay a study on simulated clusters, with several schedulers: time, device-hours and best value.

    Settings are those of `ringflow scaling-model`: `hardware.`, `work.` and `upkeep.`, as in `upkeep.restart_seconds=30`.
    """
    if study is not None and "=" in str(study):  # no study: an override comes first
        overrides, study = (str(study), *overrides), None
    from ringflow.tune.replay import Setting, recorded_curves
    from ringflow.tune.replay.campaign import COMPARED, DEVICES, replay_study, show

    recorded = recorded_curves(study)
    own = () if recorded.scheduler is None else (recorded.scheduler,)
    first = initial_workers or recorded.workers_per_trial
    result = replay_study(
        recorded,
        devices=devices or DEVICES,
        schedulers=(*own, *COMPARED) if scheduler is None else [scheduler],
        trials=trials,
        hours=hours,
        hardware=hardware,
        overrides=overrides,
        setting=Setting(first, growth, reload_seconds, penalty, lengthen, turn, seed=seed),
        orders=orders,
        out=out,
    )
    show_or_print(result, show, as_json=as_json)
    if out is None:
        finish(None, "ringflow", "tune", "replay", *([study] if study else []), "--out", "replay")
    else:
        finish(Path(result["page"]), "ringflow tune --help")


Preset = Annotated[str, about("Name of a preset or settings file that the points vary.")]
SpaceName = Annotated[str, about("What is varied, see `ringflow tune`; else the opt_space of the input.")]


@tune.command
def panda_steer(
    preset: Preset | None = None,
    /,
    *overrides: options.Overrides,
    max_points: Annotated[Count, about("Points in all: %MAX_POINTS of phpo.")],
    num_points: Annotated[Count, about("New points at most: %NUM_POINTS of phpo.")],
    in_file: Annotated[Path, about("Points so far and their losses: %IN of phpo.")],
    out_file: Annotated[Path, about("File for the new points: %OUT of phpo.")],
    space: SpaceName | None = None,
    search: Annotated[SearchName, about("How points are chosen.")] = "tpe",
    seed: Annotated[Natural, about("The same seed and the same input give the same points.")] = 1,
    given_up: Annotated[float, about("Losses from here on stand for points that PanDA gave up.")] = 1e5,
    as_json: Json = False,
) -> None:
    """Choose new points for a search that PanDA and iDDS run: the steering of `phpo`.

    Points without a loss are being evaluated, and no other one is put beside them. An empty list ends the search. Points that
    the settings refuse, for example a width that the heads do not divide, are never chosen.
    """
    from ringflow.train.settings import TrainSettings
    from ringflow.tune.panda import read_asked, space_of, steer

    preset, overrides = options.without_start(preset, overrides)
    settings = TrainSettings.resolve(preset, overrides)
    asked = read_asked(in_file)
    given = None if space is None else _read_space(space)
    how: dict[str, Any] = {"search": search, "seed": seed, "given_up": given_up}
    found = space_of(asked, given, in_file)
    points = steer(asked, found, settings, max_points=max_points, num_points=num_points, **how)
    write_atomic(out_file, json.dumps([dict(point) for point in points], allow_nan=False) + "\n")
    if as_json:
        print_json(points)
    losses = sum(loss is not None for _, loss in asked.points)
    say(f"{len(points)} new points after {len(asked.points)}, of which {losses} have a loss")
    finish(out_file, "ringflow tune panda-evaluate --help")


@tune.command
def panda_evaluate(
    preset: Preset | None = None,
    /,
    *overrides: options.Overrides,
    in_file: Annotated[Path, about("One point: settings and values.")] = Path("input.json"),
    out_file: Annotated[Path, about("File for status, loss and message.")] = Path("output.json"),
    datasets_file: Annotated[Path, about("Training files that PanDA brought, unless data= is given.")] = Path(
        "input_ds.json"
    ),
    objective: Annotated[str, about("What is made small: loss, jets, or another figure of a validation.")] = "loss",
    out: Annotated[Path, about("Folder of the run; name it in checkPointToSave of phpo.")] = Path("run"),
    metrics: Annotated[Path | None, about("Archive of the training's history: evaluationMetrics of phpo.")] = None,
    as_json: Json = False,
) -> None:
    """Train with one point of a search that PanDA and iDDS run: the evaluation of `phpo`.

    The result file is written in any case; its status is 0 if the training came to its end. A training of the same point that
    is there already is gone on with. Nothing is written outside of the working folder.
    """
    from ringflow.tune.panda import evaluated, stay_in, train_point

    preset, overrides = options.without_start(preset, overrides)
    files = {"in_file": in_file, "datasets_file": datasets_file, "run": out}

    def loss() -> float:
        stay_in(Path())
        return train_point(preset, overrides, objective=objective, metrics=metrics, **files)

    found = evaluated(out_file, loss)
    if as_json:
        print_json({"status": 0, "loss": found})
    say(f"{objective}: {found:.6g}")
    finish(out_file, "ringflow tune panda-steer --help")


@tune.command
def panda_space(
    space: Annotated[str, about("What is varied, as `ringflow tune` reads it.")],
    /,
    *,
    out: Annotated[Path, about("JSON file: searchSpaceFile of phpo.")],
    as_json: Json = False,
) -> None:
    """Write a space for PanDA's `phpo`, checked against the settings of a training."""
    from ringflow.tune.panda import to_panda

    written = to_panda(_read_space(space))
    write_atomic(out, json.dumps(written, indent=2) + "\n")
    if as_json:
        print_json(written)
    finish(out, f"phpo --searchSpaceFile {out} ...")


def _read_space(space: str) -> Space:
    from ringflow.tune.space import read_space, space_path

    return read_space(space_path(space))


@tune.command(show=False)
def work(
    study: StudyPath,
    /,
    *,
    workers: Annotated[Count, about("Processes of the trials that it takes.")] = 1,
    idle: Annotated[Count, about("Seconds without a trial after which it ends.")] = 60,
) -> None:
    """Train trials of a study in this job of Slurm, one after the other."""
    from ringflow.tune.executors import work_in_job

    work_in_job(study, workers, idle)

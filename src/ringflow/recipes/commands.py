"""The commands that train, prune and compare. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.options import Count, DatasetFolder, Json, Overrides, Several, Switch, Workers
from ringflow.base.output import finish, print_json

if TYPE_CHECKING:
    from ringflow.train.settings import TrainSettings

train = App(name="train")
evaluate = App(name="evaluate")
prune = App(name="prune")


@train.default
def train_command(
    preset: str | None = None,
    /,
    *overrides: Overrides,
    out: Annotated[Path, Parameter(help="Folder of the run.")],
    overwrite: Annotated[bool, Switch] = False,
    as_json: Json = False,
) -> None:
    """Train a network, from datasets or from the simulation running beside it.

    An interrupted training goes on where it stopped when the same command is given again; `ringflow train --out RUN` suffices.
    With `profile=true` it measures what the time of every step goes into, and writes a report of it.

    Parameters
    ----------
    preset
        Name of a preset or settings file to start from; `ringflow config` lists the presets.
    overwrite
        Replace an earlier run.
    """
    if preset is not None and "=" in preset:  # no preset: an override comes first
        overrides, preset = (preset, *overrides), None
    settings = _train_settings(preset, overrides, None if overwrite else out)

    from ringflow.train import run as recipe

    result = recipe.train(settings, out, overwrite=overwrite)
    recipe.show(result, as_json=as_json)
    finish(Path(result["model"]), *_judging(settings, result["model"]))


@prune.default
def prune_command(
    model: Annotated[Path, Parameter(help="Model file, folder of a run, or `shipped`.")],
    /,
    *overrides: Overrides,
    out: Annotated[Path, Parameter(help="Folder of the run.")],
    share: Annotated[
        float, Parameter(validator=Number(gte=0, lt=1), help="Channels to leave out of every layer.")
    ] = 0.5,
    heads: Annotated[int, Parameter(validator=Number(gte=0), help="Heads to leave out of every layer.")] = 0,
    check: Annotated[Path | None, Parameter(help="Dataset to show on what is given up and gained.")] = None,
    events: Annotated[Count, Parameter(help="Show it on so many events.")] = 500,
    overwrite: Annotated[bool, Switch, Parameter(help="Replace an earlier run.")] = False,
    as_json: Json = False,
) -> None:
    """Make a network smaller: leave out what matters least, and train what remains a little more.

    Settings are those of `ringflow train`; `data=` names the events to train on. An interrupted training goes on where it
    stopped when the same command is given again.
    """
    from ringflow.data.manifest import read_manifest
    from ringflow.infer.shipped import model_file

    # Torch takes seconds to load: a wrong name is told before.
    model_file(model)
    if check is not None:
        read_manifest(check)

    from ringflow.recipes import prune as recipe
    from ringflow.recipes.cost import show_cost

    settings = recipe.tuning_settings(model, overrides)
    result = recipe.prune_and_tune(
        model, out, settings, share=share, heads=heads, check=check, events=events, overwrite=overwrite
    )
    if as_json:
        print_json(result)
    else:
        show_cost("What pruning gives and takes", result["cost"])
    finish(Path(result["model"]), *_judging(settings, result["model"]))


@evaluate.default
def evaluate_command(
    *datasets: DatasetFolder,
    candidates: Annotated[
        tuple[Path, ...], Several, Parameter(help="Candidate files of further reconstructions.")
    ] = (),
    model: Annotated[
        Path | None, Parameter(help="Model file or folder of a run; the shipped one unless given.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Folder for the report, the figures and the histograms.")] = None,
    reconstructions: Annotated[tuple[str, ...], Several, Parameter(help="Those to evaluate; all unless given.")] = (),
    split: Annotated[Literal["train", "valid", "test"] | None, Parameter(help="Only the events of one split.")] = None,
    events: Annotated[Count | None, Parameter(help="Only so many events of each dataset.")] = None,
    workers: Workers = 1,
    as_json: Json = False,
) -> None:
    """Compare reconstructions with the truth and with each other: particles, jets, missing momentum, energy, masses."""
    from ringflow.recipes import evaluate as recipe

    results = recipe.evaluate(
        datasets,
        candidates=candidates,
        model=model,
        out=out,
        reconstructions=reconstructions or None,
        workers=workers,
        events=events,
        split=split,
    )
    recipe.show(results, as_json=as_json)
    if out is not None:
        finish(recipe.report_page(out), "ringflow", "display", out)
        return
    flags: dict[str, tuple[object, ...]] = {"--model": (model,), "--candidates": candidates, "--split": (split,)}
    flags |= {"--reconstructions": reconstructions, "--events": (events,)}
    given = [word for flag, values in flags.items() if any(values) for word in (flag, *values)]
    finish(None, "ringflow", "evaluate", *datasets, *given, "--out", "report")


def _judging(settings: TrainSettings, model: Path) -> list[object]:
    """The command by which one sees how good a network is, on events that it has not learned from."""
    kind, _, samples = settings.data.partition(":")
    if kind == "sim":
        sample = samples.split(",")[0].strip()
        return ["ringflow", "simulate", sample, "--detector", settings.detector, "--out", f"data/{sample}"]
    datasets = [name.strip() for name in settings.data.split(",")]
    return ["ringflow", "evaluate", *datasets, "--split", "test", "--model", model]


def _train_settings(preset: str | None, overrides: tuple[str, ...], run: Path | None) -> TrainSettings:
    """The settings asked for; without a preset those of the run that is there, if there is one."""
    from ringflow.train.runs import settings_of
    from ringflow.train.settings import TrainSettings

    if preset is None and run is not None and (earlier := settings_of(run)):
        return TrainSettings.resolve(earlier, overrides, complete=False)
    return TrainSettings.resolve(preset, overrides)

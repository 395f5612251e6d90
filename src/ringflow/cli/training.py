"""The commands that train: train, prune, perceptron. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ringflow.base.options import (
    Count,
    Counts,
    DatasetFolder,
    Flag,
    Json,
    ModelName,
    Natural,
    Overrides,
    about,
    without_start,
)
from ringflow.base.output import finish, show_or_print

if TYPE_CHECKING:
    from ringflow.train.settings import TrainSettings


def train(
    preset: Annotated[
        str | None, about("Name of a preset or settings file to start from; `ringflow config` lists the presets.")
    ] = None,
    /,
    *overrides: Overrides,
    out: Annotated[Path, about("Folder of the run.")],
    overwrite: Annotated[Flag, about("Replace an earlier run.")] = False,
    as_json: Json = False,
) -> None:
    """Train a network, from datasets or from the simulation running beside it.

    An interrupted training goes on where it stopped when the same command is given again; `ringflow train --out RUN` suffices.
    With `profile=true` it measures what the time of every step goes into, and writes a report of it.
    """
    preset, overrides = without_start(preset, overrides)
    settings = _train_settings(preset, overrides, None if overwrite else out)

    from ringflow.train import run as recipe

    result = recipe.train(settings, out, overwrite=overwrite)
    recipe.show(result, as_json=as_json)
    finish(Path(result["model"]), *_judging(settings, result["model"]))


def prune(
    model: ModelName,
    /,
    *overrides: Overrides,
    out: Annotated[Path, about("Folder of the run.")],
    share: Annotated[
        float, Parameter(validator=Number(gte=0, lt=1), help="Channels to leave out of every layer.")
    ] = 0.5,
    heads: Annotated[Natural, about("Heads to leave out of every layer.")] = 0,
    check: Annotated[Path | None, about("Dataset to show on what is given up and gained.")] = None,
    events: Annotated[Count, about("Show it on so many events.")] = 500,
    overwrite: Annotated[Flag, about("Replace an earlier run.")] = False,
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
    show_or_print(result, lambda made: show_cost("What pruning gives and takes", made["cost"]), as_json=as_json)
    finish(Path(result["model"]), *_judging(settings, result["model"]))


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


def perceptron(
    dataset: DatasetFolder,
    /,
    *,
    out: Annotated[Path, about("Folder for the candidates, the model and the figures.")],
    hidden: Annotated[Counts, about("Nodes of the hidden layers.")] = (64,),
    iterations: Annotated[Count, about("Steps of L-BFGS, at most.")] = 100,
    events: Annotated[Count | None, about("Only so many events of each split.")] = None,
    seed: Annotated[Natural, about("Of the weights at the start.")] = 1,
    master: Annotated[str | None, about("Spark master; this machine unless given.")] = None,
    workers: Annotated[Count | None, about("Cores to use; all there are unless given.")] = None,
    overwrite: Annotated[Flag, about("Replace an earlier one.")] = False,
    as_json: Json = False,
) -> None:
    """Train Spark ML's multilayer perceptron on single elements, and evaluate it beside the rules.

    It knows an element, not its neighbours: what a network of whole events has to beat. It is trained on the training split
    and evaluated on the test split.
    """
    from ringflow.recipes.perceptron import perceptron_baseline, show

    result = perceptron_baseline(
        dataset,
        out,
        hidden=hidden,
        iterations=iterations,
        events=events,
        seed=seed,
        master=master,
        workers=workers,
        overwrite=overwrite,
    )
    show_or_print(result, show, as_json=as_json)
    finish(Path(result["candidates"]), f"ringflow evaluate {dataset} --candidates {result['candidates']} --split test")

"""The commands that train: train, prune. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.options import Count, DatasetFolder, Json, Overrides, Several, Switch
from ringflow.base.output import finish, print_json

if TYPE_CHECKING:
    from ringflow.train.settings import TrainSettings

train = App(name="train")
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


perceptron = App(name="perceptron")


@perceptron.default
def perceptron_command(
    dataset: DatasetFolder,
    /,
    *,
    out: Annotated[Path, Parameter(help="Folder for the candidates, the model and the figures.")],
    hidden: Annotated[tuple[Count, ...], Several, Parameter(help="Nodes of the hidden layers.")] = (64,),
    iterations: Annotated[Count, Parameter(help="Steps of L-BFGS, at most.")] = 100,
    events: Annotated[Count | None, Parameter(help="Only so many events of each split.")] = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0), help="Of the weights at the start.")] = 1,
    master: Annotated[str | None, Parameter(help="Spark master; this machine unless given.")] = None,
    workers: Annotated[Count | None, Parameter(help="Cores to use; all there are unless given.")] = None,
    overwrite: Annotated[bool, Switch, Parameter(help="Replace an earlier one.")] = False,
    as_json: Json = False,
) -> None:
    """Train Spark ML's multilayer perceptron on single elements, and evaluate it beside the rules.

    It knows an element, not its neighbours: what a network of whole events has to beat. It is trained on the training split
    and evaluated on the test split.
    """
    from ringflow.spark.baseline import perceptron_baseline, show

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
    if as_json:
        print_json(result)
    else:
        show(result)
    finish(Path(result["candidates"]), f"ringflow evaluate {dataset} --candidates {result['candidates']} --split test")

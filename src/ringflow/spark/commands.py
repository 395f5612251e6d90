"""`ringflow perceptron`: the baseline that Spark ML trains. Imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.options import Count, DatasetFolder, Json, Several, Switch
from ringflow.base.output import finish, print_json

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

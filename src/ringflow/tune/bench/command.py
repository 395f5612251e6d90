"""`ringflow bench tune`: what schedulers, search and the driver of a study are worth. It imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ringflow.base.options import Count, Json, Several
from ringflow.base.output import finish, print_json


def bench_tune(
    *,
    study: Annotated[
        Path | None, Parameter(help="Study whose curves are replayed; trainings that come with ringflow unless given.")
    ] = None,
    random: Annotated[
        tuple[Path, ...], Several, Parameter(help="Finished studies with random search and no scheduler.")
    ] = (),
    asha_tpe: Annotated[
        tuple[Path, ...], Several, Parameter(help="As many finished studies with TPE and ASHA to compare them with.")
    ] = (),
    real: Annotated[
        Path | None,
        Parameter(help="Train both kinds of studies in this folder, three of each. It takes an hour or more."),
    ] = None,
    workers: Annotated[
        Count | None, Parameter(help="Processes for all trials of --real; one per accelerator or core unless given.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Write the result into this JSON file, too.")] = None,
    as_json: Json = False,
) -> None:
    """Compare schedulers in replay and time the driver; with --real, compare ASHA and TPE with random search."""
    from ringflow.tune.bench import figures as timing

    result = timing.run(study=study, random=random, asha=asha_tpe, real=real, workers=workers)
    if out is not None:
        timing.keep(result, out)
    if as_json:
        print_json(result)
    else:
        timing.show(result)
    finish(out, "ringflow tune replay --out replay")

"""`ringflow tune replay`: a study on clusters that one does not have. It imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ringflow.base.options import Count, Json, Overrides, Several, Switch
from ringflow.base.output import finish, print_json

NotNegative = Parameter(validator=Number(gte=0))
Study = Annotated[Path | None, Parameter(help="Folder of a study; trainings that come with ringflow unless given.")]
Devices = Annotated[tuple[Count, ...], Several, Parameter(help="Numbers of devices; 64, 256 and 1,024 unless given.")]
Schedulers = Annotated[
    str | None,
    Parameter(
        help="With commas: none, halving, hyperband, asha, asha-promote, rasda, rasda-idle; the study's own, asha, rasda, "
        "rasda-idle, hyperband and none unless given."
    ),
]
Trials = Annotated[Count | None, Parameter(help="Trials; on every cluster as many as can begin at once unless given.")]
Hours = Annotated[
    float | None,
    Parameter(
        validator=Number(gt=0), help="Of a whole trial on one device; as long as in the study, or 2, unless given."
    ),
]
Hardware = Annotated[str, Parameter(help="Cluster as in `ringflow scaling-model`, or a TOML file.")]
Penalty = Annotated[
    float,
    Parameter(
        validator=Number(gte=0, lte=1),
        help="0: an event teaches as much in a larger batch. 1: only the number of steps counts.",
    ),
]
Lengthen = Annotated[
    bool, Switch, Parameter(help="Show trials on more devices as many more events as --penalty costs them.")
]
Reload = Annotated[float, NotNegative, Parameter(help="To load a network again, beside the start.")]
Growth = Annotated[
    Literal["wait", "take"], Parameter(help="Trials that are to grow wait for all devices, or take what is free.")
]
Turn = Annotated[
    int, NotNegative, Parameter(help="All trials begin together and take turns of so many events; 0: they do not.")
]
Orders = Annotated[
    Count | None, Parameter(help="Random orders of the trials over which is averaged; 5, or fewer of many trials.")
]


def replay_command(
    study: Study = None,
    /,
    *overrides: Overrides,
    devices: Devices = (),
    scheduler: Schedulers = None,
    trials: Trials = None,
    hours: Hours = None,
    hardware: Hardware = "h200",
    initial_workers: Annotated[
        Count | None, Parameter(help="Devices of a trial, at first; as in the study, or 1, unless given.")
    ] = None,
    penalty: Penalty = 0.0,
    lengthen: Lengthen = False,
    reload_seconds: Reload = 10.0,
    growth: Growth = "wait",
    turn: Turn = 0,
    orders: Orders = None,
    seed: Annotated[int, NotNegative, Parameter(help="Of these orders.")] = 0,
    out: Annotated[Path | None, Parameter(help="Folder for a page with figures.")] = None,
    as_json: Json = False,
) -> None:
    """Replay a study on simulated clusters, with several schedulers: time, device-hours and best value.

    Settings are those of `ringflow scaling-model`: `hardware.`, `work.` and `upkeep.`, as in `upkeep.restart_seconds=30`.
    """
    if study is not None and "=" in str(study):  # no study: an override comes first
        overrides, study = (str(study), *overrides), None
    from ringflow.tune.folder import StudyFolder
    from ringflow.tune.replay import studies as replaying
    from ringflow.tune.replay.result import Setting

    own = None if study is None else StudyFolder(study).settings
    first = initial_workers or (own.workers_per_trial if own else 1)
    size = {"initial_workers": first, "turn": turn, "seed": seed}
    setting = Setting(growth=growth, reload_seconds=reload_seconds, penalty=penalty, lengthen=lengthen, **size)
    result = replaying.replay_study(
        study,
        devices=devices or replaying.DEVICES,
        schedulers=(*([own.scheduler] if own else []), *replaying.COMPARED) if scheduler is None else [scheduler],
        trials=trials,
        hours=hours,
        hardware=hardware,
        overrides=overrides,
        setting=setting,
        orders=orders,
        out=out,
    )
    if as_json:
        print_json(result)
    else:
        replaying.show(result)
    page = None if out is None else Path(result["page"])
    again = " ".join(["ringflow tune replay", *([str(study)] if study else []), "--out replay"])
    finish(page, again if page is None else "ringflow tune --help")

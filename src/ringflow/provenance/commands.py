"""`ringflow trace` and `ringflow reproduce`: where a file came from, and whether it comes again. Imports are late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import Count, Json, Several, Switch
from ringflow.base.output import finish, print_json, show_rows

trace = App(name="trace")
reproduce = App(name="reproduce")


@trace.default
def trace_command(
    path: Annotated[Path, Parameter(help="Candidates, EDM4hep file, model, run, dataset, shard, report or study.")],
    /,
    *,
    particle: Annotated[
        str | None, Parameter(help="One particle, as EVENT:INDEX, or one event, as EVENT; both count from 0.")
    ] = None,
    search: Annotated[
        tuple[Path, ...], Several, Parameter(help="Further folders to look through for what it was made of.")
    ] = (),
    thorough: Annotated[bool, Switch, Parameter(help="Compute the sha256 of every shard, not only the sizes.")] = False,
    prov: Annotated[Path | None, Parameter(help="Write the trace as W3C PROV (PROV-JSON) into this file.")] = None,
    crate: Annotated[bool, Switch, Parameter(help="Describe a run or a dataset as an RO-Crate.")] = False,
    croissant: Annotated[bool, Switch, Parameter(help="Describe a dataset for machine learning (Croissant).")] = False,
    card: Annotated[bool, Switch, Parameter(help="Write a card (README.md) of a run or a dataset.")] = False,
    out: Annotated[Path | None, Parameter(help="Folder for what is written; the folder itself unless given.")] = None,
    license: Annotated[str | None, Parameter(help="SPDX name of the licence to state, e.g. CC-BY-4.0.")] = None,
    as_json: Json = False,
) -> int:
    """Say where a file came from: model, run, settings, code, data, seed, each verified where it is at hand.

    Exit code 1 if something on the way is not what was recorded.
    """
    from ringflow.provenance.node import to_json
    from ringflow.provenance.show import show
    from ringflow.provenance.trace import trace as work
    from ringflow.provenance.written import Wanted, write_all

    wanted = Wanted(prov, crate=crate, croissant=croissant, card=card, out=out, license=license)
    wanted.require(path)
    node = work(path, particle, search=search, thorough=thorough)
    result = to_json(node)
    result["written"] = [str(written) for written in write_all(node, wanted)]
    if as_json:
        print_json(result)
    else:
        show(node)
    for written in result["written"]:
        say(f"made: {written}")
    if result["changed"]:
        say(f"{len(result['changed'])} of {len(result['steps'])} steps are not what was recorded")
    finish(None, f"ringflow trace {path} --json" if not as_json else f"ringflow trace {path} --prov prov.json")
    return int(bool(result["changed"]))


@reproduce.default
def reproduce_command(
    path: Annotated[Path, Parameter(help="Folder of a run, or of a dataset that was simulated.")],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="Folder for what is made again; it is removed unless given.")] = None,
    events: Annotated[
        Count | None, Parameter(help="Only the beginning: so many events of a run; shards with so many of a dataset.")
    ] = None,
    tolerance: Annotated[
        float, Parameter(validator=Number(gte=0), help="What losses may differ by where bits cannot be the same.")
    ] = 0.05,
    as_json: Json = False,
) -> int:
    """Train a run again, or simulate shards of a dataset again, from what was recorded, and compare.

    Exit code 0 if it is the same, 1 if it is not.
    """
    from ringflow.provenance.trace import kind_of

    kind = kind_of(path) if path.is_dir() else None
    if kind == "run":
        from ringflow.provenance.reproduce import reproduce_run

        result = reproduce_run(path, out, events=events, tolerance=tolerance)
    elif kind == "dataset":
        from ringflow.provenance.reproduce_dataset import reproduce_dataset

        result = reproduce_dataset(path, out, events=events)
    else:
        raise UsageError(f"{path} is neither a run nor a dataset; give the folder of one")
    if as_json:
        print_json(result)
    else:
        show_rows(f"{path} again", result["rows"], as_json=False)
    finish(out, f"ringflow trace {path}")
    return int(not result["same"])

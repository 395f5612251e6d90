"""`ringflow uncertainty`: how far off candidates may be. It imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.errors import UsageError
from ringflow.base.options import Count, DatasetFolder, Json, Several
from ringflow.base.output import finish, print_json, show_rows

uncertainty = App(name="uncertainty")

_COLUMNS = ("class", "quantity", "candidates", "width", "error", "core", "within_1", "within_1.96", "ok")


@uncertainty.default
def uncertainty_command(
    model: Annotated[Path, Parameter(help="Model file, folder of a run, or `shipped`.")],
    /,
    *datasets: DatasetFolder,
    out: Annotated[
        Path | None, Parameter(name=("--out", "-o"), help="File to write; MODEL.uncertainty.safetensors unless given.")
    ] = None,
    test: Annotated[
        tuple[Path, ...], Several, Parameter(help="Other datasets to test on; a quarter of the events unless given.")
    ] = (),
    events: Annotated[Count | None, Parameter(help="Only so many events of each dataset.")] = None,
    page: Annotated[Path | None, Parameter(help="Folder for a page with the calibration plot.")] = None,
    seed: Annotated[int, Parameter(validator=Number(gte=0), help="Of the fit.")] = 1,
    as_json: Json = False,
) -> int:
    """Fit uncertainties of energy and momentum for the candidates of a network, which stays as it is, and test them."""
    if not datasets:
        raise UsageError("no dataset to fit on; give one or more: ringflow uncertainty MODEL DATASET")
    from ringflow.recipes import uncertainty as recipe

    result = recipe.uncertainty(model, datasets, out, test=test, events=events, seed=seed)
    if page is not None:
        from ringflow.recipes.uncertainty_page import write_page

        write_page(result, page)
    if as_json:
        print_json(result)
    else:
        show_rows("Pulls on events that were not fitted", _judged(result), as_json=False)
    finish(
        Path(result["path"]),
        f"ringflow reconstruct DATASET --model {model} --uncertainty {result['path']} -o out.parquet",
    )
    return int(not result["ok"])


def _judged(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in _COLUMNS} for row in result["classes"] if row["judged"]]

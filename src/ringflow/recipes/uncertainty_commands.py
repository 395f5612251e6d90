"""`ringflow uncertainty`: how far off candidates may be. It imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.errors import UsageError
from ringflow.base.log import say, table
from ringflow.base.options import Count, DatasetFolder, Json, Several
from ringflow.base.output import finish, print_json
from ringflow.base.rundir import require_suffix

uncertainty = App(name="uncertainty")


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
    from ringflow.data.manifest import read_manifest
    from ringflow.infer.shipped import model_file

    # Torch takes seconds to load: a wrong name is told before.
    model_file(model)
    for dataset in (*datasets, *test):
        read_manifest(dataset)
    if out is not None:
        require_suffix(out, ".safetensors")

    from ringflow.recipes import uncertainty as recipe

    result = recipe.uncertainty(model, datasets, out, test=test, events=events, seed=seed)
    if page is not None:
        from ringflow.recipes.uncertainty_page import write_page

        write_page(result, page)
    if as_json:
        print_json(result)
    else:
        _show(result)
    words = ("--model", model, "--uncertainty", result["path"], "--out", "candidates.parquet")
    finish(Path(result["path"]), "ringflow", "reconstruct", (*test, *datasets)[0], *words)
    return int(not result["ok"])


def _show(result: dict[str, Any]) -> None:
    columns = ("class", "quantity", "candidates", "width", "bias", "within 1 σ", "within 1.96 σ", "verdict", "wrong")
    rows = [
        (
            row["class"],
            row["quantity"],
            f"{row['candidates']:,}",
            f"{row['width']:.3f} ± {row['error']:.3f}",
            f"{row['median']:+.3f} ± {row['median_error']:.3f}",
            f"{100 * row['within_1']:.1f} ± {100 * row['within_1_error']:.1f} %",
            f"{100 * row['within_1.96']:.1f} %",
            row["verdict"],
            ", ".join(row["fails"]),
        )
        for row in result["classes"]
    ]
    table("Pulls on events that were not fitted", columns, rows)
    say(result["verdict"])

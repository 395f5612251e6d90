"""`ringflow scaling-model`: what a training would cost on many devices. It imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ringflow.base.options import Count, Json, Overrides, Several
from ringflow.base.output import finish, print_json

scaling_model = App(name="scaling-model")


@scaling_model.default
def scaling_model_command(
    hardware: Annotated[
        str, Parameter(help="Cluster: h200, h200_one_port, jupiter, vega, ethernet, or a TOML file.")
    ] = "h200",
    /,
    *overrides: Overrides,
    measured: Annotated[
        tuple[Path, ...], Several, Parameter(help="Records of `ringflow bench train` or `bench scaling` to start from.")
    ] = (),
    devices: Annotated[
        tuple[Count, ...], Several, Parameter(help="Numbers of devices; 1, 2, 4 ... 4,096 unless given.")
    ] = (),
    check: Annotated[
        Path | None, Parameter(help="Record of `ringflow bench scaling` to compare the model with.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Folder for a page with figures.")] = None,
    as_json: Json = False,
) -> None:
    """Predict throughput and efficiency of a data-parallel training on many devices, and where the time of a step goes.

    Settings are `hardware.`, `work.` and `upkeep.`: `work.algorithm=ring work.global_batch=fixed upkeep.loading=1e6`.
    """
    if "=" in hardware:  # no cluster: an override comes first
        overrides, hardware = (hardware, *overrides), "h200"
    from ringflow.recipes import scaling_prediction as recipe

    result = recipe.predict(hardware, overrides, measured=measured, devices=devices, check=check)
    page = recipe.write_page(result, out) if out else None
    if as_json:
        print_json(result)
    else:
        recipe.show(result)
    again = ("scaling-model", hardware, *overrides, "--out", "scaling")
    finish(page, "ringflow", *(again if out is None else ("bench", "scaling", "--out", "scaling.json")))

"""The commands that put a network to use: export, reconstruct, serve. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from ringflow.base.log import say, table
from ringflow.base.options import Count, Json, Switch
from ringflow.base.output import finish, print_json, show_rows, show_summary

export = App(name="export")
reconstruct = App(name="reconstruct")

ModelName = Annotated[Path, Parameter(help="Model file, folder of a run, or `shipped`.")]


@export.default
def export_command(
    model: ModelName,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="ONNX file to write.")],
    check: Annotated[Path | None, Parameter(help="Dataset to compare on; events are simulated unless given.")] = None,
    events: Annotated[Count, Parameter(help="Compare on so many events of the dataset.")] = 200,
    int8: Annotated[bool, Switch, Parameter(help="Dense layers in eight-bit integers.")] = False,
    calibrate: Annotated[Path | None, Parameter(help="Dataset to measure the ranges of --int8 on.")] = None,
    as_json: Json = False,
) -> int:
    """Write a network as one ONNX file that takes raw detector values and returns particles, and prove that it is the same."""
    from ringflow.recipes import export as recipe

    result = recipe.export(model, out, check=check, events=events, int8=int8, calibrate=calibrate)
    if as_json:
        print_json(result)
    else:
        show_rows(f"Compared on {result['check']['elements']} elements", result["check"]["rows"], as_json=False)
        if cost := result["cost"]:
            table("What int8 gives and takes", list(cost[0]), [list(row.values()) for row in cost])
    if not result["ok"]:
        say("the file differs from the network by more than it may, and was not written")
        return 1
    finish(out, f"ringflow reconstruct DATASET --model {out} --out candidates.parquet")
    return 0


@reconstruct.default
def reconstruct_command(
    source: Annotated[Path, Parameter(help="Folder of a dataset, or EDM4hep ROOT file.")],
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="File to write: .parquet or .root (EDM4hep).")],
    model: Annotated[
        ModelName | None, Parameter(help="Model file (also .onnx), folder of a run, or `shipped`.")
    ] = None,
    engine: Annotated[
        Literal["torch", "onnx"] | None, Parameter(help="What computes; as the file is, unless given.")
    ] = None,
    device: Annotated[str, Parameter(help="Name of a torch device; auto is the accelerator found, else cpu.")] = "auto",
    threads: Annotated[Count, Parameter(help="Events that the engine onnx computes at a time.")] = 1,
    split: Annotated[Literal["train", "valid", "test"] | None, Parameter(help="Only the events of one split.")] = None,
    events: Annotated[Count | None, Parameter(help="Only so many events.")] = None,
    profile: Annotated[str | None, Parameter(help="How to read a ROOT file: name of a profile or TOML file.")] = None,
    overwrite: Annotated[bool, Switch, Parameter(help="Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Reconstruct events with a network into a file of candidates.

    An interrupted work goes on where it stopped when the same command is given again.
    """
    from ringflow.recipes import reconstruct as recipe

    result = recipe.reconstruct(
        source,
        out,
        model=model,
        engine=engine,
        device=device,
        threads=threads,
        split=split,
        events=events,
        profile=profile,
        overwrite=overwrite,
    )
    show_summary("Reconstruction", result, as_json=as_json)
    again = f"ringflow evaluate {source} --candidates {out}" + (f" --split {split}" if split else "")
    finish(out, again if source.is_dir() and out.suffix == ".parquet" else "ringflow evaluate --help")

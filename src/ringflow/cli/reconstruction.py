"""The commands that put a network to use: export, reconstruct, serve. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import Count, DatasetFolder, Json, ProfileName, Several, Switch, Workers
from ringflow.base.output import finish, print_json, show_rows, show_summary
from ringflow.base.rundir import require_suffix

export = App(name="export")
reconstruct = App(name="reconstruct")
serve = App(name="serve")

Positive = Annotated[float, Parameter(validator=Number(gt=0, lte=1e6))]
NotNegative = Annotated[float, Parameter(validator=Number(gte=0, lte=1e6))]
ModelName = Annotated[Path, Parameter(help="Model file, folder of a run, or `shipped`.")]


@export.default
def export_command(
    model: ModelName,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"), help="ONNX file to write.")] = None,
    triton: Annotated[Path | None, Parameter(help="Model repository of Triton to put it into.")] = None,
    name: Annotated[str | None, Parameter(help="Name of the model in that repository; ringflow unless given.")] = None,
    check: Annotated[Path | None, Parameter(help="Dataset to compare on; events are simulated unless given.")] = None,
    events: Annotated[Count, Parameter(help="Compare on so many events of the dataset.")] = 200,
    portable: Annotated[
        bool, Switch, Parameter(help="Operators of the ONNX standard only, for runtimes other than ONNX Runtime.")
    ] = False,
    int8: Annotated[bool, Switch, Parameter(help="Dense layers in eight-bit integers.")] = False,
    calibrate: Annotated[Path | None, Parameter(help="Dataset to measure the ranges of --int8 on.")] = None,
    as_json: Json = False,
) -> int:
    """Write a network as one ONNX file that takes raw detector values and returns particles, and prove that it is the same."""
    from ringflow.infer.shipped import model_file

    # Torch takes seconds to load: a wrong name is told before.
    model_file(model)
    if out is not None:
        require_suffix(out, ".onnx")

    from ringflow.recipes import export as recipe
    from ringflow.recipes.cost import show_cost

    result = recipe.export(
        model,
        out,
        triton=triton,
        name=name,
        check=check,
        events=events,
        portable=portable,
        int8=int8,
        calibrate=calibrate,
    )
    if as_json:
        print_json(result)
    else:
        show_rows(f"Compared on {result['check']['elements']} elements", result["check"]["rows"], as_json=False)
        if cost := result["cost"]:
            show_cost("What int8 gives and takes", cost)
    if not result["ok"]:
        say("the file differs from the network by more than it may, and was not written")
        return 1
    if out is not None and triton is not None:
        say(f"made: {result['triton']}")
    made = result["path"] or result["triton"]
    dataset = check or calibrate
    if result["path"] is None:
        finish(Path(made), "tritonserver", "--model-repository", triton)
    elif dataset is None:
        finish(Path(made), "ringflow", "serve", "--model", made)
    else:
        finish(Path(made), "ringflow", "reconstruct", dataset, "--model", made, "--out", "candidates.parquet")
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
    threads: Annotated[Count, Parameter(help="Events that onnx computes at a time, or threads of torch.")] = 1,
    split: Annotated[Literal["train", "valid", "test"] | None, Parameter(help="Only the events of one split.")] = None,
    events: Annotated[Count | None, Parameter(help="Only so many events.")] = None,
    profile: ProfileName | None = None,
    overwrite: Annotated[bool, Switch, Parameter(help="Replace an existing file.")] = False,
    on: Annotated[Literal["here", "spark", "ray"], Parameter(help="Who computes: this process, or workers.")] = "here",
    master: Annotated[
        str | None, Parameter(help="Spark master, e.g. spark://HOST:7077; this machine unless given.")
    ] = None,
    address: Annotated[str | None, Parameter(help="Ray cluster: auto or HOST:PORT; this machine unless given.")] = None,
    workers: Annotated[Count | None, Parameter(help="Workers on Spark or Ray; all there are unless given.")] = None,
    uncertainty: Annotated[
        Path | None, Parameter(help="File of `ringflow uncertainty`; the one beside the model unless given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Reconstruct events with a network into a file of candidates.

    An interrupted work goes on where it stopped when the same command is given again.
    """
    if master is not None and on != "spark":
        raise UsageError(f"--master {master} is for --on spark")
    if address is not None and on != "ray":
        raise UsageError(f"--address {address} is for --on ray")

    from ringflow.infer.remote import Place
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
        on=Place(on, master if on == "spark" else address, workers),
        uncertainty=uncertainty,
    )
    show_summary("Reconstruction", result, as_json=as_json)
    if out.suffix != ".parquet":
        finish(out, "ringflow", "trace", out)
    elif source.is_dir():
        limits = {"--split": split, "--events": events}
        given = [word for flag, limit in limits.items() if limit is not None for word in (flag, limit)]
        finish(out, "ringflow", "evaluate", source, "--candidates", out, *given)
    else:
        named = ("--profile", profile) if profile else ()
        finish(out, "ringflow", "display", source, "--candidates", out, *named)


@serve.default
def serve_command(
    *,
    model: Annotated[
        ModelName | None, Parameter(help="Model file (also .onnx), folder of a run, or `shipped`.")
    ] = None,
    engine: Annotated[
        Literal["torch", "onnx"] | None, Parameter(help="What computes; onnx if it is installed, unless given.")
    ] = None,
    device: Annotated[str, Parameter(help="Name of a torch device; auto is the accelerator found, else cpu.")] = "auto",
    threads: Annotated[Count, Parameter(help="Batches that onnx computes at a time, or threads of torch.")] = 1,
    host: Annotated[str, Parameter(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535), help="Port; 0 is any that is free.")] = 8000,
    name: Annotated[str, Parameter(help="Name of the model in requests.")] = "ringflow",
    max_batch_elements: Annotated[
        Count | None, Parameter(help="Elements computed together; 512 with onnx, 8192 with torch unless given.")
    ] = None,
    max_delay_ms: Annotated[
        NotNegative, Parameter(help="How long a request waits for others to be computed with.")
    ] = 0,
    queue: Annotated[Count, Parameter(help="Requests that may wait; more are told to come again (503).")] = 256,
    max_request_mb: Annotated[Positive, Parameter(help="Largest body of a request.")] = 16,
    max_event_elements: Annotated[Count, Parameter(help="Largest event.")] = 20_000,
    timeout_s: Annotated[
        Positive, Parameter(help="Time for a request to arrive, and for its answer to be there.")
    ] = 30,
    as_json: Json = False,
) -> None:
    """Serve a network over HTTP with the Open Inference Protocol (KServe v2), as Triton clients speak it."""
    import sys
    from json import dumps

    from ringflow.recipes import serve as recipe

    def ready(where: dict[str, Any]) -> None:
        if as_json:  # one line, which a program can read while the server runs
            sys.stdout.write(dumps(where) + "\n")
            sys.stdout.flush()
        say(f"serving {where['model']} ({where['engine']}) at {where['url']}; Ctrl-C answers who waits, and stops")
        finish(None, f"curl {where['url']}/v2/models/{where['model']}")

    recipe.serve(
        model,
        ready=ready,
        engine=engine,
        device=device,
        threads=threads,
        host=host,
        port=port,
        name=name,
        max_batch_elements=max_batch_elements,
        max_delay_ms=max_delay_ms,
        queue=queue,
        max_request_mb=max_request_mb,
        max_event_elements=max_event_elements,
        timeout_s=timeout_s,
    )


evaluate = App(name="evaluate")


@evaluate.default
def evaluate_command(
    *datasets: DatasetFolder,
    candidates: Annotated[
        tuple[Path, ...], Several, Parameter(help="Candidate files of further reconstructions.")
    ] = (),
    model: Annotated[
        Path | None, Parameter(help="Model file or folder of a run; the shipped one unless given.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Folder for the report, the figures and the histograms.")] = None,
    reconstructions: Annotated[tuple[str, ...], Several, Parameter(help="Those to evaluate; all unless given.")] = (),
    split: Annotated[Literal["train", "valid", "test"] | None, Parameter(help="Only the events of one split.")] = None,
    events: Annotated[Count | None, Parameter(help="Only so many events of each dataset.")] = None,
    workers: Workers = 1,
    as_json: Json = False,
) -> None:
    """Compare reconstructions with the truth and with each other: particles, jets, missing momentum, energy, masses."""
    from ringflow.recipes import evaluate as recipe

    results = recipe.evaluate(
        datasets,
        candidates=candidates,
        model=model,
        out=out,
        reconstructions=reconstructions or None,
        workers=workers,
        events=events,
        split=split,
    )
    recipe.show(results, as_json=as_json)
    if out is not None:
        finish(recipe.report_page(out), "ringflow", "display", out)
        return
    flags: dict[str, tuple[object, ...]] = {"--model": (model,), "--candidates": candidates, "--split": (split,)}
    flags |= {"--reconstructions": reconstructions, "--events": (events,)}
    given = [word for flag, values in flags.items() if any(values) for word in (flag, *values)]
    finish(None, "ringflow", "evaluate", *datasets, *given, "--out", "report")

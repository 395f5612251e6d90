"""The commands that put a network to use: evaluate, export, reconstruct, serve. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import (
    Count,
    DatasetFolder,
    Flag,
    Json,
    ModelName,
    NotNegative,
    Paths,
    Port,
    Positive,
    ProfileName,
    Split,
    Texts,
    TorchDevice,
    Workers,
    about,
)
from ringflow.base.output import finish, print_json, print_line, show_rows, show_summary
from ringflow.base.rundir import require_suffix


def export(
    model: ModelName,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"), help="ONNX file to write.")] = None,
    triton: Annotated[Path | None, about("Model repository of Triton to put it into.")] = None,
    name: Annotated[str | None, about("Name of the model in that repository; ringflow unless given.")] = None,
    check: Annotated[Path | None, about("Dataset to compare on; events are simulated unless given.")] = None,
    events: Annotated[Count, about("Compare on so many events of the dataset.")] = 200,
    portable: Annotated[
        Flag, about("Operators of the ONNX standard only, for runtimes other than ONNX Runtime.")
    ] = False,
    int8: Annotated[Flag, about("Dense layers in eight-bit integers.")] = False,
    calibrate: Annotated[Path | None, about("Dataset to measure the ranges of --int8 on.")] = None,
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


def reconstruct(
    source: Annotated[Path, about("Folder of a dataset, or EDM4hep ROOT file.")],
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="File to write: .parquet or .root (EDM4hep).")],
    model: Annotated[ModelName | None, about("Model file (also .onnx), folder of a run, or `shipped`.")] = None,
    engine: Annotated[Literal["torch", "onnx"] | None, about("What computes; as the file is, unless given.")] = None,
    device: TorchDevice = "auto",
    threads: Annotated[Count, about("Events that onnx computes at a time, or threads of torch.")] = 1,
    split: Split | None = None,
    events: Annotated[Count | None, about("Only so many events.")] = None,
    profile: ProfileName | None = None,
    overwrite: Annotated[Flag, about("Replace an existing file.")] = False,
    on: Annotated[Literal["here", "spark", "ray"], about("Who computes: this process, or workers.")] = "here",
    master: Annotated[str | None, about("Spark master, e.g. spark://HOST:7077; this machine unless given.")] = None,
    address: Annotated[str | None, about("Ray cluster: auto or HOST:PORT; this machine unless given.")] = None,
    workers: Annotated[Count | None, about("Workers on Spark or Ray; all there are unless given.")] = None,
    uncertainty: Annotated[
        Path | None, about("File of `ringflow uncertainty`; the one beside the model unless given.")
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


def serve(
    *,
    model: Annotated[ModelName | None, about("Model file (also .onnx), folder of a run, or `shipped`.")] = None,
    engine: Annotated[
        Literal["torch", "onnx"] | None, about("What computes; onnx if it is installed, unless given.")
    ] = None,
    device: TorchDevice = "auto",
    threads: Annotated[Count, about("Batches that onnx computes at a time, or threads of torch.")] = 1,
    host: Annotated[str, about("Address to listen on.")] = "127.0.0.1",
    port: Port = 8000,
    name: Annotated[str, about("Name of the model in requests.")] = "ringflow",
    max_batch_elements: Annotated[
        Count | None, about("Elements computed together; 512 with onnx, 8192 with torch unless given.")
    ] = None,
    max_delay_ms: Annotated[NotNegative, about("How long a request waits for others to be computed with.")] = 0,
    queue: Annotated[Count, about("Requests that may wait; more are told to come again (503).")] = 256,
    max_request_mb: Annotated[Positive, about("Largest body of a request.")] = 16,
    max_event_elements: Annotated[Count, about("Largest event.")] = 20_000,
    timeout_s: Annotated[Positive, about("Time for a request to arrive, and for its answer to be there.")] = 30,
    as_json: Json = False,
) -> None:
    """Serve a network over HTTP with the Open Inference Protocol (KServe v2), as Triton clients speak it."""
    from ringflow.recipes import serve as recipe

    def ready(where: dict[str, Any]) -> None:
        if as_json:
            print_line(where)
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


def evaluate(
    *datasets: DatasetFolder,
    candidates: Annotated[Paths, about("Candidate files of further reconstructions.")] = (),
    model: Annotated[Path | None, about("Model file or folder of a run; the shipped one unless given.")] = None,
    out: Annotated[Path | None, about("Folder for the report, the figures and the histograms.")] = None,
    reconstructions: Annotated[Texts, about("Those to evaluate; all unless given.")] = (),
    split: Split | None = None,
    events: Annotated[Count | None, about("Only so many events of each dataset.")] = None,
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

"""The commands that make datasets and look after the detectors, and those that put a network to use on events.

Every command imports its work late. Names of models and datasets are looked for while a command is read: torch takes seconds
to load, and a wrong one is told before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ringflow.base import options
from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import Count, Flag, Json, Paths, about
from ringflow.base.output import finish, print_json, print_line, show_rows, show_summary
from ringflow.base.rundir import require_suffix
from ringflow.recipes.serve import Engine, ServeOptions


def _known_model(_: object, path: Path) -> None:
    from ringflow.infer.shipped import model_file

    model_file(path)


def _known_dataset(_: object, path: Path | None) -> None:
    from ringflow.data.manifest import read_manifest

    if path is not None:  # defaults are looked at, too
        read_manifest(path)


ModelName = Annotated[
    Path, Parameter(validator=_known_model, help="Model file, folder of a run, or name of a shipped model.")
]
KnownDataset = Annotated[Path, Parameter(validator=_known_dataset, help="Folder of a dataset.")]
SomeModel = Annotated[ModelName | None, about("Model file (also .onnx), folder of a run, or name of a shipped model.")]
Out = Annotated[Path, about("Folder of the dataset.")]
Overwrite = Annotated[Flag, about("Replace an existing dataset.")]
_SERVE = ServeOptions()


def simulate(
    sample: Annotated[
        str | None, about("Name of a sample, or with an energy: `ttbar@500`; `ringflow config` lists them.")
    ] = None,
    /,
    *overrides: options.Overrides,
    out: Out,
    energy: Annotated[float | None, about("Energy of the sample in GeV, if not its own.")] = None,
    hepmc: Annotated[
        Path | None, about("HepMC3, HepMC2 or LHE file to read events from instead (plain, .gz or .zst).")
    ] = None,
    events: Annotated[Count | None, about("Number of events; all of a file and 1000 of a sample unless given.")] = None,
    detector: options.Detector | None = None,
    workers: options.Workers | None = None,
    seed: options.Seed | None = None,
    device: options.Device | None = None,
    no_hits: Annotated[Flag, about("Leave the calorimeter hits out of the dataset.")] = False,
    start: options.Start | None = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Simulate a sample, or the events of a HepMC3, HepMC2 or LHE file, into a dataset.

    An interrupted production goes on where it stopped when the same command is given again.
    """
    from ringflow.base.config import override
    from ringflow.sim.generator import sample_name
    from ringflow.sim.settings import SimulateSettings

    sample, overrides = options.without_start(sample, overrides)
    flags = {
        "generator.sample": sample,
        "generator.hepmc": hepmc,
        "generator.seed": seed,
        "production.events": events,
        "production.workers": workers,
        "production.device": device,
        "production.keep_hits": False if no_hits else None,
        "detector": detector,
    }
    given = [override(field, value) for field, value in flags.items() if value is not None]
    settings = SimulateSettings.resolve(start, [*given, *overrides])
    if (settings.generator.sample is None) == (settings.generator.hepmc is None):
        raise UsageError("give either a SAMPLE or --hepmc FILE; `ringflow config` lists the samples")
    if energy is not None:
        if settings.generator.sample is None:
            raise UsageError(f"--energy {energy:g} is for samples; the events of a file have theirs, leave it out")
        named = settings.generator.model_copy(update={"sample": sample_name(settings.generator.sample, energy)})
        settings = settings.model_copy(update={"generator": named})

    from ringflow.recipes import simulate as recipe

    show_summary("Production", recipe.simulate(settings, out, overwrite=overwrite), as_json=as_json)
    finish(out, "ringflow", "check", out)


def convert(
    *files: Annotated[Path, about("EDM4hep ROOT files of one detector.")],
    out: Out,
    profile: options.ProfileName | None = None,
    sample: Annotated[str | None, about("Name for the sample; that of the first file unless given.")] = None,
    events: Annotated[Count | None, about("Only so many events.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Convert EDM4hep files into a dataset, with the truth and the reconstructed particles they have.

    An interrupted conversion goes on where it stopped when the same command is given again.
    """
    from ringflow.data.edm4hep.read import convert_edm4hep
    from ringflow.infer.inputs import require_file

    for file in files:
        require_file(file)
    made = convert_edm4hep(files, out, profile=profile, sample=sample, events=events, overwrite=overwrite).manifest
    summary = {
        "path": out,
        "detector": made.detector,
        "sample": made.sample,
        "profile": made.provenance["settings"]["profile"]["name"],
        "events": made.num_events,
        "shards": len(made.shards),
        "bytes": made.bytes,
        "truth": "target" in made.columns or "hit_target" in made.columns,
        "mean_counts": {name: round(count / made.num_events, 2) for name, count in made.counts.items()},
    }
    show_summary("Conversion", summary, as_json=as_json)
    finish(out, f"ringflow check {out}")


def validate(
    *,
    detector: options.Detector = "clic",
    constants: options.Constants | None = None,
    events: options.Measured = 2000,
    workers: options.Workers = 1,
    seed: options.Seed = 1,
    as_json: Json = False,
) -> int:
    """Compare the simulated detector with the published figures."""
    from ringflow.recipes import validate as recipe

    rows = recipe.validate(detector, events, workers, seed, constants)
    code = show_rows(f"Detector {detector}", rows, as_json=as_json)
    finish(None, f"ringflow simulate ttbar --detector {detector} --out data/ttbar")
    return code


def calibrate(
    *,
    detector: options.Detector = "clic",
    events: options.Measured = 2000,
    workers: options.Workers = 1,
    seed: options.Seed = 1,
    baseline: Annotated[Flag, about("Derive the constants of the rules instead.")] = False,
    out: Annotated[Path | None, about("TOML file to write: the detector with the scales, or the constants.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the calibration constants of a detector with particle guns."""
    from ringflow.recipes import calibrate as recipe

    derive = recipe.calibrate_rules if baseline else recipe.calibrate
    constants = derive(detector, events, workers, seed, out)
    show_summary(f"Calibration of {detector}", constants, as_json=as_json)
    calibrated, rules = (detector, out) if baseline or out is None else (str(out), None)
    finish(out, "ringflow", "validate", "--detector", calibrated, *_given(constants=rules))


def adapt(
    source: Annotated[
        str, about("Dataset or EDM4hep file of unlabelled events, or a detector by its name or TOML file.")
    ],
    /,
    *,
    out: Annotated[Path, about("Model file to write (.safetensors).")],
    model: Annotated[ModelName, about("What to adapt: model file, run or name of a shipped model.")] = Path("any"),
    match: Annotated[
        Literal["geometry", "scales", "features"],
        about("How much: face and tracks; ECAL and HCAL scales too; quantiles of features too."),
    ] = "scales",
    events: Annotated[Count, about("Look at so many events.")] = 2000,
    profile: options.ProfileName | None = None,
    overwrite: Annotated[Flag, about("Replace an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Bring a network to a detector it was not trained for, without labels and without training.

    Where the calorimeter begins, what is usual for tracks, and the scales of ECAL and HCAL are measured on the events.
    """
    from ringflow.recipes import adapt as recipe

    result = recipe.adapt(source, out, model=model, match=match, events=events, profile=profile, overwrite=overwrite)
    show_summary("Adapted", result, as_json=as_json)
    where = [source, "--model", out, "--out", "candidates.parquet"]
    finish(out, "ringflow", *(["reconstruct", *where] if result["events"] else ["serve", "--model", out]))


def check(dataset: options.DatasetFolder, /, *, as_json: Json = False) -> int:
    """Check a dataset: gates with PASS or FAIL and the observed number."""
    from ringflow.data import check as gates
    from ringflow.data.manifest import after_check

    code = show_rows(f"Dataset {dataset}", gates.check(dataset), as_json=as_json)
    finish(None, after_check(dataset, passed=code == 0))
    return code


def export(
    model: ModelName,
    /,
    *,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"), help="ONNX file to write.")] = None,
    triton: Annotated[Path | None, about("Model repository of Triton to put it into.")] = None,
    name: Annotated[str | None, about("Name of the model in that repository; ringflow unless given.")] = None,
    check: Annotated[Path | None, about("Dataset to compare on; events are simulated unless given.")] = None,
    events: Annotated[Count, about("Compare on so many events of the dataset.")] = 200,
    portable: Annotated[Flag, about("Standard operators only, for other runtimes than ONNX Runtime.")] = False,
    int8: Annotated[Flag, about("Dense layers in eight-bit integers.")] = False,
    calibrate: Annotated[Path | None, about("Dataset to measure the ranges of --int8 on.")] = None,
    as_json: Json = False,
) -> int:
    """Write a network as one ONNX file that takes raw detector values and returns particles, and prove that it is the same."""
    if out is not None:
        require_suffix(out, ".onnx")

    from ringflow.recipes import export as recipe
    from ringflow.recipes.cost import show_cost

    place: dict[str, Any] = {"triton": triton, "name": name, "portable": portable}
    result = recipe.export(model, out, **place, check=check, events=events, int8=int8, calibrate=calibrate)
    if as_json:
        print_json(result)
    else:
        show_rows(f"Compared on {result['check']['elements']} elements", result["check"]["rows"], as_json=False)
        if cost := result["cost"]:
            show_cost("What int8 gives and takes", cost)
    if not result["ok"]:
        say("the file differs from the network by more than it may, and was not written")
        return 1
    if out is None:
        finish(Path(result["triton"]), "tritonserver", "--model-repository", triton)
        return 0
    if triton is not None:
        say(f"made: {result['triton']}")
    if dataset := check or calibrate:
        finish(out, "ringflow", "reconstruct", dataset, "--model", out, "--out", "candidates.parquet")
    else:
        finish(out, "ringflow", "serve", "--model", out)
    return 0


def reconstruct(
    source: Annotated[Path, about("Folder of a dataset, or EDM4hep ROOT file.")],
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"), help="File to write: .parquet or .root (EDM4hep).")],
    model: SomeModel = None,
    engine: Annotated[Engine | None, about("What computes; as the file is, unless given.")] = None,
    device: options.TorchDevice = "auto",
    threads: Annotated[Count, about("Events that onnx computes at a time, or threads of torch.")] = 1,
    split: options.Split | None = None,
    events: Annotated[Count | None, about("Only so many events.")] = None,
    profile: options.ProfileName | None = None,
    overwrite: Annotated[Flag, about("Replace an existing file.")] = False,
    on: Annotated[Literal["here", "spark", "ray"], about("Who computes: this process, or workers.")] = "here",
    master: Annotated[str | None, about("Spark master, e.g. spark://HOST:7077; this machine unless given.")] = None,
    address: Annotated[str | None, about("Ray cluster: auto or HOST:PORT; this machine unless given.")] = None,
    workers: Annotated[Count | None, about("Workers on Spark or Ray; all there are unless given.")] = None,
    uncertainty: Annotated[
        Path | None, about("File of `ringflow uncertainty`; that beside the model if there.")
    ] = None,
    force: Annotated[Flag, about("Go on where the events are nothing that the network knows.")] = False,
    as_json: Json = False,
) -> None:
    """Reconstruct events with a network into a file of candidates.

    An interrupted work goes on where it stopped when the same command is given again.
    """
    for option, value, where in (("--master", master, "spark"), ("--address", address, "ray")):
        if value is not None and on != where:
            raise UsageError(f"{option} {value} is for --on {where}")

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
        on=Place(on, master or address, workers),
        uncertainty=uncertainty,
        force=force,
    )
    shown = result if as_json else {**result, "likeness": result["likeness"]["verdict"]}  # what differs was said
    show_summary("Reconstruction", shown, as_json=as_json)
    if out.suffix != ".parquet":
        finish(out, "ringflow", "trace", out)
    elif source.is_dir():
        finish(out, "ringflow", "evaluate", source, "--candidates", out, *_given(split=split, events=events))
    else:
        finish(out, "ringflow", "display", source, "--candidates", out, *_given(profile=profile))


def serve(*, model: SomeModel = None, how: ServeOptions = _SERVE, as_json: Json = False) -> None:
    """Serve a network over HTTP with the Open Inference Protocol (KServe v2), as Triton clients speak it."""
    from ringflow.recipes import serve as recipe

    def ready(where: dict[str, Any]) -> None:
        if as_json:
            print_line(where)
        say(f"serving {where['model']} ({where['engine']}) at {where['url']}; Ctrl-C answers who waits, and stops")
        finish(None, f"curl {where['url']}/v2/models/{where['model']}")

    recipe.serve(model, how, ready)


def evaluate(
    *datasets: options.DatasetFolder,
    candidates: Annotated[Paths, about("Candidate files of further reconstructions.")] = (),
    model: Annotated[Path | None, about("Model file, folder of a run, or a name; `clic` unless given.")] = None,
    constants: options.Constants | None = None,
    out: Annotated[Path | None, about("Folder for the report, the figures and the histograms.")] = None,
    reconstructions: Annotated[options.Texts, about("Those to evaluate; all unless given.")] = (),
    split: options.Split | None = None,
    events: Annotated[Count | None, about("Only so many events of each dataset.")] = None,
    workers: options.Workers = 1,
    as_json: Json = False,
) -> None:
    """Compare reconstructions with the truth and with each other: particles, jets, missing momentum, energy, masses."""
    from ringflow.recipes import evaluate as recipe

    asked: dict[str, Any] = {"candidates": candidates, "reconstructions": reconstructions or None}
    asked |= {"model": model, "constants": constants, "split": split, "events": events}
    results = recipe.evaluate(datasets, **asked, out=out, workers=workers)
    recipe.show(results, as_json=as_json)
    if out is not None:
        finish(recipe.report_page(out), "ringflow", "display", out)
    else:
        finish(None, "ringflow", "evaluate", *datasets, *_given(**asked), "--out", "report")


def _given(**options: Any) -> list[object]:
    """Options that have a value, as words of a command."""
    return [
        word
        for name, value in options.items()
        if value
        for word in (f"--{name}", *(value if isinstance(value, tuple) else (value,)))
    ]

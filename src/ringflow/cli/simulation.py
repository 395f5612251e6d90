"""The commands that make datasets and look after the detectors. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ringflow.base import options
from ringflow.base.errors import UsageError
from ringflow.base.options import Count, Flag, Json, about
from ringflow.base.output import finish, show_rows, show_summary

Out = Annotated[Path, about("Folder of the dataset.")]
Overwrite = Annotated[Flag, about("Replace an existing dataset.")]


def simulate(
    sample: Annotated[str | None, about("Name of a sample; `ringflow config` lists them.")] = None,
    /,
    *overrides: options.Overrides,
    out: Out,
    hepmc: Annotated[Path | None, about("HepMC3 file to read events from instead (plain, .gz or .zst).")] = None,
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
    """Simulate a sample, or the events of a HepMC3 file, into a dataset.

    An interrupted production goes on where it stopped when the same command is given again.
    """
    from ringflow.base.config import override
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
    events: options.Measured = 2000,
    workers: options.Workers = 1,
    seed: options.Seed = 1,
    as_json: Json = False,
) -> int:
    """Compare the simulated detector with the published figures."""
    from ringflow.recipes import validate as recipe

    code = show_rows(f"Detector {detector}", recipe.validate(detector, events, workers, seed), as_json=as_json)
    finish(None, f"ringflow simulate ttbar --detector {detector} --out data/ttbar")
    return code


def calibrate(
    *,
    detector: options.Detector = "clic",
    events: options.Measured = 2000,
    workers: options.Workers = 1,
    seed: options.Seed = 1,
    baseline: Annotated[Flag, about("Derive the constants of the rules instead.")] = False,
    out: Annotated[Path | None, about("Write the constants of the rules into this TOML file.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the calibration constants of a detector with particle guns."""
    from ringflow.recipes import calibrate as recipe

    if out is not None and not baseline:
        raise UsageError(f"--out {out} needs --baseline: the scales of a detector belong into its own file")
    if baseline:
        constants = recipe.calibrate_rules(detector, events, workers, seed, out)
    else:
        constants = recipe.calibrate(detector, events, workers, seed)
    show_summary(f"Calibration of {detector}", constants, as_json=as_json)
    finish(out, f"ringflow validate --detector {detector}")


def check(dataset: options.DatasetFolder, /, *, as_json: Json = False) -> int:
    """Check a dataset: gates with PASS or FAIL and the observed number."""
    from ringflow.data import check as gates
    from ringflow.data.manifest import after_check

    code = show_rows(f"Dataset {dataset}", gates.check(dataset), as_json=as_json)
    finish(None, after_check(dataset, passed=code == 0))
    return code

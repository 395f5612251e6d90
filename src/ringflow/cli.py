"""The command table. Every command imports its work late, so that help starts at once.

People read stderr; stdout carries JSON and nothing else, when `--json` asks for it.
Exit codes: 0 done, 1 failed, 2 wrong usage, 75 stopped by a signal and to be started again, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, Parameter

from ringflow import __version__
from ringflow.base.errors import RingflowError, UsageError
from ringflow.base.log import complain, say
from ringflow.base.options import (
    Count,
    DatasetFolder,
    Detector,
    Device,
    Json,
    Measured,
    Overrides,
    Seed,
    SettingsFile,
    Start,
    Switch,
    Workers,
)
from ringflow.base.output import finish, print_json, show_rows, show_summary
from ringflow.base.threads import wait_without_spinning
from ringflow.bench.commands import bench
from ringflow.display.commands import display
from ringflow.explain.commands import explain
from ringflow.launch.commands import launch
from ringflow.launch.environment import adopt
from ringflow.recipes.browse.commands import browse
from ringflow.recipes.commands import demo, evaluate, prune, train
from ringflow.recipes.origin.commands import reproduce, trace
from ringflow.recipes.scaling_commands import scaling_model
from ringflow.recipes.uncertainty_commands import uncertainty
from ringflow.recipes.use_commands import export, reconstruct, serve
from ringflow.spark.commands import perceptron
from ringflow.tune.bench.command import bench_tune
from ringflow.tune.commands import tune

if TYPE_CHECKING:
    from ringflow.sim.settings import SimulateSettings
    from ringflow.train.settings import TrainSettings

app = App(
    name="ringflow",
    help="Scalable machine-learned particle flow: from collisions to particles.",
    version=__version__,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
for command in (
    bench,
    browse,
    demo,
    display,
    evaluate,
    explain,
    export,
    launch,
    perceptron,
    prune,
    reconstruct,
    reproduce,
    scaling_model,
    serve,
    trace,
    train,
    tune,
    uncertainty,
):
    app.command(command)
bench.command(bench_tune, name="tune")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a user's mistake is one line, never a traceback."""
    wait_without_spinning()
    adopt()
    try:
        code = app(
            sys.argv[1:] if argv is None else list(argv),
            exit_on_error=False,
            print_error=False,
            result_action="return_int_as_exit_code_else_zero",
        )
        return int(code)
    except CycloptsError as error:
        return _report(str(error), 2)
    except RingflowError as error:
        return error.exit_code if error.told else _report(str(error), error.exit_code)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _report("the disk is full; free some space and run it again", 1)
        raise
    except KeyboardInterrupt:
        return _report("interrupted", 130)


@app.command
def simulate(
    sample: str | None = None,
    /,
    *overrides: Overrides,
    out: Path,
    hepmc: Path | None = None,
    events: Count | None = None,
    detector: Detector | None = None,
    workers: Workers | None = None,
    seed: Seed | None = None,
    device: Device | None = None,
    no_hits: Annotated[bool, Switch] = False,
    start: Start | None = None,
    overwrite: Annotated[bool, Switch] = False,
    as_json: Json = False,
) -> None:
    """Simulate a sample, or the events of a HepMC3 file, into a dataset.

    An interrupted production goes on where it stopped when the same command is given again.

    Parameters
    ----------
    sample
        Name of a sample; `ringflow config` lists them.
    out
        Folder of the dataset.
    hepmc
        HepMC3 file to read events from instead (plain, .gz or .zst).
    events
        Number of events; all of a file and 1000 of a sample unless given.
    no_hits
        Leave the calorimeter hits out of the dataset.
    overwrite
        Replace an existing dataset.
    """
    if sample is not None and "=" in sample:  # with --hepmc there is no sample, and an override comes first
        overrides, sample = (sample, *overrides), None
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
    settings = _simulate_settings(start, flags, overrides)
    if (settings.generator.sample is None) == (settings.generator.hepmc is None):
        raise UsageError("give either a SAMPLE or --hepmc FILE; `ringflow config` lists the samples")

    from ringflow.recipes import simulate as recipe

    show_summary("Production", recipe.simulate(settings, out, overwrite=overwrite), as_json=as_json)
    finish(out, f"ringflow check {out}")


@app.command
def validate(
    *,
    detector: Detector = "clic",
    events: Measured = 2000,
    workers: Workers = 1,
    seed: Seed = 1,
    as_json: Json = False,
) -> int:
    """Compare the simulated detector with the published figures."""
    from ringflow.recipes import validate as recipe

    rows = recipe.validate(detector, events, workers, seed)
    code = show_rows(f"Detector {detector}", rows, as_json=as_json)
    finish(None, f"ringflow simulate ttbar --detector {detector} --out data/ttbar")
    return code


@app.command
def calibrate(
    *,
    detector: Detector = "clic",
    events: Measured = 2000,
    workers: Workers = 1,
    seed: Seed = 1,
    baseline: Annotated[bool, Switch, Parameter(help="Derive the constants of the rules instead.")] = False,
    out: Annotated[Path | None, Parameter(help="Write the constants of the rules into this TOML file.")] = None,
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


@app.command
def check(dataset: DatasetFolder, /, *, as_json: Json = False) -> int:
    """Check a dataset: gates with PASS or FAIL and the observed number."""
    from ringflow.data import check as gates

    code = show_rows(f"Dataset {dataset}", gates.check(dataset), as_json=as_json)
    finish(None, "ringflow simulate --help" if code == 0 else f"simulate {dataset} again with --overwrite")
    return code


@app.command
def doctor(*, as_json: Json = False) -> int:
    """Say whether this machine and this installation have what ringflow needs."""
    from ringflow.recipes import doctor as recipe

    findings = [finding._asdict() for finding in recipe.examine()]
    if as_json:
        print_json(findings)
    else:
        recipe.show(findings)
    failed = any(finding["verdict"] == recipe.FAIL for finding in findings)
    finish(None, "repair what says FAIL, then ringflow doctor" if failed else "ringflow demo")
    return int(failed)


@app.command
def config(
    *overrides: Overrides,
    training: Annotated[bool, Switch, Parameter(name="--train", help="Settings of a training instead.")] = False,
    start: Start | None = None,
    out: SettingsFile | None = None,
    as_json: Json = False,
) -> None:
    """Show samples, detectors, presets and the resolved settings of a production, or of a training."""
    from ringflow.base.config import preset_names, to_toml, write
    from ringflow.sim.geometry import detector_names
    from ringflow.sim.samples import sample_names

    settings = _train_settings(start, overrides) if training else _simulate_settings(start, {}, overrides)
    names = {"samples": sample_names(), "detectors": detector_names(), "presets": preset_names()}
    if as_json:
        print_json({**names, "settings": settings.model_dump(mode="json")})
    else:
        show_summary("Names", names, as_json=False)
        say(f"\n# settings of a {'training' if training else 'production'}\n{to_toml(settings)}")
    if out is not None:
        write(settings, out)
    if training:
        finish(out, f"ringflow train {out or 'clic_tiny'} --out runs/first")
    else:
        finish(out, "ringflow simulate ttbar --out data/ttbar" + (f" --settings {out}" if out else ""))


def _simulate_settings(start: Path | None, flags: Mapping[str, object], overrides: Sequence[str]) -> SimulateSettings:
    from ringflow.base.config import override
    from ringflow.sim.settings import SimulateSettings

    given = [override(field, value) for field, value in flags.items() if value is not None]
    return SimulateSettings.resolve(start, [*given, *overrides])


def _train_settings(start: Path | None, overrides: Sequence[str]) -> TrainSettings:
    from ringflow.train.settings import TrainSettings

    return TrainSettings.resolve(str(start) if start else None, overrides)


def _report(message: str, exit_code: int) -> int:
    complain(f"ringflow: error: {' '.join(message.split())}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())

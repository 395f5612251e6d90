"""The command table. Every command imports its work late, so that help starts at once.

People read stderr; stdout carries JSON and nothing else, when `--json` asks for it.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from ringflow import __version__
from ringflow.base.errors import RingflowError, UsageError
from ringflow.base.log import say
from ringflow.base.output import finish, print_json, show_rows, show_summary

if TYPE_CHECKING:
    from ringflow.sim.settings import SimulateSettings

app = App(
    name="ringflow",
    help="Scalable machine-learned particle flow: from collisions to particles.",
    version=__version__,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
bench = App(name="bench", help="Time a part of the software on this machine.")
app.command(bench)

Switch = Parameter(negative="", show_default=False)
Count = Annotated[int, Parameter(validator=Number(gte=1))]
Seed = Annotated[int, Parameter(validator=Number(gte=0), help="The same seed gives the same events.")]
Workers = Annotated[Count, Parameter(help="Processes to use; the result does not depend on it.")]
Detector = Annotated[str, Parameter(help="Name of a detector; `ringflow config` lists them.")]
Device = Annotated[Literal["cpu", "cuda"], Parameter(help="Where the detector is simulated.")]
Overrides = Annotated[str, Parameter(help="Any setting as section.field=value.")]
Start = Annotated[Path, Parameter(name="--settings", help="Settings file to start from, as every dataset holds one.")]
Json = Annotated[bool, Switch, Parameter(name="--json", help="Print the result to stdout as JSON.")]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a user's mistake is one line, never a traceback."""
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
        return _report(str(error), error.exit_code)
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
    events: Count = 2000,
    workers: Workers = 1,
    seed: Seed = 1,
    as_json: Json = False,
) -> int:
    """Compare the simulated detector with the published figures.

    Parameters
    ----------
    events
        Events per measurement.
    """
    from ringflow.recipes import validate as recipe

    rows = recipe.validate(detector, events, workers, seed)
    code = show_rows(f"Detector {detector}", rows, as_json=as_json)
    finish(None, f"ringflow simulate ttbar --detector {detector} --out data/ttbar")
    return code


@app.command
def calibrate(
    *,
    detector: Detector = "clic",
    events: Count = 2000,
    workers: Workers = 1,
    seed: Seed = 1,
    as_json: Json = False,
) -> None:
    """Measure the calibration constants of a detector with particle guns.

    Parameters
    ----------
    events
        Events per measurement.
    """
    from ringflow.recipes import calibrate as recipe

    constants = recipe.calibrate(detector, events, workers, seed)
    show_summary(f"Calibration of {detector}", constants, as_json=as_json)
    finish(None, f"ringflow validate --detector {detector}")


@app.command
def check(dataset: Path, /, *, as_json: Json = False) -> int:
    """Check a dataset: gates with PASS or FAIL and the observed number.

    Parameters
    ----------
    dataset
        Folder of the dataset.
    """
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
def config(*overrides: Overrides, start: Start | None = None, out: Path | None = None, as_json: Json = False) -> None:
    """Show samples, detectors, presets and the resolved settings of a production.

    Parameters
    ----------
    out
        Write the resolved settings into this file.
    """
    from ringflow.base.config import preset_names, to_toml, write
    from ringflow.sim.geometry import detector_names
    from ringflow.sim.samples import sample_names

    settings = _simulate_settings(start, {}, overrides)
    names = {"samples": sample_names(), "detectors": detector_names(), "presets": preset_names()}
    if as_json:
        print_json({**names, "settings": settings.model_dump(mode="json")})
    else:
        show_summary("Names", names, as_json=False)
        say(f"\n# settings of a production\n{to_toml(settings)}")
    if out is not None:
        write(settings, out)
    finish(out, "ringflow simulate ttbar --out data/ttbar" + (f" --settings {out}" if out else ""))


@bench.command(name="simulate")
def bench_simulate(
    *,
    events: Count = 200,
    workers: Workers = 1,
    detector: Detector = "clic",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Time the production of ttbar events: generator, detector, truth and writing.

    Parameters
    ----------
    events
        Number of events.
    """
    from ringflow.bench import simulate as timing

    show_summary("Simulation speed", timing.run(events, workers, detector, device), as_json=as_json)
    finish(None, f"ringflow bench simulate --workers {workers + 1} --json")


@app.command
def demo(*, out: Path = Path("demo"), overwrite: Annotated[bool, Switch] = False, as_json: Json = False) -> int:
    """Simulate 200 ttbar events, check them and say where they are.

    Parameters
    ----------
    out
        Folder for what the demo makes.
    overwrite
        Replace an earlier demo.
    """
    from ringflow.recipes import demo as recipe

    result = recipe.demo(out, overwrite=overwrite)
    if as_json:
        print_json(result)
    else:
        show_rows("Gates", result["gates"], as_json=False)
        show_summary("Demo", result["summary"], as_json=False)
    finish(Path(result["dataset"]), "ringflow simulate zuds_91 --events 1000 --out data/zuds")
    return int(not result["ok"])


def _simulate_settings(start: Path | None, flags: Mapping[str, object], overrides: Sequence[str]) -> SimulateSettings:
    from ringflow.base.config import override
    from ringflow.sim.settings import SimulateSettings

    given = [override(field, value) for field, value in flags.items() if value is not None]
    return SimulateSettings.resolve(start, [*given, *overrides])


def _report(message: str, exit_code: int) -> int:
    say(f"ringflow: error: {' '.join(message.split())}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())

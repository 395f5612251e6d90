"""The command table. Every command imports its work late, so that help starts at once.

People read stderr; stdout carries JSON and nothing else, when `--json` asks for it.
Exit codes: 0 done, 1 failed, 2 wrong usage, 75 stopped by a signal and to be started again, 130 interrupted.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnknownOptionError

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
    ProfileName,
    Seed,
    SettingsFile,
    Start,
    Switch,
    Workers,
)
from ringflow.base.output import finish, print_json, show_rows, show_summary
from ringflow.base.threads import wait_without_spinning
from ringflow.bench.commands import bench, scaling_model
from ringflow.display.commands import display
from ringflow.explain.commands import explain
from ringflow.launch.commands import launch
from ringflow.launch.environment import adopt
from ringflow.provenance.commands import reproduce, trace
from ringflow.recipes.commands import evaluate, prune, train
from ringflow.recipes.uncertainty_commands import uncertainty
from ringflow.recipes.use_commands import export, reconstruct, serve
from ringflow.spark.commands import perceptron
from ringflow.tune.bench.command import bench_tune
from ringflow.tune.commands import tune

if TYPE_CHECKING:
    from ringflow.base.config import Settings
    from ringflow.sim.settings import SimulateSettings

app = App(
    name="ringflow",
    help="Scalable machine-learned particle flow: from collisions to particles.",
    version=__version__,
    version_flags=["--version"],
    suppress_keyboard_interrupt=False,
)
for command in (
    bench,
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

#: Commands that find what an interruption left, and do the rest.
_GOING_ON = (
    *("simulate", "train", "prune", "reconstruct", "tune", "tune resume", "tune panda-steer", "tune panda-evaluate"),
    "demo",
    *("launch local", "launch ray", "launch spark", "launch mpi"),
)


#: Events of the page that the demo writes: a few megabytes.
_DEMO_EVENTS = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a user's mistake is one line, never a traceback."""
    wait_without_spinning()
    adopt()
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        code = app(
            words,
            exit_on_error=False,
            print_error=False,
            result_action="return_int_as_exit_code_else_zero",
        )
        return int(code)
    except UnknownOptionError as error:
        return _report(_no_such_option(error), 2)
    except MissingArgumentError as error:
        return _report(_lacks(error), 2)
    except CycloptsError as error:
        return _report(str(error).replace(" into int.", " into a whole number; give one, such as 1000."), 2)
    except RingflowError as error:
        return error.exit_code if error.told else _report(str(error), error.exit_code)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _report("the disk is full; free some space and run it again", 1)
        raise
    except KeyboardInterrupt:
        again = "" if "--overwrite" not in words else " without --overwrite"
        goes_on = f"; the same command{again} goes on where it stopped"
        return _report("interrupted" + (goes_on if " ".join(app.parse_commands(words)[0]) in _GOING_ON else ""), 130)


@app.command
def simulate(
    sample: str | None = None,
    /,
    *overrides: Overrides,
    out: Annotated[Path, Parameter(help="Folder of the dataset.")],
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
    finish(out, "ringflow", "check", out)


@app.command
def convert(
    *files: Annotated[Path, Parameter(help="EDM4hep ROOT files of one detector.")],
    out: Path,
    profile: ProfileName | None = None,
    sample: Annotated[str | None, Parameter(help="Name for the sample; that of the first file unless given.")] = None,
    events: Annotated[Count | None, Parameter(help="Only so many events.")] = None,
    overwrite: Annotated[bool, Switch] = False,
    as_json: Json = False,
) -> None:
    """Convert EDM4hep files into a dataset, with the truth and the reconstructed particles they have.

    An interrupted conversion goes on where it stopped when the same command is given again.

    Parameters
    ----------
    out
        Folder of the dataset.
    overwrite
        Replace an existing dataset.
    """
    from ringflow.data.edm4hep.read import convert_edm4hep
    from ringflow.recipes.inputs import require_file

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
    from ringflow.data.manifest import after_check

    code = show_rows(f"Dataset {dataset}", gates.check(dataset), as_json=as_json)
    finish(None, after_check(dataset, passed=code == 0))
    return code


@app.command
def demo(
    *,
    out: Annotated[Path, Parameter(help="Folder for what the demo makes.")] = Path("demo"),
    training: Annotated[
        bool, Switch, Parameter(name="--train", help="Also train a small network and compare it; ten minutes at most.")
    ] = False,
    overwrite: Annotated[bool, Switch, Parameter(help="Replace an earlier demo.")] = False,
    as_json: Json = False,
) -> int:
    """Simulate events, check them, reconstruct them by rules and by network; write a report and a page of the events."""
    from ringflow.recipes import demo as recipe
    from ringflow.recipes import evaluate as comparison

    result = recipe.demo(out, training=training, overwrite=overwrite)
    shown = next(iter(result["datasets"]))
    page = _page_of_events(out / shown, out / "events")
    if as_json:
        print_json({**result, "events": str(page)})
    else:
        for name, made in result["datasets"].items():
            failed = [gate for gate in made["gates"] if not gate["ok"]]
            say(f"{name}: {len(made['gates']) - len(failed)} of {len(made['gates'])} gates passed")
            if failed:
                show_rows(f"Gates of {name} that failed", failed, as_json=False)
        comparison.show(result["evaluation"], as_json=False)
    say(f"made: {result['report']}, what it all came to; open it in a browser")
    finish(page, "ringflow", "display", out / shown)
    return int(not result["ok"])


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
    *words: Annotated[
        str,
        Parameter(help="Command, then preset or settings file to start from, then settings as section.field=value."),
    ],
    training: Annotated[bool, Switch, Parameter(name="--train", help="The same as the command `train`.")] = False,
    start: Start | None = None,
    out: SettingsFile | None = None,
    as_json: Json = False,
) -> None:
    """Show samples, detectors, presets and every setting, with what it means: of all commands, or of one.

    ringflow config train clic_tiny optimizer.rate=0.002 --out mine.toml
    """
    from ringflow.base.config import preset_names, to_toml, write
    from ringflow.sim.generator import sample_names
    from ringflow.sim.geometry import detector_names

    commands, preset, overrides = _asked_for(["train", *words] if training else words)
    preset = str(start) if start else preset
    shown = {command: _settings(command, preset, overrides) for command in commands}
    only = commands[0] if len(commands) == 1 else None
    if out is not None and only not in ("simulate", "train"):
        raise UsageError(f"--out {out} is for the settings of one command; give `simulate` or `train` before them")
    names = {"samples": sample_names(), "detectors": detector_names(), "presets": preset_names()}
    if as_json:
        settings = {command: found.model_dump(mode="json") for command, found in shown.items()}
        print_json({**names, "settings": settings[only] if only else settings})
    else:
        show_summary("Names", names, as_json=False)
        for command, found in shown.items():
            say(f"\n## settings of `ringflow {command}`\n\n{to_toml(found, explain=True)}")
    if out is not None and only is not None:
        write(shown[only], out, explain=True)
    if only == "train":
        finish(out, f"ringflow train {out or preset or 'clic_tiny'} --out runs/first")
    elif only == "scaling-model":
        finish(None, f"ringflow scaling-model {preset or 'h200'} --out scaling")
    else:
        finish(out, "ringflow simulate ttbar --out data/ttbar" + (f" --settings {out}" if out else ""))


def _asked_for(words: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """The commands whose settings are meant, what to start from, what to change; settings that only one has say which."""
    named = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    commands = [named.pop(0)] if named and named[0] in _SETTINGS else list(_SETTINGS)
    if named and len(commands) > 1:  # only trainings have presets
        commands = ["train"]
    if len(named) > 1:
        raise UsageError(f"cannot read {named[1]!r}; give a command ({', '.join(_SETTINGS)}), a preset, settings")
    if len(commands) > 1:
        fitting = [
            command
            for command in commands
            if all(word.split("=")[0].split(".")[0] in _settings_class(command).model_fields for word in overrides)
        ]
        commands = fitting or ["simulate"]
    return commands, named[0] if named else None, overrides


#: Commands that take settings, and the class of them.
_SETTINGS = {
    "simulate": ("ringflow.sim.settings", "SimulateSettings"),
    "train": ("ringflow.train.settings", "TrainSettings"),
    "scaling-model": ("ringflow.launch.scaling", "ScalingSettings"),
}


def _settings_class(command: str) -> type[Settings]:
    from importlib import import_module

    module, name = _SETTINGS[command]
    found: type[Settings] = getattr(import_module(module), name)
    return found


def _settings(command: str, preset: str | None, overrides: Sequence[str]) -> Settings:
    if command == "scaling-model":
        from ringflow.launch.scaling import resolve

        return resolve(preset or "h200", overrides)
    return _settings_class(command).resolve(preset, overrides)


def _page_of_events(dataset: Path, out: Path) -> Path:
    """The first events of a dataset, as files that need no server."""
    from ringflow.display.source import open_source
    from ringflow.display.static import write_static

    return write_static(open_source(dataset, events=_DEMO_EVENTS), list(range(_DEMO_EVENTS)), out)


def _simulate_settings(start: Path | None, flags: Mapping[str, object], overrides: Sequence[str]) -> SimulateSettings:
    from ringflow.base.config import override
    from ringflow.sim.settings import SimulateSettings

    given = [override(field, value) for field, value in flags.items() if value is not None]
    return SimulateSettings.resolve(start, [*given, *overrides])


def _lacks(error: MissingArgumentError) -> str:
    """Which argument a command lacks, and what it is."""
    assert error.argument is not None
    name, command = error.keyword or error.argument.name, " ".join(("ringflow", *(error.command_chain or ())))
    meaning = (error.argument.parameter.help or "").strip().rstrip(".")
    return f"{command} lacks {name}{f' ({meaning[:1].lower()}{meaning[1:]})' if meaning else ''}; `{command} --help` has more"


def _no_such_option(error: UnknownOptionError) -> str:
    """What to write instead: another option, or a setting, if the command takes settings."""
    command = " ".join(("ringflow", *(error.command_chain or ())))
    option, _, value = (error.token.keyword or error.token.value).partition("=")
    told, lists = f"{command} has no option {option}", f"`{command} --help` lists the options"
    names = [name for argument in error.argument_collection if argument.parse for name in argument.names]
    similar = get_close_matches(option, names, n=1, cutoff=0.7)
    if error.target is not None and "overrides" in signature(error.target).parameters:
        kind = {"simulate": "simulate", "scaling-model": "scaling-model", "replay": "scaling-model"}
        if meant := _settings_class(kind.get(command.split()[-1], "train")).meant_by(option, similar=not similar):
            words = [*(error.root_input_tokens or ()), "VALUE", "VALUE"]
            after = words[words.index(option) + 1] if option in words else "VALUE"
            value = value or ("VALUE" if after.startswith("-") else after)
            return f"{told}; write {meant if '=' in meant or ' ' in meant else f'{meant}={value}'}"
        lists += ", `ringflow config` the settings"
    return f"{told}; " + (f"did you mean {similar[0]}? {lists}" if similar else lists)


def _report(message: str, exit_code: int) -> int:
    complain(f"ringflow: error: {' '.join(message.split())}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())

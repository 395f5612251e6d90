"""The commands to begin with: demo, doctor, config. Every command imports its work late."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.options import Flag, Json, SettingsFile, Start, about
from ringflow.base.output import finish, print_json, show_or_print, show_rows, show_summary

if TYPE_CHECKING:
    from ringflow.base.config import Settings


def demo(
    *,
    out: Annotated[Path, about("Folder for what the demo makes.")] = Path("demo"),
    training: Annotated[
        Flag, Parameter(name="--train", help="Also train a small network and compare it; ten minutes at most.")
    ] = False,
    overwrite: Annotated[Flag, about("Replace an earlier demo.")] = False,
    as_json: Json = False,
) -> int:
    """Simulate events, check them, reconstruct them by rules and by network; write a report and a page of the events."""
    from ringflow.recipes import demo as recipe
    from ringflow.recipes import evaluate as comparison

    result = recipe.demo(out, training=training, overwrite=overwrite)
    if as_json:
        print_json(result)
    else:
        for name, made in result["datasets"].items():
            failed = [gate for gate in made["gates"] if not gate["ok"]]
            say(f"{name}: {len(made['gates']) - len(failed)} of {len(made['gates'])} gates passed")
            if failed:
                show_rows(f"Gates of {name} that failed", failed, as_json=False)
        comparison.show(result["evaluation"], as_json=False)
    say(f"made: {result['report']}, what it all came to; open it in a browser")
    finish(Path(result["events"]), "ringflow", "display", out / next(iter(result["datasets"])))
    return int(not result["ok"])


def doctor(*, as_json: Json = False) -> int:
    """Say whether this machine and this installation have what ringflow needs."""
    from ringflow.recipes import doctor as recipe

    rows = recipe.examine()
    show_or_print(rows, recipe.show, as_json=as_json)
    failed = any(row["verdict"] == "FAIL" for row in rows)
    finish(None, "repair what says FAIL, then ringflow doctor" if failed else "ringflow demo")
    return int(failed)


def config(
    *words: Annotated[
        str, about("Command, then preset or settings file to start from, then settings as section.field=value.")
    ],
    training: Annotated[Flag, Parameter(name="--train", help="The same as the command `train`.")] = False,
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
            if all(word.split("=")[0].split(".")[0] in settings_class(command).model_fields for word in overrides)
        ]
        commands = fitting or ["simulate"]
    return commands, named[0] if named else None, overrides


#: Commands that take settings, and the class of them.
_SETTINGS = {
    "simulate": ("ringflow.sim.settings", "SimulateSettings"),
    "train": ("ringflow.train.settings", "TrainSettings"),
    "scaling-model": ("ringflow.launch.scaling", "ScalingSettings"),
}


def settings_class(command: str) -> type[Settings]:
    """The settings of a command."""
    from importlib import import_module

    module, name = _SETTINGS[command]
    found: type[Settings] = getattr(import_module(module), name)
    return found


def _settings(command: str, preset: str | None, overrides: Sequence[str]) -> Settings:
    if command == "scaling-model":
        from ringflow.launch.scaling import resolve

        return resolve(preset or "h200", overrides)
    return settings_class(command).resolve(preset, overrides)

"""The commands that look at what was made (display, explain, uncertainty, trace, reproduce), and those to begin with (demo,
doctor, config). Every command imports its work late.
"""

from __future__ import annotations

import json
import signal
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ringflow.base import options
from ringflow.base.errors import UsageError
from ringflow.base.log import interactive, say
from ringflow.base.options import Count, Flag, Json, Natural, Paths, SettingsFile, Start, about
from ringflow.base.output import finish, print_json, print_line, show_or_print, show_rows, show_summary, show_table
from ringflow.base.rundir import require_suffix, write_atomic, write_errors
from ringflow.cli.events import KnownDataset, ModelName

if TYPE_CHECKING:
    from ringflow.base.config import Settings
    from ringflow.display.source import EventSource

#: Events that a page without a server holds unless told otherwise: a few megabytes.
STATIC_EVENTS = 20


def display(
    source: Annotated[
        Path,
        about(
            "Folder of a dataset or of a report, file of candidates (.parquet), EDM4hep file (.root) or "
            "Phoenix event file (.json)."
        ),
    ],
    /,
    *,
    candidates: Annotated[Paths, about("Candidate files to show beside.")] = (),
    model: Annotated[Path | None, about("Model file, folder of a run, or a name; `clic` unless given.")] = None,
    events: Annotated[
        Count | None, about("Only so many events; all to look at, 20 for --static and 1 for --phoenix unless given.")
    ] = None,
    event: Annotated[Natural | None, about("Event to begin with, from 0; the first of --links unless given.")] = None,
    links: Annotated[Path | None, about("File of `ringflow explain --links`: lines to elements.")] = None,
    static: Annotated[Path | None, about("Folder, or one file (.html), for a page that needs no server.")] = None,
    phoenix: Annotated[Path | None, about("Write the event into this file, for Phoenix.")] = None,
    profile: options.ProfileName | None = None,
    sample: Annotated[str | None, about("Sample of a report; its first unless given.")] = None,
    constants: options.Constants | None = None,
    port: options.Port = 0,
    no_open: Annotated[Flag, about("Do not open a browser.")] = False,
    as_json: Json = False,
) -> None:
    """Look at events: detector, tracks, hits, and truth, model and rules side by side, in the browser.

    The page is served on this machine only, until Ctrl-C. `--static` and `--phoenix` write files instead.
    """
    writes = static is not None or phoenix is not None
    if not writes:  # a shell that starts it in the background has it ignore Ctrl-C, and services send SIGTERM
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)

    from ringflow.display.source import open_source

    limit = None if writes else events  # what is written begins at --event, wherever that is
    of_source: dict[str, Any] = {"profile": profile, "sample": sample, "links": links, "constants": constants}
    shown = open_source(source, candidates=candidates, model=model, events=limit, **of_source)
    start = next(iter(shown.explained), 0) if event is None else event
    if start >= shown.num_events:
        raise UsageError(f"--event {start}: {source} has {shown.num_events} events here, counted from 0")
    for note in shown.notes:
        say(note)
    if writes:
        _write(shown, range(start, shown.num_events), events, static, phoenix)
        if as_json:
            print_json({"static": static, "phoenix": phoenix})
        return

    from ringflow.display.server import serve

    def announce(url: str) -> None:
        if as_json:
            print_line({"url": url})
        say(f"showing events at {url}; Ctrl-C stops")
        if not no_open and interactive():
            webbrowser.open(url)

    serve(shown, start=start, port=port, ready=announce)


def _write(shown: EventSource, possible: range, events: int | None, static: Path | None, phoenix: Path | None) -> None:
    from ringflow.display.phoenix import write_phoenix
    from ringflow.display.static import write_static

    if phoenix is not None:
        write_phoenix(phoenix, (shown.scene(index) for index in possible[: events or 1]))
        finish(phoenix, f"ringflow display {phoenix}")
    if static is not None:
        page = write_static(shown, list(possible[: events or STATIC_EVENTS]), static)
        finish(page, f"open {page} in a browser")


#: Columns of the tables for people; the rest is in the JSON.
_DELETION = ("class", "candidates", "change", "change_of_control", "difference", "low", "high", "ok")


@Parameter(name="*")
@dataclass(frozen=True)
class How:
    """What is explained, and how."""

    target: Annotated[
        Literal["particle", "class", "charge", "energy", "pt", "eta"], about("What of a candidate is explained.")
    ] = "class"
    method: Annotated[
        Literal["integrated-gradients", "input-x-gradient"], about("How; the second is quick and rough.")
    ] = "integrated-gradients"
    baseline: Annotated[
        Literal["hidden", "mean"], about("Features at the start: hidden where they can be, or average.")
    ] = "hidden"
    steps: Annotated[Count, about("Points of the integral.")] = 8


_HOW = How()


def explain(
    source: Annotated[Path, about("Folder of a dataset, or EDM4hep ROOT file.")],
    /,
    *,
    model: Annotated[ModelName | None, about("Model file, folder of a run, or a name (`clic` unless given).")] = None,
    event: Annotated[Natural | None, about("One event in full, counted from 0.")] = None,
    events: Annotated[Count | None, about("Averages over so many events; 20 unless given.")] = None,
    how: How = _HOW,
    split: options.Split | None = None,
    profile: options.ProfileName | None = None,
    links: Annotated[Path | None, about("JSON file for the lines from candidates to elements, by event.")] = None,
    graph: Annotated[Flag, about("With --links: also the learned graph of a network of the backbone `graph`.")] = False,
    out: Annotated[Path | None, about("Folder for a page with figures.")] = None,
    as_json: Json = False,
) -> int:
    """Say which elements and which features made a candidate, and test that by leaving elements out."""
    if event is not None and events is not None:
        raise UsageError(f"--event {event} is one event and --events {events} are many; give one of them")
    if graph and links is None:
        raise UsageError("--graph is written into the file of --links; give that too")
    from ringflow.data.manifest import read_manifest
    from ringflow.infer.inputs import require_file

    (read_manifest if source.is_dir() else require_file)(source)  # before torch is loaded

    from ringflow.explain.run import explain as work

    given = {"model": model, "event": event, "events": events or 20, "split": split, "profile": profile, **vars(how)}
    result = work(source, with_links=links is not None, with_graph=graph, **given)
    made = None if links is None else _write_links(links, result)
    if out is not None:
        from ringflow.explain.pages import write_explanations

        made = write_explanations(result, out)
    show_or_print(result, partial(_show, one_event=event is not None), as_json=as_json)
    which = ("--model", model) if model else ()
    if links:
        finish(made, "ringflow", "display", source, "--links", links, *which)
    else:
        more = ("--event", 0) if event is None else ("--out", "why")
        finish(made, "ringflow", "explain", source, *which, *more)
    return int(not result["ok"])


def _write_links(path: Path, result: dict[str, Any]) -> Path:
    named = ("index", "event_number", "links", "graph")
    events = [{name: single[name] for name in named if name in single} for single in result["single"]]
    origin = {name: result[name] for name in ("source", "model", "output", "method", "baseline")}
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({**origin, "events": events}) + "\n")
    return path


def _show(result: dict[str, Any], *, one_event: bool) -> None:
    say(f"explained: {result['meaning']}")
    if one_event:
        [single] = result["single"]
        show_table(f"Event {single['event_number']}", [_row(one, single["elements"]) for one in single["candidates"]])
    else:
        title = "What a candidate listens to (shares; those of tracks and clusters are of other elements)"
        short = {float: "{:.3f}".format}
        rows = [{name: short.get(type(cell), str)(cell) for name, cell in row.items()} for row in result["classes"]]
        show_table(title, rows)
        judged = [{name: row[name] for name in _DELETION} for row in result["deletion"] if row["judged"]]
        show_rows("Change without the elements it listens to, and without random ones", judged, as_json=False)
    if (missed := result["incomplete"]) is not None:
        say(
            f"{result['candidates']} candidates; the integral misses or invents {100 * missed:.1f} % of what is explained"
        )


def _row(one: dict[str, Any], elements: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A candidate and what it listens to, in words."""
    heard = [
        (elements[other["element"]], other["share"])
        for other in one["listens_to"]
        if other["element"] != one["element"]
    ]
    return {
        "candidate": one["candidate"],
        "class": one["class"],
        "GeV": f"{one['energy']:.2f}",
        "own element": f"{100 * one['own']:.0f} %",
        "other elements": ", ".join(f"{it['kind']} {it['number']} {100 * share:.0f} %" for it, share in heard)[:90],
        "features": ", ".join(list(one["features"])[:3]),
    }


def uncertainty(
    model: ModelName,
    /,
    *datasets: KnownDataset,
    out: Annotated[
        Path | None, Parameter(name=("--out", "-o"), help="File to write; MODEL.uncertainty.safetensors unless given.")
    ] = None,
    test: Annotated[Paths, about("Other datasets to test on; a quarter of the events unless given.")] = (),
    events: Annotated[Count | None, about("Only so many events of each dataset.")] = None,
    page: Annotated[Path | None, about("Folder for a page with the calibration plot.")] = None,
    seed: Annotated[Natural, about("Of the fit.")] = 1,
    as_json: Json = False,
) -> int:
    """Fit uncertainties of energy and momentum for the candidates of a network, which stays as it is, and test them."""
    if not datasets:
        raise UsageError("no dataset to fit on; give one or more: ringflow uncertainty MODEL DATASET")
    if out is not None:
        require_suffix(out, ".safetensors")

    from ringflow.explain import uncertainty as recipe

    result = recipe.uncertainty(model, datasets, out, test=test, events=events, seed=seed)
    if page is not None:
        from ringflow.explain.pages import write_uncertainties

        write_uncertainties(result, page)
    show_or_print(result, _show_pulls, as_json=as_json)
    words = ("--model", model, "--uncertainty", result["path"], "--out", "candidates.parquet")
    finish(Path(result["path"]), "ringflow", "reconstruct", (*test, *datasets)[0], *words)
    return int(not result["ok"])


def _show_pulls(result: dict[str, Any]) -> None:
    rows = [
        {
            "class": row["class"],
            "quantity": row["quantity"],
            "candidates": f"{row['candidates']:,}",
            "width": f"{row['width']:.3f} ± {row['error']:.3f}",
            "bias": f"{row['median']:+.3f} ± {row['median_error']:.3f}",
            "within 1 σ": f"{100 * row['within_1']:.1f} ± {100 * row['within_1_error']:.1f} %",
            "within 1.96 σ": f"{100 * row['within_1.96']:.1f} %",
            "verdict": row["verdict"],
            "wrong": ", ".join(row["fails"]),
        }
        for row in result["classes"]
    ]
    show_table("Pulls on events that were not fitted", rows)
    say(result["verdict"])


def trace(
    path: Annotated[Path, about("Candidates, EDM4hep file, model, run, dataset, shard, report or study.")],
    /,
    *,
    particle: Annotated[str | None, about("One particle as EVENT:INDEX, or one EVENT, from 0.")] = None,
    search: Annotated[Paths, about("Further folders to look through for what it was made of.")] = (),
    thorough: Annotated[Flag, about("Compute the sha256 of every shard, not only the sizes.")] = False,
    prov: Annotated[Path | None, about("Write the trace as W3C PROV (PROV-JSON) into this file.")] = None,
    crate: Annotated[Flag, about("Describe a run or a dataset as an RO-Crate.")] = False,
    croissant: Annotated[Flag, about("Describe a dataset for machine learning (Croissant).")] = False,
    card: Annotated[Flag, about("Write a card (README.md) of a run or a dataset.")] = False,
    out: Annotated[Path | None, about("Folder for what is written; the folder itself unless given.")] = None,
    license: Annotated[str | None, about("SPDX name of the licence to state, e.g. CC-BY-4.0.")] = None,
    as_json: Json = False,
) -> int:
    """Say where a file came from: model, run, settings, code, data, seed, each verified where it is at hand.

    Exit code 1 if something on the way is not what was recorded.
    """
    from ringflow.provenance.formats import Wanted
    from ringflow.provenance.trace import show, to_json
    from ringflow.provenance.trace import trace as work

    wanted = Wanted(prov, crate=crate, croissant=croissant, card=card, out=out, license=license)
    wanted.require(path)
    node = work(path, particle, search=search, thorough=thorough)
    result = to_json(node)
    result["written"] = [str(written) for written in wanted.write(node)]
    show_or_print(result, lambda _: show(node), as_json=as_json)
    for written in result["written"]:
        say(f"made: {written}")
    if result["changed"]:
        say(f"{len(result['changed'])} of {len(result['steps'])} steps are not what was recorded")
    finish(None, f"ringflow trace {path} --json" if not as_json else f"ringflow trace {path} --prov prov.json")
    return int(bool(result["changed"]))


def reproduce(
    path: Annotated[Path, about("Folder of a run, or of a dataset that was simulated.")],
    /,
    *,
    out: Annotated[Path | None, about("Folder for what is made again; it is removed unless given.")] = None,
    events: Annotated[Count | None, about("Only so many events of a run, or shards with so many.")] = None,
    tolerance: Annotated[options.NotNegative, about("What losses may differ by where bits cannot be the same.")] = 0.05,
    as_json: Json = False,
) -> int:
    """Train a run again, or simulate shards of a dataset again, from what was recorded, and compare.

    Exit code 0 if it is the same, 1 if it is not.
    """
    from ringflow.provenance.trace import kind_of

    kind = kind_of(path) if path.is_dir() else None
    if kind not in ("run", "dataset"):
        raise UsageError(f"{path} is neither a run nor a dataset; give the folder of one")
    from ringflow.provenance.reproduce import reproduce_dataset, reproduce_run

    if kind == "run":
        result = reproduce_run(path, out, events=events, tolerance=tolerance)
    else:
        result = reproduce_dataset(path, out, events=events)
    show_or_print(result, lambda made: show_rows(f"{path} again", made["rows"], as_json=False), as_json=as_json)
    finish(out, f"ringflow trace {path}")
    return int(not result["same"])


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


def models(as_json: Json = False) -> None:
    """List the models that come with the package, what they were trained for, and how good they are there."""
    from ringflow.infer.shipped import described, model_names

    found = [described(name) for name in model_names()]
    if as_json:
        print_json(found)
    else:
        show_table("Models", [_row_of_model(model) for model in found])
    first = f"evaluate data/ttbar --model {found[0]['name']}" if found else "train clic_tiny --out runs/first"
    finish(None, f"ringflow {first}")


def _row_of_model(model: Mapping[str, Any]) -> dict[str, str]:
    """A model in words; figures of the first two samples that it was tested on."""
    widths = [f"{of['value']:.4f} ({sample})" for sample, of in model["jet_width"].items()]
    return {
        "name": model["name"],
        "detector": model["detector"],
        "elements": model["elements"],
        "network": f"{model['backbone']}, {model['parameters']:,} parameters",
        "trained on": ", ".join(model["trained_on"]),
        "jet width there (IQR / median)": ", ".join(widths[:2]),
    }


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

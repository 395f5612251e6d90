"""A whole training: processes, folder, data, network. What `ringflow train` and a trial of a search call.

train(TrainSettings.resolve("clic_tiny", ["data=data/ttbar"]), Path("runs/first"))
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ringflow import __version__
from ringflow.base.config import write
from ringflow.base.errors import RingflowError, UsageError
from ringflow.base.log import say, table
from ringflow.base.output import finite_or_null, print_json
from ringflow.base.provenance import collect
from ringflow.base.rundir import SETTINGS_FILE, prepare, write_atomic
from ringflow.base.words import flat, size_in_words, time_in_words
from ringflow.baseline.rules import load_constants
from ringflow.infer.shipped import model_file
from ringflow.models.file import load_model
from ringflow.train import asynchronous
from ringflow.train.checkpoint import refuse_other_settings
from ringflow.train.data import describe_data, fingerprint, open_training_data, require_data
from ringflow.train.device import choose_device, hardware
from ringflow.train.parallel import MeshPlace, require_spreadable
from ringflow.train.runs import (
    PROFILE_FOLDER,
    PROFILE_PAGE,
    RUN_FILE,
    claimed,
    has_checkpoint,
    located,
    places_of,
    read_places,
    settings_of,
)
from ringflow.train.settings import TrainSettings
from ringflow.train.trainer import Pace, Trainer
from ringflow.train.validation import FOLLOWED, Validation, followed
from ringflow.train.world import World, joined

#: Validation events that the rules are run on once for comparison, at 4 ms each.
_MOST_RULED = 2_000


def train(settings: TrainSettings, out: Path, *, overwrite: bool = False, pace: Pace | None = None) -> dict[str, Any]:
    """Train in a folder, or go on with the training that is there; the result, ready for JSON.

    Several processes that were started together train one network; the first of them asks the pace, if there is one, how far
    to go.
    """
    if pace is not None and settings.sync != "allreduce":
        raise UsageError(f"a training that is paced from outside needs sync=allreduce, not sync={settings.sync}")
    device = choose_device(settings.compute.device)
    with joined(device, settings.compute.timeout) as world, ExitStack() as held:
        world.require_same({"version of ringflow": __version__})
        # Devices may have other names on other machines.
        words = settings.model_dump(mode="json", exclude={"compute": {"device"}})
        world.require_same(dict(flat({**words, "--out": str(out.absolute())})))
        settings = world.on_first(lambda: resolved(settings, out, world.size, overwrite), TrainSettings)
        world.require_same({"version of the data": fingerprint(settings)})
        world.on_first(lambda: held.enter_context(_claimed(settings, out, overwrite, world.size)))
        result = _train(settings, out, device, world, pace)
    page = out / PROFILE_FOLDER / PROFILE_PAGE
    profile = page if settings.profile and page.exists() else None
    return {"path": str(out), "device": str(device), "processes": world.size, "profile": profile, **result}


def _train(settings: TrainSettings, out: Path, device: torch.device, world: World, pace: Pace | None) -> dict[str, Any]:
    compute, lanes = settings.compute, settings.source.lanes
    place = MeshPlace.of(world.rank, world.size, compute.strategy, compute.parts)
    together = settings.sync == "allreduce"
    own = place.lanes(lanes) if together else asynchronous.own_lanes(world, lanes)
    with open_training_data(settings, device, out, own) as data:
        if data.validate is None:
            say("the data have no true particles: the best network is chosen by its loss, not by its jets")
        rules = partial(_rules, settings, data.validate) if pace is None else dict
        if not together:
            return asynchronous.train(settings, data, out, world, rules)
        trainer = Trainer(settings, data, out, world, pace, rules)
        if not settings.profile:
            return trainer.fit()
        from ringflow.train.profile import profiled  # which can draw, and others need not

        with profiled(out, world, device, compute.strategy) as phases:
            return trainer.fit(phases)


def resolved(settings: TrainSettings, out: Path, size: int, overwrite: bool) -> TrainSettings:
    """The settings with what follows from a start file and from the number of processes; refused if they cannot be."""
    together, before = settings.sync == "allreduce", None if overwrite else _before(out)
    if not overwrite:
        settings = located(settings, out, read_places(out / RUN_FILE))
    if start := settings.start:
        if before and not Path(start).exists():
            # All that is needed of the file is in the checkpoint.
            settings = settings.model_copy(update={"model": before.model})
        else:
            path = model_file(Path(start)).absolute()
            settings = settings.model_copy(update={"start": str(path), "model": load_model(path).model.settings})
    if not together:
        asynchronous.require_workers(settings, size)
    require_spreadable(settings, size)
    if settings.profile and not together:
        raise UsageError(
            f"profile=true measures the steps of sync=allreduce, and sync={settings.sync} has none; leave profile out"
        )
    # As many lanes as asked, as before, or one per copy of the network; an asynchronous master has no events.
    copies = MeshPlace.of(0, size, settings.compute.strategy, settings.compute.parts).copies - (not together)
    lanes = settings.source.lanes or (before.source.lanes if before else copies)
    if lanes % copies:
        raise UsageError(
            f"{copies} {'processes' if together else 'workers'} cannot share {lanes} lanes evenly; start a number that "
            f"divides {lanes}, or {'go on' if before and together else 'train anew'} with "
            f"source.lanes={-(-lanes // copies) * copies}"
        )
    settings = settings.model_copy(update={"source": settings.source.model_copy(update={"lanes": lanes})})
    require_data(settings)
    if settings.constants is not None and before is None:
        load_constants(settings.constants)  # a file that is none is told before the training, not in passing
    return settings


@contextmanager
def _claimed(settings: TrainSettings, out: Path, overwrite: bool, processes: int) -> Iterator[None]:
    """A folder that is made ready and that no other training touches; one of other settings is left as it is."""
    if out.is_dir():
        with claimed(out):  # before anything in it is touched
            pass
    prepare(out, marks=(RUN_FILE,), overwrite=overwrite)
    if before := _before(out):
        refuse_other_settings(before, settings, out)
    write_atomic(out / RUN_FILE, json.dumps(_run_record(settings, out, processes), indent=1) + "\n")
    write(settings, out / SETTINGS_FILE)
    with claimed(out):
        yield


def _before(out: Path) -> TrainSettings | None:
    """The settings of the training in a folder that can be gone on with; an earlier version may have written them."""
    path = settings_of(out) if has_checkpoint(out) else None
    return TrainSettings.resolve(path, complete=False) if path else None


def _run_record(settings: TrainSettings, out: Path, processes: int) -> dict[str, Any]:
    """What `run.json` says of a start; where a training goes on with other code, that of its earlier starts is kept."""
    start = [Path(settings.start)] if settings.start and Path(settings.start).is_file() else []
    record = collect(settings, {"training": settings.seed}, start)
    before: dict[str, Any] = {}
    places = places_of(settings, out)
    if has_checkpoint(out):
        places = {**read_places(out / RUN_FILE), **places}  # a checkpoint has the names of its time
        with suppress(OSError, ValueError):
            before = json.loads((out / RUN_FILE).read_bytes())
    codes = [*before.get("earlier", []), before.get("code")]
    earlier = [code for code in codes if code and code != record["code"]]
    machine = describe_machine(settings, processes)
    where = {name: place.model_dump() for name, place in places.items()}
    return {**record, "data": describe_data(settings), "places": where, "machine": machine, "earlier": earlier}


def describe_machine(settings: TrainSettings, processes: int) -> dict[str, Any]:
    """What shows in the last bits of a network."""
    device = choose_device(settings.compute.device)
    described = hardware(str(device))
    kept: dict[str, Any] = {name: described[name] for name in ("processor", "accelerator") if name in described}
    return {"device": device.type, "processes": processes, "threads": torch.get_num_threads(), **kept}


def _rules(settings: TrainSettings, validate: object) -> dict[str, float | None]:
    """What the rules make of the validation events, which people compare the network with."""
    if not isinstance(validate, Validation):
        return {}
    events, start = validate.num_events, time.perf_counter()
    if events > _MOST_RULED:
        most = f"{_MOST_RULED:,} events at most, not on {events:,}"
        say(f"validation  not compared with the rules, which are run on {most}")
        return {}
    try:
        found: dict[str, float | None] = finite_or_null(validate.of_rules(settings.constants))
    except (RingflowError, KeyError) as error:  # a detector without rules, or a dataset without what they look at
        why = f"the data have no {error}" if isinstance(error, KeyError) else str(error)
        say(f"validation  not compared with the rules: {why}")
        return {}
    took = time_in_words(time.perf_counter() - start)
    label = "the rules".rjust(len(f"{settings.length.events:,} events"))
    say(f"validation  {label}  {followed({'loss': None, **found}, {})}  on {events:,} events, in {took}")
    return found


def show(result: Mapping[str, Any], *, as_json: bool) -> None:
    """What a training came to, for people in their words."""
    if as_json:
        print_json(result)
        return
    best, several = result["best"], f", {result['processes']} processes" if result["processes"] > 1 else ""
    rows = [
        ("events", f"{result['events']:,} in {result['steps']:,} steps"),
        ("time", f"{time_in_words(result['seconds'])}, {result['events_per_second']:,.0f} events per second"),
        ("device", f"{result['device']}{several}"),
        ("memory", f"{size_in_words(result['peak_memory_bytes'])} at most"),
    ]
    if result["stopped_early"]:
        rows.append(("stopped early", "nothing got better any more"))
    if best:
        rows.append(("best validation", f"after {int(best['events'] or 0):,} events"))
        rows += [(f"  {one.words}", one.written(best[one.key]).strip()) for one in FOLLOWED if one.key in best]
    rows.append(("curves", str(result["history"])))
    if result["profile"]:
        rows.append(("profile", str(result["profile"])))
    table("Training", ("what", "value"), rows)

"""What the cost model is made of: records of `ringflow bench`, clusters by name, and the settings that join them."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ringflow.base.config import override
from ringflow.base.errors import InputFileError, UsageError
from ringflow.recipes.scaling_model import Cluster, CostModel, Link, Upkeep, Work, fit_compute, fit_link
from ringflow.recipes.scaling_settings import HardwareSettings, ScalingSettings

_HARDWARE = Path(__file__).with_name("scaling_hardware.toml")
_MEASURED = "measured"
#: What a record of a benchmark must have.
_FIELDS = {
    "train": ("batch_elements", "train_events_per_second"),
    "scaling": ("rows", "all_reduce"),
}
#: Of the time of a step, where it was not measured.
_ASSUMED_SPREAD = 0.02
#: The batch of so many devices is shared by all of them if it is fixed and not given.
_SHARED_BATCHES = 64


class Measured(NamedTuple):
    """Steps of one device, of one or several sizes."""

    source: str
    device: str
    parameters: int
    num_elements: int
    steps: tuple[tuple[float, float], ...]  # events and seconds
    spread: float | None = None

    @property
    def largest(self) -> float:
        """Events of the largest step."""
        return max(events for events, _ in self.steps)


def default_measured() -> Measured:
    """What comes with the package."""
    kept = dict(_known_hardware()[_MEASURED])
    return Measured(**{**kept, "steps": tuple((events, seconds) for events, seconds in kept["steps"])})


def read_measured(paths: Sequence[Path]) -> Measured:
    """The steps of records of `ringflow bench train` or `ringflow bench scaling`, all of one network on one kind of device."""
    records = [(path, read_record(path)) for path in paths]
    network = {name: records[0][1].get(name) for name in ("parameters", "num_elements")}
    for path, record in records:
        if other := next((name for name, value in network.items() if record.get(name) != value), None):
            raise UsageError(
                f"{path} has {other}={record.get(other)} and {paths[0]} has {network[other]}; give records of one network"
            )
    steps = [_step(path, record) for path, record in records]
    spreads = [spread for *_, spread in steps if spread is not None]
    return Measured(
        source=", ".join(map(str, paths)),
        device=str(records[0][1].get("accelerator") or records[0][1].get("processor")),
        parameters=int(records[0][1]["parameters"]),
        num_elements=int(records[0][1]["num_elements"]),
        steps=tuple((events, seconds) for events, seconds, _ in steps),
        spread=sum(spreads) / len(spreads) if spreads else None,
    )


def read_record(path: Path) -> dict[str, Any]:
    """A record of a benchmark."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(f"{path} cannot be read ({(error.strerror or 'unknown reason').lower()})") from None
    except ValueError:
        raise InputFileError(f"{path} is no JSON; give what `ringflow bench scaling --out FILE` wrote") from None
    kind = record.get("benchmark") if isinstance(record, dict) else None
    if kind not in _FIELDS or any(name not in record for name in ("parameters", "num_elements", *_FIELDS[kind])):
        raise InputFileError(f"{path} is no record of `ringflow bench train` or `ringflow bench scaling`")
    return record


def _step(path: Path, record: Mapping[str, Any]) -> tuple[float, float, float | None]:
    """Events, seconds and spread of the steps of one device."""
    if record["benchmark"] == "train":
        events = record["batch_elements"] // record["num_elements"]
        return events, events / record["train_events_per_second"], None
    row = row_of(record, "local", 1, path)
    return row["events_per_step"], row["seconds_per_step"], row["step_spread"]


def row_of(record: Mapping[str, Any], engine: str, workers: int, path: Path) -> dict[str, Any]:
    """One row of a record of `ringflow bench scaling`."""
    rows = [
        row for row in record["rows"] if (row["engine"], row["workers"]) == (engine, workers) and "error" not in row
    ]
    if not rows:
        raise InputFileError(f"{path} has no row {engine!r} of {workers} processes; measure again with --engines local")
    found: dict[str, Any] = rows[0]
    return found


def _known_hardware() -> dict[str, Any]:
    return tomllib.loads(_HARDWARE.read_text(encoding="utf-8"))


def hardware_names() -> list[str]:
    """Clusters that have a name."""
    return [name for name in _known_hardware() if name != _MEASURED]


def resolve(hardware: str, overrides: Sequence[str]) -> ScalingSettings:
    """The settings for a cluster: one of ours by name, or a TOML file with the fields of `hardware`."""
    known = {name: fields for name, fields in _known_hardware().items() if name != _MEASURED}
    if hardware not in known:
        path = Path(hardware)
        if not path.is_file():
            close = difflib.get_close_matches(hardware, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ";"
            raise UsageError(f"no cluster or TOML file {hardware!r}{hint} there are {', '.join(known)}")
        try:
            known[hardware] = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputFileError(f"{path} is no TOML file ({' '.join(str(error).split())})") from None
    given = [override(f"hardware.{name}", value) for name, value in known[hardware].items()]
    return ScalingSettings.resolve(None, [*given, *overrides])


def build(settings: ScalingSettings, measured: Measured) -> CostModel:
    """The model of a training like the measured one on a cluster."""
    work, upkeep, hardware = settings.work, settings.upkeep, settings.hardware
    per_event, per_step = fit_compute(measured.steps)
    fixed = work.global_batch == "fixed"
    return CostModel(
        Cluster(hardware.devices_per_node, *_links(hardware), contention=hardware.contention),
        Work(
            parameters=work.parameters or measured.parameters,
            seconds_per_event=_given(work.seconds_per_event, per_event / hardware.speed),
            seconds_per_step=_given(work.seconds_per_step, per_step / hardware.speed),
            events=_given(work.events, measured.largest * (_SHARED_BATCHES if fixed else 1)),
            fixed_global_batch=fixed,
            spread=_given(work.spread, _given(measured.spread, _ASSUMED_SPREAD)),
            overlap=work.overlap,
            backward=work.backward,
            bytes_per_parameter=work.bytes_per_parameter,
        ),
        Upkeep(
            loading=_given(upkeep.loading, math.inf),
            checkpoint_seconds=upkeep.checkpoint_seconds,
            checkpoint_interval=upkeep.checkpoint_interval,
            node_lifetime=3600.0 * upkeep.node_lifetime_hours,
            restart_seconds=upkeep.restart_seconds,
        ),
        work.algorithm,
    )


def _links(hardware: HardwareSettings) -> tuple[Link, Link]:
    return (
        Link(hardware.usable * hardware.inside_bandwidth, hardware.inside_latency),
        Link(hardware.usable * hardware.between_bandwidth, hardware.between_latency),
    )


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def check(path: Path) -> list[dict[str, Any]]:
    """What the model says of the processes of a record of `ringflow bench scaling`, against what they did.

    It is told the step of one process, how much processes that train apart slow each other down, and the link that sums of
    several sizes show; communication is not hidden on a CPU, where it needs the same cores.
    """
    record = read_record(path)
    if record["benchmark"] != "scaling":
        raise InputFileError(
            f"{path} is a record of `ringflow bench {record['benchmark']}`; give one of `bench scaling`"
        )
    alone = row_of(record, "local", 1, path)
    together = [row for row in record["rows"] if row["engine"] == "local" and row["workers"] > 1 and "error" not in row]
    if not together or not record["all_reduce"]:
        raise InputFileError(f"{path} has one process only; measure with --workers 1 2")
    largest = max(row["workers"] for row in together)
    link = fit_link(largest, [(found["bytes"], found["seconds"]) for found in record["all_reduce"]])
    model = CostModel(
        Cluster(largest, link, link, contention=_contention(record, alone, largest, path)),
        Work(
            parameters=record["parameters"],
            seconds_per_event=alone["seconds_per_step"] / alone["events_per_step"],
            events=alone["events_per_step"],
            spread=alone["step_spread"] or 0.0,
        ),
        algorithm="ring",
    )
    return [_compared(model, row) for row in sorted(together, key=lambda row: int(row["workers"]))]


def _contention(record: Mapping[str, Any], alone: Mapping[str, Any], largest: int, path: Path) -> float:
    apart = row_of(record, "apart", largest, path)
    return max(float(apart["seconds_per_step"] / alone["seconds_per_step"]), 1.0)


def _compared(model: CostModel, row: Mapping[str, Any]) -> dict[str, Any]:
    predicted, measured = model.throughput(row["workers"]), row["events_per_second"]
    return {
        "workers": row["workers"],
        "predicted_events_per_second": round(predicted, 2),
        "measured_events_per_second": measured,
        "error_percent": round(100.0 * (predicted / measured - 1.0), 2),
        "bandwidth": round(model.cluster.inside.bandwidth),
        "latency": model.cluster.inside.latency,
        "contention": round(model.cluster.contention, 4),
    }

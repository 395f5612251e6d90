"""The `ringflow bench` commands. Every command imports its work late."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from ringflow.base.options import Count, Detector, Device, Json, Workers
from ringflow.base.output import finish, show_summary

bench = App(name="bench", help="Time a part of the software on this machine.")


@bench.command(name="simulate")
def bench_simulate(
    *,
    events: Annotated[Count, Parameter(help="Number of events.")] = 200,
    workers: Workers = 1,
    detector: Detector = "clic",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Time the production of ttbar events: generator, detector, truth and writing."""
    from ringflow.bench import simulate as timing

    show_summary("Simulation speed", timing.run(events, workers, detector, device), as_json=as_json)
    finish(None, f"ringflow bench simulate --workers {workers + 1} --json")


@bench.command(name="baseline")
def bench_baseline(
    *,
    events: Annotated[Count, Parameter(help="Number of ttbar events.")] = 200,
    detector: Detector = "clic",
    as_json: Json = False,
) -> None:
    """Time the rule-based reconstruction on one core, and how its time grows with the number of particles."""
    from ringflow.bench import baseline as timing

    show_summary("Speed of the rules", timing.run(events, detector), as_json=as_json)
    finish(None, "ringflow evaluate data/ttbar")

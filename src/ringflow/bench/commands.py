"""The `ringflow bench` commands. Every command imports its work late."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from ringflow.base.options import Count, Detector, Device, Json, Several, Workers
from ringflow.base.output import finish, print_json, show_summary

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


@bench.command(name="model")
def bench_model(
    *,
    backbones: Annotated[
        tuple[str, ...], Several, Parameter(help="graph, kernel, attention, mlp, shipped; all unless given.")
    ] = (),
    elements: Annotated[
        tuple[Count, ...], Several, Parameter(help="Elements per event; 128 to 50,000 unless given.")
    ] = (),
    as_json: Json = False,
) -> None:
    """Time the networks event by event on two threads, with their memory, and how both grow with the number of elements."""
    from ringflow.base.log import say, table
    from ringflow.bench import model as timing

    result = timing.run(backbones, elements)
    if as_json:
        print_json(result)
    elif result["rows"]:
        table("Networks, one event at a time", list(result["rows"][0]), [list(row.values()) for row in result["rows"]])
        for name, slope in result["exponents"].items():
            say(f"{name}: processor time grows with elements to the power {slope:.2f}")
    for note in result["notes"]:
        say(note)
    finish(None, "ringflow bench model --backbones graph kernel --json")

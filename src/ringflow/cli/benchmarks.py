"""`ringflow bench` and `ringflow scaling-model`. Every command imports its work late."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App

from ringflow.base import options
from ringflow.base.log import say
from ringflow.base.options import Count, Counts, Flag, Json, Paths, Positive, Texts, about
from ringflow.base.output import finish, print_json, show_or_print, show_summary, show_table

ModelOrRun = Annotated[Path | None, about("Model file or folder of a run instead of what comes with us.")]
Strategy = Literal["replicate", "shard", "tensor", "pipeline"]
Record = Annotated[Path | None, about("Write the result into this JSON file, too.")]
Seconds = Annotated[Positive, about("How long to time the training.")]

bench = App(name="bench", help="Time a part of the software on this machine.")


@bench.command(name="simulate")
def bench_simulate(
    *,
    events: Annotated[Count, about("Number of events.")] = 200,
    workers: options.Workers = 1,
    detector: options.Detector = "clic",
    device: options.Device = "cpu",
    as_json: Json = False,
) -> None:
    """Time the production of ttbar events: generator, detector, truth and writing."""
    from ringflow.bench import events as timing

    show_summary("Simulation speed", timing.simulate(events, workers, detector, device), as_json=as_json)
    finish(None, f"ringflow bench simulate --workers {workers + 1} --json")


@bench.command(name="baseline")
def bench_baseline(
    *,
    events: Annotated[Count, about("Number of ttbar events.")] = 200,
    detector: options.Detector = "clic",
    constants: options.Constants | None = None,
    as_json: Json = False,
) -> None:
    """Time the rule-based reconstruction on one core, and how its time grows with the number of particles."""
    from ringflow.bench import events as timing

    show_summary("Speed of the rules", timing.baseline(events, detector, constants), as_json=as_json)
    finish(None, "ringflow bench model")


@bench.command(name="model")
def bench_model(
    *,
    backbones: Annotated[Texts, about("graph, kernel, attention, mlp, shipped; all unless given.")] = (),
    elements: Annotated[Counts, about("Elements per event; 128 to 50,000 unless given.")] = (),
    as_json: Json = False,
) -> None:
    """Time the networks event by event on two threads, with their memory, and how both grow with the number of elements."""
    from ringflow.bench.events import time_models

    result = time_models(backbones, elements)
    if as_json:
        print_json(result)
    else:
        show_table("Networks, one event at a time", result["rows"])
        for name, slope in result["exponents"].items():
            say(f"{name}: processor time grows with elements to the power {slope:.2f}")
    for note in result["notes"]:
        say(note)
    finish(None, "ringflow bench model --backbones graph kernel --json")


@bench.command(name="infer")
def bench_infer(
    *,
    engines: Annotated[Texts, about("torch, onnx, onnx-int8; all unless given.")] = (),
    elements: Annotated[Counts, about("Elements per event; 64 to 8,192 unless given.")] = (),
    events: Annotated[Count, about("Simulated events that are reconstructed from file to file.")] = 200,
    model: ModelOrRun = None,
    as_json: Json = False,
) -> None:
    """Time a network event by event in torch, in ONNX and in int8, on two threads, and from file to file."""
    from ringflow.bench.events import time_engines

    result = time_engines(engines, elements, events, model)
    if as_json:
        print_json(result)
    else:
        show_table("Engines, one event at a time", result["rows"])
        for name, speed in result["file_to_file_events_per_second"].items():
            say(f"{name}: {speed:.1f} events per second from file to file")
    finish(None, "ringflow reconstruct --help")


@bench.command(name="serve")
def bench_serve(
    *,
    clients: Annotated[Counts, about("Clients that ask at a time; 1, 8 and 64 unless given.")] = (),
    seconds: Annotated[Positive, about("How long they ask.")] = 60.0,
    requests: Annotated[Count | None, about("Ask so many times instead.")] = None,
    model: ModelOrRun = None,
    engine: Annotated[Literal["torch", "onnx"], about("What computes.")] = "onnx",
    threads: Annotated[Count, about("Threads of the server that compute.")] = 2,
    as_json: Json = False,
) -> int:
    """Time a server on this machine under load, and compare every answer with the one computed without it."""
    from ringflow.bench import serve as timing

    result = timing.run(clients, seconds, requests, model, engine, threads)
    rows = result["rows"]
    show_or_print(result, lambda _: show_table("Server on loopback", rows), as_json=as_json)
    bad = sum(row["wrong"] + row["failed"] for row in rows)
    say(f"{sum(row['requests'] for row in rows)} requests, {bad} of them answered wrong or not at all")
    finish(None, "ringflow serve")
    return int(bad > 0)


@bench.command(name="train")
def bench_train(
    *,
    backbone: Annotated[str, about("attention, kernel, graph or mlp.")] = "attention",
    width: Annotated[Count, about("Numbers per element inside the network.")] = 128,
    layers: Annotated[Count, about("Layers of the backbone.")] = 6,
    heads: Annotated[Count, about("Heads of a layer.")] = 4,
    hidden: Annotated[Count, about("Width inside a feed-forward part.")] = 512,
    elements: Annotated[Count, about("Elements per event.")] = 128,
    batch_elements: Annotated[Count, about("Elements per batch.")] = 16_384,
    seconds: Seconds = 10.0,
    device: options.TorchDevice = "auto",
    as_json: Json = False,
) -> None:
    """Time the training of a network on random elements, its inference, and the making of its batches."""
    from ringflow.models.settings import ModelSettings

    shape = {"backbone": backbone, "width": width, "layers": layers, "heads": heads, "hidden": hidden}
    settings = ModelSettings.resolve(None, [f"{name}={value}" for name, value in shape.items()])

    from ringflow.bench.training import time_training

    result = time_training(settings, elements, batch_elements, seconds, device)
    shown = result if as_json else {name: value for name, value in result.items() if name != "settings"}
    show_summary("Training speed", shown, as_json=as_json)
    finish(None, "ringflow bench scaling --out scaling.json")


@bench.command(name="scaling")
def bench_scaling(
    preset: Annotated[str, about("Preset or settings file of the training.")] = "clic_small",
    /,
    *overrides: options.Overrides,
    engines: Annotated[Texts, about("local, ray, spark, mpi, slurm; all unless given.")] = (),
    workers: Annotated[Counts, about("Numbers of processes; 1 and 2 unless given.")] = (),
    ring: Annotated[Counts, about("Processes whose bytes are counted; 2, 4 and 8 unless given.")] = (),
    strategy: Annotated[Strategy | None, about("How processes share the network, as compute.strategy.")] = None,
    elements: Annotated[Count, about("Elements per event.")] = 128,
    seconds: Seconds = 10.0,
    rounds: Annotated[Count, about("Rounds, of which the fastest counts.")] = 3,
    threads: Annotated[Count, about("Threads of a process that compute.")] = 1,
    address: Annotated[str | None, about("Ray cluster; one is started here unless given.")] = None,
    master: Annotated[str | None, about("Spark cluster; one is started here unless given.")] = None,
    apart: Annotated[Flag, about("In processes started together: train apart, with no word to each other.")] = False,
    out: Record = None,
    as_json: Json = False,
) -> None:
    """Time the training of several processes against that of one, by what starts them; count the bytes they send.

    Started by `ringflow launch`, or by anything else that starts processes together, it times those.
    """
    if "=" in preset:  # no preset: an override comes first
        overrides, preset = (preset, *overrides), "clic_small"
    from ringflow.base.log import speaks
    from ringflow.bench import scaling as timing
    from ringflow.bench import write_record
    from ringflow.train.settings import TrainSettings

    more = [] if strategy is None else [f"compute.strategy={strategy}"]
    settings = TrainSettings.resolve(preset, [*overrides, *more])
    plan = timing.ScalingPlan(
        engines, workers or (1, 2), ring or (2, 4, 8), elements, seconds, rounds, threads, address, master
    )
    result = timing.run(settings, plan, apart=apart)
    if out is not None and speaks():  # of several processes the first
        write_record(result, out)
    timing.show(result, as_json=as_json)
    finish(out, f"ringflow scaling-model --check {out}" if out else "ringflow bench scaling --out scaling.json")


@bench.command(name="loader")
def bench_loader(
    dataset: options.DatasetFolder,
    /,
    *overrides: options.Overrides,
    preset: Annotated[str, about("Preset or settings file of the training to keep up with.")] = "clic_tiny",
    seconds: Seconds = 10.0,
    as_json: Json = False,
) -> None:
    """Time the loading of a dataset, and compare it with what a training on the CPU consumes."""
    from ringflow.bench.training import time_loading

    result = time_loading(dataset, preset, overrides, seconds)
    show_summary("Loading and training", result, as_json=as_json)
    ratio = result["load_over_train"]
    say(f"loading over training: {ratio['first_epoch']:.1f} in the first epoch, {ratio['later_epochs']:.1f} later")
    finish(None, f"ringflow train {preset} data={dataset} --out runs/first")


@bench.command(name="tune")
def bench_tune(
    *,
    study: Annotated[Path | None, about("Study to replay; trainings that come with ringflow unless given.")] = None,
    random: Annotated[Paths, about("Finished studies with random search and no scheduler.")] = (),
    asha_tpe: Annotated[Paths, about("As many finished studies with TPE and ASHA to compare them with.")] = (),
    real: Annotated[Path | None, about("Train three studies of each kind in this folder; an hour or more.")] = None,
    workers: Annotated[Count | None, about("Processes of --real; one per accelerator or core unless given.")] = None,
    out: Record = None,
    as_json: Json = False,
) -> None:
    """Compare schedulers in replay and time the driver; with --real, compare ASHA and TPE with random search."""
    from ringflow.bench import tune as timing
    from ringflow.bench import write_record

    result = timing.run(study=study, random=random, asha=asha_tpe, real=real, workers=workers)
    if out is not None:
        write_record(result, out)
    show_or_print(result, timing.show, as_json=as_json)
    finish(out, "ringflow tune replay --out replay")


def scaling_model(
    hardware: Annotated[str, about("Cluster: h200, h200_one_port, jupiter, vega, ethernet, or a TOML file.")] = "h200",
    /,
    *overrides: options.Overrides,
    measured: Annotated[Paths, about("Records of `ringflow bench train` or `bench scaling` to start from.")] = (),
    devices: Annotated[Counts, about("Numbers of devices; 1, 2, 4 ... 4,096 unless given.")] = (),
    check: Annotated[Path | None, about("Record of `ringflow bench scaling` to compare the model with.")] = None,
    out: Annotated[Path | None, about("Folder for a page with figures.")] = None,
    as_json: Json = False,
) -> None:
    """Predict throughput and efficiency of a data-parallel training on many devices, and where the time of a step goes.

    Settings are `hardware.`, `work.` and `upkeep.`: `work.algorithm=ring work.global_batch=fixed upkeep.loading=1e6`.
    """
    if "=" in hardware:  # no cluster: an override comes first
        overrides, hardware = (hardware, *overrides), "h200"
    from ringflow.launch.scaling import predict, show

    result = predict(hardware, overrides, measured=measured, devices=devices, check=check)
    page = None
    if out is not None:
        from ringflow.bench.scaling_page import write_page

        page = write_page(result, out)
    show_or_print(result, show, as_json=as_json)
    again = ("scaling-model", hardware, *overrides, "--out", "scaling")
    finish(page, "ringflow", *(again if out is None else ("bench", "scaling", "--out", "scaling.json")))

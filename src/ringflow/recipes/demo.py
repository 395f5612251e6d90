"""The first thing to run: collisions to particles to a report, in two minutes; with training from scratch in ten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.config import override
from ringflow.base.log import say
from ringflow.data.check import check
from ringflow.recipes.evaluate import evaluate, report_page
from ringflow.recipes.reconstruct import reconstruct
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings

#: Samples that are reconstructed, and events of each.
SAMPLES = ("ttbar", "zh")
EVENTS = 300
WORKERS = 2
#: Events of the page to look at: a few megabytes.
SHOWN = 5
#: What `--train` learns from: other events, by their seed.
LEARNED, LEARNED_EVENTS, LEARNED_SEED = "ttbar", 2500, 2
#: The network, and what it is compared with: the same without any exchange between elements.
PRESET, BACKBONES = "clic_tiny", ("attention", "mlp")


def demo(out: Path, *, training: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Simulate, check, reconstruct and report into `out`; what is already there is kept unless `overwrite`.

    It is `ok` if every gate passes and a network that was trained beats the one without exchange between elements.
    """
    from ringflow.display.source import open_source
    from ringflow.display.static import write_static

    paths = {name: out / name for name in SAMPLES}
    datasets: dict[str, Any] = {}
    for sample, path in paths.items():
        summary = simulate(_settings(sample, EVENTS, seed=1), path, overwrite=overwrite)
        datasets[sample] = {"summary": summary, "gates": check(path)}
    runs = _train(out, overwrite=overwrite) if training else {}
    files = [out / "candidates" / sample / f"{backbone}.parquet" for backbone in runs for sample in paths]
    for file in files:
        reconstruct(paths[file.parent.name], file, model=Path(runs[file.stem]["model"]), overwrite=True)
    report = out / "report"
    say("reconstructing them by network and by rules, and comparing both with the truth")
    evaluation = evaluate(list(paths.values()), candidates=files, out=report, workers=WORKERS)
    beaten = not runs or _beaten(evaluation, *BACKBONES)
    return {
        "datasets": datasets,
        "training": runs,
        "evaluation": evaluation,
        "report": str(report_page(report)),
        "events": str(write_static(open_source(paths[SAMPLES[0]], events=SHOWN), range(SHOWN), out / "events")),
        "ok": beaten and all(gate["ok"] for made in datasets.values() for gate in made["gates"]),
    }


def _settings(sample: str, events: int, seed: int, more: Sequence[str] = ()) -> SimulateSettings:
    asked = [f"generator.sample={sample}", f"generator.seed={seed}", f"production.events={events}"]
    spread = ["production.events_per_shard=100", f"production.workers={WORKERS}"]
    return SimulateSettings.resolve(None, [*asked, *spread, *more])


def _train(out: Path, *, overwrite: bool) -> dict[str, dict[str, Any]]:
    """Both networks, trained in the same way."""
    from ringflow.train.run import train
    from ringflow.train.settings import TrainSettings

    dataset = out / "learned"
    simulate(
        _settings(LEARNED, LEARNED_EVENTS, LEARNED_SEED, ["production.keep_hits=false"]), dataset, overwrite=overwrite
    )
    runs = {}
    for backbone in BACKBONES:
        say(f"training {backbone}")
        asked = [override("data", str(dataset)), f"model.backbone={backbone}", "compute.device=cpu"]
        runs[backbone] = train(TrainSettings.resolve(PRESET, asked), out / "runs" / backbone, overwrite=overwrite)
    return runs


def _beaten(evaluation: Mapping[str, Any], better: str, worse: str) -> bool:
    """Whether one has the narrower jets in every sample."""
    entries = [entry["reconstructions"] for entry in evaluation["samples"].values()]
    widths = [[entry[name]["jet_iqr_over_median"]["value"] for name in (better, worse)] for entry in entries]
    return all(first is not None and (second is None or first < second) for first, second in widths)

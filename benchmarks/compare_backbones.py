"""Train the four backbones on the same events, for the same number of presentations, at about the same number of parameters.

    python benchmarks/compare_backbones.py --out comparison --events 1200000

One production of simulated events (ttbar and qq, half of each) is made first and stays on the device; then every backbone is
trained with the ordinary trainer and evaluated on events of a third seed stream. Writes `compare_backbones.json`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ringflow.bench.training import KeptChunk
from ringflow.train.data import open_training_data
from ringflow.train.device import choose_device, hardware
from ringflow.train.settings import TrainSettings
from ringflow.train.trainer import Trainer

#: What differs from the preset: without elements that talk, the parameters go into more layers.
BACKBONES = {
    "attention": ["model.backbone=attention"],
    "kernel": ["model.backbone=kernel"],
    "graph": ["model.backbone=graph", "model.hidden=672"],
    "mlp": ["model.backbone=mlp", "model.layers=5"],
}


def main() -> None:
    """Make the events, train, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--events", type=int, default=1_200_000, help="event presentations per backbone")
    parser.add_argument("--preset", default="clic_base")
    parser.add_argument("overrides", nargs="*", help="settings as section.field=value")
    arguments = parser.parse_args()
    common = [*arguments.overrides, f"length.events={arguments.events}", f"length.validate_every={arguments.events}"]
    settings = TrainSettings.resolve(arguments.preset, common)
    device = choose_device(settings.compute.device)
    rows: list[dict[str, Any]] = []
    with open_training_data(settings, device, arguments.out) as data:
        source = KeptChunk(data.sources[0].chunk(0))
        for name, special in BACKBONES.items():
            torch._dynamo.reset()
            chosen = TrainSettings.resolve(arguments.preset, [*common, *special])
            folder = arguments.out / name
            folder.mkdir(parents=True, exist_ok=True)
            given = replace(data, sources={0: source}, card={"detector": chosen.detector})
            result = Trainer(chosen, given, folder).fit()
            rows.append({"backbone": name, **_row(result, chosen)})
            print(json.dumps(rows[-1]), flush=True)
            record = {"benchmark": "compare_backbones", "events": arguments.events, "rows": rows}
            record |= {"settings": settings.model_dump(mode="json"), **hardware(device.type)}
            (arguments.out / "compare_backbones.json").write_text(json.dumps(record, indent=1) + "\n")


def _row(result: dict[str, Any], settings: TrainSettings) -> dict[str, Any]:
    from ringflow.models.model import Model

    return {
        "parameters": Model(settings.model).num_parameters,
        "seconds": round(result["seconds"], 1),
        "events_per_second": round(result["events_per_second"]),
        "padding_share": result["padding_share"],
        "metrics": result["best"],
    }


if __name__ == "__main__":
    main()

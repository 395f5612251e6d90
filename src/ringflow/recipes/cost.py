"""What a smaller network gives up and gains: a row per file with size, speed, and the physics on the same events."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.base.log import say
from ringflow.data.read import Dataset
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.reconstruct import reconstruct
from ringflow.recipes.reconstructions import has_truth

_FIGURES = ("jet_median", "jet_iqr_over_median", "particle_f1")


def cost(files: Mapping[str, Path], dataset: Path, events: int, key: str) -> list[dict[str, Any]]:
    """Rows of the networks by name, which stands in the column `key`; no physics where a dataset has no truth."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="ringflow-cost-") as folder:
        made = {name: Path(folder) / f"{name}.parquet" for name in files}
        for name, file in files.items():
            done = reconstruct(dataset, made[name], model=file, events=events)
            rows.append(
                {
                    key: name,
                    "bytes": file.stat().st_size,
                    "events_per_second": done["events_per_second"],
                    "events": done["events"],
                }
            )
        if not has_truth(Dataset(dataset)):
            say(f"{dataset} has no truth: what it costs in physics is not known")
            return rows
        results = evaluate([dataset], candidates=list(made.values()), reconstructions=list(files), events=events)
    figures = next(iter(results["samples"].values()))["reconstructions"]
    return [{**row, **{name: figures[row[key]][name]["value"] for name in _FIGURES}} for row in rows]

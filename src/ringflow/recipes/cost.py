"""What a smaller network gives up and gains: a row per file with size, speed, and the physics on the same events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ringflow.base.log import say, table
from ringflow.base.rundir import temporary_folder
from ringflow.base.words import size_in_words
from ringflow.data.read import Dataset, has_truth
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.reconstruct import reconstruct

_FIGURES = {"jet_median": "jet median", "jet_iqr_over_median": "jet width", "particle_f1": "F1"}
_COLUMNS = {"bytes": "size", "events_per_second": "events per second", **_FIGURES}


def cost(files: Mapping[str, Path], dataset: Path, events: int, key: str) -> list[dict[str, Any]]:
    """Rows of the networks by name, which stands in the column `key`; no physics where a dataset has no truth."""
    rows = []
    with temporary_folder("cost") as folder:
        made = {name: folder / f"{name}.parquet" for name in files}
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


def show_cost(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """The rows for people."""
    table(
        title, [_COLUMNS.get(name, name) for name in rows[0]], [[_word(*cell) for cell in row.items()] for row in rows]
    )


def _word(name: str, value: Any) -> str:
    if name == "bytes":
        return size_in_words(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

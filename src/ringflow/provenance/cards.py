"""The card of a network in the conventions of the Hugging Face Hub: README.md with YAML on top, made from the run's records.

Every number is one that the run wrote down itself; what it did not measure is not on the card.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from ringflow.provenance.node import Node

#: Figures of a validation that the card shows, and what people call them.
FIGURES = {
    "jet_iqr_over_median": "width of jets, IQR / median",
    "jet_median": "median of the jet response",
    "jet_matched_fraction": "jets found",
    "met_iqr_over_median": "width of the missing pT, IQR / median",
    "visible_energy_resolution": "width of the visible energy, IQR / median",
    "particle_f1": "particle F1",
    "particle_efficiency": "particle efficiency",
    "particle_fake_rate": "particle fake rate",
    "loss": "loss",
}
_TAGS = ("particle-physics", "particle-flow", "calorimetry")
_TASK = {"type": "particle-flow", "name": "Particle flow"}


def model_card(run: Node, header: Mapping[str, Any], license: str | None = None) -> str:
    """Markdown of a run and of the header of its best network; equal records give equal cards."""
    card = header["card"]
    lines = [*_front_matter(run, card, license), *_overview(run, header), *_figures(card), *_use(), *_origin(run, card)]
    return "\n".join(lines) + "\n"


def measured(card: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Figures of the validation by sample; of one sample, or where samples are not told apart, those of all events."""
    found: dict[str, dict[str, float]] = {}
    for name, value in (card.get("metrics") or {}).items():
        figure, slash, sample = name.partition("/")
        if figure in FIGURES and isinstance(value, int | float):
            found.setdefault(sample if slash else "", {})[figure] = float(value)
    together = found.pop("", {})
    return found or ({_only_sample(card): together} if together else {})


def _only_sample(card: Mapping[str, Any]) -> str:
    """Name of the sample it was trained on; `all` if there are several, or none is told."""
    data = card.get("data")
    told = data[0] if isinstance(data, list) and len(data) == 1 else {}
    return str(told.get("sample") or told.get("simulated") or "all")


def _front_matter(run: Node, card: Mapping[str, Any], license: str | None) -> Iterator[str]:
    data = [entry for entry in card.get("data") or () if isinstance(entry, Mapping)]
    named = [str(entry["dataset"]) for entry in data if "dataset" in entry]
    by_sample = measured(card)
    used = [name for name in FIGURES if any(name in figures for figures in by_sample.values())]
    yield "---"
    yield "library_name: ringflow"
    if license is not None:
        yield f"license: {license.lower()}"
    yield f"tags: {json.dumps(_TAGS)}"
    if named:
        yield f"datasets: {json.dumps(named)}"
    if used:
        yield f"metrics: {json.dumps(used)}"
        results = [_result(sample, figures) for sample, figures in by_sample.items()]
        index = json.dumps([{"name": run.name, "results": results}], indent=1, ensure_ascii=False)
        yield "model-index:"  # JSON is YAML, and no value in it can be read as something else
        yield textwrap.indent(index, "  ")
    yield "---"
    yield ""


def _result(sample: str, figures: Mapping[str, float]) -> dict[str, Any]:
    metrics = [
        {"type": name, "name": FIGURES[name], "value": value} for name, value in figures.items() if name in FIGURES
    ]
    dataset = {"type": sample, "name": f"{sample}, validation events", "split": "validation"}
    return {"task": _TASK, "dataset": dataset, "metrics": metrics}


def _overview(run: Node, header: Mapping[str, Any]) -> Iterator[str]:
    settings, card = header.get("settings") or {}, header["card"]
    detector = f" for the `{card['detector']}` detector" if card.get("detector") else ""
    yield f"# {run.name}"
    yield ""
    yield f"Particle flow{detector}: from tracks and {settings.get('calorimeter', 'cluster')}s to particles."
    yield ""
    facts = {
        "backbone": settings.get("backbone"),
        "width": settings.get("width"),
        "layers": settings.get("layers"),
        "parameters": card.get("parameters"),
        "threshold": header.get("threshold"),
    }
    yield from (f"- {name}: {value}" for name, value in facts.items() if value is not None)
    yield ""


def _figures(card: Mapping[str, Any]) -> Iterator[str]:
    by_sample = measured(card)
    if not by_sample:
        return
    yield "## Figures"
    yield ""
    yield "Of the validation events of its own training, by which the network was chosen; no test on other events."
    yield ""
    yield f"| figure | {' | '.join(by_sample)} |"
    yield "|---" * (1 + len(by_sample)) + "|"
    for name, words in FIGURES.items():
        values = [figures.get(name) for figures in by_sample.values()]
        if any(value is not None for value in values):
            yield f"| {words} | " + " | ".join("" if value is None else f"{value:.4g}" for value in values) + " |"
    yield ""


def _use() -> Iterator[str]:
    yield "## Use"
    yield ""
    yield "```"
    yield "ringflow reconstruct DATASET --model model.safetensors --out particles.parquet"
    yield "ringflow evaluate DATASET --model model.safetensors --out report"
    yield "```"
    yield ""


def _origin(run: Node, card: Mapping[str, Any]) -> Iterator[str]:
    facts, settings = run.facts, run.facts.get("settings") or {}
    code, training = facts.get("code") or {}, card.get("training") or {}
    yield "## Origin"
    yield ""
    told = {
        "data": settings.get("data"),
        "seed": settings.get("seed"),
        "events shown": training.get("events"),
        "steps": training.get("steps"),
        "ringflow": facts.get("ringflow"),
        "commit": f"{code['commit']}{' (source changed since)' if code.get('dirty') else ''}" if code else None,
        "torch": (facts.get("packages") or {}).get("torch"),
    }
    yield from (f"- {name}: {value}" for name, value in told.items() if value is not None)
    for source in run.sources:
        if source.node.sha256:
            yield f"- {source.how} {source.node.kind} {source.node.name}: sha256 {source.node.sha256}"
    yield ""
    yield "All settings are in `settings.toml`; `ringflow trace` verifies the rest, `ringflow reproduce` repeats it."

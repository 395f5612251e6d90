"""The reconstructions that can be made of a dataset on the spot, by name: the truth itself, perfect association, the rules.

Each turns a block of events into candidates. What a dataset lacks the columns for is not available, and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ringflow.base.errors import RingflowError
from ringflow.data.manifest import Columns
from ringflow.data.read import Dataset, select_columns
from ringflow.evaluate.candidates import TRUTH_COLUMNS
from ringflow.event.block import Collection, EventBlock

Reconstruct = Callable[[EventBlock], Collection]

#: Collections each reconstruction needs, in the order they are shown; `candidate` is what came with the dataset.
NEEDS = {
    "target": ("particle", "target"),
    "perfect": ("particle", "target", "track", "cluster", "cluster_link"),
    "baseline": ("track", "cluster"),
    "candidate": ("candidate",),
}


def available(dataset: Dataset) -> list[str]:
    """Names of the reconstructions of a dataset, best known first."""
    reasons = missing_reasons(dataset)
    return [name for name in NEEDS if name not in reasons and (name != "candidate" or "candidate" in dataset.columns)]


def missing_reasons(dataset: Dataset) -> dict[str, str]:
    """Why a reconstruction is not available, by name."""
    reasons = {}
    for name, needs in NEEDS.items():
        if missing := [collection for collection in needs if collection not in dataset.columns]:
            if name != "candidate":
                reasons[name] = f"the dataset has no {missing[0]!r}"
        elif name in ("perfect", "baseline"):
            try:
                _constants(dataset.manifest.detector)
            except RingflowError as error:
                reasons[name] = str(error)
    if not has_truth(dataset) and "target" not in reasons:
        reasons["target"] = "the truth of the dataset is incomplete"
    return reasons


def has_truth(dataset: Dataset) -> bool:
    """Whether there is something to compare with."""
    present = {f"{collection}_{column}" for collection, columns in dataset.columns.items() for column in columns}
    return set(TRUTH_COLUMNS) <= present


def columns_for(dataset: Dataset, names: tuple[str, ...]) -> Columns:
    """What has to be read to reconstruct and to compare."""
    wanted: list[str] = list(TRUTH_COLUMNS) if has_truth(dataset) else []
    if {"perfect", "baseline"} & set(names):
        return dataset.columns
    return select_columns(dataset.columns, [*wanted, *(["candidate"] if "candidate" in names else [])])


def open_reconstruction(name: str, detector: str) -> Reconstruct:
    """The function that makes the candidates of a block."""
    if name == "target":
        return _targets
    if name == "candidate":
        return lambda block: block["candidate"]
    constants = _constants(detector)
    if name == "perfect":
        from ringflow.baseline.perfect import perfect_block

        return lambda block: perfect_block(block, constants)
    from ringflow.baseline.rules import reconstruct_block

    return lambda block: reconstruct_block(block, constants)


def _targets(block: EventBlock) -> Collection:
    return block["target"]


def _constants(detector: str) -> Any:
    from ringflow.baseline.constants import load_constants

    return load_constants(detector)

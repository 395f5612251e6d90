"""The reconstructions that can be made of a dataset on the spot, by name: the truth itself, perfect association, the rules,
the network.

Each turns a block of events into candidates. What a dataset lacks the columns for is not available, and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from ringflow.base.errors import DatasetError, RingflowError
from ringflow.baseline.rules import load_constants
from ringflow.data.manifest import Columns
from ringflow.data.read import TRUTH_COLUMNS, Dataset, has_truth, select_columns
from ringflow.event.block import Collection, EventBlock
from ringflow.infer import shipped

if TYPE_CHECKING:
    from ringflow.infer.runtime import Reconstructor

Reconstruct = Callable[[EventBlock], Collection]

#: Collections each reconstruction needs, in the order they are shown; `candidate` is what came with the dataset.
NEEDS = {
    "target": ("particle", "target"),
    "perfect": ("particle", "target", "track", "cluster", "cluster_link"),
    "baseline": ("track", "cluster"),
    "model": ("track",),
    "candidate": ("candidate",),
}


def available(dataset: Dataset, model: Path | None = None, constants: str | None = None) -> list[str]:
    """Names of the reconstructions of a dataset, best known first; `model` is a file to use instead of the shipped one,
    `constants` of the rules instead of those of the detector."""
    reasons = missing_reasons(dataset, model, constants)
    return [name for name in NEEDS if name not in reasons and (name != "candidate" or "candidate" in dataset.columns)]


def missing_reasons(dataset: Dataset, model: Path | None = None, constants: str | None = None) -> dict[str, str]:
    """Why a reconstruction is not available, by name. Constants that were named and cannot be read are an error instead."""
    if constants is not None:
        load_constants(constants)
    reasons = {}
    for name, needs in NEEDS.items():
        if missing := [collection for collection in needs if collection not in dataset.columns]:
            if name != "candidate":
                reasons[name] = f"the dataset has no {missing[0]!r}"
        elif name in ("perfect", "baseline"):
            try:
                load_constants(constants or dataset.manifest.detector)
            except RingflowError as error:
                reasons[name] = str(error)
        elif name == "model" and (reason := _no_model(dataset, model)):
            reasons[name] = reason
    if not has_truth(dataset) and "target" not in reasons:
        reasons["target"] = "the truth of the dataset is incomplete"
    return reasons


def _no_model(dataset: Dataset, model: Path | None) -> str | None:
    """Why the network cannot reconstruct a dataset. A file that was named and is broken is an error instead."""
    if model is None and not shipped.is_there():
        return "no model comes with this installation; give --model FILE"
    from ringflow.elements.features import needed_columns

    try:
        needed_columns(open_model(model, dataset.manifest.detector).kinds, dataset.columns)
    except DatasetError as error:
        return str(error)
    return None


def columns_for(dataset: Dataset, names: tuple[str, ...], model: Path | None = None) -> Columns:
    """What has to be read to reconstruct and to compare."""
    wanted: list[str] = list(TRUTH_COLUMNS) if has_truth(dataset) else []
    if {"perfect", "baseline"} & set(names):
        return dataset.columns
    if "model" in names:
        wanted += open_model(model, dataset.manifest.detector).kinds
    return select_columns(dataset.columns, [*wanted, *(["candidate"] if "candidate" in names else [])])


def open_reconstruction(
    name: str, detector: str, model: Path | None = None, constants: str | None = None
) -> Reconstruct:
    """The function that makes the candidates of a block."""
    if name in ("target", "candidate"):
        return lambda block: block[name]
    if name == "model":
        return partial(_on_one_thread, open_model(model, detector))
    known = load_constants(constants or detector)
    if name == "perfect":
        from ringflow.baseline.perfect import perfect_block

        return partial(perfect_block, constants=known)
    from ringflow.baseline.rules import reconstruct_block

    return partial(reconstruct_block, constants=known)


def open_model(model: Path | None, detector: str | None = None) -> Reconstructor:
    """The network of a file, or the one that comes with the package, for events of a detector; opened once per process and
    state of the file."""
    path = model or shipped.MODEL
    return _open(model, path.stat().st_mtime_ns if path.is_file() else 0, detector)


@cache
def _open(model: Path | None, changed: int, detector: str | None) -> Reconstructor:
    from ringflow.infer.session import open_session

    return open_session(model, detector=detector)


def _on_one_thread(session: Reconstructor, block: EventBlock) -> Collection:
    """Sums in another order are other numbers: figures must not depend on how many workers share the cores."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return session.reconstruct(block)
    finally:
        torch.set_num_threads(threads)

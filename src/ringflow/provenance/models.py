"""The way back from a network: the file it was exported from, the run that trained it, its settings, code and data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringflow.base.errors import RingflowError
from ringflow.base.rundir import SETTINGS_FILE
from ringflow.infer.shipped import MODEL_FILE
from ringflow.provenance.datasets import Datasets
from ringflow.provenance.headers import json_file, model_header, onnx_header, weights_hash
from ringflow.provenance.node import Node
from ringflow.provenance.places import Places, sha256_of
from ringflow.train.runs import RUN_FILE

#: Before names of samples that are simulated while training.
_SIMULATED = "sim:"
#: What may be different when a training goes on, or leaves no trace in a network.
_FREE, _FREE_OF_SOURCE = ("length", "compute", "profile"), ("workers", "lanes")
_RUN_FACTS = ("ringflow", "code", "python", "platform", "packages", "seeds", "machine", "earlier")


class Models:
    """Nodes of networks and of the runs that made them."""

    def __init__(self, places: Places, datasets: Datasets) -> None:
        self._places, self._datasets = places, datasets

    def recorded(self, described: Mapping[str, Any], card: Mapping[str, Any] | None) -> Node:
        """The network that a file says it was made with; what is not at hand is known by its card, if that was kept."""
        name, sha256 = str(described["file"]), str(described["sha256"])
        found = self._places.file(sha256, size=described.get("bytes"), name=name)
        if found is not None:
            return self.at(found, "agrees")
        node = Node("model", name, "missing", dict(described), sha256=sha256, note="not at hand")
        self._trained(node, card, None)
        return node

    def at(self, path: Path, state: Any = "given") -> Node:
        """The network in a file."""
        if path.suffix == ".onnx":
            return self._exported(path, state)
        header = model_header(path)
        card, settings = header["card"], header.get("settings", {})
        facts = {
            "backbone": settings.get("backbone"),
            "calorimeter": settings.get("calorimeter"),
            "threshold": header.get("threshold"),
            **{
                name: card[name] for name in ("detector", "parameters", "training", "pruned", "metrics") if name in card
            },
        }
        node = Node("model", path.name, state, facts, path, sha256_of(path))
        if "pruned_from" in card:
            node.came_from("pruned from", self.recorded(card["pruned_from"], card))
        else:
            self._trained(node, card, path.parent)
        return node

    def _exported(self, path: Path, state: Any) -> Node:
        told = onnx_header(path)
        facts = {"format": "ONNX", "precision": told.precision, "threshold": told.threshold, "detector": told.detector}
        facts |= {"ringflow": told.ringflow, "weights_sha256": told.weights_sha256}
        node = Node("model", path.name, state, facts, path, sha256_of(path))
        node.came_from("exported from", self._with_weights(told.weights_sha256, told.card))
        return node

    def _with_weights(self, sha256: str, card: Mapping[str, Any]) -> Node:
        """The model file with these weights; only those with the same card are read."""
        for path in self._places.ending(".safetensors"):
            try:
                if model_header(path)["card"] == card and weights_hash(path) == sha256:
                    return self.at(path, "agrees")
            except RingflowError:
                continue  # weights of others
        node = Node("model", MODEL_FILE, "missing", {"weights_sha256": sha256}, note="not at hand")
        self._trained(node, card, None)
        return node

    def _trained(self, node: Node, card: Mapping[str, Any] | None, folder: Path | None) -> None:
        """Add the run: the folder beside the model if it has the settings that are in the model, else what the model says."""
        settings = (card or {}).get("settings")
        if card is None or not isinstance(settings, Mapping):
            node.came_from(
                "trained by", Node("run", "run", "not recorded", note="the model says nothing of its training")
            )
            return
        if folder is not None and (folder / RUN_FILE).is_file():
            run = self.run_at(folder, card)
            if _same(run.facts.get("settings"), settings):
                run.state, run.note = "agrees", "the settings in the folder are those in the model"
                node.came_from("trained by", run)
                return
            node.note = f"{folder / RUN_FILE} is of another training"
        origin = card.get("provenance") or {}
        facts = {name: origin[name] for name in _RUN_FACTS if name in origin}
        facts |= {"settings": dict(settings), "training": card.get("training")}
        run = Node("run", "run", "recorded", facts, note="known by what the model says; its folder is not at hand")
        self._fed(run, card.get("data"), settings)
        node.came_from("trained by", run)

    def run_at(self, folder: Path, card: Mapping[str, Any] | None = None) -> Node:
        """The run in a folder; what the run itself does not record, its network does."""
        record = json_file(folder / RUN_FILE)
        if card is None and (folder / MODEL_FILE).is_file():
            card = model_header(folder / MODEL_FILE)["card"]
        facts = {name: record[name] for name in _RUN_FACTS if name in record}
        facts["settings"] = record.get("settings")
        if card is not None:
            facts["training"] = card.get("training")
        node = Node("run", folder.absolute().name, "given", facts, folder, sha256_of(folder / RUN_FILE))
        if not (folder / SETTINGS_FILE).is_file():
            node.note = f"its {SETTINGS_FILE} is gone"
        data = record.get("data") or (card or {}).get("data")
        self._fed(node, data, record.get("settings") or {}, record.get("inputs") or ())
        return node

    def _fed(self, run: Node, data: Any, settings: Mapping[str, Any], inputs: Any = ()) -> None:
        """What a run was fed with, and what it started from."""
        named = str(settings.get("data", ""))
        folders = (
            [] if named.startswith(_SIMULATED) else [Path(name.strip()) for name in named.split(",") if name.strip()]
        )
        described = data if isinstance(data, list) else [{"dataset": folder.name} for folder in folders]
        for number, entry in enumerate(described):
            if "simulated" in entry:
                made = Node(
                    "generator", str(entry["simulated"]), "recorded", dict(entry), note="simulated while training"
                )
                run.came_from("trained on", made)
            else:
                at = [folders[number]] if number < len(folders) else []
                run.came_from("trained on", self._datasets.recorded(entry, at))
        if start := settings.get("start"):
            known = next((entry for entry in inputs if entry.get("file") == Path(start).name), None)
            if known is None:
                note = "which version of it is not recorded"
                run.came_from("started from", Node("model", Path(start).name, "not recorded", note=note))
            else:
                run.came_from("started from", self.recorded(known, None))


def _same(one: Any, other: Any) -> bool:
    """Whether two settings are those of one training."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return False

    def compared(settings: Mapping[str, Any]) -> dict[str, Any]:
        source = {name: value for name, value in settings.get("source", {}).items() if name not in _FREE_OF_SOURCE}
        return {**{name: value for name, value in settings.items() if name not in _FREE}, "source": source}

    return compared(one) == compared(other)

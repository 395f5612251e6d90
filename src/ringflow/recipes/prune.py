"""Prune: from a trained network to a smaller one that has been trained a little more.

The folder is that of an ordinary run, which an interrupted training goes on in; `pruned.safetensors` is the network before it
was trained again. Heads and channels of feed-forward parts that matter least are left out, the same number in every layer, so
that what remains is an ordinary network of other settings. What something matters is how much the loss would change without it,
to first order: the sum over elements of its value times the gradient (P. Molchanov et al., arXiv:1906.10771).

Letters of tensor names: N element, L layer, H head, E head width, C channel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ringflow.base.config import override
from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.base.provenance import collect, describe_input
from ringflow.base.rundir import prepared, write_atomic
from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch
from ringflow.infer.shipped import model_file
from ringflow.models.attention import Block
from ringflow.models.file import LoadedModel, load_model, save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.recipes.cost import cost
from ringflow.train.data import open_training_data, require_data
from ringflow.train.device import choose_device
from ringflow.train.loss import losses
from ringflow.train.run import train
from ringflow.train.runs import RUN_FILE
from ringflow.train.settings import LossSettings, TrainSettings

PRUNED_FILE = "pruned.safetensors"
#: Events that what matters is measured on, and elements of them at a time.
_MEASURED_EVENTS, _BATCH_EVENTS = 1000, 50
#: The training afterwards: a fraction of the rate at which the network was trained, and so many events, unless asked otherwise.
_RATE_SHARE, _TUNED_EVENTS = 0.3, 10_000


def tuning_settings(model: Path | None, overrides: Sequence[str]) -> TrainSettings:
    """Settings of the training after pruning: those the network was trained with, gentler and shorter."""
    card = load_model(model_file(model)).card
    before = TrainSettings.model_validate(card["settings"]) if "settings" in card else TrainSettings()
    gentler = {
        "data": before.data,
        "detector": card.get("detector") or before.detector,
        "optimizer.rate": _RATE_SHARE * before.optimizer.rate,
        "length.events": _TUNED_EVENTS,
        "length.validate_every": _TUNED_EVENTS // 2,
        "length.validation_events": 500,
        "source.chunk_events": 5_000,
        **{f"loss.{name}": value for name, value in before.loss.model_dump().items()},
    }
    return TrainSettings.resolve(None, [*(override(name, value) for name, value in gentler.items()), *overrides])


def prune_and_tune(
    model: Path | None,
    out: Path,
    settings: TrainSettings,
    *,
    share: float,
    heads: int = 0,
    check: Path | None = None,
    events: int = 500,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Leave out a share of the channels and some heads of every layer, train on; what it cost, on events of `check`."""
    path = model_file(model)
    if path.suffix == ".onnx":
        raise UsageError(f"{path} is an exported file; give the model file or the run it was made of")
    if check is not None:
        Dataset(check)  # a wrong folder is told before the work
    loaded = load_model(path)
    settings = settings.model_copy(update={"model": loaded.model.settings, "start": str(path)})
    require_data(settings)
    kept = _kept(loaded.model.settings, share, heads)
    with prepared(out, marks=(RUN_FILE,), overwrite=overwrite):
        if (out / PRUNED_FILE).is_file():
            _refuse_other(out, kept)
        else:
            _prune(loaded, path, settings, out, kept)
    done = train(_from_pruned(settings, out), out)
    tuned = Path(done["model"])
    files = {"before": path, "pruned": out / PRUNED_FILE, "tuned": tuned}
    rows = [{"network": name, "parameters": load_model(file).model.num_parameters} for name, file in files.items()]
    if check is not None:
        measured = cost(files, check, events, "network")
        rows = [row | more for row, more in zip(rows, measured, strict=True)]
    return {"path": str(out), "model": str(tuned), "training": done, "cost": rows}


def _kept(before: ModelSettings, share: float, heads: int) -> dict[str, int]:
    """Heads and channels of every layer that remain."""
    if heads >= before.heads:
        raise UsageError(f"cannot leave out {heads} of {before.heads} heads; at most {before.heads - 1}")
    return {"heads": before.heads - heads, "hidden": max(round((1.0 - share) * before.hidden), 8)}


def _refuse_other(out: Path, kept: dict[str, int]) -> None:
    there = load_model(out / PRUNED_FILE).card.get("pruned")
    if there != kept:
        raise UsageError(f"{out} was pruned to {there}, not to {kept}; choose another folder, or --overwrite")


def _prune(loaded: LoadedModel, path: Path, settings: TrainSettings, out: Path, kept: dict[str, int]) -> None:
    """Write the network without what matters least."""
    record = collect(_from_pruned(settings, out), {"training": settings.seed})
    write_atomic(out / RUN_FILE, json.dumps(record, indent=1) + "\n")
    device = choose_device(settings.compute.device)
    network, whole = loaded.model.to(device), loaded.model.settings
    say(
        f"measuring what matters, to keep {kept['heads']} of {whole.heads} heads, {kept['hidden']} of {whole.hidden} channels"
    )
    with open_training_data(settings, device, out) as data:
        found = importance(network, _batches(data.sources[0].chunk(0), device), settings.loss)
    smaller = prune(network, found, **kept)
    before = {name: value for name, value in loaded.card.items() if name != "adapted"}  # which that model says
    card = {**before, "pruned": kept, "pruned_from": describe_input(path)}
    save_model(out / PRUNED_FILE, smaller, threshold=loaded.threshold, card=card)


def _from_pruned(settings: TrainSettings, out: Path) -> TrainSettings:
    return settings.model_copy(update={"start": str((out / PRUNED_FILE).absolute())})


def _batches(chunk: ElementBatch, device: torch.device) -> Iterator[ElementBatch]:
    """The first events of a chunk, a few at a time."""
    for first in range(0, min(chunk.num_events, _MEASURED_EVENTS), _BATCH_EVENTS):
        last = min(first + _BATCH_EVENTS, chunk.num_events)
        yield chunk.take(torch.arange(first, last, device=chunk.kind_N.device)).to(device)


class Importance(NamedTuple):
    """What heads and channels of every layer matter; no heads where elements do not talk."""

    heads_LH: Tensor
    channels_LC: Tensor


def importance(model: Model, batches: Iterable[ElementBatch], settings: LossSettings) -> Importance:
    """Measure on events with targets, on the device of the model, which stays as it is."""
    was_training = model.training
    blocks = [block for block in model.eval().blocks if isinstance(block, Block)]
    heads = [_watch(block.mixer.get_submodule("to_out"), model.settings.heads) for block in blocks if block.mixer]
    channels = [_watch(block.feed_forward[2], model.settings.hidden) for block in blocks]
    try:
        for batch in batches:
            losses(model.predict(batch), batch, settings)["total"].backward()  # type: ignore[no-untyped-call]
    finally:
        for _, handle in (*heads, *channels):
            handle.remove()
        model.zero_grad(set_to_none=True)
        model.train(was_training)
    sums = ([watched for watched, _ in some] for some in (heads, channels))
    return Importance(*(torch.stack(some) if some else torch.zeros(0, 0) for some in sums))


def _watch(layer: nn.Module, parts: int) -> tuple[Tensor, RemovableHandle]:
    """Sums, over elements, the size of value times gradient in the parts of what a layer is given."""
    total = torch.zeros(parts)

    def see(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        value = given[0].detach()

        def add(gradient: Tensor) -> None:
            total.add_((value * gradient).view(len(value), parts, -1).sum(2).abs().sum(0).cpu())

        given[0].register_hook(add)  # type: ignore[no-untyped-call]

    return total, layer.register_forward_pre_hook(see)


def prune(model: Model, found: Importance, *, heads: int, hidden: int) -> Model:
    """The network, on the CPU, with the `heads` heads and `hidden` channels of every layer that matter most."""
    settings = model.settings
    for name, wanted, there in (("heads", heads, settings.heads), ("hidden", hidden, settings.hidden)):
        if not 1 <= wanted <= there:
            raise UsageError(f"cannot keep {wanted} of {there} {name}; choose from 1 to {there}")
    kept = {"heads": heads, "hidden": hidden, "head_width": settings.width_of_head}
    smaller = Model(type(settings).model_validate({**settings.model_dump(), **kept}))
    smaller.load_state_dict(
        {name: value for name, value in model.state_dict().items() if not name.startswith("blocks.")}, strict=False
    )
    for layer, (old, new) in enumerate(zip(model.blocks, smaller.blocks, strict=True)):
        weights = {name: value.cpu() for name, value in old.state_dict().items()}
        best = found.channels_LC[layer].topk(hidden).indices.sort().values
        for name, axis in (("0.weight", 0), ("0.bias", 0), ("2.weight", 1)):
            weights[f"feed_forward.{name}"] = weights[f"feed_forward.{name}"].index_select(axis, best)
        if settings.backbone != "mlp":
            best = found.heads_LH[layer].topk(heads).indices.sort().values
            weights |= {name: _of_heads(name, value, best, settings.heads) for name, value in weights.items()}
        new.load_state_dict(weights)
    smaller.bind(None if model.frame is None else model.frame.settings)
    return smaller.eval()


def _of_heads(name: str, value: Tensor, kept: Tensor, heads: int) -> Tensor:
    """A tensor of a layer without the numbers of heads that are left out."""
    part = name.removeprefix("mixer.")
    if part == "log_temperature_H":
        return value[kept]
    if part in ("to_out.weight", "hash_KD"):  # [..., H E]
        return value.view(len(value), heads, -1).index_select(1, kept).flatten(1)
    for layer, parts in (("to_qkv.", 3), ("to_parts.", 4)):  # [parts H E, ...]
        if part.startswith(layer):
            split = value.view(parts, heads, -1, *value.shape[1:])
            return split.index_select(1, kept).flatten(0, 2)
    return value

"""What is in memory during a training, as named tensors and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from ringflow.models.file import load_weights
from ringflow.models.model import Model
from ringflow.train.device import random_states, set_random_states
from ringflow.train.step import TrainingStep


def snapshot(step: TrainingStep, device: torch.device) -> dict[str, Tensor]:
    """Weights, average, optimiser and random states, copied to the host."""
    named = {f"weights/{name}": value for name, value in step.model.state_dict().items()}
    named |= {f"average/{name}": value for name, value in step.average.model().state_dict().items()}
    names = _names(step.model, step.optimizer)
    for number, values in step.optimizer.state_dict()["state"].items():
        named |= {f"optimizer/{key}/{names[number]}": value for key, value in values.items()}
    named |= {f"random/{name}": state for name, state in random_states(device).items()}
    named |= {f"generator/{name}": generator.get_state() for name, generator in step.generators.items()}
    # Copies, so that no two of them share memory (safetensors refuses that).
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in named.items()}


def restore(tensors: Mapping[str, Tensor], step: TrainingStep, device: torch.device, path: Path) -> None:
    """Put everything back; `path` is for an error about weights of another architecture."""
    load_weights(step.model, _part(tensors, "weights"), path)
    load_weights(step.average.model(), _part(tensors, "average"), path)
    numbers = {name: number for number, name in enumerate(_names(step.model, step.optimizer))}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in _part(tensors, "optimizer").items():
        kind, name = key.split("/")
        state.setdefault(numbers[name], {})[kind] = value
    groups = step.optimizer.state_dict()["param_groups"]
    step.optimizer.load_state_dict({"state": state, "param_groups": groups})
    for name, saved in _part(tensors, "generator").items():
        # A generator on another kind of device than before starts from its seed.
        if saved.shape == step.generators[name].get_state().shape:
            step.generators[name].set_state(saved)
    set_random_states(_part(tensors, "random"), device)


def _names(model: Model, optimizer: Optimizer) -> list[str]:
    """Names of the parameters in the order in which the optimiser counts them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def _part(tensors: Mapping[str, Tensor], section: str) -> dict[str, Tensor]:
    prefix = f"{section}/"
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

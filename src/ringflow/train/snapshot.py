"""What is in memory during a training, as named tensors and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from ringflow.base.errors import InputFileError
from ringflow.models.model import Model
from ringflow.train.parallel import put, whole
from ringflow.train.step import TrainingStep


def snapshot(step: TrainingStep) -> dict[str, Tensor]:
    """Weights, average and optimiser, whole and copied to the host; all processes have to ask.

    No random states: everything drawn in a step comes from the seeds of its batches.
    """
    named = {f"weights/{name}": value for name, value in step.model.state_dict().items()}
    named |= {f"average/{name}": value for name, value in step.average.weights.items()}
    names = _names(step.model, step.optimizer)
    for number, values in step.optimizer.state_dict()["state"].items():
        named |= {f"optimizer/{key}/{names[number]}": value for key, value in values.items()}
    # Copies, so that no two of them share memory (safetensors refuses that).
    return {name: whole(value.detach()).to("cpu", copy=True).contiguous() for name, value in named.items()}


@torch.no_grad()
def restore(tensors: Mapping[str, Tensor], step: TrainingStep, path: Path) -> None:
    """Put everything back; `path` is for an error about weights of another architecture."""
    _fill(step.model.state_dict(), _part(tensors, "weights"), path)
    _fill(step.average.weights, _part(tensors, "average"), path)
    parameters = dict(step.model.named_parameters())
    for key, value in _part(tensors, "optimizer").items():
        kind, name = key.split("/")
        state = step.optimizer.state[parameters[name]]
        if value.shape == parameters[name].shape:
            state[kind] = torch.zeros_like(parameters[name])
            put(state[kind], value)
        else:
            state[kind] = value.clone()


def _fill(targets: Mapping[str, Tensor], values: Mapping[str, Tensor], path: Path) -> None:
    for name in sorted(targets.keys() | values.keys()):
        if name not in targets or name not in values or targets[name].shape != values[name].shape:
            raise InputFileError(
                f"the checkpoint in {path} is of another network ({name} differs); choose another folder"
            )
        put(targets[name], values[name])


def _names(model: Model, optimizer: Optimizer) -> list[str]:
    """Names of the parameters in the order in which the optimiser counts them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def _part(tensors: Mapping[str, Tensor], section: str) -> dict[str, Tensor]:
    prefix = f"{section}/"
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

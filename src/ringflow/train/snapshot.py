"""What is in memory during a training, as named tensors and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ringflow.base.errors import InputFileError
from ringflow.train.step import TrainingStep

#: What an optimiser counts per weight; everything else it keeps has the shape of the weight.
_COUNT = "step"


def snapshot(step: TrainingStep) -> dict[str, Tensor]:
    """Weights, average and optimiser, whole and copied to the host; all processes have to ask.

    No random states: everything drawn in a step comes from the seeds of its batches.
    """
    spread = step.spread
    whole = {f"weights/{name}": spread.whole(name, value) for name, value in step.model.state_dict().items()}
    whole |= {f"average/{name}": spread.whole(name, value) for name, value in step.average.weights.items()}
    states = {name: step.optimizer.state[weight] for name, weight in spread.held()}
    kinds = next(iter(states.values())).keys()
    for name, weight in step.model.named_parameters():
        # A weight that is held elsewhere stands for what belongs to it there.
        state = states.get(name) or {
            kind: next(iter(states.values()))[kind] if kind == _COUNT else weight for kind in kinds
        }
        for kind, value in state.items():
            whole[f"optimizer/{kind}/{name}"] = value if kind == _COUNT else spread.whole(name, value)
    # Copies, so that no two of them share memory (safetensors refuses that).
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in whole.items()}


@torch.no_grad()
def restore(tensors: Mapping[str, Tensor], step: TrainingStep, path: Path) -> None:
    """Put everything back; `path` is for an error about weights of another architecture."""
    shapes = {name: value.shape for name, value in step.plain.state_dict().items()}
    _fill(step, step.model.state_dict(), _part(tensors, "weights"), shapes, path)
    _fill(step, step.average.weights, _part(tensors, "average"), shapes, path)
    held = dict(step.spread.held())
    # A fused kernel counts where the weights are, others on the host.
    on_device = any(group.get("fused") for group in step.optimizer.param_groups)
    for key, value in _part(tensors, "optimizer").items():
        kind, name = key.split("/")
        if name not in held:
            continue
        state = step.optimizer.state[held[name]]
        if kind == _COUNT:
            state[kind] = value.to(held[name].device if on_device else value.device, copy=True)
        else:
            state[kind] = torch.zeros_like(held[name])
            step.spread.put(name, state[kind], value)


def _fill(
    step: TrainingStep,
    targets: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    path: Path,
) -> None:
    for name in sorted(targets.keys() | values.keys()):
        if name not in targets or name not in values or values[name].shape != shapes[name]:
            raise InputFileError(
                f"the checkpoint in {path} is of another network ({name} differs); choose another folder"
            )
        step.spread.put(name, targets[name], values[name])


def _part(tensors: Mapping[str, Tensor], section: str) -> dict[str, Tensor]:
    prefix = f"{section}/"
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

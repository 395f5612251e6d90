"""How far off a candidate may be: a small network on top of a trained one, which stays as it is.

For every candidate it says the half width of the interval around pT, eta, phi and energy that holds the truth in 68 % of the
cases. It sees what the network knows of the element, and what the network said.

Letters of tensor names: N candidate, D width, Q quantity, K kind of element, C label.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ringflow.base.errors import UsageError
from ringflow.base.provenance import describe_input
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.models.file import read_described, write_described
from ringflow.models.model import DecodedElements, Prediction

#: Of which there is an uncertainty; those of pT and energy are relative.
QUANTITIES = ("pt", "eta", "phi", "energy")
_METADATA_KEY = "ringflow_uncertainty"
_LABELS = len(PARTICLE_CLASSES)
#: Said about a candidate: logarithms of pT and energy, eta, its size, the logit of being a particle, on a track or not, label.
SAID = 6 + _LABELS
_SMALLEST, _LARGEST = -12.0, 3.0


class UncertaintyHead(nn.Module):
    """Two hidden layers on what the network knows and says; then a factor per kind of element and label, the calibration."""

    mean_D: Tensor
    deviation_D: Tensor
    scale_KCQ: Tensor

    def __init__(self, known: int, hidden: int = 48) -> None:
        super().__init__()
        self.known, self.hidden = known, hidden
        self.register_buffer("mean_D", torch.zeros(known + SAID))
        self.register_buffer("deviation_D", torch.ones(known + SAID))
        self.register_buffer("scale_KCQ", torch.ones(2, _LABELS, len(QUANTITIES)))
        self.layers = nn.Sequential(nn.Linear(known + SAID, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.out = nn.Linear(hidden, len(QUANTITIES))

    def forward(self, inputs_ND: Tensor) -> Tensor:
        """Logarithms of the half widths [N, Q], not yet calibrated."""
        scaled = ((inputs_ND - self.mean_D) / self.deviation_D).clamp(-8.0, 8.0)
        out: Tensor = self.out(self.layers(scaled)).clamp(_SMALLEST, _LARGEST)
        return out

    def half_widths(self, inputs_ND: Tensor, on_track_N: Tensor, label_N: Tensor) -> Tensor:
        """Half widths [N, Q]."""
        widths: Tensor = self(inputs_ND).exp() * self.scale_KCQ[on_track_N.long(), label_N]
        return widths

    @torch.no_grad()
    def begin_at(self, log_width_Q: Tensor) -> None:
        """Say nearly the same of all candidates, before anything is learned."""
        self.out.weight.mul_(0.1)
        self.out.bias.copy_(log_width_Q)

    @torch.no_grad()
    def fit_scaling(self, inputs_ND: Tensor) -> None:
        """Take mean and deviation of inputs."""
        self.mean_D.copy_(inputs_ND.mean(0))
        self.deviation_D.copy_(inputs_ND.std(0).clamp_min(1e-3))


def inputs_of(known_ND: Tensor, prediction: Prediction, found: DecodedElements, on_track_N: Tensor) -> Tensor:
    """What the head sees of candidates; `known_ND` and `prediction` are of all elements."""
    pt, eta, _, energy = _kinematics(found.momentum).unbind(1)
    said = torch.stack([pt, eta, eta.abs(), energy, prediction.particle_N[found.row], on_track_N.to(pt.dtype)], dim=1)
    label = nn.functional.one_hot(found.label, _LABELS).to(pt.dtype)
    return torch.cat([known_ND[found.row].float(), said, label], dim=1)


def residuals(momentum_N4: Tensor, truth_N4: Tensor) -> Tensor:
    """Truth minus prediction [N, Q]: of log pT, eta, phi, log energy, from (px, py, pz, energy)."""
    difference = _kinematics(truth_N4.double()) - _kinematics(momentum_N4.double())
    d_pt, d_eta, d_phi, d_energy = difference.unbind(1)
    return torch.stack([d_pt, d_eta, d_phi - 2 * torch.pi * torch.round(d_phi / (2 * torch.pi)), d_energy], dim=1)


def errors_of(
    head: UncertaintyHead, known_ND: Tensor, prediction: Prediction, found: DecodedElements, on_track_N: Tensor
) -> dict[str, Tensor]:
    """The columns of candidates: `energy_error` and `pt_error` in GeV, `eta_error`, `phi_error`."""
    inputs = inputs_of(known_ND, prediction, found, on_track_N)
    pt, eta, phi, energy = head.half_widths(inputs, on_track_N, found.label).unbind(1)
    return {
        "energy_error": energy * found.momentum[:, 3],
        "pt_error": pt * torch.hypot(found.momentum[:, 0], found.momentum[:, 1]),
        "eta_error": eta,
        "phi_error": phi,
    }


def _kinematics(momentum_N4: Tensor) -> Tensor:
    """Log pT, eta, phi, log energy."""
    px, py, pz, energy = momentum_N4.unbind(1)
    pt = torch.hypot(px, py).clamp_min(1e-6)
    return torch.stack([pt.log(), torch.asinh(pz / pt), torch.atan2(py, px), energy.clamp_min(1e-6).log()], dim=1)


def file_beside(model: Path) -> Path:
    """Where the uncertainties of a model are looked for."""
    return model.with_name(f"{model.stem}.uncertainty.safetensors")


def save_uncertainty(path: Path, head: UncertaintyHead, model: Path, card: Mapping[str, Any]) -> None:
    """Write a head; the file names the model that it belongs to."""
    record = {"model": describe_input(model), "known": head.known, "hidden": head.hidden, "card": dict(card)}
    write_described(path, head, _METADATA_KEY, record)


class LoadedUncertainty(NamedTuple):
    """A head ready to be used, and where it came from."""

    head: UncertaintyHead
    model_sha256: str
    card: dict[str, Any]


def load_uncertainty(path: Path) -> LoadedUncertainty:
    """Read a head; an error in one line if the file is broken or something else."""
    fields = ("model", "known", "hidden", "card")
    with read_described(path, _METADATA_KEY, "file of uncertainties", "uncertainty", fields) as (record, weights):
        head = weights.into(lambda: UncertaintyHead(int(record["known"]), int(record["hidden"])))
        return LoadedUncertainty(head.eval(), str(record["model"]["sha256"]), dict(record["card"]))


def head_for(path: Path, model: Path) -> UncertaintyHead:
    """The head in a file; refused if it belongs to another model."""
    loaded = load_uncertainty(path)
    sha256 = describe_input(model)["sha256"]
    if loaded.model_sha256 != sha256:
        raise UsageError(
            f"{path} belongs to another model ({loaded.model_sha256[:12]}) than {model} ({sha256[:12]}); "
            f"make its own: ringflow uncertainty {model} DATASET"
        )
    return loaded.head


def found_beside(model: Path) -> Path | None:
    """The file of uncertainties beside a model, if there is one that belongs to it."""
    path = file_beside(model)
    belongs = path.is_file() and load_uncertainty(path).model_sha256 == describe_input(model)["sha256"]
    return path if belongs else None

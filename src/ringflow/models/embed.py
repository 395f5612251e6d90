"""From features to vectors: scaling that was fitted on the training events, flags for what is missing, two dense layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ringflow.elements.batch import KINDS
from ringflow.models.block import ACTIVATIONS
from ringflow.models.settings import ModelSettings

#: Scaled features are drawn in beyond this many standard deviations, so that no outlier shouts.
_LARGEST = 8.0
#: Elements at a time when features are summed up in double precision: what a core's cache holds.
_ROWS = 16384


class Embedding(nn.Module):
    """Scaled features, a flag per missing feature and the kind of the element, embedded in the width of the network."""

    mean_F: Tensor
    deviation_F: Tensor

    def __init__(self, settings: ModelSettings, num_features: int) -> None:
        super().__init__()
        self.register_buffer("mean_F", torch.zeros(num_features))
        self.register_buffer("deviation_F", torch.ones(num_features))
        self.layers = nn.Sequential(
            nn.Linear(2 * num_features + len(KINDS), settings.width),
            ACTIVATIONS[settings.activation](),
            nn.Linear(settings.width, settings.width),
        )

    @torch.no_grad()
    def fit(self, features_NF: Tensor) -> None:
        """Take mean and deviation of the values that are there."""
        parts = torch.split(features_NF, _ROWS)
        count = torch.stack([(~part.isnan()).sum(0) for part in parts]).sum(0).clamp_min(1)
        mean = torch.stack([part.double().nan_to_num(0.0).sum(0) for part in parts]).sum(0) / count
        squares = [(part.double() - mean).nan_to_num(0.0).square().sum(0) for part in parts]
        variance = torch.stack(squares).sum(0) / count
        self.mean_F.copy_(mean)
        self.deviation_F.copy_(variance.sqrt().clamp_min(1e-3))

    def forward(self, features_NF: Tensor, kind_N: Tensor) -> Tensor:
        """Vectors [N, D]."""
        return self.embed(*self.scale(features_NF), kind_N)

    def scale(self, features_NF: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled features, zero where they are missing, and whether they are."""
        missing = features_NF.isnan()
        scaled = ((features_NF - self.mean_F) / self.deviation_F).clamp(-_LARGEST, _LARGEST)
        return torch.where(missing, 0.0, scaled), missing

    def embed(self, scaled_NF: Tensor, missing_NF: Tensor, kind_N: Tensor) -> Tensor:
        """Vectors [N, D] of scaled features and flags; a flag may also be a number between 0 and 1."""
        kind = nn.functional.one_hot(kind_N, len(KINDS))
        flags = missing_NF.to(scaled_NF.dtype)
        x: Tensor = self.layers(torch.cat([scaled_NF, flags, kind.to(scaled_NF.dtype)], dim=1))
        return x

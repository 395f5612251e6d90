"""The layers of every backbone: elements talk to each other (a mixer), then each thinks for itself (feed-forward)."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor, nn

from ringflow.models.layout import Layout
from ringflow.models.settings import ModelSettings

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "swish": nn.SiLU,
    "gelu": nn.GELU,
}


class Mixer(nn.Module):
    """How the elements of an event exchange what they know; the one part in which backbones differ."""

    @abstractmethod
    def forward(self, x_ND: Tensor, rotary: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
        """Messages [N, D] from the rows [N, D], the turns of their positions, and where events begin and end."""


class Block(nn.Module):
    """One layer: normalised, residual. Without a mixer elements do not talk."""

    def __init__(self, settings: ModelSettings, mixer: Mixer | None) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm_mixer = nn.LayerNorm(settings.width) if mixer is not None else None
        self.norm = nn.LayerNorm(settings.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(settings.width, settings.hidden),
            ACTIVATIONS[settings.activation](),
            nn.Linear(settings.hidden, settings.width),
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, x_ND: Tensor, rotary: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
        """The rows after this layer."""
        return self.think(self.talk(x_ND, rotary, layout))

    def talk(self, x_ND: Tensor, rotary: tuple[Tensor, Tensor], layout: Layout) -> Tensor:
        """The first half: the rows after elements have talked to each other."""
        if self.mixer is None or self.norm_mixer is None:
            return x_ND
        out: Tensor = x_ND + self.dropout(self.mixer(self.norm_mixer(x_ND), rotary, layout))
        return out

    def think(self, x_ND: Tensor) -> Tensor:
        """The second half: every row for itself."""
        out: Tensor = x_ND + self.dropout(self.feed_forward(self.norm(x_ND)))
        return out

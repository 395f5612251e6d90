"""The network: embed the elements, let them talk, say what each of them is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ringflow.elements.batch import ElementBatch
from ringflow.elements.features import feature_names
from ringflow.models.attention import AttentionMixer
from ringflow.models.block import Block, Mixer
from ringflow.models.embed import Embedding
from ringflow.models.graph import GraphMixer
from ringflow.models.heads import Heads, Prediction
from ringflow.models.kernel import KernelMixer
from ringflow.models.layout import Layout
from ringflow.models.rotary import RotaryPositions
from ringflow.models.settings import ModelSettings

#: How the elements talk to each other, by name of the backbone; None: not at all.
MIXERS: dict[str, Callable[[ModelSettings], Mixer] | None] = {
    "attention": AttentionMixer,
    "kernel": KernelMixer,
    "graph": GraphMixer,
    "mlp": None,
}


class Model(nn.Module):
    """A network of one of the backbones."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = Embedding(settings, len(feature_names(self.kinds)))
        self.rotary = RotaryPositions(settings.width_of_head, settings.finest)
        make = MIXERS[settings.backbone]
        self.blocks = nn.ModuleList(Block(settings, make and make(settings)) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(settings.width)
        self.heads = Heads(settings)

    @property
    def kinds(self) -> tuple[str, str]:
        """Kinds of elements it takes."""
        return ("track", self.settings.calorimeter)

    @property
    def num_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(
        self,
        features_NF: Tensor,
        kind_N: Tensor,
        position_N2: Tensor,
        layout: Layout,
        turns: tuple[Tensor, Tensor] | None = None,
    ) -> Prediction:
        """Predictions of packed elements; `turns` are those of `rotary(position_N2)`, if they were worked out before."""
        prediction: Prediction = self.heads(*self._rows(features_NF, kind_N, position_N2, layout, turns))
        return prediction

    def _rows(
        self,
        features_NF: Tensor,
        kind_N: Tensor,
        position_N2: Tensor,
        layout: Layout,
        turns: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        """What the layers made of the elements, and the embedded elements."""
        embedded_ND = self.embedding(features_NF, kind_N)
        if turns is None:
            turns = self.rotary(position_N2)
        x_ND = embedded_ND
        for block in self.blocks:
            x_ND = block(x_ND, turns, layout)
        return self.norm(x_ND), embedded_ND

    def predict_and_tell(self, batch: ElementBatch) -> tuple[Prediction, Tensor]:
        """Predictions of a batch, and what they were made of: all that is known of every element, [N, 2 D]."""
        rows = self._rows(batch.features_NF, batch.kind_N, batch.position_N2, Layout.of(batch), None)
        known = self.heads.think(*rows)
        return self.heads.say(known), known

    def predict(self, batch: ElementBatch) -> Prediction:
        """Predictions of a batch."""
        prediction: Prediction = self(batch.features_NF, batch.kind_N, batch.position_N2, Layout.of(batch))
        return prediction

"""Settings of a network. Free of torch, so that a login node reads them fast."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from ringflow.base.config import Settings

#: Where the header of a model file keeps its description.
MODEL_KEY = "ringflow_model"

BackboneName = Literal["attention", "kernel", "graph", "mlp"]
Activation = Literal["sigmoid", "tanh", "softplus", "relu", "leaky_relu", "elu", "swish", "gelu"]


class KernelSettings(Settings):
    """Attention through positive orthogonal random features."""

    #: Random features per head; the error against exact attention falls like one over its square root.
    features: int = Field(default=64, ge=1)
    #: Training steps after which the features are drawn anew; 0 keeps them.
    redraw_steps: int = Field(default=1000, ge=0)


class GraphSettings(Settings):
    """A learned graph inside bins of a locality-sensitive hash."""

    #: Elements per bin at most (ties of the hash stay together).
    bin_size: int = Field(default=128, ge=1)
    #: Random projections of the hash.
    hashes: int = Field(default=4, ge=1)


class ModelSettings(Settings):
    """What the network is."""

    #: How elements hear of each other; not at all in `mlp`.
    backbone: BackboneName = "attention"
    #: Whether the calorimeter is seen as clusters or as hits.
    calorimeter: Literal["cluster", "hit"] = "cluster"
    #: Whether elements are seen as they lie in their detector, or relative to it, so that another one can be like it.
    features: Literal["absolute", "relative"] = "absolute"
    #: Numbers per element; a multiple of four times the heads, unless `head_width` is given.
    width: int = Field(default=128, ge=8)
    #: Layers of the backbone.
    layers: int = Field(default=6, ge=0)
    #: Width of a head; width / heads unless given, as after pruning.
    head_width: int | None = Field(default=None, ge=4, multiple_of=4)
    #: Heads of a layer.
    heads: int = Field(default=4, ge=1, validate_default=True)
    #: Width inside a feed-forward part.
    hidden: int = Field(default=512, ge=8)
    #: Function between the layers of a feed-forward part.
    activation: Activation = "gelu"
    #: Share of numbers that are dropped while training.
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    #: Smallest distance in angle that attention can resolve, in radians.
    finest: float = Field(default=0.005, gt=0.0, lt=1.0)
    kernel: KernelSettings = KernelSettings()
    graph: GraphSettings = GraphSettings()

    @field_validator("heads")
    @classmethod
    def _divides(cls, heads: int, others: ValidationInfo) -> int:
        width = others.data.get("width", 0)
        if others.data.get("head_width") is None and width % (4 * heads):
            nearest = max(round(width / (4 * heads)), 1) * 4 * heads
            raise ValueError(f"width {width} must be a multiple of four times heads ({heads}), for example {nearest}")
        return heads

    @property
    def width_of_head(self) -> int:
        """Numbers in a head."""
        return self.head_width or self.width // self.heads

    @property
    def width_of_heads(self) -> int:
        """Numbers in all heads together."""
        return self.heads * self.width_of_head

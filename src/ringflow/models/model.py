"""The network: embed the elements, let them talk, say what each of them is, and decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ringflow.base.errors import UsageError
from ringflow.elements.batch import KINDS, ElementBatch
from ringflow.elements.features import feature_names
from ringflow.elements.frame import Frame, FrameSettings
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, PARTICLE_CLASSES
from ringflow.models.attention import ACTIVATIONS, AttentionMixer, Block, Layout, Mixer, RotaryPositions, Turns
from ringflow.models.graph import GraphMixer
from ringflow.models.kernel import KernelMixer
from ringflow.models.settings import ModelSettings

#: Scaled features are drawn in beyond this many standard deviations, so that no outlier shouts.
_LARGEST = 8.0
#: Elements at a time when features are summed up in double precision: what a core's cache holds.
_ROWS = 16384
#: Smallest deviation of a feature; nothing varies less that is not a constant.
_LEAST = 1e-3
#: Deviations by which the mean of a feature may differ that means the same as before, and logarithm of its deviations' ratio.
_LIKE = 0.25


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
        self.deviation_F.copy_(variance.sqrt().clamp_min(_LEAST))

    @torch.no_grad()
    def refit(self, features_NF: Tensor) -> Tensor:
        """Take mean and deviation anew, for a network that has learned with others; which features [F] mean the same as before.

        Of those the first layer is changed along, so that it computes what it did before: with x = m + d s = m' + d' s',
        w s = (w d'/d) s' + w (m' - m)/d. The last term goes into the bias, and out of it again by the flag of a missing value.
        Between the limits of both scalings that is exact: on like data the network is the same.

        A feature whose mean or deviation is another means something else on this detector, as the number of hits of a TPC or
        the radius of a calorimeter do. There the weights stay, and it is what is usual that stands for what was usual before.
        With all features changed along, the shipped network begins on ttbar of `cld` with a loss of 3.82, as with the scaling
        kept, on `ild` with 2.78 (kept: 4.27); with none with 0.79 and 1.24, but on its own `clic` with 0.53 instead of 0.50;
        with this choice with 0.82, 1.24 and 0.50.
        """
        mean, deviation = self.mean_F.clone(), self.deviation_F.clone()
        there = ~features_NF.isnan().all(0).to(mean.device)
        self.fit(features_NF)
        # What is not there, or does not vary, says nothing about how it varies.
        self.mean_F.copy_(torch.where(there, self.mean_F, mean))
        self.deviation_F.copy_(torch.where(self.deviation_F > _LEAST, self.deviation_F, deviation))
        same = ((self.mean_F - mean).abs() <= _LIKE * deviation) & ((self.deviation_F / deviation).log().abs() <= _LIKE)
        first = self.layers[0]
        assert isinstance(first, nn.Linear), "it is made like that"
        scaled_DF, flag_DF = first.weight[:, : len(mean)], first.weight[:, len(mean) : 2 * len(mean)]
        shift_DF = torch.where(same, scaled_DF * ((self.mean_F - mean) / deviation), 0.0)
        scaled_DF.mul_(torch.where(same, self.deviation_F / deviation, 1.0))
        flag_DF.sub_(shift_DF)
        first.bias.add_(shift_DF.sum(1))
        return same

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


#: Classes of a particle, that is all but "none"; column c of `class_NC` is label c + 1.
NUM_CLASSES = len(PARTICLE_CLASSES) - 1
#: Charges in the order of the columns of `charge_N3`.
CHARGES = (-1, 0, 1)
#: Columns of `momentum_N5`.
MOMENTUM = ("log_pt", "log_energy", "d_eta", "sin_d_phi", "cos_d_phi")

_SIZES = (1, NUM_CLASSES, len(CHARGES), len(MOMENTUM))


class Prediction(NamedTuple):
    """Outputs per element; all zero means: trust the detector."""

    particle_N: Tensor  # logit of being the primary element of a particle
    class_NC: Tensor  # logits of label c + 1
    charge_N3: Tensor  # logits of CHARGES
    momentum_N5: Tensor  # log pt and log energy over the measured ones, d eta, sine and cosine - 1 of d phi


class Heads(nn.Module):
    """One hidden layer over the result of the backbone and, beside it, the embedded element itself; then all outputs."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.hidden = nn.Sequential(
            nn.Linear(2 * settings.width, 2 * settings.width), ACTIVATIONS[settings.activation]()
        )
        self.out = nn.Linear(2 * settings.width, sum(_SIZES))
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_ND: Tensor, embedded_ND: Tensor) -> Prediction:
        """Predictions in full precision."""
        return self.outputs(self.hidden_state(x_ND, embedded_ND))

    def hidden_state(self, x_ND: Tensor, embedded_ND: Tensor) -> Tensor:
        """What is known of every element before the outputs are made of it, [N, 2 D]."""
        known: Tensor = self.hidden(torch.cat([x_ND, embedded_ND], dim=1))
        return known

    def outputs(self, known: Tensor) -> Prediction:
        """Predictions in full precision."""
        out = self.out(known).float()
        particle, label, charge, momentum = out.split(_SIZES, dim=1)
        return Prediction(particle[:, 0], label, charge, momentum)


#: Classes that carry a charge, and so exist on tracks only.
_CHARGED = (CHARGED_HADRON, ELECTRON, MUON)
#: Logarithms of momenta are kept within this distance from what was measured.
_FARTHEST = 4.0


@dataclass(frozen=True)
class DecodedElements:
    """Candidates, row by row in the order of their elements."""

    row: Tensor  # which element of the batch
    label: Tensor
    charge: Tensor
    momentum: Tensor  # [candidate, (px, py, pz, energy)] in GeV


def decode(prediction: Prediction, batch: ElementBatch, threshold: float = 0.5) -> DecodedElements:
    """The elements that say yes, with class, charge and four-momentum."""
    row = torch.nonzero(prediction.particle_N.sigmoid() >= threshold).squeeze(1)
    chosen = Prediction(*(output[row] for output in prediction))
    return DecodedElements(row, *decide(chosen, batch.charge_N[row] != 0, batch.reference_N4[row]))


def decide(prediction: Prediction, on_track_N: Tensor, reference_N4: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Class, charge and four-momentum of elements if they are particles."""
    best = torch.where(possible_classes(on_track_N), prediction.class_NC, -torch.inf).argmax(1)
    # A charged candidate has one of the two charges; a neutral one has none.
    negative, _, positive = prediction.charge_N3.unbind(1)
    charge = torch.where(
        _charged_classes(best.device)[best], torch.where(positive >= negative, CHARGES[2], CHARGES[0]), 0
    )
    return best + 1, charge, four_momentum(prediction.momentum_N5, reference_N4)


def possible_classes(on_track_N: Tensor) -> Tensor:
    """Which classes [N, C] an element can have: a charged one only on a track."""
    return on_track_N[:, None] | ~_charged_classes(on_track_N.device)


def _charged_classes(device: torch.device) -> Tensor:
    return torch.tensor([column + 1 in _CHARGED for column in range(NUM_CLASSES)], device=device)


def four_momentum(momentum_N5: Tensor, reference_N4: Tensor) -> Tensor:
    """(px, py, pz, energy) from the outputs and what was measured; the energy is at least the momentum."""
    log_pt, log_energy, d_eta, sine, cosine = momentum_N5.unbind(1)
    pt, eta, phi, energy = reference_N4.unbind(1)
    pt = pt * log_pt.clamp(-_FARTHEST, _FARTHEST).exp()
    energy = energy * log_energy.clamp(-_FARTHEST, _FARTHEST).exp()
    eta = (eta + d_eta).clamp(-6.0, 6.0)
    phi = phi + torch.atan2(sine, 1.0 + cosine)
    pz = pt * torch.sinh(eta)
    least = pt * torch.cosh(eta)
    return torch.stack([pt * torch.cos(phi), pt * torch.sin(phi), pz, torch.maximum(energy, least)], dim=1)


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
        #: The detector that its elements are seen relative to; part of the file, not of the weights.
        self.frame: Frame | None = None

    def bind(self, frame: FrameSettings | None) -> None:
        """See elements relative to this detector from now on."""
        self.frame = None if frame is None else Frame(frame, self.kinds).to(self.embedding.mean_F.device)

    @property
    def is_bound(self) -> bool:
        """Whether it can take elements of a detector as they are."""
        return self.frame is not None or self.settings.features == "absolute"

    def require_bound(self) -> None:
        """Refuse to look at elements of nobody knows which detector."""
        if not self.is_bound:
            raise UsageError(
                "the network sees elements relative to a detector and was not told which one; make one that knows it: "
                "ringflow adapt DATASET --model FILE --out adapted.safetensors"
            )

    def see(self, batch: ElementBatch) -> ElementBatch:
        """Elements as they were measured, as the network knows them: what everything below takes."""
        self.require_bound()
        return batch if self.frame is None else self.frame.see(batch)

    @property
    def kinds(self) -> tuple[str, str]:
        """Kinds of elements it takes."""
        return ("track", self.settings.calorimeter)

    @property
    def num_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(
        self, features_NF: Tensor, kind_N: Tensor, position_N2: Tensor, layout: Layout, turns: Turns | None = None
    ) -> Prediction:
        """Predictions of packed elements; `turns` are those of `rotary(position_N2)`, if they were worked out before."""
        prediction: Prediction = self.heads(*self._rows(features_NF, kind_N, position_N2, layout, turns))
        return prediction

    def _rows(
        self, features_NF: Tensor, kind_N: Tensor, position_N2: Tensor, layout: Layout, turns: Turns | None
    ) -> tuple[Tensor, Tensor]:
        """What the layers made of the elements, and the embedded elements."""
        embedded_ND = self.embedding(features_NF, kind_N)
        turns = self.rotary(position_N2) if turns is None else turns
        x_ND = embedded_ND
        for block in self.blocks:
            x_ND = block(x_ND, turns, layout)
        return self.norm(x_ND), embedded_ND

    def predict_with_state(self, batch: ElementBatch) -> tuple[Prediction, Tensor]:
        """Predictions of a batch, and what they were made of: all that is known of every element, [N, 2 D]."""
        rows = self._rows(batch.features_NF, batch.kind_N, batch.position_N2, Layout.of(batch), None)
        known = self.heads.hidden_state(*rows)
        return self.heads.outputs(known), known

    def predict(self, batch: ElementBatch) -> Prediction:
        """Predictions of a batch."""
        prediction: Prediction = self(batch.features_NF, batch.kind_N, batch.position_N2, Layout.of(batch))
        return prediction

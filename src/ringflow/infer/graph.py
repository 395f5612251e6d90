"""One event as a function of raw detector values: features, scaling, network and decoding, for a caller that knows arrays only.

    track        float32 [T, columns]   the columns of `input_columns("track")`, NaN where a value is missing
    cluster      float32 [C, columns]   the same of clusters (or `hit`)

gives for every element, tracks first,

    element_probability  float32 [T + C]      of being the primary element of a particle
    element_label        int64   [T + C]      index into PARTICLE_CLASSES, if it is one
    element_charge       int64   [T + C]
    element_momentum     float32 [T + C, 4]   px, py, pz, energy in GeV

and of those whose probability reaches the threshold, in the same order,

    candidate_label, candidate_charge, candidate_momentum, candidate_track, candidate_cluster

where track and cluster count within the event and are -1 where the candidate is made of the other kind.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from ringflow.elements.batch import KINDS, kinematics
from ringflow.elements.features import FEATURES, features_of, needed_columns
from ringflow.event.schema import COLLECTIONS, Column
from ringflow.infer.mixers import for_one_event
from ringflow.models.attention import Block, Layout
from ringflow.models.file import LoadedModel
from ringflow.models.model import Model, Prediction, decide

ELEMENT_OUTPUTS = ("element_probability", "element_label", "element_charge", "element_momentum")
#: More elements than any event has; nothing is computed with it.
_MANY = 1 << 30


def input_columns(kind: str) -> tuple[Column, ...]:
    """Columns of the input of a kind, in their order."""
    known = {column.name: column for column in COLLECTIONS[kind]}
    return tuple(known[name] for name in needed_columns((kind,), {kind: tuple(known)})[kind])


def output_names(calorimeter: str) -> tuple[str, ...]:
    """Outputs in their order."""
    candidate = ("label", "charge", "momentum", "track", calorimeter)
    return (*ELEMENT_OUTPUTS, *(f"candidate_{name}" for name in candidate))


class EventGraph(nn.Module):
    """The function of one event. One that is not portable can be exported, but not be run in torch."""

    def __init__(self, loaded: LoadedModel, *, portable: bool = True) -> None:
        super().__init__()
        self.model = _one_event(loaded.model, portable=portable)
        self.kinds = loaded.model.kinds
        self.threshold = loaded.threshold
        for kind in self.kinds:
            self.register_buffer(f"needs_{kind}", _needs(kind))

    def forward(self, track: Tensor, calorimeter: Tensor) -> tuple[Tensor, ...]:
        """The outputs of `output_names`."""
        raw = {"track": track, self.kinds[1]: calorimeter}
        features, position, reference = self._elements(raw)
        kind = torch.cat(
            [torch.full_like(raw[name][:, 0], KINDS.index(name), dtype=torch.int64) for name in self.kinds]
        )
        charge = track[:, _names("track").index("charge")]
        on_track = torch.cat([charge != 0, torch.zeros_like(calorimeter[:, 0], dtype=torch.bool)])
        prediction = self._predict(features, kind, position)
        probability = prediction.particle_N.sigmoid()
        made = decide(prediction, on_track, reference)
        row = torch.nonzero(probability >= self.threshold).squeeze(1)
        of_track, rest = torch.where(row < track.shape[0], row, -1), row - track.shape[0]
        return probability, *made, *(output[row] for output in made), of_track, torch.where(rest >= 0, rest, -1)

    def _elements(self, raw: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Features, position and reference. What is made of a missing value is missing, whatever a runtime makes of NaN."""
        features, positions, references, before = [], [], [], 0
        total = sum(len(FEATURES[kind]) for kind in self.kinds)
        for kind in self.kinds:
            columns = dict(
                zip(_names(kind), torch.split(raw[kind], 1, dim=1), strict=True)
            )  # as [N, 1]: fewer operations
            lacking = raw[kind].isnan().float() @ getattr(self, f"needs_{kind}") > 0.5
            own = torch.where(lacking, torch.nan, features_of(kind, columns))
            after = total - before - own.shape[1]
            features.append(pad(own, (before, after), value=torch.nan))
            position, reference = kinematics(kind, columns)
            positions.append(position.flatten(1))
            references.append(reference.flatten(1))
            before += own.shape[1]
        return torch.cat(features), torch.cat(positions), torch.cat(references)

    def _predict(self, features_NF: Tensor, kind_N: Tensor, position_N2: Tensor) -> Prediction:
        """What the network says. An event without elements gets one to run on, since runtimes know no largest of none."""
        rows = torch.ones_like(kind_N).sum().clamp_min(1).item()
        torch._check(rows >= 1)  # type: ignore[no-untyped-call]
        seen = torch.arange(rows)
        layout = Layout(torch.zeros(2, dtype=torch.int32), torch.zeros_like(seen), _MANY)
        given = (pad(features_NF, (0, 0, 0, 1)), pad(kind_N, (0, 1)), pad(position_N2, (0, 0, 0, 1)))
        said = self.model(*(part.index_select(0, seen) for part in given), layout)
        asked = torch.arange(kind_N.shape[0])
        return Prediction(*(output.index_select(0, asked) for output in said))


def _one_event(model: Model, *, portable: bool) -> Model:
    """A copy of the network whose every part can be exported."""
    single = copy.deepcopy(model).cpu().eval()
    for block in single.blocks:
        assert isinstance(block, Block)
        if block.mixer is not None:
            block.mixer = for_one_event(block.mixer, model.settings, portable=portable).eval()
    return single


def _names(kind: str) -> list[str]:
    return [column.name for column in input_columns(kind)]


def _needs(kind: str) -> Tensor:
    """Which column [row] a feature [column] is made of."""
    return torch.tensor([[float(name in feature.needs) for feature in FEATURES[kind]] for name in _names(kind)])

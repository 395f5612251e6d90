"""Networks as ONNX files, in float32 or int8: from raw detector values of one event to its particles.

    write_onnx(path, load_model(Path("model.safetensors")))

Weights, scaling, features and decoding are inside, what the file is in its properties. A caller that knows arrays only gives

    track        float32 [T, columns]   the columns of `input_columns("track")`, NaN where a value is missing
    cluster      float32 [C, columns]   the same of clusters (or `hit`)

and gets for every element, tracks first,

    element_probability  float32 [T + C]      of being the primary element of a particle
    element_label        int64   [T + C]      index into PARTICLE_CLASSES, if it is one
    element_charge       int64   [T + C]
    element_momentum     float32 [T + C, 4]   px, py, pz, energy in GeV

and of those whose probability reaches the threshold, in the same order,

    candidate_label, candidate_charge, candidate_momentum, candidate_track, candidate_cluster

where track and cluster count within the event and are -1 where the candidate is made of the other kind.

Tracing takes ten to twenty seconds, whatever the size of the network. `compare` then says whether a file gives what the network
gives.

Letters of tensor names: N element (S: sorted by key), F feature, K bin, L place in a bin, H head, E head width.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from ringflow import __version__
from ringflow.base.errors import DatasetError, InputFileError, UsageError
from ringflow.base.rundir import temporary_folder, write_atomic, write_errors
from ringflow.elements.batch import KINDS, ElementBatch, from_block, kinematics
from ringflow.elements.features import FEATURES, essential_columns, features_of, needed_columns
from ringflow.event.block import EventBlock
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import COLLECTIONS, Column
from ringflow.infer.runtime import (
    Description,
    EventRuntime,
    InputColumn,
    Values,
    candidate_outputs,
    event_values,
    with_hash,
)
from ringflow.launch.frameworks import framework
from ringflow.models.attention import AttentionMixer, Block, Layout, Mixer
from ringflow.models.file import LoadedModel
from ringflow.models.graph import GraphMixer
from ringflow.models.model import Model, Prediction, decide, possible_classes
from ringflow.models.settings import ModelSettings

ELEMENT_OUTPUTS = ("element_probability", "element_label", "element_charge", "element_momentum")
#: More elements than any event has; nothing is computed with it.
_MANY = 1 << 30


def input_columns(kind: str) -> tuple[Column, ...]:
    """Columns of the input of a kind, in their order."""
    known = {column.name: column for column in COLLECTIONS[kind]}
    return tuple(known[name] for name in needed_columns((kind,), {kind: tuple(known)})[kind])


def output_names(calorimeter: str) -> tuple[str, ...]:
    """Outputs in their order."""
    return (*ELEMENT_OUTPUTS, *candidate_outputs(("track", calorimeter)))


class EventGraph(nn.Module):
    """The function of one event. One that is not portable can be exported, but not be run in torch."""

    def __init__(self, loaded: LoadedModel, *, portable: bool = True) -> None:
        super().__init__()
        loaded.model.require_bound()
        self.model = copy.deepcopy(loaded.model).cpu().eval()
        for block in self.model.blocks:
            assert isinstance(block, Block)
            if block.mixer is not None:
                block.mixer = for_one_event(block.mixer, loaded.model.settings, portable=portable).eval()
        self.kinds = loaded.model.kinds
        self.threshold = loaded.threshold
        for kind in self.kinds:
            # Which column [row] a feature [column] is made of.
            needs = [[float(name in feature.needs) for feature in FEATURES[kind]] for name in _names(kind)]
            self.register_buffer(f"needs_{kind}", torch.tensor(needs))

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
            # As [N, 1]: fewer operations.
            columns = dict(zip(_names(kind), torch.split(raw[kind], 1, dim=1), strict=True))
            lacking = raw[kind].isnan().float() @ getattr(self, f"needs_{kind}") > 0.5
            own = torch.where(lacking, torch.nan, features_of(kind, columns))
            after = total - before - own.shape[1]
            features.append(pad(own, (before, after), value=torch.nan))
            position, reference = kinematics(kind, columns)
            positions.append(position.flatten(1))
            references.append(reference.flatten(1))
            before += own.shape[1]
        elements = torch.cat(features), torch.cat(positions), torch.cat(references)
        if self.model.frame is None:
            return elements
        features, references = self.model.frame(*elements)
        return features, elements[1], references

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


def _names(kind: str) -> list[str]:
    return [column.name for column in input_columns(kind)]


def for_one_event(mixer: Mixer, settings: ModelSettings, *, portable: bool) -> Mixer:
    """The mixer itself if ONNX has its operations, else one that computes the same with the same weights.

    Only a portable one also runs in torch.
    """
    if isinstance(mixer, GraphMixer):
        exportable: Mixer = OneEventGraphMixer(settings)
    elif isinstance(mixer, AttentionMixer) and not portable:
        exportable = FusedAttentionMixer(settings)
    else:
        return mixer
    exportable.load_state_dict(mixer.state_dict())
    return exportable


class FusedAttentionMixer(AttentionMixer):
    """Attention by an operation of ONNX Runtime that never makes its whole matrix, in half of the time.

    The standard spells the matrix: 805 MB at 8,192 elements and three heads.
    """

    def attend(self, query: Tensor, key: Tensor, value: Tensor, layout: Layout) -> Tensor:
        """Softmax of the products with all others, times their values."""
        flat = tuple(part.flatten(1)[None] for part in (query, key, value))
        heard = torch.onnx.ops.symbolic(
            "com.microsoft::MultiHeadAttention",
            flat,
            {"num_heads": self.heads},
            dtype=query.dtype,
            shape=flat[0].shape,
            version=1,
        )
        return heard[0].view(*query.shape)


class OneEventGraphMixer(GraphMixer):
    """The learned graph without loops and searches: its bins side by side in a table, filled up to the longest of them."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hashed_N: Tensor | None, layout: Layout) -> Tensor:
        """Softmax of the products with the others of the bin, times their values."""
        assert hashed_N is not None, "an event of unknown length is always hashed"
        num_bins, longest, slot_N = _bin_table(hashed_N, self.bin_size)
        slots = num_bins * longest
        element_T = torch.zeros(slots, dtype=torch.int64).scatter(0, slot_N, torch.arange(hashed_N.shape[0]))
        filled_T = torch.zeros(slots).scatter(0, slot_N, torch.ones(hashed_N.shape[0])) > 0.5
        q, k, v = (
            part.index_select(0, element_T).view(num_bins, longest, *part.shape[1:]).transpose(1, 2)
            for part in (query, key, value)
        )
        mask = filled_T.view(num_bins, 1, 1, longest)
        heard = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
        return heard.transpose(1, 2).reshape(slots, *value.shape[1:]).index_select(0, slot_N)


def _bin_table(hashed_N: Tensor, bin_size: int) -> tuple[int, int, Tensor]:
    """The bins of `models.graph.bins_of` for one event, as rows of a table: their number, the longest, each element's slot."""
    rows = hashed_N.shape[0]
    sorted_S, order_S = torch.sort(hashed_N)
    place_S = torch.arange(rows)
    run_S = pad((sorted_S[1:] != sorted_S[:-1]).long().cumsum(0), (1, 0))[:rows]
    first_S = _first_places(run_S, place_S)
    first_S = first_S + (place_S - first_S).div(bin_size, rounding_mode="floor") * bin_size
    num_bins = (rows + bin_size - 1) // bin_size
    bin_S = (first_S * num_bins).div(rows, rounding_mode="floor")
    within_S = place_S - _first_places(bin_S, place_S)
    # Two at least: the exporter takes axes of one for something else.
    longest = cast(int, (within_S.max() + 1).clamp_min(2).item())
    torch._check(longest >= 2)  # type: ignore[no-untyped-call]
    slot_N = torch.zeros_like(order_S).scatter(0, order_S, bin_S * longest + within_S)
    return num_bins, longest, slot_N


def _first_places(group_S: Tensor, place_S: Tensor) -> Tensor:
    """The first place of everyone's group."""
    rows = place_S.shape[0]
    return torch.full((rows,), rows).scatter_reduce(0, group_S, place_S, "amin")[group_S]


# Operations of torch that ONNX, or ONNX Runtime in float64, lacks, spelled in those they have.

#: Numbers of types in ONNX.
_FLOAT32, _FLOAT64 = 1, 11


def _operators() -> Any:
    """Those of the standard; imported late, since they are slow to load."""
    from onnxscript import opset18

    return opset18


def _hypot(x: Any, y: Any) -> Any:
    """Length in the plane; detectors are far too small for squares to overflow."""
    op = _operators()
    return op.Sqrt(op.Add(op.Mul(x, x), op.Mul(y, y)))


def _asinh(x: Any) -> Any:
    """By the logarithm of a sum, in float64, where it loses no digits that anyone sees."""
    op = _operators()
    size = op.Cast(op.Abs(x), to=_FLOAT64)
    one = op.CastLike(op.Constant(value_float=1.0), size)
    found = op.Log(op.Add(size, op.Sqrt(op.Add(op.Mul(size, size), one))))
    return op.Mul(op.Sign(x), op.CastLike(found, x))


def _atan2(y: Any, x: Any) -> Any:
    """Of float64: the angle in float32, and what remains after turning by it, whose tangent is its size."""
    op = _operators()
    rough = op.CastLike(_float_atan2(op.Cast(y, to=_FLOAT32), op.Cast(x, to=_FLOAT32)), x)
    cosine, sine = op.Cos(rough), op.Sin(rough)
    along = op.Add(op.Mul(x, cosine), op.Mul(y, sine))
    across = op.Sub(op.Mul(y, cosine), op.Mul(x, sine))
    zero = op.CastLike(op.Constant(value_float=0.0), x)
    one = op.CastLike(op.Constant(value_float=1.0), x)
    at_origin = op.Equal(along, zero)
    return op.Add(rough, op.Where(at_origin, zero, op.Div(across, op.Where(at_origin, one, along))))


def _float_atan2(y: Any, x: Any) -> Any:
    """In float32, of the smaller over the larger, so that no quotient is more than one."""
    op = _operators()
    zero, one = op.Constant(value_float=0.0), op.Constant(value_float=1.0)
    width, height = op.Abs(x), op.Abs(y)
    longer, shorter = op.Max(width, height), op.Min(width, height)
    angle = op.Atan(op.Div(shorter, op.Where(op.Equal(longer, zero), one, longer)))
    angle = op.Where(op.Greater(height, width), op.Sub(op.Constant(value_float=torch.pi / 2), angle), angle)
    angle = op.Where(op.Less(x, zero), op.Sub(op.Constant(value_float=torch.pi), angle), angle)
    return op.Where(op.Less(y, zero), op.Neg(angle), angle)


#: For the exporter.
TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.aten.hypot.default: _hypot,
    torch.ops.aten.asinh.default: _asinh,
    torch.ops.aten.atan2.default: _atan2,
}


#: Elements of the made-up event that is traced; the file takes any number.
_TRACED = (5, 7)


def require_onnx() -> None:
    """One line where a part of the extra is missing: before the work, because tracing and comparing take a while."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        framework(package, "onnx")


def write_onnx(path: Path, loaded: LoadedModel, *, portable: bool = False) -> Description:
    """Write a model in float32; it appears whole or not at all. A portable one has operators of the standard only."""
    require_onnx()
    described = describe(loaded)
    proto = _trace(EventGraph(loaded, portable=portable).eval(), described.kinds)
    write_proto(path, proto, described)
    return described


def describe(loaded: LoadedModel) -> Description:
    """What the file of a model says of itself."""
    inputs = {
        kind: tuple(
            InputColumn(column.name, column.unit, column.meaning, column.name in essential_columns(kind))
            for column in input_columns(kind)
        )
        for kind in loaded.model.kinds
    }
    detector = loaded.card.get("detector")
    return Description(
        inputs,
        PARTICLE_CLASSES,
        loaded.threshold,
        str(detector) if detector else None,
        weights_hash(loaded.model),
        __version__,
        card=loaded.card,
    )


def weights_hash(model: Model) -> str:
    """Fingerprint of the weights and of the fitted scaling, by name."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()


def write_proto(path: Path, proto: Any, described: Description) -> None:
    """Write a graph with its description, and without traces of the machine that made it."""
    del proto.metadata_props[:]
    for key, value in described.properties().items():
        proto.metadata_props.add(key=key, value=value)
    proto.producer_name, proto.producer_version = "ringflow", __version__
    write_atomic(path, with_hash(proto.SerializeToString(deterministic=True)))


def _trace(graph: EventGraph, kinds: tuple[str, str]) -> Any:
    """The graph as ONNX, for any number of tracks and calorimeter objects."""
    generator = torch.Generator().manual_seed(1)
    example = tuple(
        torch.rand(rows, len(input_columns(kind)), generator=generator) + 1.0
        for rows, kind in zip(_TRACED, kinds, strict=True)
    )
    any_number = {0: torch.export.Dim.DYNAMIC}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it says that torchvision is not there
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own parts
        program = torch.onnx.export(
            graph,
            example,
            dynamo=True,
            dynamic_shapes={"track": any_number, "calorimeter": any_number},
            input_names=list(kinds),
            output_names=list(output_names(kinds[1])),
            custom_translation_table=TRANSLATIONS,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    # What the tracer noted beside every operation goes, and the axes get names that say something.
    for part in (proto.graph, *proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]
    del proto.graph.value_info[:]  # shapes of intermediates in the names of the tracer
    proto.graph.name = "ringflow"
    for value in (*proto.graph.input, *proto.graph.output):
        first = value.type.tensor_type.shape.dim[0]
        is_element = value.name.startswith("element_")
        first.dim_param = f"{value.name}s" if value.name in kinds else "elements" if is_element else "candidates"
    return proto


#: Layers by the beginning of the name of their weights.
_QUANTISED = ("model.blocks.", "model.heads.hidden.", "model.embedding.layers.2.")
_PRODUCTS = ("Gemm", "MatMul")
#: Tells ONNX Runtime that nothing has to be done before; else it writes a warning.
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")


def write_int8(path: Path, source: Path, blocks: Iterable[EventBlock], events: int) -> Description:
    """Write an exported file once more with eight-bit integers in the dense layers, ranges measured on `events` events.

    Features, attention products, the first layer (whose inputs have long tails) and decoding stay in float32. Weights take
    seven bits: without VNNI instructions sums of eight-bit products overflow, and answers would be off by a fifth.
    """
    onnx, quantization = framework("onnx", "onnx"), framework("onnxruntime.quantization", "onnx")
    described = replace(EventRuntime(source).description, precision="int8")
    proto = onnx.load(source)
    proto.metadata_props.add(key=_PREPARED[0], value=_PREPARED[1])
    # What operations outside of the standard give: from there on the types of all others follow.
    foreign = [name for node in proto.graph.node if node.domain for name in node.output]
    told = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in foreign)
    proto.graph.value_info.extend(told)
    found = (event for block in blocks for event in event_values(block, described.inputs))
    measured = list(islice((event for event in found if any(map(len, event.values()))), events))
    if not measured:
        raise DatasetError("no event with elements to calibrate on; give a dataset that has some")

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc, name-defined]
        left = iter(measured)

        def get_next(self) -> Values | None:
            return next(self.left, None)

    with temporary_folder("int8") as folder:
        made = folder / "int8.onnx"
        quantization.quantize_static(
            proto,
            made,
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            reduce_range=True,
            op_types_to_quantize=list(_PRODUCTS),
            nodes_to_quantize=[
                node.name
                for node in proto.graph.node
                if node.op_type in _PRODUCTS and any(name.startswith(_QUANTISED) for name in node.input)
            ],
        )
        write_proto(path, onnx.load(made), described)
    return described


TOLERANCE = 1e-4
#: Share of the events that rounding may decide; one always may.
UNDECIDED_SHARE = 0.01
_BACKBONES_WITH_HASH = ("graph",)
_TRIES = 30
_LAST_BIT = 2.0**-23


@dataclass(frozen=True)
class Comparison:
    """Largest differences, how many decisions differ without a tie, and how much was compared."""

    events: int = 0
    elements: int = 0
    probability: float = 0.0
    momentum: float = 0.0
    label: int = 0
    charge: int = 0
    candidate: int = 0
    undecided: int = 0  # events

    def __add__(self, other: Comparison) -> Comparison:
        largest = ("probability", "momentum")
        pairs = {name: (value, getattr(other, name)) for name, value in vars(self).items()}
        return Comparison(**{name: max(pair) if name in largest else sum(pair) for name, pair in pairs.items()})

    def rows(self) -> list[dict[str, object]]:
        """One row per output."""
        found: list[tuple[str, float, float]] = [
            ("element_probability", self.probability, TOLERANCE),
            ("element_momentum", self.momentum, TOLERANCE),
            ("element_label", self.label, 0),
            ("element_charge", self.charge, 0),
            ("candidates", self.candidate, 0),
            ("undecided events", self.undecided, max(1, int(UNDECIDED_SHARE * self.events))),
        ]
        return [{"output": name, "difference": x, "limit": most, "ok": x <= most} for name, x, most in found]

    @property
    def ok(self) -> bool:
        """Whether the file is as good as the network."""
        return all(bool(row["ok"]) for row in self.rows())


@torch.inference_mode()
def compare(loaded: LoadedModel, runtime: EventRuntime, blocks: Iterable[EventBlock]) -> Comparison:
    """Whether a file gives what the network gives: on every element of real events, not on an example.

    Momenta are compared relative to the energy, those of elements that become no candidate too. A decision that hangs on less
    than the tolerance (two classes equally likely, a probability at the threshold) may fall either way.

    The learned graph decides by a hash who talks to whom, and the last bit of a number can turn it. An event that differs there
    is compared again with the network on inputs that are off by such a bit; it counts as equal if one of these answers is the
    same, and as undecided. Only a small share of the events may be.
    """
    found = Comparison()
    for block in blocks:
        answers = [runtime.run(event) for event in runtime.events(block)]
        batch = loaded.model.see(from_block(block, runtime.description.kinds[1]))
        compared = _difference(loaded, batch, answers)
        if not compared.ok and loaded.model.settings.backbone in _BACKBONES_WITH_HASH:
            compared = _event_by_event(loaded, batch, answers)
        found += compared
    return found


def _event_by_event(loaded: LoadedModel, batch: ElementBatch, answers: list[Values]) -> Comparison:
    """The differences where an event may also be the same as one whose numbers are off by a bit."""
    found = Comparison()
    for index, answer in enumerate(answers):
        event = batch.take(torch.tensor([index]))
        compared = _difference(loaded, event, [answer])
        generator = torch.Generator().manual_seed(index)

        def shake(values: Tensor, generator: torch.Generator = generator) -> Tensor:
            return values * (1.0 + _LAST_BIT * torch.randint(-1, 2, values.shape, generator=generator))

        for _ in range(0 if compared.ok else _TRIES):
            near = replace(event, features_NF=shake(event.features_NF), position_N2=shake(event.position_N2))
            shaken = _difference(loaded, near, [answer])
            if shaken.ok:
                compared = replace(shaken, undecided=1)
                break
        found += compared
    return found


def _difference(loaded: LoadedModel, batch: ElementBatch, answers: list[Values]) -> Comparison:
    """What the network says of some events against the answers of the file."""
    if not batch.num_elements:
        empty = sum(len(values) for answer in answers for values in answer.values())
        return Comparison(events=len(answers), candidate=empty)
    got = {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    said = loaded.model.predict(batch)
    on_track = batch.charge_N != 0
    label, charge, momentum = (part.numpy() for part in decide(said, on_track, batch.reference_N4))
    probability = said.particle_N.sigmoid().numpy()
    classes = torch.where(possible_classes(on_track), said.class_NC, -torch.inf).softmax(1)
    charges = said.charge_N3.softmax(1)[:, ::2]
    taken = probability >= loaded.threshold
    same_label = got["element_label"] == label
    chosen = got["element_probability"] >= loaded.threshold
    wrong = (chosen != taken) & (np.abs(probability - loaded.threshold) > TOLERANCE)
    return Comparison(
        events=len(answers),
        elements=batch.num_elements,
        probability=_largest(got["element_probability"] - probability),
        momentum=_largest((got["element_momentum"] - momentum) / momentum[:, 3:]),
        label=int((~same_label & ~_tied(classes)).sum()),
        charge=int(((got["element_charge"] != charge) & same_label & ~_tied(charges)).sum()),
        candidate=int(wrong.sum()) + _not_the_elements(got, chosen, loaded.model.kinds[1]),
    )


def _not_the_elements(got: Values, chosen: npt.NDArray[np.bool_], calorimeter: str) -> int:
    """How many candidates are not the chosen elements of the same answer, or are said to be made of something else."""
    count = abs(int(chosen.sum()) - len(got["candidate_label"]))
    if count:
        return count
    wrong = np.zeros(len(got["candidate_label"]), bool)
    for name in ("label", "charge", "momentum"):
        differs = got[f"candidate_{name}"] != got[f"element_{name}"][chosen]
        wrong |= differs.any(tuple(range(1, differs.ndim)))
    wrong |= (got["candidate_track"] >= 0) == (got[f"candidate_{calorimeter}"] >= 0)
    return int(wrong.sum())


def _largest(difference: npt.NDArray[np.floating]) -> float:
    """The largest distance from zero; infinite if one is not a number."""
    return float(np.nan_to_num(np.abs(difference), nan=np.inf).max(initial=0.0))


def _tied(probabilities: torch.Tensor) -> npt.NDArray[np.bool_]:
    """Where the two highest are nearly one."""
    best, second = probabilities.topk(2, dim=1).values.unbind(1)
    tied: npt.NDArray[np.bool_] = (best - second < TOLERANCE).numpy()
    return tied


# A model repository of the Triton inference server:
# DIR/<name>/config.pbtxt     inputs, candidates, where to run; written once, so that changes by hand stay
# DIR/<name>/1/model.onnx     the file; an export of the same name later on becomes version 2, and so on

DEFAULT_NAME = "ringflow"
CONFIG_FILE, MODEL_FILE = "config.pbtxt", "model.onnx"

_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
#: A folder that is taken: two writers at a time wanted the same one.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
#: Numbers of types in ONNX, and what Triton calls them.
_TYPES = {1: "TYPE_FP32", 7: "TYPE_INT64"}


def require_place(repository: Path, name: str, described: Description) -> None:
    """Whether a file can go there: the name is one, and what has it already takes and gives the same."""
    if not _MODEL_NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a model; use letters, digits, _, - and .")
    if repository.exists() and not repository.is_dir():
        raise UsageError(f"{repository} is a file, not a folder; choose another model repository")
    entry = repository / name
    if not entry.exists():
        return
    versions = _versions(entry)
    if not versions or not (newest := entry / str(versions[-1]) / MODEL_FILE).is_file():
        raise UsageError(f"{entry} is there, but not by `ringflow export`; choose another --name")
    try:
        there = EventRuntime(newest).description
    except InputFileError:
        raise UsageError(f"{newest} was not written by `ringflow export`; choose another --name") from None
    if (there.columns, there.class_names) != (described.columns, described.class_names):
        raise UsageError(f"{newest} has other columns or classes than this model; choose another --name")


def write_repository(repository: Path, name: str, model: Path) -> Path:
    """Put a file into a repository; the place of its new version, which appears whole."""
    entry = repository / name
    with write_errors(entry):
        repository.mkdir(parents=True, exist_ok=True)
        with temporary_folder(entry) as folder:
            new = folder / name
            (new / "1").mkdir(parents=True)
            write_atomic(new / "1" / MODEL_FILE, model.read_bytes())
            config = model_config(name, model)
            write_atomic(new / CONFIG_FILE, config)
            if not entry.exists() and _renamed(new, entry):
                return entry / "1" / MODEL_FILE
            if not (entry / CONFIG_FILE).exists():
                write_atomic(entry / CONFIG_FILE, config)
            version = max(_versions(entry), default=0) + 1
            while not _renamed(new / "1", entry / str(version)):
                version += 1
            return entry / str(version) / MODEL_FILE


def model_config(name: str, model: Path) -> str:
    """The text of config.pbtxt: one event per request, tables of any number of rows in, candidates out."""
    proto = framework("onnx", "onnx").load(model, load_external_data=False)
    described = Description.read({entry.key: entry.value for entry in proto.metadata_props}, model)
    candidates = [output for output in proto.graph.output if output.name.startswith("candidate_")]
    facts = {
        "class_names": json.dumps(described.class_names),
        "columns": json.dumps(described.columns),
        "detector": described.detector or "",
    }
    # What JSON escapes stays escaped in a string of the text format.
    quoted = {key: fact.replace("\\", "\\\\").replace('"', '\\"') for key, fact in facts.items()}
    lines = (
        f'name: "{name}"',
        'backend: "onnxruntime"',
        "max_batch_size: 0",
        _tensors("input", proto.graph.input),
        _tensors("output", candidates),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        "version_policy { latest { num_versions: 1 } }",
        *(f'parameters {{ key: "{key}" value {{ string_value: "{fact}" }} }}' for key, fact in quoted.items()),
    )
    return "\n".join(lines) + "\n"


def _tensors(field: str, values: Sequence[Any]) -> str:
    lines = []
    for value in values:
        kind = value.type.tensor_type
        dims = ", ".join(str(dim.dim_value) if dim.HasField("dim_value") else "-1" for dim in kind.shape.dim)
        lines.append(f'  {{ name: "{value.name}" data_type: {_TYPES[kind.elem_type]} dims: [ {dims} ] }}')
    return f"{field} [\n" + ",\n".join(lines) + "\n]"


def _versions(entry: Path) -> list[int]:
    """Numbers of the versions that are there, rising."""
    folders = entry.iterdir() if entry.is_dir() else ()
    return sorted(int(path.name) for path in folders if path.is_dir() and re.fullmatch(r"[1-9]\d*", path.name))


def _renamed(source: Path, target: Path) -> bool:
    """Move a folder to its name; false if somebody else has taken it."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True

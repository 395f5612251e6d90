"""Whether an exported file gives what the network gives: on every element of real events, not on an example.

Momenta are compared relative to the energy, those of elements that become no candidate too. A decision that hangs on less
than the tolerance (two classes equally likely, a probability at the threshold) may fall either way.

The learned graph decides by a hash who talks to whom, and the last bit of a number can turn it. An event that differs there is
compared again with the network on inputs that are off by such a bit; it counts as equal if one of these answers is the same,
and as undecided. Only a small share of the events may be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from ringflow.elements.batch import ElementBatch, from_block
from ringflow.event.block import EventBlock
from ringflow.infer.runtime import EventRuntime, Values
from ringflow.models.file import LoadedModel
from ringflow.models.model import decide, possible_classes

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
        counts = ("events", "elements", "label", "charge", "candidate", "undecided")
        summed = {name: getattr(self, name) + getattr(other, name) for name in counts}
        largest = {name: max(getattr(self, name), getattr(other, name)) for name in ("probability", "momentum")}
        return Comparison(**summed, **largest)

    def rows(self) -> list[dict[str, object]]:
        """One row per output."""
        largest = {"element_probability": self.probability, "element_momentum": self.momentum}
        limits = {"element_label": 0, "element_charge": 0, "candidates": 0}
        limits["undecided events"] = max(1, int(UNDECIDED_SHARE * self.events))
        counts = zip(limits.items(), (self.label, self.charge, self.candidate, self.undecided), strict=True)
        return [
            *(
                {"output": name, "difference": x, "limit": TOLERANCE, "ok": x <= TOLERANCE}
                for name, x in largest.items()
            ),
            *({"output": name, "difference": n, "limit": most, "ok": n <= most} for (name, most), n in counts),
        ]

    @property
    def ok(self) -> bool:
        """Whether the file is as good as the network."""
        return all(bool(row["ok"]) for row in self.rows())


@torch.inference_mode()
def compare(loaded: LoadedModel, runtime: EventRuntime, blocks: Iterable[EventBlock]) -> Comparison:
    """Compare on all events of some blocks."""
    found = Comparison()
    for block in blocks:
        answers = [runtime.run(event) for event in runtime.events(block)]
        batch = from_block(block, runtime.description.kinds[1])
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
        for _ in range(0 if compared.ok else _TRIES):
            shaken = _difference(loaded, _off_by_a_bit(event, generator), [answer])
            if shaken.ok:
                compared = replace(shaken, undecided=1)
                break
        found += compared
    return found


def _off_by_a_bit(batch: ElementBatch, generator: torch.Generator) -> ElementBatch:
    def shake(values: torch.Tensor) -> torch.Tensor:
        return values * (1.0 + _LAST_BIT * torch.randint(-1, 2, values.shape, generator=generator))

    return replace(batch, features_NF=shake(batch.features_NF), position_N2=shake(batch.position_N2))


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

"""What every backbone promises, however its elements talk. A new backbone inherits `BackboneContract`.

The last layer of a fresh network is zero, so that it says nothing; here it is drawn at random, else every test would pass.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from fixtures.made_up import filled
from ringflow.elements.batch import ElementBatch, join, random_elements
from ringflow.models.attention import Layout
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings

COUNTS = (40, 100, 0, 1, 70)
ROW_FIELDS = ("kind_N", "features_NF", "position_N2", "reference_N4", "charge_N")
ANGLE = 1.234


def outputs(model: Model, batch: ElementBatch) -> Tensor:
    """Everything the network says, [N, outputs]."""
    with torch.no_grad():
        prediction = model.predict(batch)
    return torch.cat([prediction.particle_N[:, None], *prediction[1:]], dim=1)


def reordered(batch: ElementBatch, index: Tensor) -> ElementBatch:
    """The rows in another order, within the same events."""
    return replace(batch, **{name: getattr(batch, name)[index] for name in ROW_FIELDS})


def turned(batch: ElementBatch, angle: float) -> ElementBatch:
    """The event after a turn around the beam: features are relative to the element, so that only its place changes."""
    return replace(batch, position_N2=batch.position_N2 + torch.tensor([0.0, angle]))


def shuffled_within(batch: ElementBatch) -> Tensor:
    noise = torch.rand(batch.num_elements, generator=torch.Generator().manual_seed(7))
    return (batch.event_N + noise).argsort()


def close(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, atol=2e-4, rtol=1e-3)


class BackboneContract:
    """Inherit it and name the backbone."""

    backbone: ClassVar[str]
    changes: ClassVar[dict[str, Any]] = {}
    #: Whether elements talk to each other, and whether memory must grow linearly up to 50,000 of them.
    talks: ClassVar[bool] = True
    linear: ClassVar[bool] = True
    #: Measured: relative change of the outputs of a large event by rounding alone; 0: none to be seen.
    rounding: ClassVar[float] = 0.0

    @classmethod
    def network(cls, **changes: Any) -> Model:
        torch.manual_seed(11)
        settings = {"width": 32, "layers": 3, "heads": 2, "hidden": 48, **cls.changes, **changes}
        model = Model(ModelSettings.model_validate({"backbone": cls.backbone, **settings})).eval()
        torch.nn.init.normal_(model.heads.out.weight)
        torch.nn.init.normal_(model.heads.out.bias)
        return model

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls) -> Model:
        return cls.network()

    @pytest.fixture(scope="class")
    @classmethod
    def batch(cls) -> ElementBatch:
        return random_elements(COUNTS)

    def test_shuffling_the_elements_shuffles_the_output(self, model: Model, batch: ElementBatch) -> None:
        order = shuffled_within(batch)
        assert not torch.equal(order, torch.arange(batch.num_elements))
        assert close(outputs(model, reordered(batch, order)), outputs(model, batch)[order])

    def test_an_event_alone_is_the_event_in_a_batch(self, model: Model, batch: ElementBatch) -> None:
        together = outputs(model, batch)
        for event in range(batch.num_events):
            alone = outputs(model, batch.take(torch.tensor([event])))
            assert close(alone, together[batch.event_N == event]), event

    def test_an_event_does_not_know_its_place_in_the_batch(self, model: Model, batch: ElementBatch) -> None:
        backwards = torch.arange(batch.num_events).flip(0)
        parts = [outputs(model, batch)[batch.event_N == event] for event in backwards.tolist()]
        assert close(outputs(model, batch.take(backwards)), torch.cat(parts))

    def test_padding_changes_nothing(self, model: Model, batch: ElementBatch) -> None:
        padded = outputs(model, filled(batch, 150))
        assert padded.isfinite().all()
        assert close(padded[: batch.num_elements], outputs(model, batch))

    def test_a_larger_bound_of_the_length_changes_nothing(self, model: Model, batch: ElementBatch) -> None:
        layout = Layout.of(batch, longest=1000)
        with torch.no_grad():
            bounded = model(batch.features_NF, batch.kind_N, batch.position_N2, layout)
        assert close(bounded.class_NC, model.predict(batch).class_NC)

    def test_events_know_nothing_of_each_other(self, model: Model, batch: ElementBatch) -> None:
        rows = batch.event_N == 1
        features = torch.where(rows[:, None], 50.0 * batch.features_NF, batch.features_NF)
        position = torch.where(rows[:, None], 0.1 * batch.position_N2, batch.position_N2)
        before, after = (
            outputs(model, batch),
            outputs(model, replace(batch, features_NF=features, position_N2=position)),
        )
        assert torch.allclose(after[~rows], before[~rows], atol=1e-6)
        assert not close(after[rows], before[rows])

    def test_elements_of_an_event_talk(self, model: Model, batch: ElementBatch) -> None:
        """The first event fits into one bin: whatever changes, everybody may hear of it."""
        changed = batch.features_NF.clone()
        changed[0] = 3.0
        before, after = outputs(model, batch), outputs(model, replace(batch, features_NF=changed))
        heard = ((after - before).abs() > 1e-5).any(1)
        assert heard[0]
        assert bool(heard[1 : COUNTS[0]].all()) if self.talks else not heard[1:].any()

    def test_turning_the_event_changes_nothing(self, model: Model, batch: ElementBatch) -> None:
        assert close(outputs(model, turned(batch, ANGLE)), outputs(model, batch))

    def test_turning_a_large_event_changes_at_most_what_rounding_does(self, model: Model) -> None:
        """Rounding may move an element of a large event to the next bin; then those of two bins hear something else."""
        batch = random_elements([2000])
        before, after = outputs(model, batch), outputs(model, turned(batch, ANGLE))
        assert close(after, before) or (after - before).square().mean() < self.rounding**2 * before.square().mean()

    def test_once_around_the_beam_changes_nothing(self, model: Model, batch: ElementBatch) -> None:
        """Whether an element is at -pi or at pi is the same to all others."""
        position = batch.position_N2.clone()
        position[::3, 1] += 2 * torch.pi
        assert close(outputs(model, replace(batch, position_N2=position)), outputs(model, batch))

    @pytest.mark.parametrize("count", [1, 128, 129, 257])
    def test_any_number_of_elements(self, model: Model, count: int) -> None:
        alone = random_elements([count], seed=count)
        said = outputs(model, alone)
        assert said.shape[0] == count
        assert said.isfinite().all()
        empty = random_elements([0])
        assert close(outputs(model, join([empty, alone, empty])), said)

    def test_no_elements_at_all(self, model: Model) -> None:
        assert len(outputs(model, random_elements([0]))) == len(outputs(model, random_elements([0, 0]))) == 0

    def test_equal_elements_say_the_same(self, model: Model) -> None:
        event = random_elements([61])
        thrice = torch.arange(61).repeat(3)
        said = outputs(model, replace(reordered(event, thrice), offsets_B=torch.tensor([0, 183])))
        for copy in said.view(3, 61, -1)[1:]:
            assert torch.allclose(copy, said[:61], atol=1e-5)

    def test_gradients_reach_every_parameter(self, batch: ElementBatch) -> None:
        model = self.network().train()
        prediction = model.predict(batch)
        sum((part.square().mean() for part in prediction), start=torch.zeros(())).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name

    def test_missing_and_extreme_features_are_taken(self, model: Model, batch: ElementBatch) -> None:
        for value in (torch.nan, 1e30, -1e30):
            features = torch.full_like(batch.features_NF, value)
            assert outputs(model, replace(batch, features_NF=features)).isfinite().all()

    @pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
    def test_low_precision_says_nearly_the_same(self, batch: ElementBatch, precision: torch.dtype) -> None:
        model, first = self.network(), batch.take(torch.tensor([0, 3]))
        exact = outputs(model, first)
        with torch.autocast("cpu", dtype=precision):
            rounded = outputs(model, first)
        assert (rounded - exact).square().mean().sqrt() < 0.05 * exact.square().mean().sqrt()

    def test_memory_does_not_grow_with_the_square(self) -> None:
        if not self.linear:
            pytest.skip("quadratic by definition")
        assert peak_of(self.backbone, 20_000) < 200  # one N x N matrix of a single head would take 1,600

    @pytest.mark.heavy
    def test_memory_grows_linearly_to_fifty_thousand(self) -> None:
        if not self.linear:
            pytest.skip("quadratic by definition")
        small, large = peak_of(self.backbone, 10_000), peak_of(self.backbone, 50_000)
        assert large < 7 * small + 20  # one N x N matrix of a single head would take 10,000
        assert large < 500


def peak_of(backbone: str, num_elements: int) -> float:
    """Megabytes by which the memory of a fresh process rises when a small network sees one event."""
    code = f"""
import torch
from ringflow.bench import peak_megabytes
from ringflow.elements.batch import random_elements
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings

model = Model(ModelSettings(backbone="{backbone}", width=32, layers=1, heads=2, hidden=32)).eval()
event = random_elements([{num_elements}])
with torch.inference_mode():
    model.predict(random_elements([300]))
    print(peak_megabytes(lambda: print(len(model.predict(event).particle_N))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows, megabytes = done.stdout.split()
    assert int(rows) == num_elements
    return float(megabytes)


class TestAttention(BackboneContract):
    backbone = "attention"
    linear = False


class TestMlp(BackboneContract):
    backbone = "mlp"
    talks = False


class TestKernel(BackboneContract):
    backbone = "kernel"


class TestGraphInOneBin(BackboneContract):
    backbone = "graph"


class TestGraphInSeveralBins(BackboneContract):
    """Bins of at most 40 of up to 257 elements."""

    backbone = "graph"
    changes: ClassVar[dict[str, Any]] = {"graph": {"bin_size": 40}}
    rounding = 0.06

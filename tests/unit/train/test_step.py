"""One step: what is hidden, what is recorded, in which precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ringflow.elements.batch import ElementBatch
from ringflow.elements.features import feature_groups
from ringflow.models.model import Model
from ringflow.train import step as step_module
from ringflow.train.batches import Feed
from ringflow.train.settings import TrainSettings
from ringflow.train.step import HideFeatures, TrainingStep

CPU = torch.device("cpu")
KINDS = ("track", "cluster")
GROUPS = feature_groups(KINDS)
Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]


def hidden(batch: ElementBatch, probability: float, seed: int = 1) -> torch.Tensor:
    """Which of the features that were there are not any more."""
    hide = HideFeatures(KINDS, probability, CPU)
    torch.manual_seed(seed)
    after = hide(batch, batch.event_N)
    return after.features_NF.isnan() & ~batch.features_NF.isnan()


def test_essential_features_are_never_hidden_and_others_are(events: Events):
    gone = hidden(events(200), 0.9)
    essential = torch.tensor([group is None for group in GROUPS])
    assert not gone[:, essential].any()
    assert gone[:, ~essential].any(0).all()


def test_the_share_of_hidden_groups_is_the_probability(events: Events):
    batch = events(400)
    gone = hidden(batch, 0.25)
    names = sorted({group for group in GROUPS if group})
    shares = []
    for name in names:
        column = GROUPS.index(name)
        there = ~batch.features_NF[:, column].isnan()
        shares.append(float(gone[there, column].float().mean()))
    assert sum(shares) / len(shares) == pytest.approx(0.25, abs=0.03)


def test_a_group_is_hidden_in_the_whole_event_as_if_the_detector_lacked_it(events: Events):
    batch = events(30)
    names = sorted({group for group in GROUPS if group})
    hide = HideFeatures(KINDS, 0.5, CPU)
    torch.manual_seed(4)
    after = hide(batch, batch.event_N)
    drawn = torch.rand(batch.num_events, len(names) + 1, generator=torch.Generator().manual_seed(4)) < 0.5
    lacking = [drawn[:, names.index(group)] if group else torch.zeros_like(drawn[:, 0]) for group in GROUPS]
    expected = torch.stack(lacking, dim=1)[batch.event_N] | batch.features_NF.isnan()
    assert torch.equal(after.features_NF.isnan(), expected)
    assert hidden(batch, 0.5, 4).any()


def test_nothing_is_hidden_at_probability_zero(events: Events):
    assert not hidden(events(), 0.0).any()


def make_step(settings: TrainSettings, device: torch.device = CPU) -> TrainingStep:
    torch.manual_seed(settings.seed)
    return TrainingStep(Model(settings.model), settings, device)


def one_step(settings: TrainSettings, source: Any) -> tuple[TrainingStep, dict[str, float]]:
    step = make_step(settings)
    batch = Feed(source, budget=100, reuse=1, seed=1, device=CPU).next(1)
    step.take([batch], 0, 1e-2)
    return step, step.read()[0].values


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_moves_the_weights_and_their_average(precision: str, tiny: Tiny, source: Callable[..., Any]):
    settings = tiny(f"compute.precision={precision}")
    start = make_step(settings).model.heads.out.weight
    step, values = one_step(settings, source())
    assert set(values) == {"total", "particle", "label", "charge", "momentum", "jet", "gradient"}
    assert all(map(math.isfinite, values.values()))
    moved = step.model.heads.out.weight - start
    assert moved.abs().max() > 1e-3
    # The first decay of the average is a tenth.
    assert torch.allclose(step.average.model().heads.out.weight - start, 0.9 * moved)


def test_bfloat16_computes_in_bfloat16(tiny: Tiny, source: Callable[..., Any]):
    seen = []
    step = make_step(tiny("compute.precision=bfloat16"))
    step.model.embedding.layers[0].register_forward_hook(lambda layer, given, out: seen.append(out.dtype))
    step.take([Feed(source(), budget=100, reuse=1, seed=1, device=CPU).next(1)], 0, 1e-3)
    assert seen == [torch.bfloat16]
    assert step.model.heads.out.weight.dtype is torch.float32


def test_the_gradient_is_clipped(tiny: Tiny, source: Callable[..., Any]):
    step, values = one_step(tiny("optimizer.clip=0.001"), source())
    assert values["gradient"] > 0.01
    length = torch.stack([p.grad.norm() for p in step.model.parameters() if p.grad is not None]).norm()
    assert length.item() == pytest.approx(0.001, rel=1e-3)
    free, free_values = one_step(tiny("optimizer.clip=0"), source())
    length = torch.stack([p.grad.norm() for p in free.model.parameters() if p.grad is not None]).norm()
    assert length.item() == pytest.approx(free_values["gradient"], rel=1e-4)


def test_what_steps_gave_waits_until_it_is_read(
    tiny: Tiny, source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    step, feed = make_step(tiny()), Feed(source(spoiled=(0,)), budget=100, reuse=1, seed=4, device=CPU)
    batches = [feed.next(1) for _ in range(3)]
    step.take([batches[0]], 0, 1e-3)
    assert step.to_be_read, "on a CPU every step is looked at"
    monkeypatch.setattr(step_module, "is_accelerator", lambda device: True)
    step = make_step(tiny())
    for number in range(50):
        assert not step.to_be_read
        step.take([batches[min(number, 2)]], number, 1e-3)
    assert step.to_be_read
    read = step.read()
    assert [record.step for record in read] == list(range(1, 51))
    assert read[1].positions == (batches[1].position,)
    bad = [not torch.isfinite(batch.elements.targets.momentum_N4).all() for batch in batches]
    first = bad.index(True)
    assert [record.finite_here for record in read[: first + 1]] == [number != first for number in range(first + 1)]
    assert "total" in read[first].not_finite
    assert step.read() == []


def test_features_of_the_kernel_are_drawn_anew(tiny: Tiny, source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    drawn: list[int] = []
    monkeypatch.setattr(step_module, "redraw", lambda model, generator: drawn.append(number))
    feed = Feed(source(), budget=100, reuse=1, seed=1, device=CPU)
    for backbone, at in (("kernel", [2, 4]), ("mlp", [])):
        drawn.clear()
        step = make_step(tiny(f"model.backbone={backbone}", "model.kernel.redraw_steps=2"))
        for number in range(5):
            step.take([feed.next(1)], number, 1e-3)
            step.read()
        assert drawn == at

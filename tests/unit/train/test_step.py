"""One step: what is hidden, what is recorded, in which precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ringflow.base.errors import UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.elements.features import feature_groups
from ringflow.models.model import Model
from ringflow.train import step as step_module
from ringflow.train.batches import Feed, TrainingBatch
from ringflow.train.data import require_data
from ringflow.train.settings import SourceSettings, TrainSettings
from ringflow.train.step import HideFeatures, TrainingStep

CPU = torch.device("cpu")
KINDS = ("track", "cluster")
GROUPS = feature_groups(KINDS)
Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]
Source = Callable[..., Any]


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.9])
def test_groups_are_hidden_in_whole_events_as_often_as_asked_and_essential_features_never(
    events: Events, probability: float
):
    batch, names = events(400), sorted({group for group in GROUPS if group})
    torch.manual_seed(4)
    after = HideFeatures(KINDS, SourceSettings(hide=probability), CPU)(batch, batch.event_N)
    shape = (batch.num_events, len(names) + 1)
    drawn = torch.rand(*shape, generator=torch.Generator().manual_seed(4)) < probability
    lacking = [drawn[:, names.index(group)] if group else torch.zeros_like(drawn[:, 0]) for group in GROUPS]
    expected = torch.stack(lacking, dim=1)[batch.event_N]
    assert torch.equal(after.features_NF.isnan(), expected | batch.features_NF.isnan())
    essential = torch.tensor([group is None for group in GROUPS])
    there = ~batch.features_NF.isnan()
    gone = (after.features_NF.isnan() & there)[:, ~essential].sum() / there[:, ~essential].sum()
    assert float(gone) == pytest.approx(probability, abs=0.05)


def test_what_the_data_lack_is_hidden_all_together_in_its_share_of_the_events(events: Events):
    batch, lacking = events(400), ("cluster_shape", "track_dedx")
    torch.manual_seed(4)
    settings = SourceSettings(hide=0.0, lacking=lacking, lacking_share=0.3)
    missing = HideFeatures(KINDS, settings, CPU)(batch, batch.event_N).features_NF.isnan() & ~batch.features_NF.isnan()
    meant = torch.tensor([group in lacking for group in GROUPS])
    assert not missing[:, ~meant].any()
    by_event = torch.zeros(batch.num_events, dtype=torch.bool).index_put(
        (batch.event_N[missing.any(1)],), torch.tensor(True)
    )
    assert torch.equal(missing[:, meant], (by_event[batch.event_N].unsqueeze(1) & ~batch.features_NF[:, meant].isnan()))
    assert float(by_event.float().mean()) == pytest.approx(0.3, abs=0.07)


def test_a_group_that_does_not_exist_is_told_the_near_one():
    settings = TrainSettings.resolve(None, ['source.lacking=["cluster_shapes"]'])
    with pytest.raises(UsageError, match=r"no group of features 'cluster_shapes'; did you mean 'cluster_shape'"):
        require_data(settings)  # before anything is simulated


def make_step(settings: TrainSettings) -> TrainingStep:
    torch.manual_seed(settings.seed)
    return TrainingStep(Model(settings.model), settings, CPU)


def make_batches(source: Any, count: int, seed: int = 1) -> list[TrainingBatch]:
    feed = Feed(source, budget=100, reuse=1, seed=seed, device=CPU)
    return [feed.next(1) for _ in range(count)]


def one_step(settings: TrainSettings, source: Any) -> tuple[TrainingStep, dict[str, float]]:
    step = make_step(settings)
    step.take(make_batches(source, 1), 0, 1e-2)
    return step, step.read()[0].values


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_moves_the_weights_and_their_average(precision: str, tiny: Tiny, source: Source):
    settings, seen = tiny(f"compute.precision={precision}"), []
    start = make_step(settings).model.heads.out.weight
    step, values = one_step(settings, source())
    assert set(values) == {"total", "particle", "label", "charge", "momentum", "jet", "gradient"}
    assert all(map(math.isfinite, values.values()))
    moved = step.model.heads.out.weight - start
    assert moved.abs().max() > 1e-3
    # The first decay of the average is a tenth.
    assert torch.allclose(step.average.model().heads.out.weight - start, 0.9 * moved)
    step.model.embedding.layers[0].register_forward_hook(lambda layer, given, out: seen.append(out.dtype))
    step.take(make_batches(source(), 1), 1, 1e-3)
    assert seen == [getattr(torch, precision)]
    assert step.model.heads.out.weight.dtype is torch.float32


@pytest.mark.parametrize("clip", [0.001, 0.0])
def test_the_gradient_is_clipped_to_a_length_if_there_is_one(tiny: Tiny, source: Source, clip: float):
    step, values = one_step(tiny(f"optimizer.clip={clip}"), source())
    assert values["gradient"] > 0.01
    length = torch.stack([p.grad.norm() for p in step.model.parameters() if p.grad is not None]).norm()
    assert length.item() == pytest.approx(clip or values["gradient"], rel=1e-3)


def test_what_steps_gave_waits_until_it_is_read(tiny: Tiny, source: Source, monkeypatch: pytest.MonkeyPatch):
    batches = make_batches(source(spoiled=(0,)), 3, seed=4)
    first = [batch.elements.targets.momentum_N4.isfinite().all().item() for batch in batches].index(False)
    step = make_step(tiny())
    step.take(batches[:1], 0, 1e-3)
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
    assert [record.finite_here for record in read].index(False) == first
    assert "total" in read[first].not_finite
    assert step.read() == []


@pytest.mark.parametrize(("backbone", "expected"), [("kernel", [2, 4]), ("mlp", [])])
def test_features_of_the_kernel_are_drawn_anew(
    tiny: Tiny, source: Source, monkeypatch: pytest.MonkeyPatch, backbone: str, expected: list[int]
):
    drawn: list[int] = []
    monkeypatch.setattr(step_module, "redraw", lambda model, generator: drawn.append(number))
    step = make_step(tiny(f"model.backbone={backbone}", "model.kernel.redraw_steps=2"))
    for number, batch in enumerate(make_batches(source(), 5)):
        step.take([batch], number, 1e-3)
    assert drawn == expected

"""A few made-up events whose truth can be read off their features, and a source that gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from ringflow.elements.batch import CLUSTER, TRACK, ElementBatch, ElementTargets
from ringflow.elements.features import feature_names
from ringflow.event.particles import CHARGED_HADRON, PHOTON
from ringflow.train.settings import TrainSettings

KINDS = ("track", "cluster")
TINY = (
    "model.width=16",
    "model.layers=1",
    "model.heads=2",
    "model.hidden=16",
    "length.events=120",
    "length.validate_every=60",
    "compute.batch_elements=100",
    "compute.device=cpu",
    "source.hide=0.1",
)


def made_up_events(num_events: int = 24, seed: int = 0) -> ElementBatch:
    """Events of 4 to 16 elements; an element with a positive first feature is a particle with the measured momentum."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(4, 17, (num_events,), generator=generator)
    total = int(counts.sum())
    kind = torch.randint(0, 2, (total,), generator=generator)
    names = feature_names(KINDS)
    features = torch.randn(total, len(names), generator=generator)
    of_track = torch.tensor([name.startswith("track") for name in names])
    features[of_track != (kind == TRACK)[:, None]] = torch.nan
    is_particle = features.nan_to_num(0.0)[:, [0, int(of_track.sum())]].sum(1) > 0
    pt = torch.rand(total, generator=generator) * 10 + 0.5
    eta = torch.rand(total, generator=generator) * 2 - 1
    phi = torch.rand(total, generator=generator) * 6 - 3
    energy = pt * torch.cosh(eta)
    momentum = torch.stack([pt * phi.cos(), pt * phi.sin(), pt * eta.sinh(), energy], dim=1)
    label = torch.where(kind == CLUSTER, PHOTON, CHARGED_HADRON) * is_particle
    charge = (kind == TRACK).long()
    return ElementBatch(
        kind,
        features,
        torch.stack([eta, phi], dim=1),
        torch.stack([pt, eta, phi, energy], dim=1),
        charge,
        torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        ElementTargets(label, charge * is_particle, momentum * is_particle[:, None]),
    )


@dataclass
class MadeUpSource:
    """Chunk `index` has the seed `index`; `spoiled` says in which chunks an element has an infinite momentum."""

    num_events: int = 24
    spoiled: tuple[int, ...] = ()
    asked: list[int] = field(default_factory=list)
    prefetched: list[int] = field(default_factory=list)

    def chunk(self, index: int) -> ElementBatch:
        self.asked.append(index)
        torch.rand(3)  # a source that draws from the common generator must not matter
        chunk = made_up_events(self.num_events, index)
        if index in self.spoiled and chunk.targets is not None:
            row = int(torch.nonzero(chunk.targets.label_N > 0)[0])
            chunk.targets.momentum_N4[row, 0] = torch.inf
        return chunk

    def prefetch(self, index: int) -> None:
        self.prefetched.append(index)

    def close(self) -> None:
        pass


@pytest.fixture
def events() -> Callable[..., ElementBatch]:
    return made_up_events


@pytest.fixture
def source() -> Callable[..., MadeUpSource]:
    return MadeUpSource


@pytest.fixture
def tiny() -> Callable[..., TrainSettings]:
    """Settings of a training that takes a moment, with overrides."""
    return lambda *overrides: TrainSettings.resolve(None, [*TINY, *overrides])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder

"""Events to explain, and networks whose elements listen to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def listening(small_model: Callable[..., Any]) -> Callable[..., Any]:
    """A network with scaled features whose layers of talk are not small beside the rest."""
    import torch

    from fixtures.fake_events import fake_block
    from ringflow.elements.batch import from_block

    def make(backbone: str = "attention", calorimeter: str = "cluster") -> Any:
        loaded = small_model(backbone, calorimeter)
        model = loaded.model
        model.embedding.fit(from_block(fake_block(0, 40), calorimeter).features_NF)
        if model.blocks[0].mixer is not None:
            with torch.no_grad():
                model.blocks[0].mixer.to_out.weight.mul_(4.0)
        return loaded

    return make


@pytest.fixture(scope="session")
def events() -> Callable[..., list[Any]]:
    """Single events, as a network takes them; `merged` makes a larger one of so many."""
    from dataclasses import replace

    import torch

    from fixtures.fake_events import fake_block
    from ringflow.elements.batch import from_block

    def make(count: int, calorimeter: str = "cluster", first: int = 0, merged: int = 1) -> list[Any]:
        several = [from_block(fake_block(first + merged * n, merged), calorimeter) for n in range(count)]
        return [replace(one, offsets_B=torch.tensor([0, one.num_elements])) for one in several]

    return make

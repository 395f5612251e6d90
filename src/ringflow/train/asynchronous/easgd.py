"""Elastic averaging SGD: every worker moves weights of its own, which are bound to a centre (arXiv:1412.6651, algorithm 1).

When a worker with the weights w talks to the centre c, both move towards each other by a share of their difference:

    d = alpha (w - c),    w <- w - d,    c <- c + d,    alpha = elastic / workers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ringflow.train.asynchronous.messages import pieces
from ringflow.train.batches import TrainingBatch
from ringflow.train.step import Record, TrainingStep


class Centre:
    """Takes weights of workers, gives what they shall move by."""

    #: Workers have weights and optimisers of their own, without which they could not go on.
    needs_states = True

    def __init__(self, step: TrainingStep, share: float) -> None:
        self._step, self._weights, self._share = step, list(step.model.parameters()), share

    @torch.no_grad()
    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        """Move towards the weights in a row, for the time number `number`, and put in their place what they move by."""
        for piece, weight in pieces(row, self._weights):
            difference = self._share * (piece.to(weight.device) - weight)
            weight += difference
            piece.copy_(difference)
        self._step.average.update(number)
        return None


class ElasticWorker:
    """Moves its weights by itself, a step for every batch."""

    def __init__(self, step: TrainingStep, rate: Callable[[int], float]) -> None:
        """`rate` is that of a step after which so many events have been shown to all workers."""
        self._step, self._weights, self._rate = step, list(step.model.parameters()), rate

    def work(self, batches: Sequence[TrainingBatch], row: Tensor, version: int, events: int) -> list[Record]:
        """Take a step for each of some batches, and put the weights into a row."""
        step, made = self._step, []
        for batch in batches:
            events += batch.num_events
            terms = step.gradients([batch])
            length = step.move(version, self._rate(events))
            step.records.add(version + 1, (batch.position,), {**terms, "gradient": length})
            if step.records.full:
                made += step.records.read()
        made += step.records.read()
        with torch.no_grad():
            for piece, weight in pieces(row, self._weights):
                piece.copy_(weight)
        return made

    @torch.no_grad()
    def arrive(self, row: Tensor) -> None:
        """Move by what is in a row."""
        for piece, weight in pieces(row, self._weights):
            weight -= piece.to(weight.device)

"""Downpour SGD: workers compute gradients, the master moves the weights (J. Dean et al., NeurIPS 2012).

A worker works with the weights that it fetched last. When its gradients arrive, those of other workers may have moved the
weights of the master meanwhile: how often is their staleness.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ringflow.train.asynchronous.messages import pieces
from ringflow.train.batches import TrainingBatch
from ringflow.train.step import Record, TrainingStep


class DownpourMaster:
    """Takes gradients, gives weights."""

    #: All that is needed to go on is here.
    needs_states = False

    def __init__(self, step: TrainingStep) -> None:
        self._step, self._weights = step, list(step.model.parameters())

    @torch.no_grad()
    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        """Move along the gradient in a row, as step number `number`, and put the weights in its place; its length."""
        for piece, weight in pieces(row, self._weights):
            weight.grad = piece.to(weight.device)
        length = self._step.move(number, rate)
        for piece, weight in pieces(row, self._weights):
            piece.copy_(weight)
        return float(length)


class DownpourWorker:
    """Gives gradients, takes weights."""

    def __init__(self, step: TrainingStep) -> None:
        self._step, self._weights = step, list(step.model.parameters())

    def work(self, batches: Sequence[TrainingBatch], row: Tensor, version: int, events: int) -> list[Record]:
        """Put the gradient of some batches, taken as one, into a row."""
        terms = self._step.gradients(batches)
        with torch.no_grad():
            for piece, weight in pieces(row, self._weights):
                piece.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
        length = row.norm().to(terms["total"].device)
        positions = tuple(batch.position for batch in batches)
        self._step.records.add(version + 1, positions, {**terms, "gradient": length})
        return self._step.records.read()

    @torch.no_grad()
    def arrive(self, row: Tensor) -> None:
        """Take the weights in a row."""
        for piece, weight in pieces(row, self._weights):
            weight.copy_(piece)

"""Sums, extremes and winners of groups, where every entry names its group by a number."""

from __future__ import annotations

import torch
from torch import Tensor


def group_sum(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Sum of the values of each group."""
    return torch.zeros(groups, dtype=values.dtype, device=values.device).index_add_(0, group, values)


def group_minimum(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Smallest value of each group; zero for a group without entries."""
    empty = torch.zeros(groups, dtype=values.dtype, device=values.device)
    return empty.scatter_reduce_(0, group, values, "amin", include_self=False)


def group_winner(score: Tensor, group: Tensor, groups: int) -> Tensor:
    """Entry with the highest score of each group (the first of equals), -1 for a group without entries."""
    highest = torch.full((groups,), -torch.inf, dtype=score.dtype, device=score.device)
    highest.scatter_reduce_(0, group, score, "amax")
    entry = torch.arange(len(score), device=score.device)
    wins = score == highest[group]
    winner = torch.full((groups,), len(score), dtype=torch.int64, device=score.device)
    winner.scatter_reduce_(0, group[wins], entry[wins], "amin")
    return torch.where(winner < len(score), winner, -1)

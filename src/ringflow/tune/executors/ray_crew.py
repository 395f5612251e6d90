"""The processes of a trial on a Ray cluster: actors, each in a bundle of a placement group of their own.

A crew has one size for life. A trial that is to have more processes ends with a checkpoint, and goes on with another crew.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringflow.base.errors import FailureError, RingflowError
from ringflow.launch.frameworks import one_line
from ringflow.tune.executor import Trouble
from ringflow.tune.executors.ray_rank import Rank


@dataclass(frozen=True)
class Outcome:
    """What became of the processes of an order; no trouble: all of them are done, and can be used again."""

    trouble: Trouble | None = None
    reason: str = ""


class Crew:
    """Actors that carry out one order at a time; they start when the cluster has room for all of them."""

    def __init__(self, ray: Any, size: int, wants: Mapping[str, float]) -> None:
        from ray.util.placement_group import placement_group, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.size = size
        self._ray, self._on_gpus, self._remove = ray, "GPU" in wants, remove_placement_group
        self._group = placement_group([dict(wants) for _ in range(size)], strategy="PACK")
        make = ray.remote(Rank)
        self._actors = [
            make.options(
                num_cpus=wants["CPU"],
                num_gpus=wants.get("GPU", 0.0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank),
            ).remote(str(Path.cwd()))
            for rank in range(size)
        ]
        self._working: list[Any] = []

    def begin(self, ticket: Path, on_one_node: bool) -> None:
        """Begin with an order."""
        # The others wait in Ray until the first one has chosen the place; nobody waits here.
        place = self._actors[0].meeting_place.remote(on_one_node) if self.size > 1 else None
        self._working = [
            actor.carry_out.remote(str(ticket.absolute()), rank, self.size, place, self._on_gpus)
            for rank, actor in enumerate(self._actors)
        ]

    def outcome(self) -> Outcome | None:
        """What became of the order; None while all processes work on it. As soon as one has failed it is a failure."""
        done, _ = self._ray.wait(self._working, num_returns=len(self._working), timeout=0)
        for rank, result in enumerate(self._working):
            if result in done:
                try:
                    self._ray.get(result)
                except self._ray.exceptions.RayError as error:
                    return _failure(self._ray, rank, error)
        return Outcome() if len(done) == len(self._working) else None

    def dismiss(self) -> None:
        """End the processes at once, and give their place back."""
        with suppress(self._ray.exceptions.RayError):  # a cluster that was lost has taken them along
            for actor in self._actors:
                self._ray.kill(actor)
            self._remove(self._group)


def _failure(ray: Any, rank: int, error: Exception) -> Outcome:
    from ringflow.tune.trial import trouble_of

    if "No module named 'ringflow'" in str(error):
        raise FailureError("the workers' Python has no ringflow; install it on every node of the cluster")
    if not isinstance(error, ray.exceptions.RayTaskError):
        return Outcome("lost", f"process {rank} was ended ({_death(str(error))})")
    cause = error.cause
    if isinstance(cause, RingflowError):
        return Outcome(trouble_of(cause), str(cause))
    return Outcome("failed", f"process {rank} failed ({one_line(f'{type(cause).__name__}: {cause}')})")


def _death(told: str) -> str:
    """What Ray says of a dead process in many lines, most of which are the same for every death."""
    kind = re.search(r"exit type: (\w+)", told, re.IGNORECASE)
    if "running low on memory" in told:  # every death may be one for want of memory, says Ray; this one is
        return "out of memory"
    return f"Ray says {kind[1]}" if kind else one_line(told)

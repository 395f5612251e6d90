"""A training that is paced from outside: after every validation somebody says how far it goes.

class Half:
    def ask(self, events, figures):
        return 500_000

train(settings, out, pace=Half())
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # whoever only paces needs no torch
    from ringflow.train.team import Team


class Pace(Protocol):
    """Somebody who looks at a training now and then and says how far it goes, for example a hyper-parameter search."""

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        """Told the figures of every validation; events up to which the training goes on until it is validated again at the
        latest. Not more than `events`: it ends here.

        Everything is on disk when it is asked, so the process may be ended while it waits. It asks first of all: with
        `(0, {})` in a new training, with its last validation again in one that goes on or was finished already. Other
        processes of the training wait for the answer no longer than `compute.timeout`.
        """


class Goal:
    """How far a training goes, as its pace says; the first process of a team asks, and all hear the answer."""

    def __init__(self, pace: Pace | None, team: Team) -> None:
        self._pace, self._team = pace, team
        self._paced = team.tell(pace is not None)  # what the others were given does not count
        #: Events at which it is validated at the latest.
        self.events: float = math.inf
        #: Whether the pace wants no more.
        self.ended = False

    def ask(self, last: Mapping[str, float | None]) -> None:
        """Tell the pace the last validation, none if it is empty, and do as it says."""
        if not self._paced:
            return
        events = int(last.get("events") or 0)
        figures = {name: value for name, value in last.items() if name != "events"}
        self.events = self._team.first(lambda: self._pace.ask(events, figures) if self._pace else 0)
        self.ended = self.events <= events

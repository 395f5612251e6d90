"""How far the clocks of processes are apart, told from meetings.

Nobody leaves a meeting before everybody has come. If process r shows o_r more than the first one, then for every meeting

    came_r - left_0  <=  o_r  <=  left_r - came_0

and many meetings leave a narrow range. Processes of one machine read the same clock: there o_r is 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ringflow.train.profile.records import Meetings
from ringflow.train.team import Team

#: Meetings per look at the clocks.
_ROUNDS = 8
#: New with every start of a machine.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Offset(NamedTuple):
    """Nanoseconds that a clock shows more than that of the first process, and how much that may be off."""

    value: int
    error: int


def meet(team: Team, now: Callable[[], int] = time.perf_counter_ns) -> Meetings:
    """Meet a few times; all processes have to."""
    came, left = [], []
    for _ in range(_ROUNDS if team.size > 1 else 0):
        came.append(now())
        team.add([0.0])
        left.append(now())
    return Meetings(_BOOT.read_text().strip() if _BOOT.exists() else "", tuple(came), tuple(left))


def offsets(by_rank: Sequence[Meetings]) -> list[Offset]:
    """The offset of every process."""
    return [_offset(by_rank[0], other) for other in by_rank]


def _offset(first: Meetings, other: Meetings) -> Offset:
    least = max((came - left for came, left in zip(other.came, first.left, strict=True)), default=0)
    most = min((left - came for left, came in zip(other.left, first.came, strict=True)), default=0)
    if other.machine and other.machine == first.machine and least <= 0 <= most:
        return Offset(0, 0)
    return Offset((least + most) // 2, (most - least) // 2)

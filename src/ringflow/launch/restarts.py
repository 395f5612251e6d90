"""Starting all processes again after one of them died; the command goes on from its last checkpoint by itself."""

from __future__ import annotations

from collections.abc import Callable

from ringflow.base.errors import FailureError, StoppedError
from ringflow.base.log import complain

#: Told to stop, and did so after a checkpoint.
STOPPED = StoppedError.exit_code
_DONE, _WRONG_USAGE, _SIGNAL = 0, 2, 128


def is_final(code: int) -> bool:
    """Whether another start would not change an exit code: done, wrong usage, told to stop, or ended by a signal itself."""
    return code in (_DONE, _WRONG_USAGE, STOPPED) or code > _SIGNAL


def with_restarts(start: Callable[[], int], restarts: int) -> int:
    """Start something, and start it again up to `restarts` times while it fails; the last exit code."""
    for number in range(1, restarts + 1):
        try:
            if is_final(code := start()):
                return code
        except FailureError as error:
            complain(f"ringflow: {error}")
        complain(f"ringflow: starting again, {number} of {restarts}")
    return start()

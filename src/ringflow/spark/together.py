"""A function in several processes that know of each other.

def train_fn(rate):
    torch.distributed.init_process_group("gloo")
    ...

results = run(train_fn, args=(1e-3,), workers=2)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ringflow.base.errors import UsageError


def run(
    train_fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    workers: int = 2,
    master: str | None = None,
    verbose: bool = True,
) -> list[Any]:
    """Call a function in `workers` processes on the executors of Spark; what it returned, by rank.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set, as torch wants them. The session that is open is used, or
    one is opened at `master`, on this machine unless given. When one process fails the others are ended, and its error is
    raised here. What the processes print comes on stderr, if `verbose`.
    """
    from ringflow.launch.spark import run_function

    if not callable(train_fn):
        raise UsageError(f"train_fn={train_fn!r} cannot be called; give a function")
    if workers < 1:
        raise UsageError(f"workers={workers} is no number of processes; give at least 1")
    return run_function(train_fn, args, kwargs, workers=workers, master=master, quiet=not verbose)

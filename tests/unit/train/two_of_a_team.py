"""One of two processes that meet; what it saw is a line of JSON. The environment says which one it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ringflow.base.errors import RingflowError, UsageError
from ringflow.train.team import Team, joined


def caught(work: Callable[[], Any]) -> list[Any]:
    """Kind, message and `told` of the error."""
    try:
        work()
    except RingflowError as error:
        return [type(error).__name__, str(error), error.told]
    return []


def refuse() -> None:
    raise UsageError("this cannot be")


def held(team: Team, folder: Path) -> list[bool]:
    """Whether something was held while both worked, and afterwards."""

    @contextmanager
    def holding() -> Iterator[None]:
        (folder / "held").touch(exist_ok=False)
        yield
        (folder / "held").unlink()

    with team.first_holds(holding):
        during = (folder / "held").exists()
        team.gather(None)  # nobody lets go before all have looked
    team.gather(None)
    return [during, (folder / "held").exists()]


def hold_nothing(team: Team) -> None:
    @contextmanager
    def holding() -> Iterator[None]:
        refuse()
        yield

    with team.first_holds(holding):
        raise AssertionError("nothing is held")


def main(folder: Path) -> dict[str, Any]:
    """Everything a team can do, once."""
    with joined(torch.device("cpu"), 60.0) as team:
        tensor, told = torch.tensor([1.0 + team.rank]), torch.tensor([5.0 + team.rank])
        team.add_(tensor)
        team.tell_(told)
        seen = {
            "who": [team.rank, team.size, team.is_first],
            "add": team.add([team.rank, 2.0, 2.0**40 + 1.0]),
            "tensors": [tensor.item(), told.item()],
            "tell": team.tell(f"by {team.rank}"),
            "gather": team.gather(["rank", team.rank]),
            "first": team.first(lambda: {"made by": team.rank}),
            "refused": caught(lambda: team.first(refuse)),
            "held": held(team, folder),
            "not held": caught(lambda: hold_nothing(team)),
            "same": caught(lambda: team.agree("taste", "sweet")),
            "other": caught(lambda: team.agree("taste", ["sweet", "sour"][team.rank])),
        }
    return {**seen, "again": team.rank}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))

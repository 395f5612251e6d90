"""One process of a training that is paced: `paced_rank.py RUN FILE EVENTS SETTINGS`; the file gets what the pace was told."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from ringflow.recipes.train import train
from ringflow.train.settings import TrainSettings


class Until:
    """Lets a training go to a number of events; only the first process may ask it."""

    def __init__(self, events: int) -> None:
        self.events, self.told = events, []

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        assert os.environ.get("RANK", "0") == "0", "another process asks"
        self.told.append([events, dict(figures)])
        return self.events


if __name__ == "__main__":
    run, file, events, *words = sys.argv[1:]
    pace = Until(int(events))
    result = train(TrainSettings.resolve(None, words), Path(run), pace=pace)
    assert result["ended_by_pace"]
    if result["processes"] == 1 or os.environ["RANK"] == "0":
        Path(file).write_text(json.dumps(pace.told))

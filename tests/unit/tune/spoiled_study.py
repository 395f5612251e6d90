"""A study in which everything happened: trials that lived to the end, were stopped, diverged early or late, and failed."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from synthetic_study import make_study

from ringflow.tune.folder import StudyFolder
from ringflow.tune.log import read_rows


def make_spoiled_study(path: Path, trials: int = 40) -> StudyFolder:
    """A made-up study whose log was changed: one of the complete and one of the stopped trials diverged, another one failed."""
    folder = StudyFolder(make_study(path, trials))
    ended = folder.record()
    late, *_ = (trial.number for trial in ended.trials if trial.state == "complete")
    early, failed, *_ = (trial.number for trial in ended.trials if trial.state == "stopped" and len(trial.reports) == 1)
    last = {row.trial: row for row in read_rows(folder.log) if row.kind == "reported"}
    file = sqlite3.connect(folder.log)
    with file:
        for trial in (late, early):
            diverged = {**last[trial].data, "value": None, "figures": {}, "reason": "loss became NaN"}
            file.execute("UPDATE log SET data = ? WHERE number = ?", (json.dumps(diverged), last[trial].number))
        words = (json.dumps({"reason": "out of memory"}), last[failed].number)
        file.execute("UPDATE log SET kind = 'gone', data = ? WHERE number = ?", words)
    file.close()
    assert {trial.state for trial in folder.record().trials} == {"complete", "stopped", "failed"}
    return folder

"""Find the runs and studies under a folder, to a depth and a number of folders that keep it quick."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ringflow.base.errors import InputFileError
from ringflow.base.log import say
from ringflow.recipes.runs import RUN_FILE

STUDY_FILE, TRIALS = "study.toml", "trials"
DEEPEST, MOST_FOLDERS = 8, 20_000
#: Parts of runs and datasets in which no run can lie.
_SKIPPED = frozenset(
    {"checkpoints", "tensorboard", "packed", "cache", "desk", "profile", "node_modules", "__pycache__"}
)


class Found(NamedTuple):
    """Folders of runs and of studies, in the order of their names."""

    runs: list[Path]
    studies: list[Path]


def scan(folder: Path) -> Found:
    """The runs and studies under a folder; the trials of a study are runs."""
    if not folder.is_dir():
        raise InputFileError(f"no folder at {folder}; give the one that holds your runs")
    runs, studies = [], []
    for path, names in _folders(folder):
        if RUN_FILE in names:
            runs.append(path)
        if STUDY_FILE in names:
            studies.append(path)
    return Found(sorted(runs), sorted(studies))


def _folders(top: Path) -> Iterator[tuple[Path, set[str]]]:
    """Folders with the names in them; hidden ones and links are left out."""
    waiting, looked = [(top, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue  # not ours to read, or gone meanwhile
        looked += 1
        yield folder, {entry.name for entry in entries}
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _SKIPPED or not entry.is_dir(follow_symlinks=False):
                continue
            if depth < DEEPEST:
                waiting.append((Path(entry.path), depth + 1))
        if looked >= MOST_FOLDERS:
            say(f"more than {MOST_FOLDERS} folders under {top}: the rest is left out; give a smaller folder")
            return

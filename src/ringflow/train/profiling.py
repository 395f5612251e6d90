"""Measure a training: phases that a recipe passes on, and the report when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ringflow.base.errors import StoppedError, UsageError
from ringflow.base.log import say
from ringflow.train.phases import UNMEASURED, Phases
from ringflow.train.profile.clock import Clock
from ringflow.train.profile.folder import ProfileFolder
from ringflow.train.settings import TrainSettings
from ringflow.train.team import Team


def require_measurable(settings: TrainSettings) -> None:
    """An error if a training is to be measured that cannot be."""
    if settings.profile and settings.sync != "allreduce":
        raise UsageError(
            f"profile=true measures the steps of sync=allreduce, and sync={settings.sync} has none; leave profile out"
        )


@contextmanager
def measured(settings: TrainSettings, out: Path, device: torch.device, team: Team) -> Iterator[Phases]:
    """Phases for a training in the folder `out`: measured if that is asked for, and reported when it ends or stops."""
    if not settings.profile:
        yield UNMEASURED
        return
    folder = ProfileFolder(out)
    clock = Clock(team, device, settings.compute.strategy, folder.keep)
    stopped: StoppedError | None = None
    try:
        try:
            yield clock
        except StoppedError as error:  # all processes stop together, and can still talk
            stopped = error
        clock.hand_in()
    finally:
        folder.close()
    _report(folder, clock)
    if stopped is not None:
        raise stopped


def profile_page(settings: TrainSettings, out: Path) -> Path | None:
    """The report of a training that was measured."""
    if not settings.profile:
        return None
    from ringflow.train.profile.report import PAGE_FILE

    page = ProfileFolder(out).path / PAGE_FILE
    return page if page.exists() else None


def _report(folder: ProfileFolder, clock: Clock) -> None:
    """The first process has the measurements, and writes."""
    summary = folder.finish(clock.seconds)
    if summary is None:
        return
    from ringflow.train.profile.report import write_profile_report

    for straggler in summary["stragglers"]:
        say(straggler["text"])
    say(f"profile: {write_profile_report(folder.path)}")

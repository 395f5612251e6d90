"""A run that goes on with more lanes, one that is paced, and one that an earlier version made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fixtures.fake_events import contents, write_fake_dataset
from ringflow.base.errors import SettingsError, UsageError
from ringflow.train.checkpoint import Checkpoint, Checkpoints
from ringflow.train.run import _in_lanes, train
from ringflow.train.runs import settings_of
from ringflow.train.settings import TrainSettings

SMALL = (
    "detector=fake",
    "model.width=16",
    "model.layers=1",
    "model.heads=2",
    "model.hidden=16",
    "length.events=60",
    "length.validate_every=30",
    "length.validation_events=4",
    "compute.batch_elements=100",
    "compute.device=cpu",
)

Command = Callable[..., Any]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_fake_dataset(tmp_path / "dataset", events=40)


def settings(dataset: Path, *overrides: str) -> TrainSettings:
    return TrainSettings.resolve(None, [f"data={dataset}", *SMALL, *overrides])


def last_checkpoint(run: Path) -> Checkpoint:
    found = Checkpoints(run).read()
    assert found is not None
    return found


def test_another_number_of_lanes_is_gone_on_with_and_kept(dataset: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(settings(dataset), run)
    train(settings(dataset, "source.lanes=2", "length.events=120"), run)
    found = last_checkpoint(run)
    assert (len(found.state.positions), found.settings["source"]["lanes"]) == (2, 2)
    assert found.state.resized_at == first["events"]
    train(settings(dataset, "length.events=180"), run)  # as before
    assert len(last_checkpoint(run).state.positions) == 2
    assert last_checkpoint(run).state.resized_at == first["events"]
    assert TrainSettings.resolve(settings_of(run)).source.lanes == 2


def test_the_command_names_the_lanes_to_go_on_with(dataset: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    assert command("train", f"data={dataset}", *SMALL, "--out", run).code == 0
    expected = "2 processes cannot share 1 lanes evenly; start a number that divides 1, or go on with source.lanes=2"
    with pytest.raises(UsageError, match=re.escape(expected)):
        _in_lanes(settings(dataset), run, 2)
    with pytest.raises(UsageError, match=r"share 1 lanes evenly; .* or train anew with source.lanes=2"):
        _in_lanes(settings(dataset, "source.lanes=1"), tmp_path / "new", 2)
    with pytest.raises(UsageError, match=r"2 workers cannot share 1 lanes .* or train anew with source.lanes=2"):
        _in_lanes(settings(dataset, "sync=easgd"), run, 2)
    done = command("train", "source.lanes=2", "length.events=120", "--out", run)
    assert done.code == 0
    assert "source.lanes=2, not 1 as before" in done.stderr


def test_a_run_of_an_earlier_version_goes_on(dataset: Path, tmp_path: Path, command: Command) -> None:
    run = tmp_path / "run"
    train(settings(dataset), run)
    made = last_checkpoint(run)
    del made.settings["optimizer"]["rewarmup"]
    Checkpoints(run).write(made)
    path = run / "settings.toml"
    text = path.read_text()
    assert text.count("rewarmup = 0.02\n") == 1
    path.write_text(text.replace("rewarmup = 0.02\n", ""))
    with pytest.raises(SettingsError, match=r"missing setting 'optimizer.rewarmup'"):
        TrainSettings.resolve(path)
    done = command("train", "length.events=90", "--out", run)
    assert done.code == 0, done.stderr
    path.write_text(text.replace("rewarmup = 0.02\n", ""))
    assert train(settings(dataset, "length.events=120", "source.lanes=2"), run)["events"] >= 120
    kept = contents(run)
    with pytest.raises(UsageError, match=r"has optimizer.rewarmup=0.02, not 0.5"):
        train(settings(dataset, "length.events=150", "optimizer.rewarmup=0.5"), run)
    assert contents(run) == kept


class Until:
    """Lets a training go to a number of events, and remembers what it was told."""

    def __init__(self, events: int) -> None:
        self.events, self.told = events, []

    def ask(self, events: int, figures: Mapping[str, float | None]) -> int:
        self.told.append((events, dict(figures)))
        return self.events


def test_a_run_is_paced_and_promoted_to_more_lanes(dataset: Path, tmp_path: Path) -> None:
    run, first, second = tmp_path / "run", Until(20), Until(90)
    asked = ("length.events=1000", "length.validate_every=1000")
    ended = train(settings(dataset, *asked), run, pace=first)
    assert ended["ended_by_pace"]
    assert [events for events, _ in first.told] == [0, ended["events"]]
    assert 20 <= ended["events"] < 90
    assert "particle_f1" in first.told[1][1]
    further = train(settings(dataset, *asked, "source.lanes=2"), run, pace=second)
    assert second.told[0] == first.told[-1]
    assert [events for events, _ in second.told] == [ended["events"], further["events"]]
    assert last_checkpoint(run).state.resized_at == ended["events"]
    assert not train(settings(dataset), tmp_path / "other")["ended_by_pace"]

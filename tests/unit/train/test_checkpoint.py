"""Checkpoints: what is written comes back; what is broken is noticed."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ringflow.base.errors import FailureError, InputFileError, UsageError
from ringflow.models.model import Model
from ringflow.train.batches import DataPosition, Feed, FixedShape
from ringflow.train.checkpoint import (
    Checkpoint,
    TrainingState,
    read_checkpoint,
    refuse_other_settings,
    restore,
    snapshot,
    write_checkpoint,
)
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

CPU = torch.device("cpu")
STATE = TrainingState(
    step=3,
    events=40,
    positions=[DataPosition(1, 2, 3), DataPosition(1, 2, 4)],
    shape=FixedShape(64, 512),
    computed=100,
    padding=4,
    seconds=1.5,
    step_seconds=1.25,
    best={"loss": 0.5},
    since_best=1,
    last={"events": 30, "loss": None},
    resized_at=20,
)


def write(run: Path, step: int) -> None:
    state = STATE.model_copy(update={"step": step})
    write_checkpoint(run, Checkpoint(state, {"seed": 1}, {"weights/a": torch.full((3,), float(step))}))


def folders(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").iterdir())


def test_a_checkpoint_comes_back(run: Path):
    assert read_checkpoint(run) is None
    write(run, 3)
    read = read_checkpoint(run)
    assert read is not None
    assert read.state == STATE
    assert read.settings == {"seed": 1}
    assert read.tensors["weights/a"].tolist() == [3.0] * 3


def test_the_last_two_are_kept(run: Path):
    for step in (1, 2, 9, 10):
        write(run, step)
    assert [path.name for path in folders(run)] == ["step-0000000009", "step-0000000010"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


BREAKING = pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("tensors.safetensors", cut),
        ("tensors.safetensors", flip),
        ("tensors.safetensors", Path.unlink),
        ("state.json", cut),
        ("state.json", Path.unlink),
        ("state.json", lambda path: path.write_text('{"format_version": 2}')),
        ("state.json", lambda path: path.write_text(path.read_text().replace('"events": 40', '"events": 41'))),
    ],
)


@BREAKING
def test_a_broken_one_falls_back_to_the_one_before(
    run: Path, name: str, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
):
    for step in (1, 2):
        write(run, step)
    spoil(folders(run)[-1] / name)
    read = read_checkpoint(run)
    assert read is not None
    assert read.state.step == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "step-0000000002 is broken" in lines[0]
    assert lines[0].endswith("going on from the one before, at step 1")


def test_a_broken_one_is_out_of_the_way_when_the_training_went_on(run: Path, capsys: pytest.CaptureFixture[str]):
    for step in (1, 5):
        write(run, step)
    flip(folders(run)[-1] / "tensors.safetensors")
    write(run, 3)
    assert [path.name for path in folders(run)] == ["step-0000000001", "step-0000000003"]
    flip(folders(run)[-1] / "tensors.safetensors")
    write(run, 3)
    read = read_checkpoint(run)
    assert read is not None
    assert read.state.step == 3
    assert capsys.readouterr().err == ""


def test_both_broken_is_an_error(run: Path):
    for step in (1, 2):
        write(run, step)
    for folder in folders(run):
        flip(folder / "tensors.safetensors")
    with pytest.raises(InputFileError, match=r"step-0000000002 is broken .*and there is none before it") as caught:
        read_checkpoint(run)
    assert "\n" not in str(caught.value)


def test_another_format_is_not_taken_for_a_broken_file(run: Path):
    for step in (1, 2):
        write(run, step)
    path = folders(run)[-1] / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with pytest.raises(InputFileError, match="is of format 99, this version reads 2"):
        read_checkpoint(run)


def test_a_half_written_one_does_not_count(run: Path, monkeypatch: pytest.MonkeyPatch):
    write(run, 1)
    monkeypatch.setattr("ringflow.train.checkpoint.os.fsync", lambda number: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(run, 2)
    monkeypatch.undo()
    read = read_checkpoint(run)
    assert read is not None
    assert read.state.step == 1
    write(run, 2)
    assert [path.name for path in folders(run)] == ["step-0000000001", "step-0000000002"]


def test_what_a_killed_training_was_writing_is_removed(run: Path):
    leftover = run / "checkpoints" / ".step-0000000007.part"
    leftover.mkdir(parents=True)
    (leftover / "tensors.safetensors").write_text("half")
    assert read_checkpoint(run) is None
    write(run, 8)
    assert [path.name for path in folders(run)] == ["step-0000000008"]


def test_a_full_disk_is_one_line_and_nothing_is_left(run: Path, monkeypatch: pytest.MonkeyPatch):
    write(run, 1)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ringflow.train.checkpoint.os.fsync", full)
    with pytest.raises(FailureError, match="step-0000000002: the disk is full; free some space"):
        write(run, 2)
    assert [path.name for path in folders(run)] == ["step-0000000001"]


def test_others_may_read_what_they_may_read_elsewhere(run: Path):
    write(run, 1)
    (run / "plain").write_text("x")
    modes = {path.stat().st_mode for path in (*folders(run)[0].iterdir(), run / "plain")}
    assert len(modes) == 1


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.width=32", "model.width=16, not 32"),
        ("model.backbone=mlp", "model.backbone=attention, not mlp"),
        ("optimizer.rate=0.5", r"optimizer.rate=0.001, not 0.5"),
        ("seed=7", "seed=1, not 7"),
        ("source.lanes=2", None),
        ("source.reuse=2", "source.reuse=1, not 2"),
        ("optimizer.rewarmup=0.1", "optimizer.rewarmup=0.02, not 0.1"),
        ("length.events=9999", None),
        ("compute.batch_elements=77", None),
        ("compute.strategy=shard", None),
    ],
)
def test_other_settings_are_refused_unless_they_are_free(
    tiny: Callable[..., TrainSettings], override: str, named: str | None
):
    before, now = (settings.model_dump(mode="json") for settings in (tiny(), tiny(override)))
    refuse_other_settings(before, before, Path("run"))
    if named is None:
        refuse_other_settings(before, now, Path("run"))
    else:
        with pytest.raises(UsageError, match=f"the training in run has {named}; give that to go on"):
            refuse_other_settings(before, now, Path("run"))


@pytest.mark.parametrize("sync", ["downpour", "easgd"])
def test_lanes_are_not_free_where_processes_do_not_wait_for_each_other(tiny: Callable[..., TrainSettings], sync: str):
    before, now = (tiny(f"sync={sync}", f"source.lanes={lanes}").model_dump(mode="json") for lanes in (1, 2))
    with pytest.raises(UsageError, match=r"has source.lanes=1, not 2; give that to go on"):
        refuse_other_settings(before, now, Path("run"))


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_everything_in_memory_is_in_a_snapshot(
    tiny: Callable[..., TrainSettings], source: Callable[..., Any], optimizer: str
):
    settings = tiny(f"optimizer.name={optimizer}", "model.dropout=0.2")

    def fresh() -> tuple[TrainingStep, Feed]:
        feed = Feed(source(), budget=100, reuse=1, seed=1, device=CPU)
        return TrainingStep(Model(settings.model), settings, CPU), feed

    def advance(step: TrainingStep, feed: Feed, numbers: range) -> None:
        for number in numbers:
            step.take([feed.next(1)], number, 1e-2)
            step.read()

    step, feed = fresh()
    advance(step, feed, range(3))
    saved = snapshot(step)
    kept = {name: value.clone() for name, value in saved.items()}
    advance(step, feed, range(3, 6))
    assert all(torch.equal(saved[name], kept[name]) for name in saved), "a snapshot is a copy"

    other, other_feed = fresh()
    for _ in range(3):
        other_feed.next(1)
    restore(saved, other, Path("run"))
    advance(other, other_feed, range(3, 6))
    expected, found = snapshot(step), snapshot(other)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_weights_of_another_architecture_are_refused(tiny: Callable[..., TrainSettings]):
    small, large = (tiny(f"model.width={width}") for width in (16, 32))
    saved = snapshot(TrainingStep(Model(small.model), small, CPU))
    with pytest.raises(InputFileError, match="is of another network"):
        restore(saved, TrainingStep(Model(large.model), large, CPU), Path("run"))

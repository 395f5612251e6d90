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
Tiny = Callable[..., TrainSettings]
STATE = TrainingState(
    step=3,
    events=40,
    positions=[DataPosition(1, 2, 3), DataPosition(1, 2, 4)],
    shape=FixedShape(64, 512),
    seconds=1.5,
    best={"step": 2, "loss": 0.5},
    last={"events": 30, "loss": None},
)


def write(run: Path, *steps: int) -> list[Path]:
    """Write checkpoints of some steps; those that are there afterwards."""
    for step in steps:
        state = STATE.model_copy(update={"step": step})
        write_checkpoint(run, Checkpoint(state, {"seed": 1}, {"weights/a": torch.full((3,), float(step))}))
    return sorted((run / "checkpoints").iterdir())


def read_step(run: Path) -> int | None:
    found = read_checkpoint(run)
    return found and found.state.step


def test_a_checkpoint_comes_back_and_the_last_two_are_kept(run: Path):
    assert read_checkpoint(run) is None
    assert [path.name for path in write(run, 1, 2, 9, 3)] == ["step-0000000002", "step-0000000003"]
    read = read_checkpoint(run)
    assert read is not None
    assert read.state == STATE
    assert isinstance(read.state.best["step"], int)
    assert read.settings == {"seed": 1}
    assert read.tensors["weights/a"].tolist() == [3.0] * 3
    (run / "plain").write_text("x")
    folder = run / "checkpoints" / "step-0000000003"
    assert len({path.stat().st_mode for path in (*folder.iterdir(), run / "plain")}) == 1, "as readable as other files"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
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
def test_a_broken_one_falls_back_to_the_one_before(
    run: Path, name: str, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
):
    before, last = write(run, 1, 2)
    spoil(last / name)
    assert read_step(run) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-0000000002 is broken" in line
    assert line.endswith("going on from the one before, at step 1")
    flip(before / "tensors.safetensors")
    with pytest.raises(InputFileError, match=r"step-0000000002 is broken .*and there is none before it") as caught:
        read_checkpoint(run)
    assert "\n" not in str(caught.value)


def test_a_broken_one_is_out_of_the_way_when_the_training_went_on(run: Path, capsys: pytest.CaptureFixture[str]):
    flip(write(run, 1, 5)[-1] / "tensors.safetensors")
    assert [path.name for path in write(run, 3)] == ["step-0000000001", "step-0000000003"]
    flip(write(run, 3)[-1] / "tensors.safetensors")
    write(run, 3)
    assert read_step(run) == 3
    assert capsys.readouterr().err == ""


def test_another_format_is_not_taken_for_a_broken_file(run: Path):
    path = write(run, 1, 2)[-1] / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    with pytest.raises(InputFileError, match="is of format 99, this version reads 2"):
        read_checkpoint(run)


def test_what_could_not_be_written_to_its_end_does_not_count_and_is_removed(run: Path, monkeypatch: pytest.MonkeyPatch):
    write(run, 1)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def interrupted(number: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ringflow.train.checkpoint.os.fsync", full)
    with pytest.raises(FailureError, match="step-0000000002: the disk is full; free some space"):
        write(run, 2)
    monkeypatch.setattr("ringflow.train.checkpoint.os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(run, 2)
    monkeypatch.undo()
    leftover = run / "checkpoints" / ".step-0000000007.part"  # of one that was killed
    leftover.mkdir()
    (leftover / "tensors.safetensors").write_text("half")
    assert read_step(run) == 1
    assert [path.name for path in write(run, 2)] == ["step-0000000001", "step-0000000002"]


@pytest.mark.parametrize(
    ("sync", "override", "named"),
    [
        ("allreduce", "model.width=32", "model.width=16, not 32"),
        ("allreduce", "optimizer.rate=0.5", r"optimizer.rate=0.001, not 0.5"),
        ("allreduce", "seed=7", "seed=1, not 7"),
        ("allreduce", "source.reuse=2", "source.reuse=1, not 2"),
        ("allreduce", "source.lanes=2", None),
        ("easgd", "source.lanes=2", "source.lanes=0, not 2"),  # where processes do not wait for each other
        ("easgd", "source.workers=2", None),
        ("allreduce", "length.events=9999", None),
        ("allreduce", "compute.batch_elements=77", None),
        ("allreduce", "compute.strategy=shard", None),
    ],
)
def test_other_settings_are_refused_unless_they_are_free(tiny: Tiny, sync: str, override: str, named: str | None):
    before, now = tiny(f"sync={sync}"), tiny(f"sync={sync}", override)
    refuse_other_settings(before, before, Path("run"))
    if named is None:
        refuse_other_settings(before, now, Path("run"))
    else:
        with pytest.raises(UsageError, match=f"the training in run has {named}; give that to go on"):
            refuse_other_settings(before, now, Path("run"))


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_everything_in_memory_is_in_a_snapshot(tiny: Tiny, source: Callable[..., Any], optimizer: str):
    settings = tiny(f"optimizer.name={optimizer}", "model.dropout=0.2")
    feed = Feed(source(), budget=100, reuse=1, seed=1, device=CPU)
    batches = [feed.next(1) for _ in range(6)]
    step, other = (TrainingStep(Model(settings.model), settings, CPU) for _ in range(2))

    def advance(moved: TrainingStep, numbers: range) -> dict[str, torch.Tensor]:
        for number in numbers:
            moved.take([batches[number]], number, 1e-2)
            moved.read()
        return snapshot(moved)

    saved = advance(step, range(3))
    kept = {name: value.clone() for name, value in saved.items()}
    expected = advance(step, range(3, 6))
    assert all(torch.equal(saved[name], kept[name]) for name in saved), "a snapshot is a copy"
    restore(saved, other, Path("run"))
    found = advance(other, range(3, 6))
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


def test_weights_of_another_architecture_are_refused(tiny: Tiny):
    small, large = (tiny(f"model.width={width}") for width in (16, 32))
    saved = snapshot(TrainingStep(Model(small.model), small, CPU))
    with pytest.raises(InputFileError, match="is of another network"):
        restore(saved, TrainingStep(Model(large.model), large, CPU), Path("run"))

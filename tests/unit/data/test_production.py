"""Productions: the same bytes whatever the workers, interruptions and extensions, and nothing half-written after a failure."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.fake_events import FakeBlocks, contents, fake_request, write_fake_dataset
from ringflow.base.errors import DatasetError, FailureError, InputFileError, UsageError
from ringflow.data.check import check
from ringflow.data.production import produce
from ringflow.data.read import Dataset

SCRIPT = """
import sys
from pathlib import Path
from fixtures.fake_events import FakeBlocks, fake_request
from ringflow.data.production import produce
if __name__ == "__main__":
    source = FakeBlocks(4, pause=float(sys.argv[3]), quick_blocks=(0, 2))  # the first of each of two shards
    produce(Path(sys.argv[1]), fake_request(25), source, workers=int(sys.argv[2]))
"""


@pytest.fixture
def uninterrupted(untouched: Path) -> dict[str, bytes]:
    return contents(untouched)


def start(script: Path, out: Path, workers: int, pause: float = 0.05) -> subprocess.Popen[str]:
    """A production of fake events in a process group of its own, `pause` seconds per block."""
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), str(out), str(workers), str(pause)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    while not path.exists():
        assert process.poll() is None, "the production ended before it could be interrupted"
        time.sleep(0.005)


def test_the_number_of_workers_changes_no_byte(tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    assert contents(write_fake_dataset(tmp_path / "d", workers=2)) == uninterrupted
    names = ["README.md", "manifest.json", "settings.toml", *(f"shard-0000{number}.parquet" for number in range(3))]
    assert sorted(uninterrupted) == names


@pytest.mark.parametrize(
    ("workers", "moment"),
    [
        (1, "shard-00000.json"),
        (2, "shard-00001.json"),
        pytest.param(2, "production.json", marks=pytest.mark.heavy),
        pytest.param(1, "shard-00001.json", marks=pytest.mark.heavy),
    ],
)
def test_a_killed_production_resumes_to_the_same_bytes(
    tmp_path: Path, uninterrupted: dict[str, bytes], workers: int, moment: str
) -> None:
    out = tmp_path / "d"
    process = start(tmp_path / "script.py", out, workers)
    wait_for(out / ".production" / moment, process)
    process.kill()
    process.communicate()
    assert not (out / "manifest.json").exists()
    if moment.startswith("shard"):
        finished = (out / moment.replace("json", "parquet")).stat().st_ino
    for leftover in (".shard-00002.parquet.1.part", ".production/.shard-00001.parquet.1.part"):
        (out / leftover).write_bytes(b"half")
    produce(out, fake_request(25), FakeBlocks(4))
    assert contents(out) == uninterrupted
    if moment.startswith("shard"):
        assert (out / moment.replace("json", "parquet")).stat().st_ino == finished, "a finished shard was made again"


def worker_pids(process: subprocess.Popen[str]) -> list[str]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_workers_of_a_killed_production_end_with_it(tmp_path: Path) -> None:
    process = start(tmp_path / "script.py", tmp_path / "d", workers=2, pause=600)
    wait_for(tmp_path / "d" / ".production" / "production.json", process)
    while len(list((tmp_path / "d" / ".production").glob("*.part"))) < 2:
        time.sleep(0.01)
    workers = worker_pids(process)
    assert len(workers) == 2
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()  # not read to its end: a surviving worker would hold it open
    for _ in range(3000):
        if not any(Path(f"/proc/{pid}/cmdline").exists() for pid in workers):
            break
        time.sleep(0.01)
    else:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("a worker outlived the production")


def test_workers_leave_an_interrupt_to_the_production(tmp_path: Path) -> None:
    process = start(tmp_path / "script.py", tmp_path / "d", workers=2, pause=600)
    wait_for(tmp_path / "d" / ".production" / "production.json", process)
    while len(workers := worker_pids(process)) < 2:
        time.sleep(0.005)
    states = [Path(f"/proc/{pid}/status").read_text() for pid in workers]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for state in states:
        (blocked,) = re.findall(r"SigBlk:\s*(\w+)", state)
        assert int(blocked, 16) & 1 << (signal.SIGINT - 1), "a worker would answer Ctrl-C itself"


def test_a_finished_shard_that_was_damaged_meanwhile_is_made_again(
    tmp_path: Path, uninterrupted: dict[str, bytes]
) -> None:
    out = tmp_path / "d"
    with pytest.raises(InputFileError):
        produce(out, fake_request(25), FakeBlocks(4, bad_block=5, trouble="bad file"))
    path = out / "shard-00000.parquet"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)
    produce(out, fake_request(25), FakeBlocks(4))
    assert contents(out) == uninterrupted


def test_a_kill_between_the_manifest_and_the_end(tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    out = write_fake_dataset(tmp_path / "d")
    (out / ".production").mkdir()
    (out / ".production" / "lock").touch()
    produce(out, fake_request(25), FakeBlocks(4))
    assert check(out)[0]["ok"]
    assert {name: data for name, data in contents(out).items() if not name.startswith(".production")} == uninterrupted


def test_a_finished_production_is_left_alone_unless_it_is_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = write_fake_dataset(tmp_path / "d")
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    manifest, new = produce(out, fake_request(25), FakeBlocks(4, bad_block=0, trouble="bug"), workers=2)
    assert (manifest.num_events, new) == (25, 0)
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert "already there" in capsys.readouterr().err
    shard = out / "shard-00000.parquet"
    for damage in (lambda: shard.write_bytes(shard.read_bytes()[:-10]), shard.unlink):
        damage()
        with pytest.raises(DatasetError, match=r"shard-00000.parquet is damaged: .* with --overwrite"):
            produce(out, fake_request(25), FakeBlocks(4))


@pytest.mark.parametrize("events", [30, 31])
def test_an_extension_is_a_fresh_production(tmp_path: Path, events: int) -> None:
    extended = write_fake_dataset(tmp_path / "extended")
    Dataset(extended).packed(["track"])
    kept = (extended / "shard-00001.parquet").stat().st_ino
    _, new = produce(extended, fake_request(events), FakeBlocks(4))
    assert contents(extended) == contents(write_fake_dataset(tmp_path / "fresh", events))
    assert new == events - 20
    assert (extended / "shard-00001.parquet").stat().st_ino == kept


def test_nothing_is_written_through_a_link_or_believed_of_a_broken_record(tmp_path: Path) -> None:
    out, outside = write_fake_dataset(tmp_path / "d"), tmp_path / "outside"
    outside.mkdir()
    (out / ".production").symlink_to(outside)
    with pytest.raises(DatasetError, match=r"\.production is a link out of its folder"):
        produce(out, fake_request(30), FakeBlocks(4))
    assert list(outside.iterdir()) == []
    (out / ".production").unlink()
    (out / ".production").mkdir()
    for content in ("[" * 100_000, "[]", ""):
        (out / ".production" / "production.json").write_text(content)
        with pytest.raises(UsageError, match=r"production\.json .*; choose another folder, or replace it"):
            produce(out, fake_request(30), FakeBlocks(4))


@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_are_refused(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "d"
    if finished:
        write_fake_dataset(out)
    else:
        with pytest.raises(InputFileError):
            produce(out, fake_request(25), FakeBlocks(4, bad_block=5, trouble="bad file"))
    before = contents(out)
    for request, name in [
        (fake_request(25, seed=2), "generator.seed=1, now generator.seed=2"),
        (fake_request(25, block_events=5), "production.block_events=4, now production.block_events=5"),
        (fake_request(24), "production.events=25, now production.events=24"),
    ]:
        with pytest.raises(UsageError, match=name) as caught:
            produce(out, request, FakeBlocks(4))
        assert "\n" not in str(caught.value)
        assert contents(out) == before


def test_overwriting_starts_anew(tmp_path: Path) -> None:
    out = write_fake_dataset(tmp_path / "d", 45)
    Dataset(out).packed(["track"])
    request = fake_request(25, seed=2)
    produce(out, request, FakeBlocks(4, seed=2), workers=1, overwrite=True)
    produce(tmp_path / "fresh", request, FakeBlocks(4, seed=2))
    assert contents(out) == contents(tmp_path / "fresh")


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = write_fake_dataset(tmp_path / "ours"), tmp_path / "theirs"
    theirs.mkdir()
    for out in (ours, theirs):
        (out / "notes.txt").write_text("keep")
        before = contents(out)
        for overwrite in (True, False):
            with pytest.raises(UsageError, match=r"holds 'notes\.txt', which is no part of a dataset"):
                produce(out, fake_request(45), FakeBlocks(4), overwrite=overwrite)
        assert contents(out) == before
    (tmp_path / "d").write_text("a file")
    with pytest.raises(UsageError, match="is a file, not a folder"):
        produce(tmp_path / "d", fake_request(25), FakeBlocks(4))
    with pytest.raises(FailureError, match="part of the path is a file"):
        produce(tmp_path / "d" / "deeper", fake_request(25), FakeBlocks(4))


def test_two_productions_of_one_folder(tmp_path: Path, uninterrupted: dict[str, bytes]) -> None:
    process = start(tmp_path / "script.py", tmp_path / "d", 1)
    wait_for(tmp_path / "d" / ".production" / "production.json", process)
    for overwrite in (False, True):
        with pytest.raises(FailureError, match="another production is writing"):
            produce(tmp_path / "d", fake_request(25), FakeBlocks(4), workers=1, overwrite=overwrite)
    process.communicate()
    assert process.returncode == 0
    assert contents(tmp_path / "d") == uninterrupted


@pytest.mark.parametrize(
    ("source", "workers", "kind", "said"),
    [
        (FakeBlocks(4, bad_block=1, trouble="bad file"), 1, InputFileError, "event 7 is broken"),
        (FakeBlocks(4, bad_block=1, trouble="bad file"), 2, InputFileError, "event 7 is broken"),
        (
            FakeBlocks(4, bad_block=1, trouble="bug", pause=0.01),
            2,
            FailureError,
            "^a worker failed: ValueError: a bug of two",
        ),
        (FakeBlocks(4, bad_block=1, trouble="killed"), 2, FailureError, "a worker was killed by SIGKILL"),
        (FakeBlocks(4, available=5), 1, FailureError, "block 1 has 1 events instead of 4; the input ended early"),
    ],
)
def test_a_failure_is_one_line(
    tmp_path: Path, source: FakeBlocks, workers: int, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        produce(tmp_path / "d", fake_request(25), source, workers=workers)
    assert not list(tmp_path.rglob("*.part"))
    assert multiprocessing.active_children() == []


def test_a_failure_keeps_finished_shards_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for out in ("new", "empty"):
        with pytest.raises(InputFileError):
            produce(tmp_path / out, fake_request(25), FakeBlocks(4, bad_block=1, trouble="bad file"))
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]
    with pytest.raises(InputFileError):
        produce(tmp_path / "d", fake_request(25), FakeBlocks(4, bad_block=4, trouble="bad file"))
    names = ["lock", "production.json", "shard-00000.json", "shard-00000.parquet"]
    assert sorted(path.name for path in (tmp_path / "d").rglob("*") if path.is_file()) == names
    assert "the same command goes on from there" in capsys.readouterr().err


def test_a_disk_that_is_too_small_is_noticed_at_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=24_999))
    with pytest.raises(FailureError, match=r"needs about [\d.]+ k?B but only [\d.]+ k?B are free"):
        produce(tmp_path / "d", fake_request(25), FakeBlocks(4))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("files_before", [0, 1, 3])
def test_a_disk_that_fills_up_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_before: int
) -> None:
    calls = []

    def no_space(handle: int) -> None:
        calls.append(handle)
        if len(calls) > files_before:  # first the record, then a shard, its folder and its note
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(FailureError, match="the disk is full"):
        produce(tmp_path / "d", fake_request(25), FakeBlocks(4))
    assert list(tmp_path.iterdir()) == []


# One process at its start is left out: while they are loaded, some libraries swallow an interrupt.
@pytest.mark.parametrize(
    ("moment", "workers"),
    [("shard-00000.json", 1), ("shard-00000.json", 2), pytest.param("production.json", 2, marks=pytest.mark.heavy)],
)
def test_an_interrupt_ends_everything_and_can_be_resumed(
    tmp_path: Path, uninterrupted: dict[str, bytes], workers: int, moment: str
) -> None:
    out = tmp_path / "d"
    process = start(tmp_path / "script.py", out, workers, pause=0.3)
    wait_for(out / ".production" / moment, process)
    while workers > 1 and len(worker_pids(process)) < workers:
        assert process.poll() is None, "the production ended before it could be interrupted"
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said = process.communicate()[1]
    assert process.returncode != 0
    assert said.count("Traceback") == 1, "only the main process speaks"
    assert not list(out.rglob("*.part"))
    produce(out, fake_request(25), FakeBlocks(4))
    assert contents(out) == uninterrupted

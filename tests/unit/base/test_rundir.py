from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.rundir import (
    MARK_FILE,
    SETTINGS_FILE,
    atomic_path,
    prepare,
    prepared,
    temporary_folder,
    write_atomic,
)


def raising(number: int) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("number", "error", "reason"),
    [
        (errno.ENOSPC, FailureError, "disk is full"),
        (errno.EDQUOT, FailureError, "quota"),
        (errno.EIO, FailureError, "disk reports an error"),
        (errno.EMFILE, OSError, "open files"),  # we have no words for it, and do not hide it
    ],
)
def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception], reason: str
) -> None:
    write_atomic(tmp_path / "a", "grün\n")
    write_atomic(tmp_path / "b", b"\x00\x01")
    write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", raising(number))  # the data are written, then the disk says no
    with pytest.raises(error, match=reason) as caught:
        write_atomic(tmp_path / "a", "new")
    assert "\n" not in str(caught.value)
    assert error is OSError or str(tmp_path / "a") in str(caught.value)
    assert names(tmp_path) == {"a", "b"}
    assert (tmp_path / "a").read_text() == "old"


def test_a_failing_writer_leaves_nothing(tmp_path: Path) -> None:
    def write_half() -> None:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert names(tmp_path) == set()


def test_a_folder_is_made_taken_up_swept_and_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    log = folder / "logs" / "ringflow-1.out"  # a job opens it before the run is there
    log.parent.mkdir(parents=True)
    log.touch()
    assert prepare(folder) == folder
    for name in (SETTINGS_FILE, "shard", ".shard.123.part"):
        (folder / name).touch()
    (folder / "checkpoints").mkdir()
    prepare(folder)
    assert names(folder) == {MARK_FILE, SETTINGS_FILE, "shard", "checkpoints", "logs"}
    prepare(folder, overwrite=True)
    assert names(folder) == {MARK_FILE, "logs"}
    assert log.exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_others_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="did not make"):
        prepare(tmp_path, overwrite=overwrite)
    assert names(tmp_path) == {"thesis.tex"}
    prepare(tmp_path, marks=("thesis.tex",))


def test_an_unfinished_folder_is_taken_up_by_the_kind_of_command_that_made_it(tmp_path: Path) -> None:
    prepare(tmp_path / "run", marks=("run.json",))
    (tmp_path / "run" / "history.jsonl").touch()
    with pytest.raises(UsageError, match="did not make"):
        prepare(tmp_path / "run", marks=("metrics.json",), overwrite=True)
    prepare(tmp_path / "run", marks=("run.json",))
    assert names(tmp_path / "run") == {MARK_FILE, "history.jsonl"}
    prepare(tmp_path / "begun")
    (tmp_path / "begun" / MARK_FILE).write_text("")  # killed before it could say more
    prepare(tmp_path / "begun", marks=("run.json",))


@pytest.mark.parametrize("name", [MARK_FILE, SETTINGS_FILE, "checkpoints", "trials/0001"])
def test_nothing_is_written_through_a_link_out_of_a_folder(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", prepare(tmp_path / "run")
    outside.write_text("precious")
    (folder / SETTINGS_FILE).touch()
    (folder / "trials").mkdir()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(FailureError, match=f"{name} is a link out of its folder; put a copy"):
        prepare(folder, overwrite=True)
    assert outside.read_text() == "precious"


def test_links_within_a_folder_are_fine_loops_and_pipes_are_not(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "run")
    (folder / "best").symlink_to(folder / MARK_FILE)
    (tmp_path / "link").symlink_to(folder)  # what is given itself may be one
    prepare(tmp_path / "link")
    (folder / "loop").symlink_to(folder / "loop")
    with pytest.raises(FailureError, match="loop is a link out of its folder"):
        prepare(folder)
    (folder / "loop").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(FailureError, match="pipe is neither a file nor a folder; remove it"):
        prepare(folder)


def test_two_commands_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with prepared(tmp_path), pytest.raises(UsageError, match="another command is writing"):
        prepare(tmp_path)
    prepare(tmp_path)


def test_work_on_its_way_leaves_nothing_even_if_it_is_killed(tmp_path: Path) -> None:
    def work() -> None:
        with temporary_folder(tmp_path / "a") as folder, temporary_folder(tmp_path / "a") as other:
            assert folder != other
            (folder / "half").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    killed = multiprocessing.get_context("fork").Process(target=work)
    killed.start()
    killed.join()
    assert len(names(tmp_path)) == 2
    with temporary_folder(tmp_path / "a"):
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == set()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file, not a folder"):
        prepare(tmp_path / "file")
    with pytest.raises(FailureError, match="part of the path is a file"):
        prepare(tmp_path / "file" / "below" / "it")


@pytest.mark.parametrize(
    ("number", "reason"), [(errno.EACCES, "no permission"), (errno.EROFS, "read-only"), (errno.ENOSPC, "disk is full")]
)
def test_a_folder_that_takes_no_files_is_found_out_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    monkeypatch.setattr(Path, "touch", raising(number))
    with pytest.raises(FailureError, match=reason):
        prepare(tmp_path / "a")

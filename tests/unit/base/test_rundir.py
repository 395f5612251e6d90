from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.base.rundir import SETTINGS_FILE, atomic_path, prepare, write_atomic


def raising(number: int) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a", "grün\n")
    write_atomic(tmp_path / "b", b"\x00\x01")
    write_atomic(tmp_path / "a", "again")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "again"
    assert (tmp_path / "b").read_bytes() == b"\x00\x01"
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


@pytest.mark.parametrize(("number", "reason"), [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "quota")])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", raising(number))  # the data are written, then the disk says no
    with pytest.raises(FailureError, match=reason) as caught:
        write_atomic(tmp_path / "a", "new")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "a") in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_failing_writer_leaves_nothing(tmp_path: Path) -> None:
    def write_half() -> None:
        with atomic_path(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_an_error_we_have_no_words_for_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", raising(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        write_atomic(tmp_path / "a", "new")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_made_with_its_parents(tmp_path: Path) -> None:
    assert prepare(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list((tmp_path / "a" / "b").iterdir()) == []
    prepare(tmp_path / "a" / "b")  # an empty folder is anybody's


def test_a_folder_of_ours_is_taken_up_and_swept(tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).touch()
    (tmp_path / "shard").touch()
    (tmp_path / ".shard.123.part").touch()
    prepare(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {SETTINGS_FILE, "shard"}


def test_overwrite_empties_a_folder_of_ours(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").touch()
    (tmp_path / "shards").mkdir()
    prepare(tmp_path, marks=("manifest.json",), overwrite=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_others_is_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UsageError, match="did not make"):
        prepare(tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").exists()


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


def test_logs_of_a_job_are_there_before_the_run_and_stay_when_it_is_replaced(tmp_path: Path) -> None:
    log = tmp_path / "run" / "logs" / "ringflow-1.out"
    log.parent.mkdir(parents=True)
    log.touch()
    prepare(tmp_path / "run")
    (tmp_path / "run" / "settings.toml").touch()
    (tmp_path / "run" / "checkpoints").mkdir()
    prepare(tmp_path / "run", overwrite=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["logs"]
    assert log.exists()

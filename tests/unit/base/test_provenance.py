from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringflow import __version__
from ringflow.base import provenance
from ringflow.base.config import Settings
from ringflow.base.errors import InputFileError


class Small(Settings):
    size: int = 3
    place: Path | None = None


def test_a_record_is_json_the_same_every_time_without_host_or_folder(tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"abc")
    first = provenance.collect(Small(), {"b": 2, "a": 1}, [tmp_path / "input"])
    provenance.code_version.cache_clear()
    text = json.dumps(provenance.collect(Small(), {"a": 1, "b": 2}, [tmp_path / "input"]))
    assert json.dumps(first) == text
    assert first["ringflow"] == __version__
    assert first["settings"] == {"size": 3, "place": None}
    assert first["packages"]["numpy"].count(".") == 2
    sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert first["inputs"] == [{"file": "input", "bytes": 3, "sha256": sha256}]
    assert str(tmp_path) not in text
    assert not platform.node() or f'"{platform.node()}"' not in text


def test_what_is_not_there_is_named_or_has_no_version(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="nothing-here"):
        provenance.describe_input(tmp_path / "nothing-here")
    assert provenance.package_version("no-such-package-anywhere") is None


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A git repository that the module believes to be in."""
    source = tmp_path / "src" / "ringflow" / "base"
    source.mkdir(parents=True)
    (source / "provenance.py").touch()
    monkeypatch.setattr(provenance, "__file__", str(source / "provenance.py"))
    provenance.code_version.cache_clear()
    yield tmp_path
    provenance.code_version.cache_clear()


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_of_a_checkout_and_whether_its_source_changed(checkout: Path) -> None:
    def version() -> dict[str, object] | None:
        provenance.code_version.cache_clear()
        return provenance.code_version()

    assert version() is None  # installed
    git(checkout, "init", "--quiet")
    assert version() is None  # nothing committed
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "first")
    commit = git(checkout, "rev-parse", "HEAD")
    assert version() == {"commit": commit, "dirty": False}
    (checkout / "notes").touch()  # not code
    assert version() == {"commit": commit, "dirty": False}
    (checkout / "src" / "new.py").touch()
    assert version() == {"commit": commit, "dirty": True}

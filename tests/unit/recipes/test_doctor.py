from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.recipes import doctor


@pytest.fixture(autouse=True)
def few_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two extras, one of which is there under a name that is not that of its module, or is no Python at all."""
    declared = {"": ["pydantic"], "plain": ["pytest", "prometheus-client"], "fancy": ["pytest", "no-such-package"]}
    monkeypatch.setattr(doctor, "requirements", lambda: {name: [*packages] for name, packages in declared.items()})


def row(name: str) -> dict[str, str]:
    return next(row for row in doctor.examine() if row["name"] == name)


def test_this_installation_is_well(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    done = command("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert [row for row in rows.values() if row["verdict"] == "FAIL"] == []
    assert done.code == 0
    expected = {"python", "torch", "pythia8mc", "devices", "pythia data", "cores", "memory", "free disk", "writable"}
    assert expected | {"[onnx]", "[tune]", "[spark]", "[mpi]", "[explain]"} <= set(rows)
    assert "[dev]" not in rows
    assert "cpu" in rows["devices"]["found"]


def test_one_failure_fails_the_command(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    done = command("doctor")
    assert (done.code, done.stdout) == (1, "")
    assert "3.10.4" in done.stderr
    assert "install Python 3.11 or newer" in done.stderr


def test_a_missing_package_fails_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "requirements", lambda: {"": ["no-such-package"]})
    found = row("no-such-package")
    assert (found["verdict"], found["found"]) == ("FAIL", "not installed")
    assert "pip install" in found["advice"]


def test_a_broken_package_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> types.ModuleType:
        raise OSError("libwrong.so: cannot open")

    monkeypatch.setattr(importlib, "import_module", broken)
    assert row("pydantic")["verdict"] == "FAIL"
    assert "libwrong.so" in row("pydantic")["found"]


def test_an_extra_says_what_is_missing() -> None:
    assert row("[plain]") == {"name": "[plain]", "verdict": "PASS", "found": "pytest, prometheus-client", "advice": ""}
    assert (row("[fancy]")["verdict"], row("[fancy]")["found"]) == ("WARN", "without no-such-package")
    assert "pip install 'ringflow[fancy]'" in row("[fancy]")["advice"]


@pytest.mark.parametrize(("free", "verdict"), [(0.1, "FAIL"), (1.0, "WARN"), (100.0, "PASS")])
def test_little_disk_is_told(monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=free * 1e9))
    assert row("free disk")["verdict"] == verdict


@pytest.mark.parametrize(("pages", "verdict"), [(500_000, "WARN"), (5_000_000, "PASS")])
def test_little_memory_is_told(monkeypatch: pytest.MonkeyPatch, pages: int, verdict: str) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert row("memory")["verdict"] == verdict


def test_a_folder_that_takes_no_files_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    assert row("writable")["verdict"] == "PASS"
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert row("writable")["verdict"] == "FAIL"


def test_pythia_data_in_the_wrong_place_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTHIA8DATA", raising=False)
    assert row("pythia data")["verdict"] == "PASS"
    monkeypatch.setenv("PYTHIA8DATA", str(tmp_path))
    assert row("pythia data") == {
        "name": "pythia data", "verdict": "FAIL", "found": str(tmp_path), "advice": "unset PYTHIA8DATA",
    }  # fmt: skip

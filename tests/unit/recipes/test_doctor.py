from __future__ import annotations

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

from ringflow.base.provenance import package_version
from ringflow.recipes import doctor
from ringflow.recipes.doctor import FAIL, PASS, WARN


def test_this_installation_is_well(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("doctor", "--json")
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert [row for row in rows.values() if row["verdict"] == FAIL] == []
    assert done.code == 0
    expected = {"python", "torch", "pythia8mc", "devices", "pythia data", "cores", "memory", "free disk", "writable"}
    assert expected | {"[onnx]", "[tune]", "[spark]", "[mpi]", "[explain]"} <= set(rows)
    assert "cpu" in rows["devices"]["found"]


def test_one_failure_fails_the_command(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [doctor.Examined("python", FAIL, "2.7", "install a newer one")])
    done = command("doctor")
    assert done.code == 1
    assert "install a newer one" in done.stderr
    assert done.stdout == ""


def test_an_old_python_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    assert doctor.python() == doctor.Examined("python", FAIL, "3.10.4", "install Python 3.11 or newer")


def test_a_missing_package_fails_with_what_to_do() -> None:
    finding = doctor.importable("no-such-package")
    assert finding.verdict == FAIL
    assert "pip install" in finding.advice


def test_a_broken_package_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> types.ModuleType:
        raise OSError("libwrong.so: cannot open")

    monkeypatch.setattr(doctor.importlib, "import_module", broken)
    finding = doctor.importable("pydantic")
    assert finding.verdict == FAIL
    assert "libwrong.so" in finding.found


def test_an_extra_says_what_is_missing() -> None:
    # What is installed under one name may be imported under another, or be no Python at all.
    installed = [name for name in ("mpich", "scikit-learn", "prometheus-client", "pytest") if package_version(name)]
    finding = doctor.extra("fancy", [*installed, "no-such-package"])
    assert finding.verdict == WARN
    assert finding.found == "without no-such-package"
    assert "pip install 'ringflow[fancy]'" in finding.advice
    assert doctor.extra("plain", installed).verdict == PASS


@pytest.mark.parametrize(("free", "verdict"), [(0.1, FAIL), (1.0, WARN), (100.0, PASS)])
def test_little_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=free * 1e9))
    assert doctor.disk(tmp_path).verdict == verdict


@pytest.mark.parametrize(("pages", "verdict"), [(500_000, WARN), (5_000_000, PASS)])
def test_little_memory_is_told(monkeypatch: pytest.MonkeyPatch, pages: int, verdict: str) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert doctor.memory().verdict == verdict


def test_a_folder_that_takes_no_files_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor.writable(tmp_path).verdict == PASS

    def refuse(dir: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert doctor.writable(tmp_path).verdict == FAIL


def test_pythia_data_in_the_wrong_place_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PYTHIA8DATA", raising=False)
    assert doctor.pythia_data().verdict == PASS
    monkeypatch.setenv("PYTHIA8DATA", str(tmp_path))
    assert doctor.pythia_data() == doctor.Examined("pythia data", FAIL, str(tmp_path), "unset PYTHIA8DATA")

"""What this machine and this installation have, and what to do about what they lack."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ringflow.base.log import table
from ringflow.base.processes import usable_cores
from ringflow.base.provenance import package_version
from ringflow.base.words import size_in_words

#: A worker stays under 1.5 GB; with less memory than this two of them and a desktop do not fit.
SMALL_MEMORY = 4e9
SMALL_DISK, NO_DISK = 5e9, 2e8
#: Where the name to import is not the name to install.
IMPORT_NAMES = {"tensorboardx": "tensorboardX"}
REINSTALL = "make install, or pip install -c constraints.txt -e ."


def examine(folder: Path | None = None) -> list[dict[str, str]]:
    """Everything that can be found out without running anything, for work in `folder` (here unless given)."""
    folder, rows = folder or Path.cwd(), []

    def note(name: str, found: str, verdict: str = "PASS", advice: str = "") -> None:
        rows.append({"name": name, "verdict": verdict, "found": found, "advice": "" if verdict == "PASS" else advice})

    old = sys.version_info[:2] < (3, 11)
    note("python", ".".join(map(str, sys.version_info[:3])), "FAIL" if old else "PASS", "install Python 3.11 or newer")
    packages = requirements()
    for package in packages.pop(""):
        found, fault = package_version(package) or "not installed", _import_fault(package)
        note(package, f"{found}{fault}", "FAIL" if fault or found == "not installed" else "PASS", REINSTALL)
    devices = _devices()
    note("devices", ", ".join(devices) or "torch does not import", "PASS" if devices else "FAIL", REINSTALL)
    asked = os.environ.get("PYTHIA8DATA")
    index = Path(asked) / "Index.xml" if asked else _installed_file("pythia8mc", "Index.xml")
    if index is not None and index.is_file():
        note("pythia data", str(index.parent))
    else:
        note("pythia data", asked or "not found", "FAIL", "unset PYTHIA8DATA" if asked else REINSTALL)
    note("cores", str(usable_cores()))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    note("memory", size_in_words(memory), "WARN" if memory < SMALL_MEMORY else "PASS", "use --workers 1")
    free = shutil.disk_usage(folder).free
    verdict = "FAIL" if free < NO_DISK else "WARN" if free < SMALL_DISK else "PASS"
    note("free disk", size_in_words(free), verdict, "free some space")
    try:
        with tempfile.TemporaryFile(dir=folder):
            note("writable", str(folder))
    except OSError as error:
        note("writable", f"{folder}: {error.strerror}", "FAIL", "change to a folder of yours")
    for extra, needed in packages.items():
        missing = ", ".join(package for package in needed if package_version(package) is None)
        advice = f"if you need it: pip install 'ringflow[{extra}]'"
        note(
            f"[{extra}]", f"without {missing}" if missing else ", ".join(needed), "WARN" if missing else "PASS", advice
        )
    return rows


def show(rows: Sequence[Mapping[str, str]]) -> None:
    """The findings as a table for people."""
    table("Doctor", list(rows[0]), [list(row.values()) for row in rows])


def requirements() -> dict[str, list[str]]:
    """The packages of each extra that users install, as the installed package declares them; the core is ""."""
    found: dict[str, list[str]] = {"": []}
    try:
        declared = importlib.metadata.requires("ringflow") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree on the path
        return {"": ["ringflow"]}
    for line in declared:
        condition = re.search(r"extra == ['\"]([\w-]+)", line)
        found.setdefault(condition[1] if condition else "", []).append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    found.pop("dev", None)
    return found


def _import_fault(package: str) -> str:
    """What importing an installed package raises; nothing if it does not."""
    if package_version(package) is not None:
        try:
            importlib.import_module(IMPORT_NAMES.get(package.lower(), package))
        except Exception as error:  # whatever a broken installation raises is the finding
            return f", does not import: {type(error).__name__}: {error}"
    return ""


def _devices() -> list[str]:
    """What torch can compute on; nothing if it does not import."""
    try:
        import torch
    except Exception:
        return []
    found = [f"cpu ({torch.get_num_threads()} threads)"]
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None:
        name_of = getattr(torch.get_device_module(kind), "get_device_name", lambda _: kind.type)
        found += [f"{kind.type}:{i} ({name_of(i)})" for i in range(torch.accelerator.device_count())]
    return found


def _installed_file(package: str, name: str) -> Path | None:
    """A file a package brought along."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).resolve() for file in files if file.name == name), None)

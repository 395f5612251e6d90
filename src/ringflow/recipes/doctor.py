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
from typing import NamedTuple

from ringflow.base.log import table
from ringflow.base.provenance import package_version
from ringflow.base.threads import usable_cores
from ringflow.base.words import size_in_words

PASS, WARN, FAIL = "PASS", "WARN", "FAIL"

OLDEST_PYTHON = (3, 11)
#: A worker stays under 1.5 GB; with less memory than this two of them and a desktop do not fit.
SMALL_MEMORY_GB = 4.0
SMALL_DISK_GB = 5.0
NO_DISK_GB = 0.2

#: Where the name to import is not the name to install.
IMPORT_NAMES = {"tensorboardx": "tensorboardX"}

REINSTALL = "make install, or pip install -c constraints.txt -e ."


class Examined(NamedTuple):
    """One line of the examination."""

    name: str
    verdict: str
    found: str
    advice: str = ""


def examine(folder: Path | None = None) -> list[Examined]:
    """Everything that can be found out without running anything, for work in `folder` (here unless given)."""
    folder = folder or Path.cwd()
    core, extras = requirements()
    return [
        python(),
        *(importable(name) for name in core),
        devices(),
        pythia_data(),
        cores(),
        memory(),
        disk(folder),
        writable(folder),
        *(extra(name, packages) for name, packages in extras.items() if name != "dev"),
    ]


def show(findings: Sequence[Mapping[str, str]]) -> None:
    """The findings as a table for people."""
    table("Doctor", Examined._fields, [[finding[field] for field in Examined._fields] for finding in findings])


def requirements() -> tuple[list[str], dict[str, list[str]]]:
    """Core packages and those of each extra, as the installed package declares them."""
    core: list[str] = []
    extras: dict[str, list[str]] = {}
    try:
        declared = importlib.metadata.requires("ringflow") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source tree on the path
        return ["ringflow"], {}
    for line in declared:
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        condition = re.search(r"extra == ['\"]([\w-]+)", line)
        (extras.setdefault(condition[1], []) if condition else core).append(name)
    return core, extras


def python() -> Examined:
    """The interpreter."""
    found = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info[:2] < OLDEST_PYTHON
    return Examined("python", FAIL if old else PASS, found, "install Python 3.11 or newer" if old else "")


def importable(package: str) -> Examined:
    """A package that must import, with its version."""
    version = package_version(package)
    if version is None:
        return Examined(package, FAIL, "not installed", REINSTALL)
    try:
        importlib.import_module(IMPORT_NAMES.get(package.lower(), package))
    except Exception as error:  # whatever a broken installation raises is the finding
        return Examined(package, FAIL, f"{version}, does not import: {type(error).__name__}: {error}", REINSTALL)
    return Examined(package, PASS, version)


def devices() -> Examined:
    """What torch can compute on."""
    try:
        import torch
    except Exception:
        return Examined("devices", FAIL, "torch does not import", REINSTALL)
    found = [f"cpu ({torch.get_num_threads()} threads)"]
    kind = torch.accelerator.current_accelerator(check_available=True)
    if kind is not None:
        name_of = getattr(torch.get_device_module(kind), "get_device_name", lambda _: kind.type)
        found += [f"{kind.type}:{i} ({name_of(i)})" for i in range(torch.accelerator.device_count())]
    return Examined("devices", PASS, ", ".join(found))


def pythia_data() -> Examined:
    """The tables Pythia 8 reads when it starts."""
    place = os.environ.get("PYTHIA8DATA")
    index = Path(place) / "Index.xml" if place else _installed_file("pythia8mc", "Index.xml")
    if index is not None and index.is_file():
        return Examined("pythia data", PASS, str(index.parent))
    advice = "unset PYTHIA8DATA" if place else REINSTALL
    return Examined("pythia data", FAIL, place or "not found", advice)


def cores() -> Examined:
    """Processors this process may use."""
    return Examined("cores", PASS, str(usable_cores()))


def memory() -> Examined:
    """Memory of the machine."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    small = size < SMALL_MEMORY_GB
    return Examined("memory", WARN if small else PASS, size_in_words(1e9 * size), "use --workers 1" if small else "")


def disk(folder: Path) -> Examined:
    """Free space where the output would go."""
    free = shutil.disk_usage(folder).free / 1e9
    verdict = FAIL if free < NO_DISK_GB else WARN if free < SMALL_DISK_GB else PASS
    return Examined("free disk", verdict, size_in_words(1e9 * free), "" if verdict == PASS else "free some space")


def writable(folder: Path) -> Examined:
    """Whether files can be made here."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Examined("writable", PASS, str(folder))
    except OSError as error:
        return Examined("writable", FAIL, f"{folder}: {error.strerror}", "change to a folder of yours")


def extra(name: str, packages: Sequence[str]) -> Examined:
    """An optional part: which of its packages are missing."""
    missing = [package for package in packages if package_version(package) is None]
    if not missing:
        return Examined(f"[{name}]", PASS, ", ".join(packages))
    advice = f"if you need it: pip install 'ringflow[{name}]'"
    return Examined(f"[{name}]", WARN, f"without {', '.join(missing)}", advice)


def _installed_file(package: str, name: str) -> Path | None:
    """A file a package brought along."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())).resolve() for file in files if file.name == name), None)

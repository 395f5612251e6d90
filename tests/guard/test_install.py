"""An install is repeatable: what is required is pinned, and the pins fit the requirements."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ringflow

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_everything_required_is_pinned_to_a_version_that_fits() -> None:
    pinned = pins()
    for line in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]:
        requirement = Requirement(line)
        version = pinned[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), line


def test_torch_is_pinned_without_a_build() -> None:
    assert pins()["torch"] == "2.13.0"
    assert not [version for version in pins().values() if "+" in version]


def test_the_core_is_small_and_every_extra_is_said_in_a_line() -> None:
    assert len(PROJECT["dependencies"]) <= 20
    said = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert set(said) == set(PROJECT["optional-dependencies"])


def test_the_citation_has_the_version() -> None:
    version = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert version is not None
    assert version[1] == ringflow.__version__

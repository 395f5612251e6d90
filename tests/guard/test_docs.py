"""Links in the documentation lead somewhere, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringflow.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
COMMAND = re.compile(r"^(?:\$ |\.venv/bin/)?ringflow ([\w-]+)", flags=re.MULTILINE)


def dead_links(page: Path) -> list[str]:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    return [link for link in links if "://" not in link and not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_commands_exist(page: Path) -> None:
    assert dead_links(page) == []
    assert [name for name in COMMAND.findall(page.read_text(encoding="utf-8")) if name not in set(app)] == []


def test_every_page_is_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text(encoding="utf-8"))}
    assert [page.name for page in ROOT.glob("docs/**/*.md") if page != index and page.resolve() not in linked] == []


def test_the_guard_sees_a_dead_link(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("[a](nowhere.md) [b](https://example.org) [c](page.md#part)")
    assert dead_links(tmp_path / "page.md") == ["nowhere.md"]

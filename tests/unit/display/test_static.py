"""The built page belongs to the present sources, and a page without a server holds everything."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import UsageError
from ringflow.display.source import open_source
from ringflow.display.static import FILES, PAGE, write_static

WEB = Path(__file__).parents[3] / "web" / "display"


@pytest.mark.skipif(not WEB.is_dir(), reason="the sources of the page are not here")
def test_the_page_was_built_from_these_sources() -> None:
    names = [f"src/{path.name}" for path in (WEB / "src").iterdir()]
    names += ["build.mjs", "package.json", "package-lock.json"]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\0".encode() + (WEB / name).read_bytes())
    built = json.loads((PAGE / "build.json").read_text())["sources"]
    assert built == digest.hexdigest(), "run `npm ci && npm run build` in web/display"


def test_the_page_asks_nothing_of_other_machines() -> None:
    for name in FILES:
        text = (PAGE / name).read_text(encoding="utf-8")
        loads = re.findall(r"""(?:src|href)=["'](https?:[^"']+)|(?:fetch|importScripts)\(["'](https?:[^"']+)""", text)
        assert loads == []
    assert "url(" not in (PAGE / "display.css").read_text()


def test_a_static_page_holds_its_events(shown: Path, tmp_path: Path) -> None:
    source = open_source(shown)
    page = write_static(source, [0, 2], tmp_path / "out").read_text(encoding="utf-8")
    events = json.loads(re.search(r'id="events">(.*?)</script>', page)[1])  # type: ignore[index]
    assert (events["indices"], events["start"], events["ranking"]["done"]) == ([0, 2], 0, 2)
    assert len(events["ranking"]["errors"]["model"]["jet"]) == 2
    packed = dict(re.findall(r'data-scene="(\d+)">(.*?)</script>', page))
    assert list(packed) == ["0", "2"]
    assert json.loads(gzip.decompress(base64.b64decode(packed["2"]))) == source.scene(2)
    assert page.count("</script>") == 4
    assert "display.js" not in page
    assert sorted(path.name for path in (tmp_path / "out" / "phoenix").iterdir()) == ["0.json", "2.json"]
    write_static(source, [1], tmp_path / "out")  # once more into a folder of ours
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(UsageError, match="did not make"):
        write_static(source, [0], tmp_path / "other")
    page = write_static(source, range(2), tmp_path / "new" / "events.html")  # alone in one file
    assert [path.name for path in page.parent.iterdir()] == ["events.html"]
    events = json.loads(re.search(r'id="events">(.*?)</script>', page.read_text(encoding="utf-8"))[1])  # type: ignore[index]
    assert (events["indices"], events["phoenix"]) == ([0, 1], False)


def test_the_command_writes_files(shown: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    files = ("--static", tmp_path / "page", "--phoenix", tmp_path / "event.json")
    done = command("display", shown, *files, "--event", 1, "--events", 2, "--json")
    assert json.loads(done.stdout) == {"static": str(tmp_path / "page"), "phoenix": str(tmp_path / "event.json")}
    assert "made:" in done.stderr
    assert list(json.loads((tmp_path / "event.json").read_text())) == ["event 1", "event 2"]
    assert 'data-scene="2"' in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    wrong = command("display", shown, *files, "--event", 9)
    assert (wrong.code, "--event 9" in wrong.stderr) == (2, True)

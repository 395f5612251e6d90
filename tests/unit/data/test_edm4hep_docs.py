"""The how-to page about EDM4hep runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import uproot

from fixtures.edm4hep_files import Content, write_frame
from ringflow.data.edm4hep import load_profile

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "edm4hep.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_its_code_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_frame(tmp_path / "events.root", Content())
    for code in blocks("python"):
        exec(compile(code, "edm4hep.md", "exec"), {})
    assert capsys.readouterr().out.startswith("3\nframe\nTrue\ncld\n")
    assert uproot.open("particles.root")["events"].num_entries == 3


def test_its_profile_is_one(tmp_path: Path) -> None:
    (profile,) = blocks("toml")
    (tmp_path / "mine.toml").write_text(profile)
    assert load_profile(tmp_path / "mine.toml").required == ("MarlinTrkTracks", "PandoraClusters")

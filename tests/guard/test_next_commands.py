"""What a command names as the next one can be run as it is printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "ringflow"
SMALL = (
    "model.width=16",
    "model.layers=1",
    "model.heads=2",
    "model.hidden=16",
    "length.events=40",
    "compute.device=cpu",
)


def test_the_next_command_runs_as_printed(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def following(*words: str) -> list[str]:
        done = command(*words)
        assert done.code == 0, done.stderr
        line = done.stderr.splitlines()[-1]
        assert line.startswith("next: ringflow ")
        return shlex.split(line)[2:]

    simulated = ["simulate", "gun_pion", "--events", "60", "--no-hits", "production.block_events=20", "--out"]
    assert command(*following(*simulated, "my data")).code == 0
    judged = following("train", "data=my data", *SMALL, "--out", "my run")
    assert judged == ["evaluate", "my data", "--split", "test", "--model", "my run/model.safetensors"]
    reported = following(*judged)
    assert sorted(reported) == sorted([*judged, "--out", "report"])
    assert following(*reported) == ["display", "report"]
    compared = following("reconstruct", "my data", "--split", "test", "--model", "my run", "-o", "out.parquet")
    assert following(*compared)[:4] == ["evaluate", "my data", "--candidates", "out.parquet"]
    traced = following("reconstruct", "my data", "--events", "5", "-o", "out.root")
    assert command(*traced).code == 0
    short = ("source.chunk_events=20", "source.block_events=10", "length.validation_events=5")
    again = following("train", "data=sim:gun_photon", *short, *SMALL, "--out", "simulated")
    assert again == ["simulate", "gun_photon", "--detector", "clic", "--out", "data/gun_photon"]


def test_no_next_command_has_a_gap_to_fill() -> None:
    named = [
        line.strip()
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "FAIL" not in line and re.search(r"\bfinish\(.*[\" ][A-Z]{4,}\b", line)
    ]
    assert named == []

"""The first thing a newcomer runs, as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "ringflow.cli", *words)
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_the_demo_makes_a_checked_dataset_twice(tmp_path: Path) -> None:
    done = run(tmp_path, "demo", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"]
    assert result["summary"]["events"] == 200
    assert len(result["gates"]) >= 15
    assert result["dataset"] == "demo/ttbar"
    assert "made: demo/ttbar" in done.stderr

    shards = {path.name: path.read_bytes() for path in (tmp_path / "demo" / "ttbar").rglob("*.parquet")}
    assert len(shards) == 2
    again = run(tmp_path, "demo", "--overwrite")
    assert again.returncode == 0, again.stderr
    assert again.stdout == ""
    assert "already there" not in again.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "demo" / "ttbar").rglob("*.parquet")} == shards

    # A dataset whose shard was cut short is told, without a traceback.
    shard = next((tmp_path / "demo" / "ttbar").rglob("*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-100])
    check = run(tmp_path, "check", "demo/ttbar", "--json")
    assert check.returncode == 1
    assert "Traceback" not in check.stderr
    assert [row["gate"] for row in json.loads(check.stdout) if not row["ok"]]

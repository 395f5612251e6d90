"""`ringflow bench scaling` with real processes: what they send is what a ring sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("processes")

TINY = ("model.width=64", "model.layers=2", "compute.batch_elements=64", "compute.timeout=60", "compute.device=cpu")


@pytest.mark.heavy  # six processes; the bytes of a step are also those of a profile
@pytest.mark.parametrize("ring", [2, 4])
def test_two_processes_are_timed_and_more_make_a_ring(ring: int, tmp_path: Path) -> None:
    words = [
        "--engines",
        "local",
        "--ring",
        str(ring),
        "--elements",
        "16",
        "--seconds",
        "0.05",
        "--rounds",
        "1",
        "--json",
    ]
    start = [sys.executable, "-m", "ringflow.cli", "bench", "scaling", "clic_tiny", *TINY, *words]
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(start, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=variables, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [(row["engine"], row["workers"]) for row in result["rows"]] == [("local", 1), ("local", 2), ("apart", 2)]
    alone, together, apart = result["rows"]
    assert (alone["efficiency"], alone["over_torchrun_percent"]) == (1.0, 0.0)
    assert [row["events_per_step"] for row in result["rows"]] == [4, 8, 8]
    assert together["efficiency"] == pytest.approx(
        together["events_per_second"] / (2 * alone["events_per_second"]), abs=1e-3
    )
    assert all(0.0 < row["start_up_seconds"] < 240.0 for row in result["rows"])
    if together["bytes_per_step"] is not None:  # some kernels do not count
        # The counts of a step and the terms of its loss travel, too: a kilobyte.
        assert together["bytes_over_ring"] == pytest.approx(1.0, abs=0.05)
        assert result["ring"][0]["bytes_over_ring"] == pytest.approx(1.0, abs=0.05)
        assert apart["bytes_per_step"] < 0.01 * together["bytes_per_step"]
    assert {found["bytes"] for found in result["all_reduce"]} >= {4096, 4 * result["parameters"]}
    assert min(found["seconds"] for found in result["all_reduce"]) > 0.0
    assert list(tmp_path.iterdir()) == []

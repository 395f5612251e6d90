"""The page of a profile says what the numbers say, and needs nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from ringflow.train.profile.records import Circumstances
from ringflow.train.profile.report import write_profile_report
from ringflow.train.profile.summary import Costs, summarize
from ringflow.train.profile.table import COLUMNS, KINDS, StepTable, read_table


def profile(folder: Path, ranks: int, delay: float = 0.0, *, counted: bool = True) -> Path:
    """The files of a profile in which the last rank is slow."""
    drawn, steps = np.random.default_rng(1), 40
    columns = {name: np.zeros((steps, ranks)) for name in COLUMNS}
    columns["step"] += np.arange(1, steps + 1)[:, None]
    columns["rank"] += np.arange(ranks)
    columns["events"] += 8
    columns["data_ms"] = drawn.uniform(1.0, 2.0, (steps, ranks))
    columns["data_ms"][:, -1] += delay
    columns["backward_ms"] += 50.0
    columns["idle_ms"] = columns["data_ms"].max(axis=1, keepdims=True) - columns["data_ms"]
    columns["step_ms"] = sum(columns[f"{kind}_ms"] for kind in KINDS)
    columns["start_ms"] = columns["step_ms"].cumsum(axis=0) - columns["step_ms"]
    columns["late_ms"][:, -1] = delay
    columns["sent_bytes"] += 2_003_000
    columns["received_bytes"] += 2_001_000
    lines = [",".join(COLUMNS)]
    for step in range(steps):
        lines += [",".join(f"{columns[name][step, rank]:g}" for name in COLUMNS) for rank in range(ranks)]
    if not counted:
        lines[1:] = [line.rsplit(",", 2)[0] + ",," for line in lines[1:]]
    (folder / "steps.csv").write_text("\n".join(lines) + "\n")
    why = "" if counted else "a process alone sends nothing"
    about = Circumstances(ranks, "replicate", "cpu", 2_000_000 if ranks > 1 else None, why)
    table: StepTable = read_table(folder / "steps.csv")
    (folder / "summary.json").write_text(json.dumps(summarize(table, about, Costs(0, 0.01))))
    return write_profile_report(folder)


def test_a_straggler_is_the_headline(tmp_path: Path):
    text = profile(tmp_path, 2, delay=12.0).read_text()
    assert "<h1>The others wait for rank 1</h1>" in text
    assert "Rank 1 is late in 100 % of the steps, by 12 ms on average" in text
    assert "sends 2 MB per step" in text
    assert "1.002 times the 2(N-1)K/N = 2 MB" in text
    assert text.count('<img src="data:image/png;base64,') == 4
    assert re.findall(r'(?:src|href)="(?!data:|#)', text) == []


def test_without_one_the_headline_is_the_step(tmp_path: Path):
    text = profile(tmp_path, 3).read_text()
    assert re.search(r"<h1>A step takes 5\d\.?\d* ms, 9\d % of it to compute</h1>", text)
    assert "No rank is waited for" in text


def test_a_process_alone_has_no_bytes_and_nobody_to_wait_for(tmp_path: Path):
    text = profile(tmp_path, 1, counted=False).read_text()
    assert 'id="bytes"' not in text
    assert "waited for" not in text.split("<main>")[1].split('id="figures"')[0]
    assert text.count("<figure>") == 3


def test_many_ranks_can_be_drawn(tmp_path: Path):
    assert profile(tmp_path, 40).read_text().count("<figure>") == 4

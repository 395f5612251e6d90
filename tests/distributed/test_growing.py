"""A training that goes on with more processes and more lanes, as a search lets the best ones grow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures import FOLDER
from fixtures.paced_rank import Until
from fixtures.tiny_training import TINY, assert_same_training, make_dataset, shown
from ringflow.train.checkpoint import read_checkpoint
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings

pytestmark = pytest.mark.xdist_group("processes")

LONGER = (
    *TINY,
    "model.dropout=0.1",
    "optimizer.rate=0.003",
    "optimizer.rule=sqrt",
    "optimizer.rule_elements=60",
    "optimizer.rewarmup=0.1",
    "length.events=1000",
    "length.validate_every=100",
)


@pytest.mark.heavy
def test_two_processes_go_on_with_what_one_began(tmp_path: Path):
    dataset = make_dataset(tmp_path)
    one = [f"data={dataset}", *LONGER, "source.lanes=1"]
    two = [*one, "source.lanes=2"]
    run, alone = tmp_path / "run", tmp_path / "alone"
    first, second = Until(150), Until(400)
    began = train(TrainSettings.resolve(None, one), run, pace=first.ask)
    shutil.copytree(run, alone)
    grown = train(TrainSettings.resolve(None, two), alone, pace=second.ask)
    assert grown["events"] >= 400

    script, told = FOLDER / "paced_rank.py", tmp_path / "told.json"
    words: list[Any] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    command = [sys.executable, *words, run, told, "400", *two]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("source.lanes=2, not 1 as before; the rest of this pass") == 1

    assert_same_training(run, alone)
    by_the_first = json.loads(told.read_text())
    assert by_the_first[0] == [began["events"], first.told[-1][1]]
    assert [events for events, _ in by_the_first] == [events for events, _ in second.told]
    assert [events for events, _ in by_the_first] == [events for _, events in shown(run) if events >= began["events"]]
    losses = [figures["loss"] for _, figures in by_the_first]
    assert losses[-1] == pytest.approx(second.told[-1][1]["loss"], rel=1e-4)
    assert losses[-1] < losses[0]
    found = read_checkpoint(run)
    assert found is not None
    assert (len(found.state.positions), found.state.resized_at) == (2, began["events"])

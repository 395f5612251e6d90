"""The real simulation through the whole front half: sample, detector, truth, dataset, gates."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fixtures.fake_events import contents, same
from ringflow.data.check import check
from ringflow.data.read import Dataset
from ringflow.event.block import concatenate
from ringflow.event.schema import SIMULATED
from ringflow.recipes.simulate import simulate
from ringflow.sim.settings import SimulateSettings

SMALL = ("generator.sample=ttbar", "production.block_events=5", "production.events_per_shard=6")


def run(out: Path, *overrides: str) -> Path:
    simulate(SimulateSettings.resolve(None, [*SMALL, *overrides]), out)
    return out


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """15 ttbar events in shards of 6, cut out of blocks of 5."""
    return run(tmp_path_factory.mktemp("one") / "d", "production.events=15")


def test_simulated_ttbar_events_pass_every_gate(one_worker: Path) -> None:
    assert [row for row in check(one_worker) if not row["ok"]] == []
    assert tuple(Dataset(one_worker).columns) == SIMULATED


def test_two_workers_write_the_same_bytes(one_worker: Path, tmp_path: Path) -> None:
    assert contents(run(tmp_path / "d", "production.events=15", "production.workers=2")) == contents(one_worker)


def test_fewer_events_in_other_shards_are_the_same_events(one_worker: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "d", "production.events=8", "production.events_per_shard=3")
    events = concatenate(list(Dataset(one_worker).events()))
    assert same(concatenate(list(Dataset(other).events())), events.take(0, 8))


def test_an_extension_writes_the_same_bytes(one_worker: Path, tmp_path: Path) -> None:
    run(tmp_path / "d", "production.events=7")
    assert contents(run(tmp_path / "d", "production.events=15")) == contents(one_worker)


def test_another_seed_gives_other_events(one_worker: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "d", "production.events=5", "generator.seed=2")
    first = concatenate(list(Dataset(one_worker).events())).take(0, 5)
    assert not same(concatenate(list(Dataset(other).events())), first)


def test_without_hits(tmp_path: Path) -> None:
    out = run(tmp_path / "d", "production.events=5", "production.keep_hits=false")
    assert [row for row in check(out) if not row["ok"]] == []
    assert tuple(Dataset(out).columns) == ("track", "cluster", "particle", "target", "cluster_link")


def test_ctrl_c_says_that_the_same_command_goes_on_and_it_does(one_worker: Path, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "ringflow.cli",
        "simulate",
        *SMALL,
        "production.events=15",
        "--out",
        str(tmp_path / "d"),
    ]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not list(tmp_path.rglob("*.parquet")):
        assert process.poll() is None, "the production ended before it could be interrupted"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "ringflow: error: interrupted; the same command goes on where it stopped"
    assert subprocess.run(words, stderr=subprocess.DEVNULL, check=False).returncode == 0
    assert contents(tmp_path / "d") == contents(one_worker)

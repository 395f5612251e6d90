"""A training that is killed ends with the weights of one that was left alone.

Run as a program, this file trains in the folder it is given.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

from ringflow.elements.batch import CLUSTER, TRACK, ElementBatch, ElementTargets
from ringflow.elements.features import feature_names
from ringflow.event.particles import CHARGED_HADRON, PHOTON
from ringflow.train.data import TrainingData
from ringflow.train.settings import TrainSettings
from ringflow.train.trainer import Trainer

SETTINGS = (
    "model.width=32",
    "model.layers=2",
    "model.heads=2",
    "model.hidden=64",
    "model.dropout=0.1",
    "source.reuse=2",
    "source.hide=0.2",
    "length.events=600",
    "length.validate_every=100",
    "length.checkpoint_seconds=0.05",
    "compute.batch_elements=128",
    "compute.device=cpu",
)


class RandomEvents:
    """Elements with random features and random truth."""

    def chunk(self, index: int) -> ElementBatch:
        generator = torch.Generator().manual_seed(index)
        counts = torch.randint(5, 30, (30,), generator=generator)
        total = int(counts.sum())
        kind = torch.randint(TRACK, CLUSTER + 1, (total,), generator=generator)
        features = torch.randn(total, len(feature_names(("track", "cluster"))), generator=generator)
        pt, eta, phi = torch.rand(3, total, generator=generator) + 0.1
        measured = torch.stack([pt, eta, phi, pt * torch.cosh(eta)], dim=1)
        momentum = torch.stack([pt * phi.cos(), pt * phi.sin(), pt * eta.sinh(), pt * eta.cosh()], dim=1)
        label = torch.where(kind == TRACK, CHARGED_HADRON, PHOTON) * (features[:, 0] > 0)
        charge = (kind == TRACK).long()
        targets = ElementTargets(label, charge, momentum)
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return ElementBatch(kind, features, torch.stack([eta, phi], 1), measured, charge, offsets, targets)

    def prefetch(self, index: int) -> None:
        """Nothing to prepare."""

    def close(self) -> None:
        """Nothing to let go of."""


def run(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    source = RandomEvents()
    settings = TrainSettings.resolve(None, SETTINGS)
    Trainer(settings, TrainingData({0: source}, source.chunk(10**6)), folder).fit()


def start(folder: Path) -> subprocess.Popen[bytes]:
    # Sums of several threads may come in another order; with one, weights are equal bit for bit.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, __file__, str(folder)], env=environment, stderr=subprocess.DEVNULL)


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-*"))


def kill_at_a_random_moment(folder: Path, moment: random.Random) -> int:
    """Let it get past the last checkpoint, wait a moment, kill it. The exit code."""
    before = checkpoints(folder)
    process = start(folder)
    while process.poll() is None and checkpoints(folder) == before:
        time.sleep(0.005)
    time.sleep(moment.uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    return process.wait()


def test_killed_and_taken_up_again_it_ends_with_the_same_weights(tmp_path: Path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole).wait() == 0
    assert kill_at_a_random_moment(killed, random.Random(1)) == -signal.SIGKILL
    assert start(killed).wait() == 0
    expected, found = (load_file(checkpoints(folder)[-1] / "tensors.safetensors") for folder in (whole, killed))
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    models = [(folder / "model.safetensors").read_bytes() for folder in (whole, killed)]
    assert models[0] == models[1]


if __name__ == "__main__":
    run(Path(sys.argv[1]))

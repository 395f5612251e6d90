"""Every command that writes, disturbed wherever it writes: a full disk, a broken one, kill -9.

Afterwards everything that has its name is whole, the same command given again succeeds, and what there is then is what an
undisturbed command makes, byte for byte, with nothing left over. A few steps of a few commands; with `-m heavy` all of them,
or RINGFLOW_FAULTS of each command, spread over it. With `-s` the heavy ones say how many there were and how they ended.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from faults.disturbed import Disturbed, How, Machine, Scenario, spread
from fixtures.edm4hep_files import Content, write_frame
from fixtures.fake_events import write_fake_dataset
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings


def make_inputs(folder: Path) -> None:
    write_fake_dataset(folder / "data", 8)
    write_frame(folder / "events.root", Content())
    with torch.random.fork_rng():
        torch.manual_seed(1)
        network = Model(ModelSettings(width=16, layers=1, heads=2, hidden=16))  # which says yes to everything
    save_model(folder / "model.safetensors", network, card={"detector": "fake"})


def make_many(folder: Path) -> None:
    write_fake_dataset(folder / "events", 40)


def make_very_many(folder: Path) -> None:
    write_fake_dataset(folder / "many", 1000)


TRAINING = (
    "data=events",
    "length.events=60",
    "length.validate_every=30",
    "length.validation_events=2",
    "compute.batch_elements=100",
    "compute.device=cpu",
    "detector=fake",
)
SMALL = ("model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16")
CHECKED = ("--check", "data", "--events", "2")
TRAIN = ("train", *TRAINING, *SMALL, "--out", "run")
#: What a run says of its starts, and how fast they were.
OF_STARTS = ("run/tensorboard/*",)
SCENARIOS = {
    "config": Scenario(("config", "train", "clic_tiny", "--out", "mine.toml"), side_by_side=True),
    "simulate": Scenario(
        ("simulate", "gun_photon", "--events", "4", "production.events_per_shard=2", "--no-hits", "--out", "out")
    ),
    "simulate, replaced": Scenario(
        ("simulate", "gun_photon", "--events", "2", "--no-hits", "--overwrite", "--out", "out"),
        replaces=True,
        before=(("simulate", "gun_photon", "--events", "4", "production.events_per_shard=2", "--out", "out"),),
    ),
    "convert": Scenario(("convert", "events.root", "--out", "out")),
    "reconstruct": Scenario(("reconstruct", "data", "--model", "model.safetensors", "--out", "made.parquet")),
    "reconstruct, EDM4hep": Scenario(
        ("reconstruct", "events.root", "--model", "model.safetensors", "--out", "new/made.root")
    ),
    "reconstruct, replaced": Scenario(
        (
            "reconstruct",
            "data",
            "--model",
            "model.safetensors",
            "--events",
            "4",
            "--overwrite",
            "--out",
            "made.parquet",
        ),
        before=(("reconstruct", "data", "--model", "model.safetensors", "--out", "made.parquet"),),
    ),
    "trace": Scenario(
        ("trace", "data", "--card", "--crate", "--out", "out", "--prov", "new/prov.json"), side_by_side=True
    ),
    "trace, croissant": Scenario(("trace", "data", "--croissant", "--crate"), side_by_side=True),
    "evaluate": Scenario(("evaluate", "data", "--reconstructions", "target", "--out", "out")),
    "train": Scenario(TRAIN, varies=OF_STARTS, more=make_many),
    "train, replaced": Scenario(
        (*TRAIN, "--overwrite", "seed=2"), varies=OF_STARTS, replaces=True, before=(TRAIN,), more=make_many
    ),
    "prune": Scenario(
        ("prune", "model.safetensors", *TRAINING, *CHECKED, "--heads", "1", "--out", "run"),
        varies=OF_STARTS,
        more=make_many,
    ),
    "tune": Scenario(
        ("tune", *TRAINING, *SMALL, "--trials", "2", "--search", "random", "--scheduler", "none", "--out", "study"),
        varies=("study/*",),
        more=make_many,
    ),
    "tune panda-space": Scenario(("tune", "panda-space", "training", "--out", "space.json"), side_by_side=True),
    "explain": Scenario(
        (
            "explain",
            "data",
            "--model",
            "model.safetensors",
            "--events",
            "1",
            "--links",
            "new/links.json",
            "--out",
            "out",
        ),
    ),
    "uncertainty": Scenario(
        ("uncertainty", "model.safetensors", "many", "--out", "new/made.safetensors", "--page", "page"),
        code=1,
        more=make_very_many,
    ),
    "export": Scenario(("export", "model.safetensors", "-o", "new/made.onnx", *CHECKED), side_by_side=True),
    "export, int8": Scenario(
        ("export", "model.safetensors", "-o", "made.onnx", "--int8", "--calibrate", "data", *CHECKED), side_by_side=True
    ),
    "export, Triton": Scenario(("export", "model.safetensors", "--triton", "models", *CHECKED), side_by_side=True),
    "display, page": Scenario(("display", "data", "--static", "new/page.html", "--events", "2"), side_by_side=True),
    "display, folder": Scenario(("display", "data", "--static", "out", "--events", "2", "--phoenix", "event.json")),
    "calibrate": Scenario(("calibrate", "--baseline", "--events", "50", "--out", "rules.toml"), side_by_side=True),
    "scaling-model": Scenario(("scaling-model", "--out", "out")),
    "bench": Scenario(
        ("bench", "train", "--preset", "clic_tiny", "--seconds", "0.1", "--out", "record.json"), side_by_side=True
    ),
    "tune replay": Scenario(
        ("tune", "replay", "--devices", "4", "--scheduler", "asha", "--orders", "1", "--out", "out")
    ),
    "reproduce": Scenario(
        ("reproduce", "out", "--out", "again"), before=(("simulate", "gun_photon", "--events", "2", "--out", "out"),)
    ),
}
QUICK = ("config", "reconstruct", "trace")
#: Steps of a command that heavy tests disturb in each way; 0: all.
MOST = int(os.environ.get("RINGFLOW_FAULTS", "0")) or None


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Disturbed]]:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler, and the steps of a command are seen at the C library only")
    machine = Machine(tmp_path_factory.mktemp("faults"), make_inputs)
    yield cache(lambda name: Disturbed(machine, SCENARIOS[name]))
    machine.close()


@pytest.mark.parametrize("name", QUICK)
def test_a_disturbed_command_loses_nothing(name: str, disturbed: Callable[[str], Disturbed]) -> None:
    scenario = disturbed(name)
    for step, how in spread(scenario.chosen(6)):
        scenario.disturb(step, how)


@pytest.mark.parametrize("name", QUICK)
def test_two_of_a_kind_do_not_spoil_each_other(name: str, disturbed: Callable[[str], Disturbed]) -> None:
    scenario = disturbed(name)
    scenario.twice(scenario.chosen(4)[2])


@pytest.mark.heavy
@pytest.mark.parametrize("how", [How.KILLED, How.DISK_FULL, How.DISK_BROKEN])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_disturbed_command_loses_nothing_anywhere(
    name: str, how: How, disturbed: Callable[[str], Disturbed]
) -> None:
    scenario = disturbed(name)
    scenario.ended.clear()
    for step in scenario.chosen(MOST):
        scenario.disturb(step, how)
    sys.stderr.write(f"{name}, {how.name}: {dict(scenario.ended)}, {len(scenario.undisturbed[0])} steps\n")


#: Of each command that is killed at any moment.
MOMENTS = 15
KILLED = ("simulate", "train", "tune", "evaluate", "reconstruct", "export", "uncertainty")


@pytest.mark.heavy
@pytest.mark.parametrize("name", KILLED)
def test_a_command_killed_at_any_moment_loses_nothing(name: str, disturbed: Callable[[str], Disturbed]) -> None:
    scenario = disturbed(name)
    scenario.ended.clear()
    for moment in range(MOMENTS):
        scenario.kill((moment + 0.5) / MOMENTS)
    assert scenario.ended["killed"] > 0
    sys.stderr.write(f"{name}, kill -9: {dict(scenario.ended)}\n")

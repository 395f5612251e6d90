"""Outside data: whatever exists goes in and comes out equal, and what does not fit is refused in one line."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest

from fixtures.fake_events import fake_block
from ringflow.base.errors import FailureError, UsageError
from ringflow.data.check import check
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset, to_awkward
from ringflow.elements.truth import targets_from_links
from ringflow.event.block import EventBlock
from ringflow.event.particles import CHARGED_HADRON, NEUTRAL_HADRON, PHOTON
from ringflow.sim.detector import Detector
from ringflow.sim.generator import make_generator
from ringflow.sim.geometry import load_detector
from ringflow.sim.settings import GeneratorSettings

TRACKS = ak.Array([[{"pt": 1.0, "eta": 0.5}, {"pt": 2.0, "eta": -0.5}], [], [{"pt": 3.0, "eta": 1.5}]])


def test_a_whole_simulated_dataset_goes_through(tmp_path: Path) -> None:
    events = to_awkward(fake_block(0, 25))
    arrays = {f"{name}s": events[name] for name in fake_block(0, 1).collections}
    dataset = write_dataset(tmp_path / "mine", detector="mine", events_per_shard=10, **arrays)
    assert ak.array_equal(dataset.to_awkward(), events, dtype_exact=True)
    assert len(dataset.manifest.shards) == 3
    assert [row["gate"] for row in check(tmp_path / "mine") if not row["ok"]] == []


def test_tracks_alone(tmp_path: Path) -> None:
    more: dict[str, Any] = {"event_number": [8, 18, 40], "provenance": {"run": 7}}
    dataset = write_dataset(tmp_path / "mine", detector="mine", sample="cosmics", tracks=TRACKS, **more)
    assert dataset.manifest.splits == {"train": 1, "valid": 2, "test": 0}
    assert Dataset(tmp_path / "mine").manifest.provenance == {"run": 7}
    assert (dataset.manifest.sample, dataset.manifest.detector) == ("cosmics", "mine")
    assert dataset.columns == {"track": ("pt", "eta")}
    assert dataset.to_awkward().track.tolist() == TRACKS.tolist()
    rows = {row["gate"]: row for row in check(tmp_path / "mine")}
    assert all(row["ok"] for row in rows.values())
    assert rows["hit energy against its links"]["observed"] == "absent"
    with pytest.raises(UsageError, match="already exists"):
        write_dataset(tmp_path / "mine", detector="mine", tracks=TRACKS)
    given = {"pt": [[1, 2], []], "charge": [[1.0, -1.0], []]}  # of other types
    tracks = next(write_dataset(tmp_path / "other", detector="mine", tracks=given).events())["track"]
    assert (tracks["charge"].tolist(), tracks["charge"].dtype, tracks["pt"].dtype) == ([1, -1], np.int8, np.float32)


def nested(function: Callable[[ak.Array], Any]) -> dict[str, Any]:
    return {"tracks": {"pt": TRACKS.pt, "eta": function(TRACKS.eta)}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no collection was given"),
        (
            {"tracks": ak.zip({"pt": TRACKS.pt, "etta": TRACKS.eta})},
            "track.etta is not in the schema; did you mean 'eta'",
        ),
        ({"tracks": ak.Array([[1.0], [2.0]])}, "track: give records with named fields, for example track.pt"),
        (nested(lambda eta: eta[:, :1]), "track.eta and track.pt differ in their numbers of objects"),
        (nested(lambda eta: ak.mask(eta, eta > 0)), r"track.eta has missing values \(None\)"),
        (nested(lambda eta: ak.where(eta > 1, np.nan, eta)), "track.eta has 1 values that are not finite"),
        (nested(lambda eta: eta * 1e300), "track.eta has values beyond the range of float32"),
        (nested(lambda eta: [["a", "b"], [], ["c"]]), "track.eta must hold"),
        (nested(lambda eta: ak.flatten(eta)), "track.eta must hold one list of numbers per event"),
        ({"tracks": {"charge": TRACKS.pt * 0.5}}, "track.charge must hold whole numbers, not 0.5"),
        ({"tracks": {"charge": TRACKS.pt * 100}}, "track.charge goes from 100.0 to 300.0, which int8 cannot hold"),
        ({"tracks": TRACKS, "clusters": {"energy": [[1.0]]}}, "differ in their numbers of events"),
        ({"tracks": {"pt": ak.Array([[1.0]])[:0]}}, "there are no events to write"),
        ({"tracks": {"particle": [[0], [1]]}}, "track.particle points into particle, which was not given"),
        (
            {"tracks": {"particle": [[0], [1]]}, "particles": {"px": [[1.0], [1.0]]}},
            "track.particle is 1 in event 1, where there are 1 particle objects",
        ),
        ({"tracks": TRACKS, "event_number": [0, 2, 1]}, "event_number must rise"),
        ({"tracks": TRACKS, "event_number": [-1, 1, 2]}, "not be negative"),
        ({"tracks": TRACKS, "event_number": [0, 1]}, "event_number must be 3 whole numbers"),
        ({"tracks": TRACKS, "events_per_shard": 0}, "events_per_shard must be at least 1, not 0"),
        ({"tracks": TRACKS, "provenance": {"a": {1, 2}}}, "provenance cannot be written as JSON"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        write_dataset(tmp_path / "mine", detector="mine", **arguments)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def simulated() -> EventBlock:
    generator = make_generator(GeneratorSettings(sample="ttbar", seed=2), *load_detector("clic").tracker_cylinder)
    return Detector(load_detector("clic")).simulate_block(generator.generate(0, 4), 3)


def arrays(block: EventBlock, *left_out: str) -> dict[str, Any]:
    """What the call takes, of a block; without some collections and columns."""
    events = to_awkward(block)
    return {
        f"{name}s": {field: events[name, field] for field in events[name].fields if f"{name}.{field}" not in left_out}
        for name in block.collections
        if name not in left_out
    }


BY_TARGETS = (
    "target",
    "hit_target",
    "particle.label",
    "particle.calo_energy",
    "particle.target",
    "particle.hit_target",
)


def test_targets_made_from_links_are_those_of_the_simulation(tmp_path: Path, simulated: EventBlock) -> None:
    dataset = write_dataset(tmp_path / "mine", detector="clic", events_per_shard=3, **arrays(simulated, *BY_TARGETS))
    made, told = dataset.to_awkward(), to_awkward(simulated)
    for name in ("target", "hit_target", "particle"):
        assert made[name].fields == told[name].fields
        for field in told[name].fields:
            # Sums of momenta that were rounded to single precision before.
            assert ak.all(abs(made[name, field] - told[name, field]) <= 1e-6 * abs(told[name, field])), (name, field)
    assert ak.sum(made.target.num_particles) < ak.count(made.particle.pdg), "some are not visible"
    assert [row["gate"] for row in check(tmp_path / "mine") if not row["ok"]] == []


@pytest.mark.parametrize("element", ["cluster", "hit"])
def test_made_targets_carry_what_is_visible_to_the_last_digit(simulated: EventBlock, element: str) -> None:
    name = "target" if element == "cluster" else "hit_target"
    targets, of_particles = targets_from_links(simulated, element)
    particles, visible = simulated["particle"], of_particles[name] >= 0
    assert np.array_equal(visible, of_particles["label"] != 0)
    row = of_particles[name] + np.repeat(targets.offsets[:-1], particles.counts)
    for column in ("px", "py", "pz", "energy"):
        # By target, in the order of the particles: as it is done, so that not a bit may differ.
        expected = np.zeros(len(targets))
        np.add.at(expected, row[visible], particles[column][visible].astype(np.float64))
        assert np.array_equal(targets[column], expected.astype(np.float32)), column
    assert np.array_equal(targets["num_particles"], np.bincount(row[visible], minlength=len(targets)))


def small(**changed: Any) -> dict[str, Any]:
    """Two events: an electron with track and cluster, and a photon; a neutrino and nothing else."""
    particles = {"pdg": [[11, 22], [12]], "energy": [[10.0, 5.0], [3.0]]}
    particles |= {name: ak.zeros_like(particles["energy"]) for name in ("px", "py")} | {"pz": [[10.0, 5.0], [3.0]]}
    links = {"cluster": [[0, 1, 1, -1], []], "particle": [[0, 1, 1, 0], []], "energy": [[9.0, 2.0, 2.5, 4.0], []]}
    whole = {
        "tracks": {"pt": [[9.9], []], "particle": [[0], []]},
        "clusters": {"energy": [[9.0, 4.5], []]},
        "particles": particles,
        "cluster_links": links,
    }
    return {**whole, **changed}


def test_links_without_columns_of_a_simulation_are_enough(tmp_path: Path) -> None:
    made = write_dataset(tmp_path / "mine", detector="mine", **small()).to_awkward()
    # A pt of nothing makes a hadron of the electron.
    assert made.target.label.tolist() == [[CHARGED_HADRON, PHOTON], []]
    assert made.target.charge.tolist() == [[-1, 0], []], "that of an electron, which nobody gave"
    assert (made.target.track.tolist(), made.target.cluster.tolist()) == ([[0, -1], []], [[-1, 1], []])
    assert made.particle.target.tolist() == [[0, 1], [-1]]
    assert made.particle.calo_energy.tolist() == [[9.0, 4.5], [0.0]], "links of nobody and nowhere do not count"
    given = {**small()["particles"], "calo_energy": [[1.0, 2.0], [0.0]]}
    kept = write_dataset(tmp_path / "kept", detector="mine", **small(particles=given)).to_awkward()
    assert kept.particle.calo_energy.tolist() == [[1.0, 2.0], [0.0]]
    alone = write_dataset(tmp_path / "alone", detector="mine", **{**small(), "tracks": None}).to_awkward()
    assert alone.target.label.tolist() == [[NEUTRAL_HADRON, PHOTON], []]


def test_a_particle_has_the_track_of_most_hits(tmp_path: Path) -> None:
    tracks = {"pt": [[9.9, 12.0, 9.8], []], "num_hits": [[7, 5, 6], []], "particle": [[0, 0, -1], []]}
    made = write_dataset(tmp_path / "mine", detector="mine", **small(tracks=tracks)).to_awkward()
    assert made.target.track.tolist() == [[0, -1], []]


def test_targets_that_are_given_or_not_wanted_are_not_made(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "mine", detector="mine", make_targets=False, **small())
    assert "target" not in dataset.columns
    targets = {"label": [[1], []], "energy": [[15.0], []]}
    dataset = write_dataset(tmp_path / "given", detector="mine", targets=targets, **small())
    assert dataset.to_awkward().target.energy.tolist() == targets["energy"]


@pytest.mark.parametrize(
    ("collection", "column", "why"),
    [
        (
            "particles",
            "pdg",
            "targets cannot be made from cluster_links without particle.pdg; give it, give targets, or",
        ),
        ("tracks", "particle", "without track.particle; .* write without \\(make_targets=False\\)"),
        ("cluster_links", "energy", "without cluster_link.energy"),
    ],
)
def test_what_targets_need_is_named(tmp_path: Path, collection: str, column: str, why: str) -> None:
    left = {name: values for name, values in small()[collection].items() if name != column}
    with pytest.raises(UsageError, match=why):
        write_dataset(tmp_path / "mine", detector="mine", **small(**{collection: left}))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(FailureError, match="the disk is full"):
        write_dataset(tmp_path / "mine", detector="mine", tracks=TRACKS)
    assert list(tmp_path.iterdir()) == []


ROOT = Path(__file__).parents[3]


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "outside_data.py"), run_name="__main__")
    assert "56 of 56 gates passed" in capsys.readouterr().out

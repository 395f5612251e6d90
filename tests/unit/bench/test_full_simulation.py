"""The benchmark on full simulation: one truth for all, what is hidden, what is paired, its table and its record."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.fake_events import fake_block, replaced, without
from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.manifest import manifest_hash
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset, to_awkward
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.infer.reconstructions import open_reconstruction

#: By label: a neutrino, and one of each class.
PDG = np.array([12, 211, 130, 22, 11, 13])
EVENTS = 12


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    return importlib.import_module("full_simulation")


def generated(seed: int) -> EventBlock:
    made = fake_block(0, EVENTS, seed)
    made = replaced(made, "particle", "pdg", PDG[made["particle"]["label"]])
    made = without(made, "particle", "target", "hit_target")
    particles, tracks = made["particle"], made["track"]
    of = np.repeat(particles.offsets[:-1], tracks.counts) + tracks["particle"]
    px, py, pz = (particles[name][of] for name in ("px", "py", "pz"))
    pt = np.hypot(px, py)
    for name, values in (("pt", pt), ("phi", np.arctan2(py, px)), ("eta", np.arcsinh(pz / pt))):
        made = replaced(made, "track", name, values)
    return EventBlock(made.event_number, {name: made[name] for name in ("track", "cluster", "particle")})


@pytest.fixture
def block() -> EventBlock:
    """Elements and particles of known kinds; every second event number, as where events were chosen."""
    made = generated(seed=1)
    return EventBlock(2 * made.event_number, made.collections)


def perfect(script: Any, block: EventBlock) -> Collection:
    """Every particle that counts, as a candidate."""
    targets = script.with_generated_truth(block)["target"]
    columns = {name: targets[name] for name in ("label", "charge", "px", "py", "pz", "energy")}
    return cast("candidate", targets.counts, columns)


def written(folder: Path, block: EventBlock, **provenance: Any) -> Path:
    events = to_awkward(block)
    given = {f"{name}s": events[name] for name in block.collections}
    write_dataset(folder, detector="fake", event_number=block.event_number, provenance=provenance, **given)
    return folder


@pytest.fixture
def full(script: Any, block: EventBlock, tmp_path: Path) -> Path:
    """With candidates that are perfect, and without the hits of clusters."""
    poor = without(block, "cluster", "num_hits", "time")
    parts = {**poor.collections, "candidate": perfect(script, block)}
    return written(tmp_path / "full", EventBlock(block.event_number, parts), reconstruction="Pandora")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return written(tmp_path / "own", generated(seed=2))


@pytest.fixture
def networks(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files of two that find as many of the charged particles in every event as they have letters, and call all of them
    hadrons; the second can be adapted, and finds one more then."""

    def open_network(kind: str, detector: str, file: Path | None) -> Any:
        return (
            open_reconstruction(kind, detector) if file is None else lambda block: found(block, len(file.read_text()))
        )

    def found(block: EventBlock, most: int) -> Collection:
        tracks = block["track"]
        place = np.arange(len(tracks)) - np.repeat(tracks.offsets[:-1], tracks.counts)
        pt, eta, phi = (tracks[name][place < most].astype(np.float64) for name in ("pt", "eta", "phi"))
        momenta = (pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), pt * np.cosh(eta))
        columns = dict(zip(("px", "py", "pz", "energy"), momenta, strict=True))
        columns |= dict.fromkeys(("label", "charge"), np.ones(len(pt))) | dict.fromkeys(
            ("track", "cluster"), pt * 0 - 1
        )
        return cast("candidate", np.minimum(tracks.counts, most), columns)

    def adapt(source: str, out: Path, *, model: Path, match: str, events: int) -> None:
        assert (len(Dataset(source)), match, events) == (EVENTS, "scales", EVENTS)
        if model.name == "net1":
            raise UsageError("not this one")
        out.write_text(model.read_text() + "x")

    monkeypatch.setattr(script, "open_reconstruction", open_network)
    monkeypatch.setattr(script, "adapt", adapt)
    for name, letters in (("net1", "x"), ("net2", "xx")):
        (tmp_path / name).write_text(letters)
    return [f"first={tmp_path / 'net1'}", str(tmp_path / "net2")]


def test_every_generated_particle_but_neutrinos_is_a_target(script: Any, block: EventBlock) -> None:
    made = script.with_generated_truth(block)
    particles, targets = made["particle"], made["target"]
    eta = np.arcsinh(particles["pz"] / np.hypot(particles["px"], particles["py"]))
    counts = (particles["pdg"] != 12) & (np.abs(eta) < 3)
    assert 0 < counts.sum() < len(particles)
    assert np.array_equal(particles["target"] >= 0, counts)
    assert targets.counts.sum() == counts.sum()
    place = (np.repeat(targets.offsets[:-1], particles.counts) + particles["target"])[counts]
    assert np.array_equal(place, np.arange(len(targets)))
    assert np.array_equal(targets["energy"], particles["energy"][counts])
    assert np.array_equal(PDG[targets["label"]], particles["pdg"][counts])


def test_the_table_and_the_record(
    script: Any, full: Path, own: Path, networks: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    script.main([str(full), "--own", str(own), "--models", *networks, "--out", str(out)])
    record = json.loads(out.read_text())
    assert list(record["models"]) == ["first", "net2"]
    assert record["code"]["commit"]
    [found] = record["datasets"]
    assert found["manifest_sha256"] == manifest_hash(full)
    assert found["own"]["manifest_sha256"] == manifest_hash(own)
    assert found["own"]["hidden_columns"] == ["cluster_num_hits", "cluster_time"]
    assert set(found["not_made"]) == {"rules", "first, adapted"}  # nobody knows the constants of that detector
    rows = {row["reconstruction"]: row for row in found["rows"]}
    assert list(rows) == ["candidate", "first", "net2", "net2, adapted"]
    assert rows["candidate"]["full"]["generated_f1"]["value"] == 1.0
    assert rows["candidate"]["full"]["visible_energy_median"]["value"] == pytest.approx(1.0, abs=1e-6)
    assert rows["candidate"]["full"]["generated_f1_photon"]["value"] == 1.0
    assert rows["candidate"]["own"] is None
    row = rows["net2"]
    ours, theirs = (row[key]["generated_f1"]["value"] for key in ("own", "full"))
    assert row["own_minus_full"]["generated_f1"]["value"] == pytest.approx(ours - theirs)
    assert row["to_candidates"]["generated_f1"]["value"] == pytest.approx(theirs)
    first = rows["first"]["full"]["generated_f1"]["value"]
    assert row["to_first_network"]["generated_f1"]["value"] == pytest.approx(theirs / first)
    jets = [rows[name]["full"]["jet_matched_fraction"]["value"] for name in rows]
    assert 0 < jets[1] < jets[2] < jets[3] < jets[0] == 1.0
    assert (
        rows["first"]["to_first_network"] is rows["net2, adapted"]["to_first_network"] is None
    )  # the first of its kind
    printed = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    head = ["| reconstruction", "| ---"]
    assert printed == [
        *head,
        "| Pandora",
        "| first",
        "| net2",
        "| net2, adapted",
        *head,
        "| first",
        "| net2",
        "| net2, adapted",
    ]


def test_the_same_events_in_both(
    script: Any, full: Path, own: Path, block: EventBlock, networks: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    """Simulations that agree to the last bit, in all that full simulation tells, have a ratio of 1 and no interval."""
    again = written(tmp_path / "again", EventBlock(np.arange(EVENTS), block.collections))
    monkeypatch.setattr(script, "simulated", lambda *_: Dataset(again))
    out = tmp_path / "record.json"
    arguments = [str(full), "--own", str(own), "--models", *networks, "--hepmc", "events.hepmc3", "--out", str(out)]
    script.main(arguments)
    [found] = json.loads(out.read_text())["datasets"]
    assert found["same_events"] == {"manifest_sha256": manifest_hash(again), "events_that_differ": []}
    rows = {row["reconstruction"]: row for row in found["rows"]}
    assert list(rows) == ["candidate", "first", "net2", "net2, adapted"]
    assert 0 < rows["net2"]["full"]["generated_f1"]["value"] < 1
    assert rows["net2"]["same_events_own_to_full"]["generated_f1"] == {"value": 1.0, "lo": 1.0, "hi": 1.0}
    assert rows["candidate"]["same_events_own_to_full"] is None
    blind = written(
        tmp_path / "blind", replaced(block, "track", "pt", 3 * block["track"]["pt"])
    )  # no track is near its particle
    monkeypatch.setattr(script, "simulated", lambda *_: Dataset(blind))
    script.main(arguments)
    [*_, row] = json.loads(out.read_text())["datasets"][0]["rows"]
    assert row["same_events_own_to_full"]["generated_f1"] == {"value": 0.0, "lo": 0.0, "hi": 0.0}
    monkeypatch.setattr(script, "simulated", lambda *_: Dataset(own))
    with pytest.raises(DatasetError, match="was generated with"):
        script.main(arguments)


def test_a_difference_of_other_events_adds_in_quadrature(script: Any) -> None:
    ours, full = {"value": 0.7, "lo": 0.66, "hi": 0.73}, {"value": 0.5, "lo": 0.46, "hi": 0.53}
    found = script.difference(ours, full)
    assert found == {key: pytest.approx(value) for key, value in (("value", 0.2), ("lo", 0.15), ("hi", 0.25))}
    assert script.difference({"value": None}, full) == {"value": None, "lo": None, "hi": None}


def test_what_cannot_be_compared_is_said(
    script: Any, full: Path, own: Path, networks: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="cannot be called 'baseline' here"):
        script.main([str(full), "--models", networks[0].replace("first", "baseline")])
    with pytest.raises(UsageError, match="2 files of generated events for 1 datasets"):
        script.main([str(full), "--hepmc", "one", "two"])
    written(tmp_path / "poor", without(generated(seed=2), "track", "chi2"))
    with pytest.raises(DatasetError, match="has no track_chi2, which the full simulation has"):
        script.main([str(full), "--own", str(tmp_path / "poor"), "--out", str(tmp_path / "record.json")])


def test_what_the_truth_does_not_reach_is_nobodys(script: Any, block: EventBlock) -> None:
    """A photon in a forward calorimeter is left out, as an element and as a candidate; all others stay, in their events."""
    far = replaced(block, "cluster", "eta", np.where(np.arange(len(block["cluster"])) % 3 == 0, 3.6, 1.0))
    made = perfect(script, block)
    forward = np.arange(len(made)) % 4 == 0
    candidates = Collection(made.counts, {**made.columns, "pz": np.where(forward, 1e4, made["pz"]).astype(np.float32)})
    cut = script.within_reach(EventBlock(far.event_number, {**far.collections, "candidate": candidates}))
    assert (np.abs(cut["cluster"]["eta"]) < 3.0).all()
    assert len(cut["cluster"]) == (far["cluster"]["eta"] < 3.0).sum()
    assert np.array_equal(cut["candidate"]["px"], made["px"][~forward])
    event = np.repeat(np.arange(len(block)), made.counts)
    assert np.array_equal(cut["candidate"].counts, np.bincount(event[~forward], minlength=len(block)))
    assert cut["particle"] is far["particle"]

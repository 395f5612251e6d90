"""The perceptron without Spark: its numbers, its candidates, and what its command refuses before Spark is started."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fixtures.fake_events import fake_block, write_fake_dataset
from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.outside import write_dataset
from ringflow.elements.batch import from_block
from ringflow.event.block import EventBlock
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, PHOTON
from ringflow.recipes.perceptron import perceptron_baseline, show
from ringflow.spark.perceptron import CLASSES, INPUTS, Perceptron, _element_batch, element_inputs

CHARGED = (CHARGED_HADRON, ELECTRON, MUON)


def perceptron(seed: int = 3, hidden: int = 4) -> Perceptron:
    rng = np.random.default_rng(seed)
    sizes = (len(INPUTS), hidden, CLASSES)
    layers = tuple((rng.normal(0, 1, (a, b)), rng.normal(0, 1, b)) for a, b in pairwise(sizes))
    return Perceptron(rng.normal(0, 1, len(INPUTS)), rng.uniform(0.5, 2, len(INPUTS)), layers)


def always(label: int) -> Perceptron:
    """One that finds the same class everywhere."""
    offsets = np.zeros(CLASSES)
    offsets[label] = 9.0
    return Perceptron(np.zeros(len(INPUTS)), np.ones(len(INPUTS)), ((np.zeros((len(INPUTS), CLASSES)), offsets),))


def test_probabilities_are_those_of_sigmoids_and_a_softmax() -> None:
    network = perceptron()
    inputs = np.random.default_rng(1).normal(0, 3, (7, len(INPUTS))).astype(np.float32)
    (first, first_offsets), (second, second_offsets) = network.layers
    hidden = 1 / (1 + np.exp(-((inputs - network.mean) * network.scale @ first + first_offsets)))
    scores = np.exp(hidden @ second + second_offsets)
    np.testing.assert_allclose(network.probability(inputs), scores / scores.sum(1, keepdims=True), rtol=1e-9)


def test_candidates_are_on_their_elements_with_what_was_measured() -> None:
    block = fake_block(0, 20)
    made = always(CHARGED_HADRON).reconstruct(block)
    # Clusters cannot be charged: without that class nothing is left to choose but none.
    assert made.counts.tolist() == block["track"].counts.tolist()
    np.testing.assert_allclose(np.hypot(made["px"], made["py"]), block["track"]["pt"], rtol=1e-5)
    assert made["charge"].tolist() == block["track"]["charge"].tolist()
    assert made["track"].tolist() == [index for count in block["track"].counts for index in range(count)]
    assert set(made["cluster"]) == {-1}
    photons = always(PHOTON).reconstruct(block)
    assert photons.counts.tolist() == (block["track"].counts + block["cluster"].counts).tolist()
    on_clusters = photons["cluster"] >= 0
    np.testing.assert_allclose(photons["energy"][on_clusters], block["cluster"]["energy"], rtol=1e-5)
    assert set(photons["charge"]) == {0}


def test_an_event_of_nothing_has_no_candidates() -> None:
    block = fake_block(0, 1)
    nothing = {name: part.take(0, 0) for name, part in block.collections.items()}
    empty = EventBlock(
        block.event_number, {name: type(part)(np.zeros(1, np.int64), part.columns) for name, part in nothing.items()}
    )
    assert perceptron().reconstruct(empty).counts.tolist() == [0]


def test_elements_travel_with_their_class_and_without_nan() -> None:
    block = fake_block(5, 8)
    batch = from_block(block, with_targets=True)
    made = _element_batch(block)
    assert made["label"].to_pylist() == batch.targets.label_N.tolist()
    inputs = element_inputs(batch)
    assert np.isfinite(inputs).all()
    assert np.array_equal(np.array(made["features"].to_pylist(), dtype=np.float32), inputs)
    assert inputs[:, 0].sum() == len(block["track"])


def test_what_cannot_be_learned_from_is_refused_before_spark(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no dataset at"):
        perceptron_baseline(tmp_path / "nowhere", tmp_path / "out")
    few = write_fake_dataset(tmp_path / "few", events=5)
    with pytest.raises(DatasetError, match="has no events in split 'test'; make more than its 5 events"):
        perceptron_baseline(few, tmp_path / "out")
    write_dataset(tmp_path / "blind", detector="mine", clusters={"energy": [[1.0]] * 20})
    with pytest.raises(DatasetError, match="has no target_label: without truth there is nothing to learn"):
        perceptron_baseline(tmp_path / "blind", tmp_path / "out")
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "result.json").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    good = write_fake_dataset(tmp_path / "good", events=25)
    with pytest.raises(UsageError, match="holds files that ringflow did not make"):
        perceptron_baseline(good, tmp_path / "mine")
    with pytest.raises(UsageError, match="has a perceptron already; give another folder, or --overwrite"):
        perceptron_baseline(good, tmp_path / "done")


def test_every_class_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"classes": {"photon": {"f1": {"value": 0.25}}, "muon": {"f1": {"value": None}}}}
    sample = {"events": 3, "not_available": {}, "reconstructions": {"perceptron": figures, "baseline": {"classes": {}}}}
    show({"evaluation": {"samples": {"ttbar": sample}}})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split() for line in lines[-3:]] == [
        ["reconstruction", "photon", "muon"],
        ["perceptron", "0.2500", "-"],
        ["baseline", "-", "-"],
    ]

"""Data of a training: datasets or streams of simulated events, the same whatever the workers, never those of a test."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import DatasetError, FailureError, UsageError
from ringflow.data.chunks import to_tensors
from ringflow.elements.batch import ElementBatch
from ringflow.sim.detector import Detector
from ringflow.sim.geometry import load_detector
from ringflow.train import collisions
from ringflow.train.collisions import TRAINING, VALIDATION, Stream, start_workers, stream_seed
from ringflow.train.data import SimulatedChunks, measured_elements, open_training_data, require_data
from ringflow.train.settings import TrainSettings

CPU = torch.device("cpu")
STREAMS = (Stream("gun_photon", "clic", 2**62, 3), Stream("gun_pion", "clic", 2**62 + 1, 3))


def settings(*overrides: str) -> TrainSettings:
    return TrainSettings.resolve(None, ["source.chunk_events=6", "length.validation_events=4", *overrides])


def equal(first: ElementBatch, second: ElementBatch) -> bool:
    return all(
        torch.equal(a.nan_to_num(-99.0), b.nan_to_num(-99.0))
        for a, b in zip(to_tensors(first).values(), to_tensors(second).values(), strict=True)
    )


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessPoolExecutor]:
    with start_workers(2) as pool:
        yield pool


def simulated(workers: ProcessPoolExecutor, detector: Detector | None = None, events: int = 12) -> SimulatedChunks:
    return SimulatedChunks(
        STREAMS, workers, calorimeter="cluster", chunk_events=events, detectors={"clic": detector} if detector else {}
    )


def test_simulated_chunks_are_new_and_can_be_made_again(workers: ProcessPoolExecutor) -> None:
    source = simulated(workers)
    source.prefetch(1)
    first, second = source.chunk(0), source.chunk(1)
    assert first.num_events == second.num_events == 12
    assert not set(first.reference_N4[:, 3].tolist()) & set(second.reference_N4[:, 3].tolist())
    again = simulated(workers)
    assert equal(again.chunk(1), second)  # a training that goes on begins anywhere
    assert equal(again.chunk(0), first)


def test_a_chunk_is_made_of_the_blocks_of_its_streams(workers: ProcessPoolExecutor) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    numbers = [(stream, block) for block in (2, 3) for stream in STREAMS]
    energies = [collisions.elements(stream, block, "cluster")["reference"][:, 3] for stream, block in numbers]
    torch.set_num_threads(threads)
    assert np.array_equal(simulated(workers).chunk(1).reference_N4[:, 3], np.concatenate(energies))


def test_the_detector_may_run_beside_the_training(workers: ProcessPoolExecutor) -> None:
    # As on an accelerator: workers make collisions only.
    detector = Detector(load_detector("clic"))
    inside, outside = simulated(workers, detector).chunk(0), simulated(workers).chunk(0)
    assert torch.equal(inside.counts_B, outside.counts_B)
    torch.testing.assert_close(inside.features_NF, outside.features_NF, equal_nan=True, rtol=1e-3, atol=1e-3)
    assert inside.targets is not None
    assert outside.targets is not None
    assert torch.equal(inside.targets.label_N, outside.targets.label_N)
    generated = collisions.generate(STREAMS[0], 0)
    hits, block = measured_elements(detector, generated, 5, "hit"), detector.simulate_block(generated, 5)
    assert hits.counts_B.tolist() == (block["track"].counts + block["hit"].counts).tolist()


def test_no_seed_given_by_hand_makes_the_events_of_a_training() -> None:
    seeds = {
        stream_seed(seed, purpose, name)
        for seed in range(5)
        for purpose in (TRAINING, VALIDATION)
        for name in ("ttbar", "qq")
    }
    assert len(seeds) == 20
    assert all(1 << 62 <= seed < 1 << 63 for seed in seeds)
    assert stream_seed(1, TRAINING, "ttbar") == stream_seed(1, TRAINING, "ttbar")


def test_simulated_data_of_settings() -> None:
    before = set(multiprocessing.active_children())
    asked = settings("data=sim:gun_photon@20.0,gun_pion", "source.block_events=2")
    with open_training_data(asked, CPU, Path("unused")) as data:
        assert {name: len(block) for name, block in data.validate.blocks.items()} == {"gun_photon@20": 2, "gun_pion": 2}
        assert data.validate.blocks["gun_photon@20"]["particle"]["energy"].tolist() == [20.0, 20.0]
        assert data.validation.num_events == 4
        assert data.sources[0].chunk(0).num_events == 8  # whole blocks of both samples
        assert [entry["simulated"] for entry in data.card["data"]] == ["gun_photon@20", "gun_pion"]
        learned = set(data.sources[0].chunk(0).reference_N4[:, 3].tolist())
        assert not learned & set(data.validation.reference_N4[:, 3].tolist())
    assert set(multiprocessing.active_children()) <= before


def test_a_network_learns_from_detectors_that_vary_and_is_validated_on_the_one_it_is_for() -> None:
    found = []
    for detector in ("clic", "clic~0.2"):
        asked = settings("data=sim:gun_photon", "source.block_events=2", f"detector={detector}")
        with open_training_data(asked, CPU, Path("unused")) as data:
            assert data.card["detector"] == "clic"
            found.append((data.sources[0].chunk(0).reference_N4, data.validation.reference_N4))
    (learned, validated), (varied, again) = found
    assert torch.equal(validated, again)
    assert learned.shape != varied.shape or not torch.equal(learned, varied)


def test_a_worker_that_dies_is_one_line() -> None:
    with start_workers(1) as pool:
        source = simulated(pool)
        pool.submit(sys.exit)  # SystemExit ends nothing, it is only reported
        assert source.chunk(0).num_events == 12
        for process in pool._processes.values():
            process.kill()
        with pytest.raises(FailureError, match=r"ended unexpectedly.* use fewer source.workers"):
            source.chunk(5)


def test_datasets_of_settings(tmp_path: Path) -> None:
    first = write_fake_dataset(tmp_path / "a", events=40)
    second = write_fake_dataset(tmp_path / "b", events=30)
    asked = settings(f"data={first},{second}", "detector=fake")
    with open_training_data(asked, CPU, tmp_path) as data:
        assert {name: len(block) for name, block in data.validate.blocks.items()} == {"fake": 2, "fake_2": 2}
        assert data.validation.num_events == 4
        assert set(data.validate.blocks["fake"].event_number % 10) == {8}
        assert data.validation.targets is not None
        assert [entry["dataset"] for entry in data.card["data"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("data", "error", "expected"),
    [
        ("sim:ttbat", UsageError, "unknown sample 'ttbat'; did you mean 'ttbar'?"),
        ("sim:", UsageError, "no data in 'sim:'"),
        ("sim:ttbar,qq,ttbar", UsageError, "'ttbar' is twice"),
        ("sim:ttbar@500,ttbar@5e2", UsageError, "'ttbar@500' is twice"),
        ("sim:ttbar,ttbar@380", UsageError, "'ttbar' is twice"),
        ("sim:ttbar@100", UsageError, "ttbar cannot be made at 100 GeV; give an energy from 340 to 3000 GeV"),
        (" , ", UsageError, "give data=FOLDER"),
        ("nowhere", DatasetError, "no dataset at nowhere"),
    ],
)
def test_data_that_do_not_exist_are_one_line(data: str, error: type[Exception], expected: str) -> None:
    with pytest.raises(error) as raised:
        require_data(settings().model_copy(update={"data": data}))
    assert expected in str(raised.value)


def test_a_dataset_without_events_to_validate_with_is_one_line(tmp_path: Path) -> None:
    path = write_fake_dataset(tmp_path / "few", events=8)
    with pytest.raises(DatasetError, match="has no events in split 'valid'; make more than its 8 events"):
        require_data(settings(f"data={path}", "detector=fake"))
    with pytest.raises(UsageError, match=r"/few/' is twice in the data; name it once"):
        require_data(settings(f"data={path},{path}/", "detector=fake"))

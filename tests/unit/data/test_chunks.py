"""Chunks of datasets: every training event once per epoch, the same for the same seed, from Parquet or from stored elements."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import awkward as ak
import pytest
import torch
from safetensors.torch import load, save

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import DatasetError, UsageError
from ringflow.data.chunks import DatasetChunks, to_tensors
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset
from ringflow.elements.batch import ElementBatch, from_block
from ringflow.event.block import concatenate


def chunks(*paths: Path, chunk_events: int = 1000, **more: Any) -> DatasetChunks:
    options = {"detector": "fake", "calorimeter": "cluster", "seed": 1, **more}
    return DatasetChunks([Dataset(path) for path in paths], chunk_events=chunk_events, **options)


def events_of(batch: ElementBatch) -> list[tuple[float, ...]]:
    """A fingerprint per event: the momenta of its targets, which are copied and not computed."""
    assert batch.targets is not None
    return sorted(
        tuple(batch.targets.momentum_N4[first:last, 0].tolist())
        for first, last in zip(batch.offsets_B[:-1], batch.offsets_B[1:], strict=True)
    )


def equal(first: ElementBatch, second: ElementBatch) -> bool:
    return all(
        torch.equal(a.nan_to_num(-99.0), b.nan_to_num(-99.0)) and a.dtype == b.dtype
        for a, b in zip(to_tensors(first).values(), to_tensors(second).values(), strict=True)
    )


@pytest.fixture
def expected(dataset: Path) -> ElementBatch:
    """All training events of the dataset, read at once."""
    return from_block(concatenate(list(Dataset(dataset).events("train"))), with_targets=True)


def test_what_fits_is_read_once_and_every_chunk_is_all_of_it(dataset: Path, expected: ElementBatch) -> None:
    source = chunks(dataset)
    first = source.chunk(0)
    assert source.num_events == first.num_events == 21  # of 25: event numbers 8, 9, 18 and 19 are not to be learned
    assert events_of(first) == events_of(expected)
    source.prefetch(5)
    assert source.chunk(5) is first
    assert not (dataset / "packed").exists()
    source.close()


def test_an_epoch_of_many_chunks_shows_every_event_once(dataset: Path, expected: ElementBatch) -> None:
    other = write_fake_dataset(dataset.parent / "other", events=40)
    source = chunks(dataset, other, chunk_events=16)
    epochs = [[source.chunk(index) for index in range(start, start + 3)] for start in (0, 3)]
    both = from_block(
        concatenate([block for path in (dataset, other) for block in Dataset(path).events("train")]), with_targets=True
    )
    for epoch in epochs:
        assert sorted(event for chunk in epoch for event in events_of(chunk)) == events_of(both)
    assert [events_of(chunk) for chunk in epochs[0]] != [events_of(chunk) for chunk in epochs[1]]
    source.close()


def test_a_chunk_depends_on_seed_and_index_only(dataset: Path, tmp_path: Path) -> None:
    first, second = chunks(dataset, chunk_events=8), chunks(dataset, chunk_events=8, threads=3)
    in_order = [first.chunk(index) for index in range(7)]
    for index in (6, 1, 4):
        second.prefetch(index)
        assert equal(second.chunk(index), in_order[index])
    elsewhere = chunks(dataset, chunk_events=8, cache=tmp_path / "cache")
    assert equal(elsewhere.chunk(4), in_order[4])
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 1
    another = chunks(dataset, chunk_events=8, seed=2)
    assert not all(equal(another.chunk(index), in_order[index]) for index in range(7))
    for source in (first, second, elsewhere, another):
        source.close()


def test_stored_elements_are_used_and_made_again_when_broken(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = chunks(dataset, chunk_events=8)
    made = [source.chunk(index) for index in range(3)]
    source.close()
    files = sorted(dataset.rglob("packed/*/*.safetensors"))
    assert len(files) == 3
    again = chunks(dataset, chunk_events=8)
    with monkeypatch.context() as patch:
        patch.setattr("ringflow.data.chunks.from_block", lambda *_, **__: pytest.fail("read from Parquet again"))
        assert all(equal(again.chunk(index), made[index]) for index in range(3))
    files[0].write_bytes(files[0].read_bytes()[:50])
    assert all(equal(again.chunk(index + 3), again.chunk(index + 3)) for index in range(3))
    assert sorted(event for index in range(3) for event in events_of(again.chunk(index))) == sorted(
        event for chunk in made for event in events_of(chunk)
    )
    assert files[0].stat().st_size > 50
    again.close()


def test_stored_elements_are_used_only_if_they_are_what_was_written(dataset: Path, expected: ElementBatch) -> None:
    """One bit that changed, another shard's under the name of one, and what somebody else made up and named rightly."""
    source = chunks(dataset, chunk_events=8)
    made = [source.chunk(index) for index in range(3)]
    source.close()
    files = sorted(dataset.rglob("packed/*/*.safetensors"))
    first, second, third = (file.read_bytes() for file in files)
    files[0].write_bytes(first[:-1] + bytes([first[-1] ^ 1]))
    files[1].write_bytes(first)
    other = load(third)
    other["offsets"][1:-1] = 10**9
    forged = save(other)
    key = files[2].name.partition("-")[0]
    files[2].unlink()
    (files[2].parent / f"{key}-{hashlib.sha256(forged).hexdigest()[:32]}.safetensors").write_bytes(forged)
    again = chunks(dataset, chunk_events=8)
    assert all(equal(again.chunk(index), made[index]) for index in range(3))
    again.close()
    assert [file.read_bytes() for file in sorted(dataset.rglob("packed/*/*.safetensors"))] == [first, second, third]


def test_elements_are_not_stored_through_a_link(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (dataset / "packed").symlink_to(tmp_path / "outside")
    with pytest.raises(DatasetError, match="packed is a link out of its folder"):
        chunks(dataset, chunk_events=8)


def test_hits_instead_of_clusters(dataset: Path) -> None:
    source = chunks(dataset, calorimeter="hit")
    batch = source.chunk(0)
    counts = [block["track"].counts + block["hit"].counts for block in Dataset(dataset).events("train")]
    assert sorted(batch.counts_B.tolist()) == sorted(int(count) for part in counts for count in part)
    source.close()


def test_what_goes_wrong_in_the_background_is_raised_in_front(dataset: Path) -> None:
    source = chunks(dataset, chunk_events=8)
    shard = Dataset(dataset).manifest.shards[0]
    (dataset / shard.file).write_bytes(bytes(shard.bytes))
    with pytest.raises(DatasetError, match="is corrupted"):
        [source.chunk(index) for index in range(3)]
    source.close()


def test_data_one_cannot_learn_from_is_one_line(dataset: Path, tmp_path: Path) -> None:
    def outside(name: str, **collections: Any) -> Path:
        return write_dataset(tmp_path / name, detector="fake", **collections).path

    with pytest.raises(UsageError, match=r"of the detector 'fake', the training is for 'clic'; give detector=fake"):
        chunks(dataset, detector="clic")
    one = ak.Array([[{"energy": 1.0, "x": 0.0, "y": 0.0, "z": 1.0}]])
    with pytest.raises(DatasetError, match="has no target_label: without truth there is nothing to learn"):
        chunks(outside("real", clusters=one))
    momentum = {"px": 1.0, "py": 0.0, "pz": 0.0, "energy": 1.0}
    target = ak.Array([[{"label": 3, "charge": 0, "track": -1, "cluster": 0, "num_particles": 1, **momentum}]])
    no_pt = outside("no_pt", clusters=one, targets=target, tracks=ak.Array([[{"eta": 1.0, "phi": 0.0}]]))
    with pytest.raises(DatasetError, match=r"no_pt: missing features: the track collection has no column .*'pt'"):
        chunks(no_pt)
    for number, missing in ((8, "train"), (7, "valid")):
        source = Dataset(dataset).to_awkward()[number : number + 1]
        parts = {f"{name}s": source[name] for name in ("track", "cluster", "target")}
        parts["tracks"] = {field: source.track[field] for field in source.track.fields if field != "particle"}
        path = outside(f"one_{missing}", event_number=[number], **parts)
        with pytest.raises(DatasetError, match=f"has no events in split '{missing}'; make more than its 1 events"):
            chunks(path)

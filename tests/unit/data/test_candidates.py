"""Candidate files: what is written is read back beside the right events, and never beside the wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.fake_events import fake_candidates, write_fake_dataset
from ringflow.base.errors import DatasetError, InputFileError
from ringflow.data.candidates import CandidateFile, read_candidates, write_candidates
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock, concatenate


def write(path: Path, dataset: Dataset, split: str | None = None) -> Path:
    write_candidates(path, dataset, fake_candidates(dataset, split), reconstruction="mine", provenance={"version": 3})
    return path


@pytest.mark.parametrize(("written", "read"), [(None, None), ("test", "test"), (None, "valid")])
def test_candidates_come_back_beside_their_events(
    dataset: Path, tmp_path: Path, written: str | None, read: str | None
) -> None:
    opened = Dataset(dataset)
    path = write(tmp_path / "mine.parquet", opened, written)
    expected, found = list(fake_candidates(opened, read)), list(read_candidates(path, opened, read))
    assert len(found) == len(expected) > 0
    for block, candidates in zip(expected, found, strict=True):
        assert np.array_equal(block["candidate"].counts, candidates.counts)
        for name, values in candidates.columns.items():
            assert np.array_equal(block["candidate"][name], values)
            assert block["candidate"][name].dtype == values.dtype
    if written is not None:
        with pytest.raises(DatasetError, match="no candidates for event 0"):
            list(read_candidates(path, opened))


def test_blocks_and_row_groups_may_be_cut_differently(dataset: Path, tmp_path: Path) -> None:
    opened = Dataset(dataset)
    whole = concatenate(list(fake_candidates(opened)))
    path = tmp_path / "mine.parquet"
    pieces = [whole.take(0, 7), whole.take(7, 8), whole.take(8, 25)]
    assert write_candidates(path, opened, pieces, reconstruction="mine", provenance={}) == 25
    found = np.concatenate([part["energy"] for part in read_candidates(path, opened)])
    assert np.array_equal(found, whole["candidate"]["energy"])


def test_a_file_says_whose_it_is_and_another_dataset_is_refused(dataset: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.parquet", Dataset(dataset))
    record = CandidateFile(path).record
    assert (record["reconstruction"], record["detector"], record["provenance"]) == ("mine", "fake", {"version": 3})
    other = Dataset(write_fake_dataset(tmp_path / "other", events=24))
    with pytest.raises(DatasetError, match=r"mine.parquet was made of another dataset .* than .*other"):
        next(read_candidates(path, other))


def test_what_is_no_candidate_file_is_said_in_one_line(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no parquet")
    pq.write_table(pa.table({"event_number": [1, 2]}), tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "other.parquet")
    for name in ("text", "numbers", "other", "absent"):
        with pytest.raises(InputFileError, match=f"{name}.parquet") as caught:
            CandidateFile(tmp_path / f"{name}.parquet")
        assert "\n" not in str(caught.value)


def test_a_failure_leaves_no_file(dataset: Path, tmp_path: Path) -> None:
    def failing() -> Iterator[EventBlock]:
        yield next(fake_candidates(Dataset(dataset)))
        raise ValueError("no more")

    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(ValueError, match="no more"):
        write_candidates(folder / "mine.parquet", Dataset(dataset), failing(), reconstruction="mine", provenance={})
    assert list(folder.iterdir()) == []


def values(path: Path, dataset: Dataset) -> list[bytes]:
    return [part.offsets.tobytes() + part["px"].tobytes() for part in read_candidates(path, dataset)]


def test_a_bit_that_changed_is_found_wherever_it_is(dataset: Path, tmp_path: Path) -> None:
    """In pages, their headers or the footer; all but those that nobody reads."""
    opened = Dataset(dataset)
    path = write(tmp_path / "mine.parquet", opened)
    content, expected = path.read_bytes(), values(path, opened)
    found = 0
    for number in range(150):
        at = number * len(content) // 150
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << number % 8]) + content[at + 1 :])
        try:
            assert values(path, opened) == expected, "other values without a word"
        except (InputFileError, DatasetError) as error:
            assert str(error).isprintable()  # noqa: PT017
            found += 1
    assert found > 75


def rewritten(path: Path, metadata: dict[bytes, bytes | None], table: pa.Table | None = None) -> None:
    """The file with other metadata, as somebody might write it who knows the format."""
    table = pq.read_table(path) if table is None else table
    told = {**(pq.ParquetFile(path).metadata.metadata or {}), **metadata}
    told.pop(b"ARROW:schema")
    kept = {name: value for name, value in told.items() if value is not None}
    pq.write_table(table.replace_schema_metadata(kept), path)


def test_a_file_of_an_earlier_version_has_no_hash(dataset: Path, tmp_path: Path) -> None:
    opened = Dataset(dataset)
    path = write(tmp_path / "mine.parquet", opened)
    expected = values(path, opened)
    rewritten(path, {b"ringflow_candidates_sha256": None})
    assert values(path, opened) == expected


@pytest.mark.parametrize(
    "record",
    [
        "[" * 100_000,
        "5",
        "{}",
        '{"provenance": {}}',
        '{"manifest_sha256": 1, "sample": "", "detector": "", "reconstruction": "", "provenance": {}}',
        '{"manifest_sha256": "", "sample": "\\u001b[2J", "detector": "", "reconstruction": "", "provenance": {}}',
    ],
    ids=["deep", "number", "empty", "nothing but provenance", "number for a word", "escape"],
)
def test_a_record_that_is_none_of_ours_is_one_line(dataset: Path, tmp_path: Path, record: str) -> None:
    path = write(tmp_path / "mine.parquet", Dataset(dataset))
    rewritten(path, {b"ringflow_candidates": record.encode(), b"ringflow_candidates_sha256": None})
    with pytest.raises(InputFileError, match=r"mine\.parquet cannot be read as a candidate file") as caught:
        CandidateFile(path)
    assert str(caught.value).isprintable()


def test_events_in_another_order_are_refused(dataset: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "mine.parquet", Dataset(dataset))
    rewritten(path, {b"ringflow_candidates_sha256": None}, pq.read_table(path).take([1, 0, 0]))
    with pytest.raises(InputFileError, match="its events do not rise"):
        CandidateFile(path)

"""A small dataset for the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.fake_events import write_fake_dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """25 fake events in shards of 10, blocks of 4."""
    return write_fake_dataset(tmp_path / "dataset")

"""A small dataset for the tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.fake_events import write_fake_dataset


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """25 fake events in shards of 10, blocks of 4; nobody changes them."""
    return write_fake_dataset(tmp_path_factory.mktemp("untouched") / "dataset")


@pytest.fixture
def dataset(untouched: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(untouched, tmp_path / "dataset"))

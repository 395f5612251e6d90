"""The card: made from the manifest alone, and what it tells the reader to do works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringflow.data.manifest import dataset_card, read_manifest


def test_the_card_is_a_function_of_the_manifest(dataset: Path) -> None:
    assert (dataset / "README.md").read_text() == dataset_card(read_manifest(dataset))


def test_the_card_names_counts_splits_and_units(dataset: Path) -> None:
    card = (dataset / "README.md").read_text()
    manifest = read_manifest(dataset)
    assert card.startswith("---\n")
    assert f"| hit | {manifest.counts['hit']} | {manifest.counts['hit'] / 25:.1f} |" in card
    assert "| train | 0, 1, 2, 3, 4, 5, 6, 7 | 21 |" in card
    assert "| track_pt | list of float32 | GeV | transverse momentum" in card
    assert (
        "| track_particle | list of int32 | 1 | particle that left the track (index into particle, -1: none) |" in card
    )


def test_its_example_runs(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(dataset)
    (example,) = re.findall(r"```python\n(.*?)```", (dataset / "README.md").read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert len(names["events"]) == 10
    assert len(names["frame"]) == 10
    assert len(names["train"]) == 21

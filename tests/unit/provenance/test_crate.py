"""An RO-Crate keeps the rules of its specification, and its hashes are those of the files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ringflow.cli.inspection import trace_command
from ringflow.data.check import check
from ringflow.provenance.places import sha256_of


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(folder: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """Entities of the crate by id; every id is there once."""
    assert trace_command(folder, crate=True, **options) == 0
    metadata = json.loads(((options.get("out") or folder) / "ro-crate-metadata.json").read_text())
    # 1.1, "RO-Crate JSON-LD": a flat graph, in the context of the specification.
    assert metadata["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    assert set(metadata) == {"@context", "@graph"}
    entities = {entity["@id"]: entity for entity in metadata["@graph"]}
    assert len(entities) == len(metadata["@graph"])
    return entities


def references(value: Any) -> list[str]:
    found = []
    for part in value if isinstance(value, list) else [value]:
        if isinstance(part, dict):
            assert set(part) == {"@id"}  # nothing is nested
            found.append(part["@id"])
    return found


@pytest.mark.parametrize("name", ["run", "gun", "data"])
def test_it_keeps_the_rules(made: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(made / name, tmp_path / name))
    entities = written(folder)
    descriptor, root = entities["ro-crate-metadata.json"], entities["./"]
    assert descriptor["about"] == {"@id": "./"}
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert root["@type"] == "Dataset"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", root["datePublished"])
    assert root["name"]
    assert root["description"]
    assert "license" not in root  # nobody gave one
    for entity in entities.values():
        for key, value in entity.items():
            if key not in ("@id", "conformsTo"):
                assert all(reference in entities for reference in references(value))
    files = {identity for identity, entity in entities.items() if entity["@type"] == "File"}
    assert files == set(references(root["hasPart"]))
    for identity in files:
        assert entities[identity]["sha256"] == sha256_of(folder / identity)
        assert entities[identity]["contentSize"] == str((folder / identity).stat().st_size)


def test_the_action_made_the_files_from_data_and_settings(made: Path, tmp_path: Path) -> None:
    entities = written(Path(shutil.copytree(made / "run", tmp_path / "run")), search=(made,))
    (action,) = (entity for entity in entities.values() if entity["@type"] == "CreateAction")
    assert entities["./"]["mentions"] == {"@id": action["@id"]}
    assert "model.safetensors" in references(action["result"])
    used = [entities[name] for name in references(action["object"])]
    settings = {entity["name"]: entity["value"] for entity in used if entity["@type"] == "PropertyValue"}
    assert (settings["model.width"], settings["optimizer.name"]) == (16, "adamw")
    assert [entity["name"] for entity in used if entity["@type"] == "CreativeWork"] == ["data"]
    assert entities[references(action["instrument"])[0]]["name"] == "ringflow"


def test_elsewhere_it_names_whole_paths_and_a_licence(made: Path, tmp_path: Path) -> None:
    entities = written(made / "gun", out=tmp_path / "described", license="CC-BY-4.0")
    assert entities["./"]["license"] == {"@id": "https://spdx.org/licenses/CC-BY-4.0"}
    assert f"{(made / 'gun').as_uri()}/manifest.json" in entities
    assert not (made / "gun" / "ro-crate-metadata.json").exists()


def test_a_described_dataset_is_still_one_and_forgets_when_it_grows(made: Path, tmp_path: Path) -> None:
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import SimulateSettings

    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    assert trace_command(folder, crate=True, croissant=True, card=True, license="MIT") == 0
    assert all(gate["ok"] for gate in check(folder))
    settings = SimulateSettings.resolve(folder / "settings.toml", ["production.events=13"])
    simulate(settings, folder)
    assert not (folder / "ro-crate-metadata.json").exists()  # which told of twelve events
    assert not (folder / "croissant.json").exists()

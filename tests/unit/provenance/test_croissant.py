"""A Croissant file names every shard with its hash and every column with its type."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringflow.cli.inspection import trace_command
from ringflow.data.manifest import read_manifest


@pytest.fixture
def described(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    assert trace_command(folder, croissant=True, license="CC0-1.0") == 0
    return folder / "croissant.json"


def test_what_the_specification_asks_for_is_there(described: Path) -> None:
    found = json.loads(described.read_text())
    # Croissant 1.0, "Dataset-level information"; what nobody recorded (url, creator, date) is left out.
    assert found["@type"] == "sc:Dataset"
    assert found["conformsTo"] == "http://mlcommons.org/croissant/1.0"
    assert found["license"] == "https://spdx.org/licenses/CC0-1.0"
    assert found["name"] == "gun_photon_clic"
    assert "12 events" in found["description"]
    context = found["@context"]
    assert context["@vocab"] == "https://schema.org/"
    assert context["recordSet"] == "cr:recordSet"
    assert context["dataType"] == {"@id": "cr:dataType", "@type": "@vocab"}


def test_shards_and_columns_are_those_of_the_dataset(described: Path) -> None:
    found, manifest = json.loads(described.read_text()), read_manifest(described.parent)
    files = [entry for entry in found["distribution"] if entry["@type"] == "cr:FileObject"]
    (together,) = (entry for entry in found["distribution"] if entry["@type"] == "cr:FileSet")
    assert [(file["contentUrl"], file["sha256"]) for file in files] == [(s.file, s.sha256) for s in manifest.shards]
    assert all(fnmatch(shard.file, together["includes"]) for shard in manifest.shards)
    (events,) = found["recordSet"]
    identities = [field["@id"] for field in events["field"]]
    assert events["key"]["@id"] in identities
    schema = pq.read_schema(described.parent / manifest.shards[0].file)
    assert [field["source"]["extract"]["column"] for field in events["field"]] == schema.names
    for field, column in zip(events["field"], schema, strict=True):
        is_list = pa.types.is_list(column.type)
        value = column.type.value_type if is_list else column.type
        assert field.get("repeated", False) == is_list
        assert field["dataType"] == ("sc:Integer" if pa.types.is_integer(value) else "sc:Float")
        assert field["source"]["fileSet"]["@id"] == together["@id"]
        assert field["description"]

"""What a trace is written as keeps the rules of its specification, and says what was recorded and nothing else."""

from __future__ import annotations

import json
import re
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ringflow.base.errors import InputFileError, UsageError
from ringflow.cli.inspection import trace as trace_command
from ringflow.data.check import check
from ringflow.data.manifest import read_manifest
from ringflow.provenance.formats import FIGURES, measured, prov_document
from ringflow.provenance.trace import model_header, sha256_of, trace

#: https://www.w3.org/submissions/prov-json/ section 3: relation -> role: what it must name.
ROLES = {
    "wasGeneratedBy": {"prov:entity": "entity", "prov:activity": "activity"},
    "used": {"prov:activity": "activity", "prov:entity": "entity"},
    "wasDerivedFrom": {"prov:generatedEntity": "entity", "prov:usedEntity": "entity"},
    "wasAssociatedWith": {"prov:activity": "activity", "prov:agent": "agent"},
    "wasInformedBy": {"prov:informed": "activity", "prov:informant": "activity"},
    "hadMember": {"prov:collection": "entity", "prov:entity": "entity"},
}


@pytest.mark.parametrize("name", ["out.parquet", "gun", "run/model.safetensors"])
def test_every_relation_of_prov_names_what_is_declared(made: Path, name: str) -> None:
    document = prov_document(trace(made / name))
    prefix = set(document["prefix"])
    assert set(document) <= {"prefix", "entity", "activity", "agent", *ROLES}
    for relation, roles in ROLES.items():
        for ends in document.get(relation, {}).values():
            assert set(ends) == set(roles)
            assert all(ends[role] in document[section] for role, section in roles.items())
    for section in ("entity", "activity", "agent"):
        for identity, attributes in document.get(section, {}).items():
            assert identity.split(":")[0] in prefix
            assert {key.split(":")[0] for key in attributes} <= {"prov", *prefix}
            values = [value["$"] if isinstance(value, dict) else value for value in attributes.values()]
            assert all(isinstance(value, str | int | float | bool) for value in values)


def test_in_prov_the_run_made_the_model_from_the_data(made: Path) -> None:
    document = prov_document(trace(made / "out.parquet", "13:0"))
    names = {attributes["prov:label"]: identity for identity, attributes in document["entity"].items()}
    (run,) = (name for name, told in document["activity"].items() if told.get("rf:kind") == "run")
    model, dataset = names["model model.safetensors"], names["dataset data"]
    shard, candidates = names["shard shard-00001.parquet"], names["candidates out.parquet"]
    assert {"prov:entity": model, "prov:activity": run} in document["wasGeneratedBy"].values()
    assert {"prov:activity": run, "prov:entity": dataset} in document["used"].values()
    assert document["activity"][run]["rf:settings.model.width"] == 16
    assert {"prov:collection": dataset, "prov:entity": shard} in document["hadMember"].values()
    assert {"prov:generatedEntity": candidates, "prov:usedEntity": model} in document["wasDerivedFrom"].values()
    assert not [label for label in names if label.startswith("generator")]  # it is not recorded: nothing is said of it


def test_prov_is_written_into_a_file(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trace_command(made / "gun", prov=tmp_path / "new" / "prov.json", as_json=True) == 0
    written = json.loads(capsys.readouterr().out)["written"]
    assert written == [str(tmp_path / "new" / "prov.json")]
    assert json.loads(Path(written[0]).read_text()) == prov_document(trace(made / "gun"))


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("out.parquet", {"crate": True}, "--crate needs the folder of a run or a dataset"),
        ("run", {"croissant": True}, "--croissant needs the folder of a dataset"),
        ("run", {"out": Path("x")}, "--out x is for --crate"),
        ("run", {"license": "MIT"}, "--license MIT is for --crate"),
        ("run", {"card": True, "license": "my own"}, "is no SPDX name"),
        ("gun", {"croissant": True, "out": Path("x")}, "leave --out x out"),
    ],
)
def test_what_cannot_be_written_is_refused(made: Path, name: str, options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        trace_command(made / name, **options)


def crate_of(folder: Path, **options: Any) -> dict[str, dict[str, Any]]:
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


@pytest.mark.parametrize("name", ["run", "gun"])
def test_a_crate_keeps_the_rules(made: Path, tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(made / name, tmp_path / name))
    entities = crate_of(folder)
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


def test_the_action_of_a_crate_made_the_files_from_data_and_settings(made: Path, tmp_path: Path) -> None:
    entities = crate_of(Path(shutil.copytree(made / "run", tmp_path / "run")), search=(made,))
    (action,) = (entity for entity in entities.values() if entity["@type"] == "CreateAction")
    assert entities["./"]["mentions"] == {"@id": action["@id"]}
    assert "model.safetensors" in references(action["result"])
    used = [entities[name] for name in references(action["object"])]
    settings = {entity["name"]: entity["value"] for entity in used if entity["@type"] == "PropertyValue"}
    assert (settings["model.width"], settings["optimizer.name"]) == (16, "adamw")
    assert [entity["name"] for entity in used if entity["@type"] == "CreativeWork"] == ["data"]
    assert entities[references(action["instrument"])[0]]["name"] == "ringflow"


def test_a_crate_elsewhere_names_whole_paths_and_a_licence(made: Path, tmp_path: Path) -> None:
    entities = crate_of(made / "gun", out=tmp_path / "described", license="CC-BY-4.0")
    assert entities["./"]["license"] == {"@id": "https://spdx.org/licenses/CC-BY-4.0"}
    assert f"{(made / 'gun').as_uri()}/manifest.json" in entities
    assert not (made / "gun" / "ro-crate-metadata.json").exists()


def test_a_described_dataset_is_still_one_and_forgets_when_it_grows(made: Path, tmp_path: Path) -> None:
    from ringflow.recipes.simulate import simulate
    from ringflow.sim.settings import SimulateSettings

    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    assert trace_command(folder, crate=True, croissant=True, card=True, license="MIT") == 0
    assert all(gate["ok"] for gate in check(folder))
    simulate(SimulateSettings.resolve(folder / "settings.toml", ["production.events=13"]), folder)
    assert not (folder / "ro-crate-metadata.json").exists()  # which told of twelve events
    assert not (folder / "croissant.json").exists()


def test_a_croissant_has_what_the_specification_asks_for_and_the_shards_and_columns(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    assert trace_command(folder, croissant=True, license="CC0-1.0") == 0
    found, manifest = json.loads((folder / "croissant.json").read_text()), read_manifest(folder)
    # Croissant 1.0, "Dataset-level information"; what nobody recorded (url, creator, date) is left out.
    assert (found["@type"], found["conformsTo"]) == ("sc:Dataset", "http://mlcommons.org/croissant/1.0")
    assert found["license"] == "https://spdx.org/licenses/CC0-1.0"
    assert found["name"] == "gun_photon_clic"
    assert "12 events" in found["description"]
    context = found["@context"]
    assert (context["@vocab"], context["recordSet"]) == ("https://schema.org/", "cr:recordSet")
    assert context["dataType"] == {"@id": "cr:dataType", "@type": "@vocab"}
    files = [entry for entry in found["distribution"] if entry["@type"] == "cr:FileObject"]
    (together,) = (entry for entry in found["distribution"] if entry["@type"] == "cr:FileSet")
    assert [(file["contentUrl"], file["sha256"]) for file in files] == [(s.file, s.sha256) for s in manifest.shards]
    assert all(fnmatch(shard.file, together["includes"]) for shard in manifest.shards)
    (events,) = found["recordSet"]
    assert events["key"]["@id"] in [field["@id"] for field in events["field"]]
    schema = pq.read_schema(folder / manifest.shards[0].file)
    assert [field["source"]["extract"]["column"] for field in events["field"]] == schema.names
    for field, column in zip(events["field"], schema, strict=True):
        is_list = pa.types.is_list(column.type)
        value = column.type.value_type if is_list else column.type
        assert field.get("repeated", False) == is_list
        assert field["dataType"] == ("sc:Integer" if pa.types.is_integer(value) else "sc:Float")
        assert field["source"]["fileSet"]["@id"] == together["@id"]
        assert field["description"]


def front_matter(text: str) -> dict[str, Any]:
    """YAML whose values are plain words or JSON, which is all that our cards use."""
    _, head, body = text.split("---\n", 2)
    assert body.startswith("\n# ")
    found: dict[str, Any] = {}
    for line in head.splitlines():
        if line[0] not in " -":
            key, _, value = line.partition(":")
            found[key] = value.strip()
        else:
            found[key] += line
    return {
        key: json.loads(text) if (text := value.strip())[:1] in ("[", '"') else text for key, value in found.items()
    }


def test_the_card_of_a_run_has_the_figures_of_its_validation(made: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    assert trace_command(run, card=True, license="Apache-2.0", search=(made,)) == 0
    text = (run / "README.md").read_text()
    head, card = front_matter(text), model_header(run / "model.safetensors")["card"]
    assert (head["library_name"], head["license"], head["datasets"]) == ("ringflow", "apache-2.0", ["data"])
    (entry,) = head["model-index"]
    assert entry["name"] == "run"
    (result,) = entry["results"]
    assert set(result) == {"task", "dataset", "metrics"}  # modelcard.md of the Hub: all three are required
    assert result["task"]["type"]
    assert result["dataset"]["type"] == "fake"
    told = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert told == {name: card["metrics"][name] for name in FIGURES if card["metrics"].get(name) is not None}
    assert set(head["metrics"]) == set(told)
    assert f"| {FIGURES['particle_f1']} | {card['metrics']['particle_f1']:.4g} |" in text
    assert f"steps: {card['training']['steps']}" in text


def test_figures_are_told_by_sample_where_they_are() -> None:
    assert measured({"metrics": {"loss": 0.5, "unknown": 1.0, "jet_median": None}}) == {"all": {"loss": 0.5}}
    metrics = {"jet_median": 1.0, "jet_median/zh": 0.9, "jet_median/qq": 1.1}
    assert measured({"metrics": metrics}) == {"zh": {"jet_median": 0.9}, "qq": {"jet_median": 1.1}}
    assert measured({}) == {}


def test_a_card_says_nothing_of_what_was_not_measured(made: Path, tmp_path: Path) -> None:
    from ringflow.models.file import load_model, save_model

    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    network = run / "model.safetensors"
    save_model(network, load_model(network).model, card={})
    assert trace_command(run, card=True) == 0
    text = (run / "README.md").read_text()
    assert [word for word in ("model-index", "license", "## Figures") if word in text] == []
    network.unlink()
    with pytest.raises(InputFileError, match=r"has no model\.safetensors yet"):
        trace_command(run, card=True)


def test_the_card_of_a_dataset_states_a_licence_if_one_is_given(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    before = (folder / "README.md").read_text()
    assert trace_command(folder, card=True) == 0
    assert (folder / "README.md").read_text() == before
    assert trace_command(folder, card=True, license="CC-BY-4.0") == 0
    after = (folder / "README.md").read_text()
    assert after.replace("license: cc-by-4.0\n", "") == before
    assert "license: cc-by-4.0" in after.split("---")[1]

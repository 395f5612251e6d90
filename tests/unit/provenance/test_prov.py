"""PROV-JSON of a trace keeps the rules of the W3C submission: relations name what is declared, in the right roles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringflow.base.errors import UsageError
from ringflow.cli.inspection import trace_command
from ringflow.provenance.prov import prov_document
from ringflow.provenance.trace import trace

#: https://www.w3.org/submissions/prov-json/ section 3: relation -> role: what it must name.
ROLES = {
    "wasGeneratedBy": {"prov:entity": "entity", "prov:activity": "activity"},
    "used": {"prov:activity": "activity", "prov:entity": "entity"},
    "wasDerivedFrom": {"prov:generatedEntity": "entity", "prov:usedEntity": "entity"},
    "wasAssociatedWith": {"prov:activity": "activity", "prov:agent": "agent"},
    "wasInformedBy": {"prov:informed": "activity", "prov:informant": "activity"},
    "hadMember": {"prov:collection": "entity", "prov:entity": "entity"},
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["out.parquet", "run", "gun", "run/model.safetensors"])
def test_every_relation_names_what_is_declared(made: Path, name: str) -> None:
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


def test_the_run_made_the_model_from_the_data(made: Path) -> None:
    node = trace(made / "out.parquet", "13:0")
    document = prov_document(node)
    names = {attributes["prov:label"]: identity for identity, attributes in document["entity"].items()}
    (run,) = (name for name, told in document["activity"].items() if told.get("rf:kind") == "run")
    model, dataset = names["model model.safetensors"], names["dataset data"]
    assert {"prov:entity": model, "prov:activity": run} in document["wasGeneratedBy"].values()
    assert {"prov:activity": run, "prov:entity": dataset} in document["used"].values()
    assert document["activity"][run]["rf:settings.model.width"] == 16
    assert {"prov:collection": dataset, "prov:entity": names["shard shard-00001.parquet"]} in document[
        "hadMember"
    ].values()
    candidates = names["candidates out.parquet"]
    assert {"prov:generatedEntity": candidates, "prov:usedEntity": model} in document["wasDerivedFrom"].values()
    assert not [label for label in names if label.startswith("generator")]  # it is not recorded: nothing is said of it


def test_it_is_written_into_a_file(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_what_cannot_be_written_is_refused(made: Path, name: str, options: dict[str, object], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        trace_command(made / name, **options)  # type: ignore[arg-type]

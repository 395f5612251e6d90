"""Cards say what was recorded, in the form that the Hub reads, and nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import InputFileError
from ringflow.cli.inspection import trace_command
from ringflow.provenance.cards import FIGURES, measured
from ringflow.provenance.headers import model_header


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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


def test_nothing_is_said_of_what_was_not_measured(made: Path, tmp_path: Path) -> None:
    from ringflow.models.file import load_model, save_model

    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    loaded = load_model(run / "model.safetensors")
    save_model(run / "model.safetensors", loaded.model, card={})
    assert trace_command(run, card=True) == 0
    text = (run / "README.md").read_text()
    assert "model-index" not in text
    assert "license" not in text
    assert "## Figures" not in text


def test_the_card_of_a_dataset_states_a_licence_if_one_is_given(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    before = (folder / "README.md").read_text()
    assert trace_command(folder, card=True) == 0
    assert (folder / "README.md").read_text() == before
    assert trace_command(folder, card=True, license="CC-BY-4.0") == 0
    after = (folder / "README.md").read_text()
    assert after.replace("license: cc-by-4.0\n", "") == before
    assert "license: cc-by-4.0" in after.split("---")[1]


def test_a_run_without_a_network_has_no_card(made: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(made / "run", tmp_path / "run"))
    (run / "model.safetensors").unlink()
    with pytest.raises(InputFileError, match=r"has no model\.safetensors yet"):
        trace_command(run, card=True)

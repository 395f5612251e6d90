"""The recipe: side by side, the same on any number of workers, and clear about what cannot be done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
import torch

from fixtures.fake_events import write_fake_dataset
from ringflow.base.errors import DatasetError, FailureError, InputFileError, UsageError
from ringflow.baseline.rules import CONSTANTS
from ringflow.data.candidates import write_candidates
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset
from ringflow.event.block import Collection, EventBlock
from ringflow.infer import shipped
from ringflow.infer.reconstructions import NEEDS
from ringflow.models.file import save_model
from ringflow.models.model import Model
from ringflow.models.settings import ModelSettings
from ringflow.recipes.evaluate import evaluate, report_page

COLUMNS = ("label", "charge", "px", "py", "pz", "energy", "track", "cluster")


def smeared(dataset: Dataset, width: float, split: str | None = None) -> Iterator[EventBlock]:
    """A stand-in for a reconstruction: the targets with momenta off by a relative width."""
    for block in dataset.events(split, columns=["target"]):
        targets = block["target"]
        factor = 1 + width * np.random.default_rng(block.event_number[0]).normal(size=len(targets))
        columns = {name: targets[name] for name in COLUMNS}
        columns |= {name: (targets[name] * factor).astype(np.float32) for name in ("px", "py", "pz", "energy")}
        yield EventBlock(block.event_number, {"candidate": Collection(targets.counts, columns)})


def candidate_file(path: Path, dataset: Path, name: str = "mine", width: float = 0.1, split: str | None = None) -> Path:
    opened = Dataset(dataset)
    write_candidates(path, opened, smeared(opened, width, split), reconstruction=name, provenance={})
    return path


@pytest.fixture(autouse=True)
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without a model."""
    monkeypatch.setattr(shipped, "MODEL", tmp_path / "no model")


def model_file(path: Path, detector: str = "fake") -> Path:
    """A network that trusts the detector and says yes to everything."""
    torch.manual_seed(1)
    save_model(path, Model(ModelSettings(width=16, layers=1, heads=2, hidden=16)), card={"detector": detector})
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_fake_dataset(tmp_path / "dataset")


def momenta(events: list[list[tuple[float, float, float]]], **more: Any) -> Any:
    """Massless particles by px, py, pz, as outside data brings them."""
    vectors = ak.Array([[{"px": p[0], "py": p[1], "pz": p[2]} for p in event] for event in events])
    if not ak.any(ak.num(vectors)):
        vectors = ak.zip({name: ak.Array([np.zeros(0)] * len(events)) for name in ("px", "py", "pz")})
    energy = np.sqrt(vectors.px**2 + vectors.py**2 + vectors.pz**2)
    fields = {"px": vectors.px, "py": vectors.py, "pz": vectors.pz, "energy": energy}
    return ak.zip(fields | {name: ak.full_like(energy, value) for name, value in more.items()})


def test_reconstructions_side_by_side(dataset: Path, tmp_path: Path) -> None:
    fine = candidate_file(tmp_path / "fine.parquet", dataset, "fine", 0.02)
    rough = candidate_file(tmp_path / "rough.parquet", dataset, "rough", 0.2)
    entry = evaluate([dataset], candidates=[fine, rough])["samples"]["fake"]
    assert list(entry["reconstructions"]) == ["target", "fine", "rough"]
    assert entry["events"] == 25
    target, fine_one, rough_one = entry["reconstructions"].values()
    assert target["jet_median"]["value"] == pytest.approx(1.0, abs=0.01)
    assert target["visible_energy_median"]["value"] == pytest.approx(1.0, abs=1e-6)
    assert target["particle_f1"]["value"] == 1.0
    assert fine_one["jet_iqr_over_median"]["hi"] < rough_one["jet_iqr_over_median"]["lo"]
    better = {row["metric"]: row["better"] for row in entry["comparisons"]}
    assert better["jet_iqr_over_median"] == "fine"
    assert "fake" in entry["not_available"]["baseline"]  # no constants of that detector


def test_neither_workers_nor_blocks_change_anything(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [candidate_file(tmp_path / "mine.parquet", dataset)]
    expected = evaluate([dataset], candidates=files)
    assert evaluate([dataset], candidates=files, workers=2) == expected
    monkeypatch.setattr("ringflow.recipes.evaluate.EVENTS_AT_ONCE", 1)
    assert evaluate([dataset], candidates=files) == expected


def test_a_part_of_the_events(dataset: Path, tmp_path: Path) -> None:
    entry = evaluate([dataset], events=13)["samples"]["fake"]
    assert entry["events"] == 13
    first = np.concatenate([block["target"].counts for block in Dataset(dataset).events(columns=["target"])])[:13]
    assert entry["reconstructions"]["target"]["particles_per_event"]["value"] == pytest.approx(first.mean())
    assert evaluate([dataset], split="train")["samples"]["fake"]["events"] == 21
    only = candidate_file(tmp_path / "test.parquet", dataset, split="test")
    entry = evaluate([dataset], candidates=[only], split="test")["samples"]["fake"]
    assert entry["events"] == 2
    assert entry["reconstructions"]["mine"]["particles_per_event"]["value"] > 0
    with pytest.raises(DatasetError, match="no candidates for event 0"):
        evaluate([dataset], candidates=[only])
    with pytest.raises(UsageError, match="unknown split 'tset'"):
        evaluate([dataset], split="tset")


def test_rules_take_constants_of_a_file(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The only way to them for a detector that the package does not know."""
    mine = tmp_path / "mine.toml"
    mine.write_text((CONSTANTS / "clic.toml").read_text(encoding="utf-8").replace('"clic"', '"fake"'))
    results = evaluate([dataset], constants=str(mine), events=4)
    (sample,) = results["samples"].values()
    assert {"perfect", "baseline"} <= set(sample["reconstructions"])
    assert not {"perfect", "baseline"} & set(sample["not_available"])
    assert results["provenance"]["settings"]["constants"] == str(mine)
    assert "constants of the rules are of" not in capsys.readouterr().err
    evaluate([dataset], constants="clic", events=4)
    assert "the constants of the rules are of the detector 'clic', the dataset is of 'fake'" in capsys.readouterr().err


@pytest.mark.parametrize("constants", ["nobody", "missing.toml"])
def test_constants_that_are_none_are_one_line(constants: str, dataset: Path, command: Callable[..., Any]) -> None:
    done = command("evaluate", dataset, "--constants", constants)
    assert done.code == 2
    assert constants in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_datasets_of_one_sample_get_two_names(dataset: Path, tmp_path: Path) -> None:
    other = write_fake_dataset(tmp_path / "other", events=12)
    file = candidate_file(tmp_path / "mine.parquet", other)
    samples = evaluate([dataset, other], candidates=[file])["samples"]
    assert list(samples) == ["fake", "fake_fake"]
    assert list(samples["fake"]["reconstructions"]) == ["target"]
    assert list(samples["fake_fake"]["reconstructions"]) == ["target", "mine"]


def test_names_are_chosen_and_checked(dataset: Path, tmp_path: Path) -> None:
    file, again = (candidate_file(tmp_path / f"{name}.parquet", dataset) for name in ("mine", "again"))
    entry = evaluate([dataset], candidates=[file], reconstructions=["mine"])["samples"]["fake"]
    assert list(entry["reconstructions"]) == ["mine"]
    entry = evaluate([dataset], candidates=[file, again])["samples"]["fake"]
    assert list(entry["reconstructions"]) == ["target", "mine", "again"]
    for files, wanted, said in (
        ([file], ["modle"], r"no reconstruction 'modle' of .*dataset; there is target, mine"),
        ([], ["baseline"], "no reconstruction 'baseline'"),
        ([file, file], None, "two reconstructions called 'mine'"),
    ):
        with pytest.raises(UsageError, match=said):
            evaluate([dataset], candidates=files, reconstructions=wanted)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.heavy)])
def test_a_number_that_is_none_names_the_event(dataset: Path, tmp_path: Path, workers: int) -> None:
    opened = Dataset(dataset)
    blocks = list(smeared(opened, 0.1))
    blocks[2]["candidate"].columns["pz"][0] = np.nan
    write_candidates(tmp_path / "mine.parquet", opened, blocks, reconstruction="mine", provenance={})
    with pytest.raises(FailureError, match="mine: a candidate of event 8 has a momentum that is not finite"):
        evaluate([dataset], candidates=[tmp_path / "mine.parquet"], workers=workers)


def test_without_truth_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [[(30.0, 0.0, 0.0), (-20.0, 1.0, 0.0)], [], [(9.0, 0.0, 3.0)]]
    candidates = momenta(events, label=1, charge=1)
    write_dataset(tmp_path / "data", detector="mine", candidates=candidates)
    entry = evaluate([tmp_path / "data"])["samples"]["outside"]
    assert entry["truth"] is False
    assert list(entry["reconstructions"]) == ["candidate"]
    assert entry["reconstructions"]["candidate"]["particles_per_event"]["value"] == 1.0
    assert "particle_f1" not in entry["reconstructions"]["candidate"]
    assert entry["not_available"]["target"] == "the dataset has no 'particle'"
    assert "no truth" in capsys.readouterr().err


@pytest.mark.parametrize(
    "told",
    [
        {"reconstruction": "Pan\x1bdora"},
        {"settings": {"profile": {"candidates": "Pan\x1bdora"}}},
        {"reconstruction": 7},
        {},
    ],
)
def test_candidates_of_a_dataset_have_the_name_that_it_tells(
    told: dict[str, Any], tmp_path: Path, command: Callable[..., Any]
) -> None:
    event = momenta([[(30.0, 0.0, 0.0)]], label=1, charge=1)
    given = {"source": "full simulation", "truth": "generated", **told}
    write_dataset(tmp_path / "data", detector="mine", candidates=event, provenance=given)
    done = command("evaluate", tmp_path / "data", "--out", tmp_path / "report")
    assert done.code == 0
    entry = json.loads((tmp_path / "report" / "metrics.json").read_text())["samples"]["outside"]
    page = report_page(tmp_path / "report").read_text("utf-8")
    assert (entry["source"], entry["definition_of_truth"]) == ("full simulation", "generated")
    assert "<b>full simulation</b>" in page
    assert "PF of the dataset" in page
    said = next(line for line in done.stderr.splitlines() if "came with the dataset" in line)
    if told and 7 not in told.values():
        assert entry["candidates_by"] == "Pan\\x1bdora"
        assert said == "outside: candidate is the reconstruction that came with the dataset, made by Pan\\x1bdora"
        assert "candidates by <b>Pan" in page
    else:
        assert "candidates_by" not in entry
        assert said == "outside: candidate is the reconstruction that came with the dataset"


def test_nothing_to_evaluate_is_an_error(tmp_path: Path) -> None:
    one = ak.Array([[{"energy": 1.0, "x": 0.0, "y": 0.0, "z": 1.0}]])
    write_dataset(tmp_path / "data", detector="mine", hits=one)
    write_dataset(tmp_path / "poor", detector="clic", hits=one, clusters=one, tracks=ak.Array([[{"pt": 1.0}]]))
    for paths, said in (
        ([tmp_path / "data"], r"allows no reconstruction .* give --candidates"),
        ([tmp_path / "poor"], "baseline needs the column"),
        ([], "no dataset was given"),
        ([tmp_path / "nowhere"], "no dataset at"),
    ):
        with pytest.raises((UsageError, DatasetError), match=said):
            evaluate(paths)


def test_empty_events_and_events_with_one_element(tmp_path: Path) -> None:
    events: list[list[tuple[float, float, float]]] = [[], [(0.0, 12.0, 1.0)], []]
    particles = momenta(events, pdg=22, label=3, target=0)
    targets = momenta(events, label=3, charge=0, num_particles=1)
    write_dataset(tmp_path / "data", detector="mine", particles=particles, targets=targets)
    found = evaluate([tmp_path / "data"])["samples"]["outside"]["reconstructions"]["target"]
    assert found["particle_f1"]["value"] == 1.0
    assert found["jet_matched_fraction"]["value"] == 1.0
    assert found["particles_per_event"]["value"] == pytest.approx(1 / 3)


def test_a_folder_holds_the_report_and_the_figures(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = evaluate([dataset], out=tmp_path / "report", events=3)
    assert json.loads((tmp_path / "report" / "metrics.json").read_text()) == results
    assert report_page(tmp_path / "report").stat().st_size > 1000
    monkeypatch.setattr("ringflow.evaluate.report.write_report", lambda *_: None)  # drawn once is enough
    assert evaluate([dataset], out=tmp_path / "report", events=3) == results  # our own folder is taken up again
    with pytest.raises(UsageError, match="holds files that ringflow did not make"):
        evaluate([dataset], out=dataset, events=3)


def test_a_model_is_evaluated_like_the_others(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_file(tmp_path / "model.safetensors")
    found = evaluate([dataset], model=model)
    entry = found["samples"]["fake"]["reconstructions"]
    assert list(entry) == ["target", "model"]
    elements = [block["track"].counts + block["cluster"].counts for block in Dataset(dataset).events()]
    assert entry["model"]["particles_per_event"]["value"] == np.concatenate(elements).mean()
    assert found["provenance"]["inputs"][-1]["file"] == "model.safetensors"
    assert "trained for" not in capsys.readouterr().err
    monkeypatch.setattr(shipped, "MODEL", model_file(tmp_path / "shipped.safetensors", "clic"))
    assert list(evaluate([dataset])["samples"]["fake"]["reconstructions"]) == ["target", "model"]
    assert "fake: the model was trained for the detector 'clic', the events are of 'fake'" in capsys.readouterr().err
    assert list(NEEDS) == ["target", "perfect", "baseline", "model", "candidate"]


def test_a_model_that_cannot_be_used_is_one_line(dataset: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    model = model_file(tmp_path / "model.safetensors")
    poor = ak.Array([[{"energy": 1.0, "x": 0.0, "y": 0.0, "z": 1.0}]])
    write_dataset(tmp_path / "data", detector="mine", clusters=poor, tracks=ak.Array([[{"pt": 1.0}]]))
    with pytest.raises(DatasetError, match=r"cannot reconstruct .*data: missing features: the track collection"):
        evaluate([tmp_path / "data"], model=model)
    with pytest.raises(InputFileError, match="no model at"):
        evaluate([dataset], model=tmp_path / "nothing")
    model.write_bytes(model.read_bytes()[:200])
    done = command("evaluate", dataset, "--model", model)
    assert done.code == 1
    assert "cannot be read as a model file" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_command(dataset: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    file = candidate_file(tmp_path / "mine.parquet", dataset)
    done = command("evaluate", dataset, "--candidates", file, "--json")
    assert done.code == 0
    found = json.loads(done.stdout)["samples"]["fake"]["reconstructions"]
    assert set(found["mine"]["jet_iqr_over_median"]) == {"value", "lo", "hi"}
    done = command("evaluate", dataset, "--reconstructions", "target", "--events", 5)
    assert done.stdout == ""
    assert "target" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("next: ringflow evaluate")
    assert command("evaluate", dataset, "--reconstructions", "nobody").code == 2

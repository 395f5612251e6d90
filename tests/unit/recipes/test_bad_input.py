"""Input that is not what it should be, from the command line: one clear line and nothing written, or an answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.edm4hep_files import Content, write_frame
from fixtures.fake_events import FakeBlocks, fake_request, write_fake_dataset
from fixtures.foreign_onnx import foreign_file
from ringflow.data.candidates import CandidateFile
from ringflow.data.edm4hep import Edm4hepFile, load_profile
from ringflow.data.production import produce
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.infer.export import describe
from ringflow.models.file import save_model
from ringflow.recipes import export

MANY = 100_000


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Callable[..., Path]:
    def save(backbone: str = "attention", calorimeter: str = "cluster") -> Path:
        loaded = small_model(backbone, calorimeter)
        path = tmp_path / f"{backbone}-{calorimeter}.safetensors"
        save_model(path, loaded.model, card={"detector": "cld"})
        return path

    return save


def refused(done: Any, out: Path) -> str:
    """The one line of a command that could not do its work, and left nothing behind."""
    assert done.code == 1
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("ringflow: error:")]
    assert lines == done.stderr.splitlines()[-1:]
    assert "Traceback" not in done.stderr
    assert not out.exists()
    return str(lines[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zero.root", "zero.root cannot be read as a ROOT file"),
        ("text.root", "text.root cannot be read as a ROOT file"),
        ("folder", "folder is not a dataset: it has no manifest.json"),
        ("nowhere", "nothing at"),
        ("model.onnx", "model.onnx is neither the folder of a dataset nor an EDM4hep file (.root)"),
    ],
)
def test_a_source_that_is_none(
    name: str, message: str, weights: Callable[..., Path], tmp_path: Path, command: Callable[..., Any]
) -> None:
    (tmp_path / "zero.root").touch()
    (tmp_path / "text.root").write_text("once upon a time " * 100)
    (tmp_path / "folder").mkdir()
    foreign_file(tmp_path / "model.onnx", {})
    out = tmp_path / "out.parquet"
    assert message in refused(command("reconstruct", tmp_path / name, "-o", out, "--model", weights()), out)


@pytest.mark.parametrize("engine", ["torch", "onnx"])
@pytest.mark.parametrize("name", ["foreign.onnx", "zero.onnx", "zero.safetensors"])
def test_a_model_that_is_none(name: str, engine: str, tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "zero.onnx").touch()
    (tmp_path / "zero.safetensors").touch()
    foreign_file(tmp_path / "foreign.onnx", {})
    dataset, out = write_fake_dataset(tmp_path / "dataset", 5), tmp_path / "out.parquet"
    done = command("reconstruct", dataset, "-o", out, "--model", tmp_path / name, "--engine", engine)
    if engine == "torch" and name.endswith(".onnx"):
        assert done.code == 2
        assert f"{name} is an ONNX file, which torch does not run" in done.stderr
        return
    message = refused(done, out)
    assert ("not one that `ringflow export` wrote" if "foreign" in name else f"{name} cannot be read as") in message


@dataclass(frozen=True)
class WithNan(FakeBlocks):
    """Events of which one has a value that is no number."""

    spoiled: tuple[str, str] = ("", "")

    def block(self, index: int) -> EventBlock:
        made = super().block(index)
        if index == 1:
            made[self.spoiled[0]][self.spoiled[1]][-1] = np.nan
        return made


@pytest.mark.parametrize("spoiled", [("track", "pt"), ("track", "calo_x"), ("cluster", "energy"), ("cluster", "x")])
def test_a_value_that_is_no_number(
    spoiled: tuple[str, str],
    weights: Callable[..., Path],
    small_onnx: Callable[..., Path],
    tmp_path: Path,
    command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset, request = tmp_path / "dataset", fake_request(8)
    produce(dataset, request, WithNan(4, spoiled=spoiled), workers=1)
    kind, column = spoiled
    has_some = [number for b in Dataset(dataset).events() for number in b.event_number[b[kind].counts > 0]]
    event = max(has_some)
    out = tmp_path / "out.parquet"
    for model in (weights(), small_onnx()):
        words = ("reconstruct", dataset, "-o", out, "--model", model)
        assert f"{kind} {column} is nan in event {event}, and a network" in refused(command(*words), out)
        done = command(*words, "--events", 4)  # those before it
        assert done.code == 0
        out.unlink()
    out = tmp_path / "out.onnx"

    def traced(path: Path, loaded: Any, portable: bool) -> Any:  # the same file every time, without the work
        shutil.copy(small_onnx(), path)
        return describe(loaded)

    monkeypatch.setattr(export, "write_onnx", traced)
    assert f"{column} is nan in event {event}" in refused(
        command("export", weights(), "-o", out, "--check", dataset), out
    )


def crowded(path: Path) -> Path:
    """An EDM4hep file with an event of very many hits in the middle of others."""
    content, rng = Content(), np.random.default_rng(1)
    few = {name: values[0] for name, values in content.members["HCALBarrel"].items()}
    many = {name: [values[0]] * MANY for name, values in few.items()}
    for axis in "xyz":
        many[f"position.{axis}"] = (few[f"position.{axis}"][0] + rng.normal(0, 500, MANY)).tolist()
    content.members["HCALBarrel"] = {name: [values, many[name], []] for name, values in few.items()}
    return write_frame(path, content)


@pytest.mark.parametrize(("backbone", "calorimeter"), [("kernel", "hit"), ("graph", "hit"), ("kernel", "cluster")])
def test_an_event_of_very_many_hits(
    backbone: str, calorimeter: str, weights: Callable[..., Path], tmp_path: Path, command: Callable[..., Any]
) -> None:
    source, out = crowded(tmp_path / "events.root"), tmp_path / "out.parquet"
    assert next(Edm4hepFile(source, load_profile("cld")).events())["hit"].counts.tolist() == [6, MANY, 0]
    done = command("reconstruct", source, "-o", out, "--model", weights(backbone, calorimeter), "--profile", "cld")
    assert done.code == 0, done.stderr
    [block] = CandidateFile(out).blocks()
    assert block.event_number.tolist() == [7, 8, 12]
    found = block["candidate"]
    assert all(np.isfinite(values).all() for values in found.columns.values())
    if calorimeter == "cluster":
        assert found.counts[1] == 0  # no cluster is made of them
    else:
        assert found.counts[1] > 100


@pytest.mark.parametrize(
    "words",
    [
        ("reconstruct", "FILE", "--out", "out.parquet"),
        ("reconstruct", "FILE", "--out", "out.parquet", "--on", "ray"),
        ("evaluate", "FILE"),
        ("display", "FILE", "--static", "page"),
        ("convert", "FILE", "--out", "data"),
        ("check", "FILE"),
        ("train", "clic_tiny", "data=FILE", "--out", "run"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("name", ["eeH.hepmc3.zst", "eeH.hepmc", "eeH.lhe.gz"])
def test_generated_particles_are_to_be_simulated_first(
    words: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).touch()
    done = command(*(word.replace("FILE", name) for word in words))
    assert done.code == 1
    assert f"{name} holds generated particles; simulate them first" in done.stderr
    assert f"ringflow simulate --hepmc {name} --out data/eeH" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", [("convert", "FILE", "--out", "data"), ("check", "FILE"), ("display", "FILE")])
def test_an_lcio_file_is_told_its_converter(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[..., Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reco.slcio").touch()
    done = command(*(word.replace("FILE", "reco.slcio") for word in words))
    assert done.code == 1
    assert "an LCIO file; make an EDM4hep file of it first: lcio2edm4hep reco.slcio reco.edm4hep.root" in done.stderr
    assert len(done.stderr.splitlines()) == 1

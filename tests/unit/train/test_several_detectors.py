"""A training on several detectors: streams and figures for each, and a network that is told which one it looks at."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.detectors import write_events
from ringflow.base.errors import RingflowError, UsageError
from ringflow.elements.batch import from_block
from ringflow.elements.features import feature_names
from ringflow.elements.frame import Frame
from ringflow.infer.session import open_session
from ringflow.models.file import load_model, save_model
from ringflow.sim.geometry import detector_path, load_detector
from ringflow.sim.tracker import frame_of
from ringflow.train.data import describe_data, detector_name, detectors_of, open_training_data, require_data
from ringflow.train.run import train
from ringflow.train.runs import located, places_of
from ringflow.train.settings import TrainSettings

CPU = torch.device("cpu")
KINDS = ("track", "cluster")
SMALL = (
    *("model.features=relative", "model.width=16", "model.layers=1", "model.heads=2", "model.hidden=16"),
    *("length.events=60", "length.validate_every=30", "length.validation_events=8", "compute.batch_elements=2000"),
    *("compute.device=cpu", "source.lanes=1"),
)
SIMULATED = ("data=sim:gun_photon,gun_pion", "source.chunk_events=8", "source.block_events=2", "source.workers=1")


def settings(*overrides: str) -> TrainSettings:
    return TrainSettings.resolve(None, [*SMALL, *overrides])


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """With truth, by detector."""
    folder = tmp_path_factory.mktemp("datasets")
    return {name: write_events(folder / name, name) for name in ("clic", "cld")}


def both(datasets: dict[str, Path]) -> tuple[str, str]:
    return f"data={datasets['clic']},{datasets['cld']}", "detector=clic,cld"


@pytest.fixture(scope="module")
def run(datasets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training on both."""
    folder = tmp_path_factory.mktemp("runs") / "both"
    train(settings(*both(datasets)), folder)
    return folder


def test_every_detector_has_events_of_its_own_and_the_first_those_that_it_has_alone() -> None:
    several = describe_data(settings(*SIMULATED, "detector=clic~0.1,cld,sid"))
    assert [(one["detector"], one["simulated"]) for one in several] == [
        (detector, sample) for detector in ("clic~0.1", "cld", "sid") for sample in ("gun_photon", "gun_pion")
    ]
    assert len({one["seed"] for one in several}) == 6
    assert several[:2] == describe_data(settings(*SIMULATED, "detector=clic~0.1"))
    assert several[2:4] == describe_data(settings(*SIMULATED, "detector=clic,cld"))[2:]  # whatever stands beside them


@pytest.mark.parametrize("detector", ["clic,cld,clic", "clic~0.1,clic", "cld, cld~0.2"])
def test_a_detector_is_named_once(detector: str) -> None:
    with pytest.raises(UsageError, match="is twice among the detectors; name it once"):
        detectors_of(detector)


def test_a_detector_file_that_is_one_of_the_others_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(detector_path("cld").read_bytes())
    assert detector_name(f"clic, {tmp_path / 'mine.toml'}~0.1") == "clic,cld"
    with pytest.raises(UsageError, match="'cld' is twice"):
        require_data(settings(*SIMULATED, f"detector=cld,{tmp_path / 'mine.toml'}"))
    with pytest.raises(RingflowError, match="'clid'"):
        require_data(settings(*SIMULATED, "detector=clic,clid"))
    for nothing in ("", " , "):
        with pytest.raises(UsageError, match="no detector in"):
            detectors_of(nothing)


def test_simulated_events_of_several_detectors() -> None:
    asked = settings(*SIMULATED, "detector=clic~0.1,cld")
    with open_training_data(asked, CPU, Path("unused")) as data:
        assert data.validate is not None
        names = [f"{sample}_{detector}" for detector in ("clic", "cld") for sample in ("gun_photon", "gun_pion")]
        assert {name: len(block) for name, block in data.validate.blocks.items()} == dict.fromkeys(names, 2)
        assert data.frame is None
        assert data.card["detector"] == "clic,cld"
        assert data.card["seen"]["quantiles"]["cluster_log_energy"]
        chunk = data.sources[0].chunk(0)
        assert chunk.num_events == 8
        assert chunk.targets is not None
        # All are seen relative to where they are: at the face, in units that all detectors share.
        for batch in (chunk, data.validation):
            depth = batch.features_NF[:, feature_names(KINDS).index("track_calo_radius")]
            assert (depth[~depth.isnan()].abs() < 3.0).all()
        parts = [
            Frame(frame_of(load_detector(name.rpartition("_")[2])), KINDS).see(from_block(data.validate.blocks[name]))
            for name in names
        ]
        expected = torch.cat([part.features_NF for part in parts])
        assert torch.equal(data.validation.features_NF.nan_to_num(-9.0), expected.nan_to_num(-9.0))


def test_a_network_of_several_detectors_is_told_which(run: Path, datasets: dict[str, Path]) -> None:
    loaded = load_model(run / "model.safetensors")
    assert loaded.model.frame is None
    assert not loaded.model.is_bound
    assert loaded.card["detector"] == "clic,cld"
    assert {entry["detector"] for entry in loaded.card["data"]} == {"clic", "cld"}
    metrics = loaded.card["metrics"]
    assert {"particle_f1", "particle_f1/ttbar", "particle_f1/ttbar_2"} <= set(metrics)
    for name in datasets:
        assert open_session(run / "model.safetensors", detector=name).detector == "clic,cld"


def test_a_network_of_one_detector_knows_it(datasets: dict[str, Path], tmp_path: Path) -> None:
    train(settings(f"data={datasets['cld']}", "detector=cld"), tmp_path / "run")
    loaded = load_model(tmp_path / "run" / "model.safetensors")
    assert loaded.model.frame is not None
    assert loaded.model.frame.settings == frame_of(load_detector("cld"))
    assert loaded.card["detector"] == "cld"
    train(settings(f"data={datasets['cld']}", "detector=cld", "model.features=absolute"), tmp_path / "plain")
    plain = load_model(tmp_path / "plain" / "model.safetensors")
    assert plain.model.frame is None
    assert plain.model.is_bound
    assert plain.card["seen"]["quantiles"]["track_calo_radius"][5] == pytest.approx(2.15, abs=0.1)  # metres
    assert loaded.card["seen"]["quantiles"]["track_calo_radius"][5] == pytest.approx(0.0, abs=1e-3)


def test_it_goes_on_and_a_moved_run_as_well(run: Path, datasets: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    result = train(settings(*both(datasets), "length.events=90"), copy)
    assert result["events"] >= 90
    with pytest.raises(UsageError, match="detector=clic,cld, not"):
        train(settings(*both(datasets), "detector=cld,clic", "length.events=90"), copy)


def test_a_network_that_was_adapted_goes_on_seeing_as_it_does(
    run: Path, datasets: dict[str, Path], tmp_path: Path
) -> None:
    loaded = load_model(run / "model.safetensors")
    frame = frame_of(load_detector("cld")).model_copy(update={"hcal_scale": 1.2})
    loaded.model.bind(frame)
    save_model(tmp_path / "adapted.safetensors", loaded.model, card={**loaded.card, "detector": "cld"})
    asked = settings(f"data={datasets['cld']}", "detector=cld", f"start={tmp_path / 'adapted.safetensors'}")
    with open_training_data(asked, CPU, tmp_path) as data:
        assert data.frame == frame
    train(asked, tmp_path / "run")
    made = load_model(tmp_path / "run" / "model.safetensors").model
    assert made.settings.features == "relative"  # the network of the file is trained, whatever the settings say
    assert made.frame is not None
    assert made.frame.settings == frame
    # The scale of features is the same for all detectors, though here it comes from others.
    other = settings(f"data={datasets['clic']}", "detector=clic", f"start={tmp_path / 'adapted.safetensors'}")
    train(other, tmp_path / "other")
    before, after = (
        one.embedding.mean_F for one in (loaded.model, load_model(tmp_path / "other" / "last.safetensors").model)
    )
    assert torch.equal(before, after)
    with open_training_data(other, CPU, tmp_path) as data:
        assert data.frame == frame_of(load_detector("clic"))


def test_detector_files_that_moved_are_found(datasets: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "mine.toml").write_bytes(detector_path("sid").read_bytes())
    asked = settings(f"data={datasets['clic']}", f"detector=clic, {folder / 'mine.toml'}~0.1")
    places = places_of(asked, folder / "run")
    assert str(folder / "mine.toml") in places
    folder.rename(tmp_path / "there")
    found = located(asked, tmp_path / "there" / "run", places)
    assert found.detector == f"clic,{tmp_path / 'there' / 'mine.toml'}~0.1"


def test_a_dataset_of_a_detector_that_was_not_named(
    datasets: dict[str, Path], command: Callable[..., Any], tmp_path: Path
) -> None:
    done = command("train", *SMALL, both(datasets)[0], "detector=clic,sid", "--out", tmp_path / "run")
    assert done.code == 2
    assert done.stderr.count("\n") == 1
    assert "is of the detector 'cld', the training is for 'clic,sid'" in done.stderr
    done = command("train", *SMALL, f"data={datasets['clic']}", "detector=clic,nobody", "--out", tmp_path / "run")
    assert done.stderr.count("\n") == 1
    assert "nobody" in done.stderr
    assert not (tmp_path / "run").exists()

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from ringflow.base.errors import InputFileError, UsageError
from ringflow.sim.generator import Collision, Gun, make_generator, sample, sample_names
from ringflow.sim.settings import GeneratorSettings

REPOSITORY = Path(__file__).parents[3]


def test_every_sample_of_the_product_is_there() -> None:
    asked_for = ["ttbar", "qq", "zh", "ww", "ttbar_pu10", "zuds_91", "zuds_380"]
    guns = [f"gun_{kind}" for kind in ["photon", "pion", "k0l", "neutron", "electron", "muon"]]
    assert {*asked_for, *guns} <= set(sample_names())


def test_an_overlay_names_a_collision() -> None:
    overlays = [d.overlay for d in map(sample, sample_names()) if isinstance(d, Collision) and d.overlay]
    assert overlays
    assert all(isinstance(sample(overlay.sample), Collision) for overlay in overlays)


def test_the_reference_lists_every_sample_with_its_description() -> None:
    reference = (REPOSITORY / "docs" / "reference" / "samples.md").read_text(encoding="utf-8")
    for name in sample_names():
        assert f"`{name}`" in reference
        assert sample(name).description in reference


def test_a_typo_gets_the_close_match_and_the_list() -> None:
    with pytest.raises(UsageError, match=r"unknown sample 'tbar'; did you mean 'ttbar'\? samples: ttbar, qq") as error:
        make_generator(GeneratorSettings(sample="tbar"), 1486.0, 2190.0)
    assert "\n" not in str(error.value)


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(UsageError, match=r"unknown sample '2+'; samples: ttbar"):
        make_generator(GeneratorSettings(sample="22222"), 1486.0, 2190.0)


def test_a_sample_or_a_file_and_not_both() -> None:
    with pytest.raises(UsageError, match="give a sample or a HepMC file, not neither"):
        make_generator(GeneratorSettings(), 1486.0, 2190.0)
    with pytest.raises(UsageError, match=r"not both 'ttbar' and 'a\.hepmc'"):
        make_generator(GeneratorSettings(sample="ttbar", hepmc=Path("a.hepmc")), 1486.0, 2190.0)


def test_a_missing_file_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=r"none\.hepmc3: no such HepMC file"):
        make_generator(GeneratorSettings(hepmc=tmp_path / "none.hepmc3"), 1486.0, 2190.0)


def test_naming_the_samples_loads_no_generator() -> None:
    code = "import sys; from ringflow.sim.generator import sample_names; sample_names(); print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "pythia8mc", "awkward", "pyhepmc", "particle"} & set(output.split())


@pytest.mark.parametrize(
    "wrong", [{"energy": (0.0, 1.0)}, {"energy": (5.0, 1.0)}, {"cos_theta": (0.0, 1.5)}, {"cos_theta": (0.5, -0.5)}]
)
def test_a_gun_refuses_impossible_ranges(wrong: dict[str, tuple[float, float]]) -> None:
    good = {"description": "photons", "pdg": (22,), "energy": (1.0, 2.0), "cos_theta": (-1.0, 1.0)}
    Gun.model_validate(good)
    with pytest.raises(pydantic.ValidationError, match="rising range"):
        Gun.model_validate(good | wrong)

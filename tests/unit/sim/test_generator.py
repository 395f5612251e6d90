from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest

from ringflow.base.errors import UsageError
from ringflow.sim.generator import (
    Collision,
    Gun,
    GunGenerator,
    event_key,
    make_generator,
    sample,
    sample_name,
    sample_names,
)
from ringflow.sim.settings import GeneratorSettings

REPOSITORY = Path(__file__).parents[3]


def test_the_reference_lists_every_sample_with_its_description() -> None:
    reference = (REPOSITORY / "docs" / "reference" / "samples.md").read_text(encoding="utf-8")
    guns = [f"gun_{kind}" for kind in ["photon", "pion", "k0l", "neutron", "electron", "muon"]]
    assert {"ttbar", "qq", "zh", "ww", "ttbar_pu10", "zuds_91", "zuds_380", *guns} <= set(sample_names())
    for name in sample_names():
        assert f"`{name}`" in reference
        assert sample(name).description in reference


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sample": "tbar"}, r"unknown sample 'tbar'; did you mean 'ttbar'\? samples: ttbar, qq"),
        ({"sample": "tbar@500"}, r"unknown sample 'tbar'; did you mean 'ttbar'\?"),
        ({"sample": "ttbar@"}, r"'' in 'ttbar@' is not an energy; give it in GeV, as in ttbar@"),
        ({"sample": "ttbar@high"}, r"'high' in 'ttbar@high' is not an energy"),
        ({"sample": "ttbar@250"}, r"ttbar cannot be made at 250 GeV; give an energy from 340 to 3000 GeV"),
        ({"sample": "ttbar@nan"}, r"ttbar cannot be made at nan GeV"),
        ({"sample": "ttbar_pu10@3e5"}, r"ttbar_pu10 cannot be made at 3e5 GeV"),
        ({"sample": "gun_neutron@0.5"}, r"PDG 2112 needs more than the lowest energy, 0\.5 GeV"),
        ({}, "give a sample or a HepMC file, not neither"),
        ({"sample": "ttbar", "hepmc": Path("a.hepmc")}, r"not both 'ttbar' and 'a\.hepmc'"),
    ],
)
def test_what_cannot_be_generated_is_said_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        make_generator(GeneratorSettings(**given), 1486.0, 2190.0)
    assert "\n" not in str(error.value)


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


GUNS = [name for name in sample_names() if isinstance(sample(name), Gun)]


def shoot(name: str, count: int = 2000, **changes: object):
    gun = sample(name).model_copy(update=changes)
    assert isinstance(gun, Gun)
    return gun, GunGenerator(name, gun, seed=5).generate(0, count)


@pytest.mark.parametrize("name", GUNS)
def test_one_particle_from_the_origin_flat_in_its_ranges(name: str) -> None:
    gun, events = shoot(name)
    assert (events.counts == 1).all()
    assert not np.stack([events.x, events.y, events.z, events.time]).any()
    kinds, times = np.unique(events.pdg, return_counts=True)
    assert sorted(kinds) == sorted(gun.pdg)
    assert np.abs(times * len(kinds) / 2000 - 1).max() < 0.1
    cos_theta = events.pz / np.sqrt(events.px**2 + events.py**2 + events.pz**2)
    for values, (low, high) in ((events.energy, gun.energy), (cos_theta, gun.cos_theta)):
        assert low - 1e-9 <= values.min() <= values.max() <= high + 1e-9
        # A flat distribution fills every tenth of its range with 200 of 2000, give or take 13.
        filled = np.histogram(values, bins=10, range=(low, high))[0]
        assert 135 < filled.min() <= filled.max() < 265


@pytest.mark.parametrize("name", sample_names())
def test_every_sample_has_an_energy_that_can_be_set(name: str) -> None:
    definition, changed = sample(name), sample(f"{name}@500")
    if isinstance(definition, Collision):
        assert isinstance(changed, Collision)
        low, high = definition.energies
        assert low <= definition.cm_energy <= high
        assert (changed.cm_energy, changed.pythia) == (500.0, definition.pythia)
        assert changed.overlay is None or changed.overlay.sample == "gamma_gamma@500"
        assert sample_name(f"{name}@{definition.cm_energy}") == name
        assert sample(name) == definition
    else:
        assert changed.energy == (500.0, 500.0)
    assert sample_name(f"{name}@500.0") == sample_name(name, 500) == f"{name}@500"
    assert sample_name(name) == name


def test_an_energy_makes_events_of_its_own() -> None:
    events = make_generator(GeneratorSettings(sample="gun_photon@12.5"), 1486.0, 2190.0).generate(0, 5)
    assert events.energy == pytest.approx(12.5)
    assert sample_name("zuds_91", 91.1876) == "zuds_91@91.1876"
    assert sample_name("gun_pion", 1e-1 + 0.2) == "gun_pion@0.3"
    with pytest.raises(UsageError, match="ttbar@500 has an energy already; give ttbar, or leave --energy 600 out"):
        sample_name("ttbar@500", 600)


def test_an_energy_below_the_mass_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gun_neutron: PDG 2112 needs more than the lowest energy, 0\.5 GeV"):
        shoot("gun_neutron", energy=(0.5, 2.0))


def test_keys_stay_what_they_are_and_do_not_run_into_each_other() -> None:
    """A changed key is a changed event in every dataset: it needs a reason and a line in the changelog."""
    assert event_key("ttbar", 1, 0, 0, 0) == 15421359989377640731
    names = [("ttbar", seed, number, k) for seed in range(12) for number in range(120) for k in range(3)]
    assert len({event_key(*name) for name in names}) == len(names)

from __future__ import annotations

import numpy as np
import pytest

from ringflow.base.errors import UsageError
from ringflow.sim.generator import Gun, GunGenerator, sample, sample_names

GUNS = [name for name in sample_names() if isinstance(sample(name), Gun)]


def shoot(name: str, count: int = 2000, **changes: object):
    gun = sample(name).model_copy(update=changes)
    assert isinstance(gun, Gun)
    return gun, GunGenerator(name, gun, seed=5).generate(0, count)


@pytest.mark.parametrize("name", GUNS)
def test_ranges_are_kept_and_filled(name: str) -> None:
    gun, events = shoot(name)
    cos_theta = events.pz / np.sqrt(events.px**2 + events.py**2 + events.pz**2)
    for values, (low, high) in ((events.energy, gun.energy), (cos_theta, gun.cos_theta)):
        assert low - 1e-9 <= values.min() <= values.max() <= high + 1e-9
        # A flat distribution fills every tenth of its range with 200 of 2000, give or take 13.
        filled = np.histogram(values, bins=10, range=(low, high))[0]
        assert filled.min() > 135
        assert filled.max() < 265


@pytest.mark.parametrize("name", GUNS)
def test_one_particle_from_the_origin_and_every_kind_in_turn(name: str) -> None:
    gun, events = shoot(name)
    assert (events.counts == 1).all()
    assert not events.x.any()
    assert not events.y.any()
    assert not events.z.any()
    kinds, times = np.unique(events.pdg, return_counts=True)
    assert sorted(kinds) == sorted(gun.pdg)
    assert np.abs(times * len(kinds) / 2000 - 1).max() < 0.1


def test_charged_guns_shoot_both_charges() -> None:
    for name in ("gun_pion", "gun_electron", "gun_muon"):
        gun, _ = shoot(name, 1)
        assert sum(gun.pdg) == 0


def test_azimuth_is_flat() -> None:
    _, events = shoot("gun_photon")
    filled = np.histogram(np.arctan2(events.py, events.px), bins=8, range=(-np.pi, np.pi))[0]
    assert filled.min() > 180


def test_a_fixed_energy_is_possible() -> None:
    _, events = shoot("gun_k0l", 50, energy=(10.0, 10.0), cos_theta=(0.0, 0.0))
    assert (events.energy == 10.0).all()
    assert np.abs(events.pz).max() < 1e-12


def test_an_energy_below_the_mass_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gun_neutron: PDG 2112 needs more than the lowest energy, 0\.5 GeV"):
        shoot("gun_neutron", energy=(0.5, 2.0))

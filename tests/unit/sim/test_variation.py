"""Detectors that vary: what changes, within which ranges, and that every block of events has its own."""

from __future__ import annotations

import math

import pytest

from ringflow.base.config import write
from ringflow.base.errors import UsageError
from ringflow.sim.detector import Detector
from ringflow.sim.generator import Gun, GunGenerator
from ringflow.sim.geometry import STANDARD_VARIATION, DetectorGeometry, Variation, load_detector
from ringflow.sim.variation import FIELDS, varied


def flat(settings: DetectorGeometry) -> dict[str, object]:
    """All numbers of a detector by their place."""
    found: dict[str, object] = {}

    def walk(place: str, value: object) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                walk(f"{place}.{name}".strip("."), inner)
        elif isinstance(value, (list, tuple)):
            for number, inner in enumerate(value):
                walk(f"{place}.{number}", inner)
        else:
            found[place] = value

    walk("", settings.model_dump(exclude={"variation"}))
    return found


@pytest.mark.parametrize("group", FIELDS)
@pytest.mark.parametrize("detector", ["clic", "ild"])
def test_a_group_changes_its_fields_and_no_other(group: str, detector: str):
    nominal = load_detector(detector).model_copy(update={"variation": Variation(**{group: 0.2})})
    before, after = flat(nominal), flat(varied(nominal, 3))
    changed = {place for place in before if before[place] != after[place]}
    names = tuple(name for together in FIELDS[group] for name in together)

    def belongs(place: str, field: str) -> bool:
        parts, steps = place.split("."), field.split(".")
        return all(step in ("*", part) for part, step in zip(parts, steps, strict=False)) and len(parts) >= len(steps)

    assert changed
    for place in changed:
        assert any(belongs(place, field) for field in names), place
        inefficiency = place.startswith("tracker.efficiency") or place.endswith("layer_efficiency")
        ratio = (1 - after[place]) / (1 - before[place]) if inefficiency else after[place] / before[place]
        assert abs(math.log(ratio)) <= 0.2 + 1e-9, place


def test_the_same_seed_gives_the_same_detector_and_it_varies_no_more():
    nominal = load_detector("clic~0.1")
    one, again, other = varied(nominal, 7), varied(nominal, 7), varied(nominal, 8)
    assert one == again != other
    assert one.variation is None
    assert varied(one, 9) is one
    assert one.name == "clic"


def test_a_strength_is_that_of_the_standard_ranges():
    assert load_detector("clic~0.2").variation == Variation(
        **{name: round(min(0.2 * times, 0.92), 6) for name, times in STANDARD_VARIATION.items()}
    )
    assert load_detector("clic").variation is None


@pytest.mark.parametrize("name", ["clic~", "clic~0", "clic~-1", "clic~3", "clic~nan", "clic~much"])
def test_a_strength_that_cannot_be_is_refused(name: str):
    with pytest.raises(UsageError, match=r"write clic~0\.1"):
        load_detector(name)


def test_even_the_widest_range_gives_detectors_that_can_be():
    widest = load_detector("ild~0.5")
    for seed in range(50):
        varied(widest, seed)


def test_a_file_may_have_ranges_of_its_own_and_vary_in_name(tmp_path):
    nominal = load_detector("clic")
    write(nominal.model_copy(update={"name": "mine", "variation": Variation(response=0.1)}), tmp_path / "mine.toml")
    path = str(tmp_path / "mine.toml")
    assert load_detector(path).variation == Variation(response=0.1)
    assert load_detector(f"{path}~0.1").variation == load_detector("clic~0.1").variation


def test_every_block_has_its_own_response():
    """The same photons in blocks of other seeds: their energy varies by far more than it fluctuates, and as far as it may."""
    nominal = load_detector("clic").model_copy(update={"variation": Variation(response=0.2)})
    photons = GunGenerator(
        "photons", Gun(description="", pdg=(22,), energy=(50.0, 50.0), cos_theta=(-0.5, 0.5)), 1
    ).generate(0, 20)

    def means(geometry: DetectorGeometry) -> list[float]:
        detector = Detector(geometry)
        return [float(detector.simulate_block(photons, seed)["cluster"]["energy"].sum()) / 20 for seed in range(8)]

    steady, own = means(load_detector("clic")), means(nominal)
    assert max(steady) / min(steady) < 1.03
    assert max(own) / min(own) > 1.1
    assert math.exp(-0.23) < min(own) / 50.0 < max(own) / 50.0 < math.exp(0.23)
    assert own == means(nominal)

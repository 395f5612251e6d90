"""Known answers on hand-made events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fixtures.hand_made import Particle, momenta_of
from ringflow.base.errors import FailureError
from ringflow.evaluate.jets import find_jets, in_barrel
from ringflow.evaluate.metrics import comparisons, metrics
from ringflow.evaluate.momenta import checked, generated
from ringflow.evaluate.sheet import Sheet, Truth, measure
from ringflow.event.block import Collection, EventBlock

TRUE = [
    [(40.0, 0.0, 0.0, 1), (20.0, 0.5, 2.0, 3), (30.0, -0.5, -2.0, 2), (4.0, 1.0, 1.0, 4)],
    [(50.0, 0.2, 3.1, 1), (8.0, 0.0, 0.5, 5)],
]
#: In the first event the photon is taken for a neutral hadron, the electron is missed and a photon is invented.
MADE = [
    [(40.0, 0.0, 0.0, 1), (22.0, 0.5, 2.0, 2), (30.0, -0.5, -2.0, 2), (7.0, 2.0, -1.0, 3)],
    [(50.0, 0.2, 3.1, 1), (8.0, 0.0, 0.5, 5)],
]


def truth_of(events: list[list[Particle]], all_of_them: list[list[Particle]] | None = None) -> Truth:
    particles, generated = momenta_of(events), momenta_of(all_of_them or events)
    jets = find_jets(particles), generated, find_jets(generated)
    return Truth(particles, particles, *jets, np.zeros((len(events), 4)), in_barrel(particles))


def figures(
    true: list[list[Particle]], made: list[list[Particle]], sample: str = "any"
) -> tuple[Sheet, dict[str, Any]]:
    sheet = Sheet.empty(sample, has_truth=True)
    measure(sheet, sample, np.arange(len(true)), truth_of(true), momenta_of(made))
    return sheet, metrics(sheet, sample)


def test_rates_of_particles() -> None:
    sheet, found = figures(TRUE, MADE)
    value = {
        name.removeprefix("particle_"): one["value"] for name, one in found.items() if name.startswith("particle_")
    }
    expected = {"efficiency": 5 / 6, "identified": 4 / 6, "fake_rate": 1 / 6, "purity": 4 / 6, "f1": 2 * 4 / 12}
    assert {name: value[name] for name in expected} == pytest.approx(expected)
    for name, rate, expected_rate in (
        ("photon", "efficiency", 1.0),
        ("photon", "identified", 0.0),
        ("photon", "fake_rate", 1.0),
        ("neutral_hadron", "purity", 0.5),
        ("electron", "efficiency", 0.0),
        ("electron", "purity", None),  # nothing was called an electron
    ):
        assert found["classes"][name][rate]["value"] == expected_rate, (name, rate)
    confusion = sheet.histograms["confusion"].values()
    assert confusion[3, 2] == 1
    assert confusion[4, 0] == 1
    assert confusion[0, 3] == 1
    assert confusion.sum() == 7


def test_no_width_is_that_of_a_bin() -> None:
    """Truth against itself has none, and momenta that are off by 0.1 % to 0.4 % have the width of that."""
    pt = np.linspace(1.0, 30.0, 40)
    true = [[(float(value), 0.3, 1.0, 5), (float(value), -0.4, -2.0, 1)] for value in pt]
    off = np.linspace(1.001, 1.004, len(pt))
    made = [[(p * by, eta, phi, label) for p, eta, phi, label in event] for event, by in zip(true, off, strict=True)]
    _, same = figures(true, true)
    _, near = figures(true, made)
    for name in ("muon", "charged_hadron"):
        assert same["classes"][name]["response_iqr_over_median"] == {"value": 0.0, "lo": 0.0, "hi": 0.0}
        width = near["classes"][name]["response_iqr_over_median"]["value"]
        assert width == pytest.approx(np.subtract(*np.quantile(off, [0.75, 0.25])) / np.median(off), rel=1e-3)
        known = [row["iqr_over_median"]["value"] for row in near["classes"][name]["pt_bins"]]
        assert 0 < max(value for value in known if value is not None) < 0.003
    assert same["jet_iqr_over_median"]["value"] == same["jet_bins"][2]["iqr_over_median"]["value"] == 0.0


def test_jets_missing_momentum_and_visible_energy() -> None:
    sheet, found = figures(TRUE, MADE)
    assert found["jet_matched_fraction"]["value"] == 1.0
    rows = {(row["lo_pt"], row["hi_pt"]): row for row in found["jet_bins"]}
    assert rows[20.0, 40.0]["median"]["value"] == pytest.approx(1.05, abs=0.06)  # jets of 20 and 30 GeV: 1.1 and 1
    assert rows[40.0, 60.0]["median"]["value"] == pytest.approx(1.0, abs=1e-4)
    assert rows[100.0, 200.0]["median"]["value"] is None
    assert sheet.histograms["jet_truth_pt"].project("matched").values().tolist() == [0, 5]
    assert sheet.histograms["jet_reco_pt"].project("matched").values().tolist() == [1, 5]
    sheet, found = figures([[(30.0, 0.0, 0.0, 1)]], [[(30.0, 0.0, 0.0, 1), (3.0, 0.0, 0.0, 3)]])
    assert found["met_median"]["value"] == pytest.approx(1.1, abs=0.001)
    assert found["missing_momentum_error"]["value"] == pytest.approx(3.0, abs=0.02)
    assert found["visible_energy_median"]["value"] == pytest.approx(1.1, abs=0.001)
    error = sheet.histograms["met_error"][{"component": 0}]
    assert error.axes[0].centers[error.values().argmax()] == pytest.approx(-3.0, abs=0.11)  # missing less than is true


def test_what_the_detector_did_not_see_counts_among_all_generated_particles() -> None:
    """One more particle beside each jet, and one alone: efficiency, F1 and jets against all that was generated."""
    lost = [[*TRUE[0], (12.0, 0.0, -0.1, 2)], [*TRUE[1], (9.0, -2.0, 1.5, 3)]]
    sheet = Sheet.empty("any", has_truth=True)
    measure(sheet, "any", np.arange(2), truth_of(TRUE, lost), momenta_of(MADE))
    found = metrics(sheet, "any")
    assert found["generated_efficiency"]["value"] == pytest.approx(5 / 8)
    assert found["generated_f1"]["value"] == pytest.approx(2 * 4 / 14)
    assert found["classes"]["neutral_hadron"]["generated_f1"]["value"] == pytest.approx(2 * 1 / (2 + 2))
    assert found["particle_efficiency"]["value"] == pytest.approx(5 / 6)
    assert found["jet_matched_fraction"]["value"] == 1.0
    assert found["generated_jet_matched_fraction"]["value"] == pytest.approx(5 / 6)
    assert min(sheet.entries["generated_jet_response"].value) == pytest.approx(40 / 52, abs=0.01)


def test_generated_particles_are_stable_seen_or_not_and_within_the_acceptance() -> None:
    px, pz = [1.0, 2.0, 3.0, 4.0, 0.0, 5.0], [0.0, 0.0, 0.0, 4.0 * np.sinh(3.1), 0.0, 0.0]
    columns = {"px": px, "py": np.zeros(6), "pz": pz, "energy": np.hypot(px, pz), "label": [0, 1, 0, 3, 0, 0]}
    columns |= {"pdg": [130, 211, -14, 22, 22, -11], "target": [-1, 0, -1, -1, -1, -1]}
    particles = Collection(np.array([6]), {name: np.array(values) for name, values in columns.items()})
    found = generated(EventBlock(np.array([0]), {"particle": particles}))
    assert found.label.tolist() == [2, 1, 4]
    assert found.counts.tolist() == [3]


def test_tails_are_in_the_rms_and_less_in_the_rms90() -> None:
    """Of 100 responses between 0.95 and 1.05 five are at a half: the IQR does not see them, the RMS does, the RMS90 not."""
    response = np.linspace(0.95, 1.05, 100)
    response[::20] = 0.5
    true, made = ([[(20.0 * by, 0.0, 0.0, 1)] for by in factor] for factor in (np.ones(100), response))
    _, found = figures(true, made)
    kept = np.sort(response)[-91:-1]
    for name in ("jet", "visible_energy", "generated_jet"):
        rms, rms90 = (found[f"{name}_{of}"] for of in ("rms", "rms90"))
        assert rms["value"] == pytest.approx(response.std() / response.mean(), rel=1e-3)
        assert rms90["value"] == pytest.approx(kept.std() / kept.mean(), rel=0.02)
        assert rms["lo"] < rms["value"] < rms["hi"]
    assert found["jet_iqr_over_median"]["value"] == pytest.approx(0.053, abs=0.002)
    _, few = figures(TRUE, MADE)
    assert few["jet_rms90"]["value"] is few["visible_energy_rms"]["value"] is None


def test_the_truth_against_itself_is_perfect() -> None:
    _, few = figures(4 * TRUE, 4 * TRUE)  # eight events make no width, twenty jets do
    assert few["visible_energy_resolution"] == {"value": None, "lo": None, "hi": None}
    assert few["jet_iqr_over_median"]["value"] == pytest.approx(0.0, abs=1e-4)
    _, found = figures(6 * TRUE, 6 * TRUE)
    for name in ("jet_median", "met_median", "visible_energy_median", "particle_f1", "particle_efficiency"):
        assert found[name]["value"] == pytest.approx(1.0, abs=1e-5)
    for name in ("visible_energy_resolution", "particle_fake_rate", "missing_momentum_error"):
        assert found[name]["value"] == pytest.approx(0.0, abs=1e-4)


def test_empty_events_count_and_break_nothing() -> None:
    _, found = figures([[], *TRUE, []], [[], *TRUE, []])
    assert found["particles_per_event"]["value"] == 1.5
    assert found["visible_energy_median"]["value"] == pytest.approx(1.0, abs=1e-5)
    _, nothing = figures([[], []], [[], []], "ttbar")
    assert nothing["particle_f1"]["value"] is None
    assert nothing["jet_median"] == {"value": None, "lo": None, "hi": None}
    _, lost = figures(TRUE, [[], []])
    assert lost["particle_efficiency"]["value"] == 0.0
    assert lost["visible_energy_median"]["value"] == pytest.approx(0.0, abs=0.005)


def test_without_truth_only_what_needs_none() -> None:
    sheet = Sheet.empty("ttbar", has_truth=False)
    measure(sheet, "ttbar", np.arange(2), None, momenta_of(MADE))
    found = metrics(sheet, "ttbar")
    assert set(found) == {"particles_per_event", "jets_per_event", "masses"}
    assert list(found["masses"]) == ["visible"]
    assert sheet.histograms["jet_reco_pt"].sum() == 6
    assert comparisons({"a": sheet, "b": sheet}) == []


def test_ratios_of_two_reconstructions(sheets: dict[str, Sheet]) -> None:
    rows = {(row["metric"], row["first"], row["second"]): row for row in comparisons(sheets)}
    assert {pair for _, *pair in rows for pair in pair} == {"perfect", "baseline", "model"}  # the truth is no opponent
    width = rows["jet_iqr_over_median", "baseline", "model"]
    assert width["better"] == rows["particle_f1", "baseline", "model"]["better"] == "model"
    assert width["ratio"]["lo"] < width["ratio"]["value"] < width["ratio"]["hi"] < 0.8


def test_sheets_of_parts_add_up() -> None:
    whole, _ = figures(TRUE, MADE)
    parts = Sheet.empty("any", has_truth=True)
    for n in range(2):
        part = Sheet.empty("any", has_truth=True)
        measure(part, "any", np.array([n]), truth_of(TRUE[n : n + 1]), momenta_of(MADE[n : n + 1]))
        parts.add(part)
    for name, tally in whole.tallies.items():
        assert np.array_equal(tally, parts.tallies[name]), name
    for name, histogram in whole.histograms.items():
        assert np.array_equal(histogram.values(flow=True), parts.histograms[name].values(flow=True)), name


@pytest.mark.parametrize(
    ("column", "bad", "said"),
    [("px", np.nan, "a momentum that is not finite"), ("energy", np.inf, "not finite"), ("label", 8, "the label 8")],
)
def test_what_no_candidate_can_have_names_the_event(column: str, bad: float, said: str) -> None:
    made = momenta_of(MADE)
    columns = {name: getattr(made, name).copy() for name in ("label", "px", "py", "pz", "energy")}
    columns[column][5] = bad
    with pytest.raises(FailureError, match=f"mine: a candidate of event 71 has .*{said}"):
        checked(Collection(made.counts, columns), np.array([70, 71]), "mine")

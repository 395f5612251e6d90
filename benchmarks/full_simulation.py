"""A ttbar sample at 380 GeV against full simulation: multiplicities, spectra and the ECAL share, as a table and a record.

    python benchmarks/full_simulation.py data/ttbar

The reference is a full simulation with Pandora of ttbar at 500 GeV in ILD (50 events). Multiplicities and cluster energies are
scaled by the collision energy, 380/500; shares are not. Cost: seconds for 1,000 events.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ringflow.bench import write_record
from ringflow.data.read import Dataset
from ringflow.train.device import hardware

SCALE = 380.0 / 500.0
QUANTILES = (0.10, 0.50, 0.90, 0.99)
#: name -> (full simulation at 500 GeV, whether it scales with the energy)
REFERENCE = {
    "tracks per event": (70.0, True),
    "clusters per event": (128.0, True),
    "visible particles per event": (135.0, True),
    "cluster energy, 10 % quantile [GeV]": (0.28, True),
    "cluster energy, median [GeV]": (1.4, True),
    "cluster energy, 90 % quantile [GeV]": (8.1, True),
    "cluster energy, 99 % quantile [GeV]": (29.0, True),
    "clusters above 1 GeV, more than 9/10 in the ECAL": (0.55, False),
    "clusters above 1 GeV, less than 1/10 in the ECAL": (0.12, False),
    "track pt, 10 % quantile [GeV]": (0.33, False),
    "track pt, median [GeV]": (1.5, False),
    "track pt, 90 % quantile [GeV]": (8.4, False),
    "track pt, 99 % quantile [GeV]": (25.0, False),
}


def measure(dataset: Dataset) -> dict[str, float]:
    """The quantities of the table, in its order."""
    columns = ["track_pt", "cluster_energy", "cluster_ecal_energy", "particle_target"]
    events = tracks = clusters = visible = 0
    pt, energy, ecal = [], [], []
    for block in dataset.events(columns=columns):
        events += len(block)
        tracks += len(block["track"])
        clusters += len(block["cluster"])
        visible += int((block["particle"]["target"] >= 0).sum())
        pt.append(block["track"]["pt"])
        energy.append(block["cluster"]["energy"])
        ecal.append(block["cluster"]["ecal_energy"])
    energies = np.concatenate(energy)
    share = np.concatenate(ecal) / energies
    large = energies > 1.0
    values = [
        tracks / events,
        clusters / events,
        visible / events,
        *np.quantile(energies, QUANTILES),
        np.mean(share[large] > 0.9),
        np.mean(share[large] < 0.1),
        *np.quantile(np.concatenate(pt), QUANTILES),
    ]
    return dict(zip(REFERENCE, map(float, values), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="ttbar at 380 GeV, from ringflow simulate")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    dataset = Dataset(options.dataset)
    rows = []
    print("| quantity | full simulation, 500 GeV | expected at 380 GeV | here | difference |\n|---|---|---|---|---|")
    for name, measured in measure(dataset).items():
        published, scales = REFERENCE[name]
        expected = published * (SCALE if scales else 1.0)
        rows.append({"name": name, "published": published, "expected": expected, "measured": measured})
        print(f"| {name} | {published:.3g} | {expected:.3g} | {measured:.3g} | {measured / expected - 1.0:+.0%} |")
    record = {"benchmark": "full_simulation", "events": len(dataset), "rows": rows, **hardware("cpu")}
    print(write_record(record, options.out / "full_simulation_ttbar.json"))


if __name__ == "__main__":
    main()

"""Reconstructed tracks: which charged particles are found, and their smeared parameters with uncertainties."""

from __future__ import annotations

import torch
from torch import Tensor

from ringflow.sim.draw import Draw
from ringflow.sim.geometry import TRACK_PARAMETERS, DetectorGeometry, ParameterResolution, TrackerGeometry
from ringflow.sim.species import SpeciesTable
from ringflow.sim.tracker import TrackerOutput, moved
from ringflow.sim.transport import CALORIMETER

Columns = dict[str, Tensor]


def measure_tracks(output: TrackerOutput, species: SpeciesTable, geometry: DetectorGeometry, draw: Draw) -> Columns:
    """Columns of the `track` collection; `particle` counts over the whole block and rows are ordered by it."""
    tracker = geometry.tracker
    flights, helices = output.flights, output.helices
    root, last_row, num_hits, momentum = _chains(output)
    pt_true = (momentum / torch.sqrt(1.0 + helices.tan_lambda[root] ** 2)).clamp_min(1e-6)
    theta_true = torch.atan2(torch.ones_like(pt_true), helices.tan_lambda[root])
    found = _found(pt_true, theta_true, num_hits, tracker, draw)
    root, last_row, num_hits, momentum = root[found], last_row[found], num_hits[found], momentum[found]
    pt_true, theta_true = pt_true[found], theta_true[found]

    sigma = _resolutions(pt_true, theta_true, tracker)
    shift = _correlated(sigma, tracker, draw)
    d0, z0, phi = helices.take(root).perigee()
    theta = (theta_true + shift["theta"]).clamp(1e-3, torch.pi - 1e-3)
    # The curvature is what a fit measures, so the relative error is that of 1/pt.
    pt = pt_true / (1.0 + shift["pt"]).clamp_min(0.05)
    kind = flights.species[root]
    ndf = (2 * num_hits - 5).clamp_min(1)
    chi2 = 2.0 * draw.gamma(0.5 * ndf.to(pt.dtype))

    last = flights.take(last_row)
    reaches = output.ends.kind[last_row] == CALORIMETER
    # A looper is measured on its way out: its last hit is where it turns back.
    half_turn = torch.pi / helices.turn[last_row].abs().clamp_min(1e-12)
    path = output.ends.path[last_row]
    path = torch.where(reaches, path, torch.minimum(path, half_turn))
    end = moved(last, helices.take(last_row), path, species)
    length = end.momentum.clamp_min(1e-9)
    order = torch.argsort(flights.particle[root], stable=True)
    columns = {
        "pt": pt,
        "eta": -torch.log(torch.tan(0.5 * theta)),
        "phi": torch.remainder(phi + shift["phi"] + torch.pi, 2.0 * torch.pi) - torch.pi,
        "charge": species.charge[kind],
        "d0": d0 + shift["d0"],
        "z0": z0 + shift["z0"],
        "chi2": chi2,
        "ndf": ndf,
        "num_hits": num_hits,
        **{f"sigma_{name}": sigma[name] for name in TRACK_PARAMETERS},
        "dedx": _energy_loss(momentum, species.mass[kind]) * (1.0 + tracker.dedx_resolution * draw.normal(pt)),
        "time": end.time + tracker.time_resolution * draw.normal(pt),
        "reaches_calo": reaches,
        "calo_x": end.x,
        "calo_y": end.y,
        "calo_z": end.z,
        "calo_dx": end.px / length,
        "calo_dy": end.py / length,
        "calo_dz": end.pz / length,
        "particle": flights.particle[root],
    }
    return {name: values[order] for name, values in columns.items()}


def _chains(output: TrackerOutput) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tracks as chains of flights with one root: the root, the last row, all hits, and the momentum averaged over the hits."""
    flights, ends = output.flights, output.ends
    rows = torch.arange(len(flights), device=flights.root.device)
    hits = torch.zeros_like(rows).index_add_(0, flights.root, ends.num_hits)
    # Rows are in order of generation, so the largest row of a chain is its last.
    last_row = torch.zeros_like(rows).scatter_reduce_(0, flights.root, rows, "amax", include_self=False)
    weighted = torch.zeros_like(flights.px).index_add_(0, flights.root, flights.momentum * ends.num_hits)
    root = torch.nonzero((flights.root == rows) & (hits > 0)).squeeze(1)
    return root, last_row[root], hits[root], weighted[root] / hits[root]


def _found(pt: Tensor, theta: Tensor, num_hits: Tensor, tracker: TrackerGeometry, draw: Draw) -> Tensor:
    eta = -torch.log(torch.tan(0.5 * theta.clamp(1e-6, torch.pi - 1e-6))).abs()
    chance = torch.zeros_like(pt)
    for row in tracker.efficiency:
        chance = torch.where((pt >= row.pt_min) & (eta.abs() <= row.eta_max), row.value, chance)
    return (draw.uniform(pt) < chance) & (num_hits >= tracker.min_hits)


def _resolutions(pt: Tensor, theta: Tensor, tracker: TrackerGeometry) -> dict[str, Tensor]:
    eta = -torch.log(torch.tan(0.5 * theta)).abs()
    sine = torch.sin(theta).clamp_min(1e-3)
    momentum = pt / sine

    def spread(parameter: ParameterResolution, scattering_power: float) -> Tensor:
        return torch.hypot(
            torch.full_like(pt, parameter.constant), parameter.scattering / (momentum * sine**scattering_power)
        )

    edges = torch.tensor([row.eta_max for row in tracker.resolution[:-1]], dtype=pt.dtype, device=pt.device)
    region = torch.bucketize(eta.abs(), edges)
    a, b = (
        torch.tensor([getattr(row, name) for row in tracker.resolution], dtype=pt.dtype, device=pt.device)[region]
        for name in ("a", "b")
    )
    return {
        "pt": torch.hypot(a * pt, b),
        "phi": spread(tracker.phi, 0.5),
        "theta": spread(tracker.theta, 0.5),
        "d0": spread(tracker.d0, 1.5),
        "z0": spread(tracker.z0, 2.5),
    }


def _correlated(sigma: dict[str, Tensor], tracker: TrackerGeometry, draw: Draw) -> dict[str, Tensor]:
    """Errors of the parameters with the correlations of the fit."""
    stacked = torch.stack([sigma[name] for name in TRACK_PARAMETERS], dim=1)
    root = torch.linalg.cholesky(torch.as_tensor(tracker.correlation_matrix(), device=stacked.device))
    errors = stacked * (draw.normal(stacked) @ root.T.to(stacked.dtype))
    return {name: errors[:, column] for column, name in enumerate(TRACK_PARAMETERS)}


def _energy_loss(momentum: Tensor, mass: Tensor) -> Tensor:
    """Mean energy loss in silicon relative to its minimum, a Bethe curve with I = 173 eV and a density plateau."""
    beta_gamma = (momentum / mass.clamp_min(1e-6)).clamp(0.05, 1e5)
    beta2 = beta_gamma**2 / (1.0 + beta_gamma**2)
    rise = torch.log(2.0 * 0.511e6 * beta_gamma.clamp_max(100.0) ** 2 / 173.0)
    return (rise / beta2 - 1.0) / 11.0

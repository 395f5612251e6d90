"""The tracker: follow every particle and what it turns into until the calorimeter, then measure the tracks.

In the material photons convert, electrons radiate and hadrons interact. Energies are conserved; the recoil of the nucleus is
left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ringflow.elements.tables import ColumnTable
from ringflow.event.particles import SPEED_OF_LIGHT
from ringflow.sim.decay import decay
from ringflow.sim.flight import Draw, Flight, Helix, SpeciesTable, daughters, orthogonal_frame
from ringflow.sim.geometry import TRACK_PARAMETERS, DetectorGeometry, ParameterResolution, TrackerGeometry

#: How a flight can end.
LOST, CALORIMETER, INTERACTION, DECAY = range(4)
#: Where the calorimeter is entered: through its barrel, its endcap, or the hadronic endcap where it stands alone.
BARREL_FACE, ENDCAP_FACE, HADRONIC_FACE = range(3)

PAIR_PRODUCTION = 7.0 / 9.0  # per radiation length, at high energy
#: Softest bremsstrahlung photon that is simulated, as a share of the electron energy.
SOFTEST_PHOTON = 0.01
#: Emissions per radiation length for the spectrum 4/(3y) down to SOFTEST_PHOTON.
BREMSSTRAHLUNG = 4.0 / 3.0 * math.log(1.0 / SOFTEST_PHOTON)

_GRAZING = 0.05  # a crossing cannot be more grazing than this cosine


@dataclass(frozen=True)
class Crossings:
    """Where helices cross the layers of the tracker, as [layer, particle]; path is infinite where they do not."""

    path: Tensor
    radiation_lengths: Tensor
    hits: Tensor


@dataclass(frozen=True)
class Ends(ColumnTable):
    """How each flight ended: kind, transverse path to the end, calorimeter face (if any) and tracker hits on the way."""

    kind: Tensor
    path: Tensor
    face: Tensor
    num_hits: Tensor


def cross_layers(helix: Helix, tracker: TrackerGeometry) -> Crossings:
    """Crossings of barrel layers and disks."""
    double, device = helix.x.dtype, helix.x.device
    barrel = torch.tensor(tracker.barrel, dtype=double, device=device).T.unsqueeze(-1)
    disks = torch.tensor(tracker.disks, dtype=double, device=device).T.unsqueeze(-1)

    radius, half_length = barrel[0], barrel[1]
    path_b = helix.to_cylinder(radius)
    at = torch.where(path_b.isfinite(), path_b, 0.0)
    x, y, z = helix.position(at)
    dx, dy, _ = helix.direction(at)
    cos_b = ((x * dx + y * dy) / radius).abs()
    path_b = torch.where(z.abs() <= half_length, path_b, torch.inf)

    plane, r_min, r_max = disks[0], disks[1], disks[2]
    path_d = helix.to_plane(plane * helix.tan_lambda.sign())
    at = torch.where(path_d.isfinite(), path_d, 0.0)
    x, y, _ = helix.position(at)
    r = torch.hypot(x, y)
    cos_d = (helix.tan_lambda * torch.rsqrt(1.0 + helix.tan_lambda**2)).abs().expand_as(r)
    path_d = torch.where((r >= r_min) & (r <= r_max), path_d, torch.inf)

    cosine = torch.cat([cos_b, cos_d]).clamp_min(_GRAZING)
    thickness, hits = torch.cat([barrel[2], disks[3]]), torch.cat([barrel[3], disks[4]])
    return Crossings(torch.cat([path_b, path_d]), thickness / cosine, hits)


def enter_calorimeter(helix: Helix, geometry: DetectorGeometry) -> tuple[Tensor, Tensor]:
    """Path to the calorimeter face and which face it is; infinite if it is never met."""
    side = helix.tan_lambda.sign()
    barrel = helix.to_cylinder(geometry.face_radius)
    z_barrel = helix.z + torch.where(barrel.isfinite(), barrel, 0.0) * helix.tan_lambda
    in_barrel = barrel.isfinite() & (z_barrel.abs() <= geometry.ecal.barrel.half_length)

    def plane_within(z: float, r_min: float, r_max: float) -> tuple[Tensor, Tensor]:
        path = helix.to_plane(z * side)
        x, y, _ = helix.position(torch.where(path.isfinite(), path, 0.0))
        r = torch.hypot(x, y)
        return path, path.isfinite() & (r >= r_min) & (r <= r_max)

    ecal, hcal = geometry.ecal.endcap, geometry.hcal.endcap
    endcap, in_endcap = plane_within(ecal.inner, ecal.r_min, ecal.r_max)
    hadronic, in_hadronic = plane_within(hcal.inner, hcal.r_min, hcal.r_max)
    face = torch.where(in_barrel, BARREL_FACE, torch.where(in_endcap, ENDCAP_FACE, HADRONIC_FACE))
    path = torch.where(in_barrel, barrel, torch.where(in_endcap, endcap, hadronic))
    return torch.where(in_barrel | in_endcap | in_hadronic, path, torch.inf), face


def fly(
    flight: Flight, helix: Helix, species: SpeciesTable, geometry: DetectorGeometry, draw: Draw, last: bool
) -> Ends:
    """Let every particle fly to its end; in the last generation nothing interacts or decays any more."""
    kind_of = flight.species
    calorimeter, face = enter_calorimeter(helix, geometry)
    crossings = cross_layers(helix, geometry.tracker)
    charged = species.charge[kind_of] != 0

    rate = PAIR_PRODUCTION * species.is_photon + BREMSSTRAHLUNG * species.is_electron
    rate = rate + geometry.tracker.lambda_per_x0 * species.is_hadron
    chance = -torch.expm1(-rate[kind_of] * crossings.radiation_lengths)
    happens = draw.uniform(chance) < chance
    interaction = torch.where(happens, crossings.path, torch.inf).amin(0)

    pt = torch.hypot(flight.px, flight.py)
    mass = species.mass[kind_of].clamp_min(1e-9)
    lifetime = species.ctau[kind_of]
    decay = torch.where(lifetime.isfinite(), draw.exponential(pt) * lifetime * pt / mass, torch.inf)
    if last:
        interaction, decay = torch.full_like(pt, torch.inf), torch.full_like(pt, torch.inf)

    turns = 2.0 * torch.pi * geometry.tracker.max_turns
    stop = torch.where(charged, turns / helix.turn.abs().clamp_min(1e-12), torch.inf)
    ends = torch.stack([stop, calorimeter, interaction, decay])
    path, kind = ends.min(0)
    kind = torch.where(path.isfinite(), kind, LOST)
    # What never meets anything leaves along the beam; it is followed to the end plane so that its hits count.
    path = torch.where(path.isfinite(), path, helix.to_plane(geometry.hcal.endcap.inner * helix.tan_lambda.sign()))
    crossed = (crossings.path <= path) & charged
    num_hits = (crossings.hits * crossed).sum(0).to(torch.int64)
    return Ends(kind, torch.where(path.isfinite(), path, 0.0), face, num_hits)


#: Products of a nuclear interaction and how often each kind is one: pions first, knocked-out nucleons after.
_PRODUCTS = ((211, 0.26), (-211, 0.26), (111, 0.26), (2112, 0.12), (2212, 0.10))
_MOST_PRODUCTS = 12
_TRANSVERSE_KICK = 0.3  # GeV


def convert(photons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Photon to electron and positron, sharing the energy uniformly (the Bethe-Heitler spectrum is flat within 20 %)."""
    share = draw.uniform(photons.px)
    rows = torch.arange(len(photons), device=draw.device)

    def leg(pdg: int, part: Tensor) -> Flight:
        momentum = (photons.px * part, photons.py * part, photons.pz * part)
        return daughters(photons, rows, species.row(pdg), momentum)

    return Flight.join([leg(11, share), leg(-11, 1.0 - share)])


def radiate(electrons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Bremsstrahlung: the electron goes on, collinear with a photon of spectrum (4/3 - 4/3 y + y^2)/y."""
    share = SOFTEST_PHOTON ** draw.uniform(electrons.px)
    # Emissions were sampled with the rate of 4/(3y), so the rest of the spectrum is an acceptance.
    accepted = draw.uniform(share) < 1.0 - share + 0.75 * share**2
    share = torch.where(accepted, share, 0.0)
    rows = torch.arange(len(electrons), device=draw.device)
    rest = 1.0 - share
    slower = (electrons.px * rest, electrons.py * rest, electrons.pz * rest)
    photon = (electrons.px * share, electrons.py * share, electrons.pz * share)
    going_on = daughters(electrons, rows, electrons.species, slower, root=electrons.root)
    return Flight.join([going_on, daughters(electrons, rows, species.row(22), photon).take(accepted)])


def break_up(hadrons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Nuclear interaction: a handful of pions and nucleons share the energy, with a transverse kick each."""
    energy = hadrons.energy(species)
    available = energy - species.mass[hadrons.species] * species.baryon[hadrons.species]
    count = 2.0 + draw.poisson(0.5 + 0.6 * torch.log1p(available))
    count = count.clamp_max(_MOST_PRODUCTS).to(torch.int64)
    rows = torch.repeat_interleave(torch.arange(len(hadrons), device=draw.device), count)
    weight = draw.exponential(available[rows])
    total = torch.zeros_like(available).index_add_(0, rows, weight)
    share = available[rows] * weight / total[rows]

    chances = torch.tensor([chance for _, chance in _PRODUCTS], dtype=share.dtype, device=draw.device).cumsum(0)
    kinds = torch.tensor([species.row(pdg) for pdg, _ in _PRODUCTS], device=draw.device)
    pick = torch.bucketize(draw.uniform(share) * chances[-1], chances, right=True).clamp_max(len(_PRODUCTS) - 1)
    kind = kinds[pick]
    # A nucleon was there before: its share is kinetic. A pion is made: its share is all of its energy.
    mass = species.mass[kind]
    product_energy = share + mass * (species.baryon[kind] != 0)
    momentum = torch.sqrt((product_energy**2 - mass**2).clamp_min(1e-6))

    angle = (draw.exponential(momentum) * _TRANSVERSE_KICK / momentum).clamp_max(1.2)
    return daughters(hadrons, rows, kind, tilted(hadrons, rows, momentum, angle, draw))


def tilted(parents: Flight, rows: Tensor, momentum: Tensor, angle: Tensor, draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Momenta at an angle to the parents' directions, at a random azimuth."""
    length = parents.momentum.clamp_min(1e-9)
    axis = tuple((component / length)[rows] for component in (parents.px, parents.py, parents.pz))
    first, second = orthogonal_frame(*axis)
    azimuth = 2.0 * torch.pi * draw.uniform(angle)
    along, across = torch.cos(angle), torch.sin(angle)
    u, v = across * torch.cos(azimuth), across * torch.sin(azimuth)
    px, py, pz = (momentum * (along * a + u * b + v * c) for a, b, c in zip(axis, first, second, strict=True))
    return px, py, pz


_MOST_GENERATIONS = 5
#: Secondaries below this momentum are absorbed on the spot.
_SOFTEST_SECONDARY = 0.003


@dataclass(frozen=True)
class TrackerOutput:
    """Every flight of every generation with its end, and the rows that reach the calorimeter."""

    flights: Flight
    helices: Helix
    ends: Ends
    entry: Flight  # the same at the calorimeter face
    entry_row: Tensor  # row in `flights` of each entry
    face: Tensor  # which face it is


def track_through(primaries: Flight, species: SpeciesTable, geometry: DetectorGeometry, draw: Draw) -> TrackerOutput:
    """Fly all particles, generation by generation, until nothing interacts or decays any more."""
    generation = primaries
    flights: list[Flight] = []
    helices: list[Helix] = []
    all_ends: list[Ends] = []
    next_row = 0
    for depth in range(_MOST_GENERATIONS):
        rows = torch.arange(next_row, next_row + len(generation), device=draw.device)
        generation = replace(generation, root=torch.where(generation.root < 0, rows, generation.root))
        helix = generation.helix(species, geometry.field)
        ends = fly(generation, helix, species, geometry, draw, last=depth == _MOST_GENERATIONS - 1)
        flights.append(generation)
        helices.append(helix)
        all_ends.append(ends)
        next_row += len(generation)
        generation = _next_generation(generation, helix, ends, species, draw)
        if len(generation) == 0:
            break
    flight, helix, ends = Flight.join(flights), Helix.join(helices), Ends.join(all_ends)
    entry_row = torch.nonzero(ends.kind == CALORIMETER).squeeze(1)
    entry = moved(flight.take(entry_row), helix.take(entry_row), ends.path[entry_row], species)
    return TrackerOutput(flight, helix, ends, entry, entry_row, ends.face[entry_row])


def moved(flight: Flight, helix: Helix, path: Tensor, species: SpeciesTable) -> Flight:
    """The same particles after a transverse path: position, direction and time of flight."""
    x, y, z = helix.position(path)
    dx, dy, dz = helix.direction(path)
    momentum = flight.momentum
    velocity = SPEED_OF_LIGHT * momentum / flight.energy(species)
    time = flight.time + helix.length(path) / velocity.clamp_min(1e-3)
    return replace(flight, x=x, y=y, z=z, time=time, px=momentum * dx, py=momentum * dy, pz=momentum * dz)


def _next_generation(flight: Flight, helix: Helix, ends: Ends, species: SpeciesTable, draw: Draw) -> Flight:
    changed = torch.nonzero((ends.kind == INTERACTION) | (ends.kind == DECAY)).squeeze(1)
    at_end = moved(flight.take(changed), helix.take(changed), ends.path[changed], species)
    decays = ends.kind[changed] == DECAY
    kind = at_end.species
    made = [
        convert(at_end.take(~decays & species.is_photon[kind]), species, draw),
        radiate(at_end.take(~decays & species.is_electron[kind]), species, draw),
        break_up(at_end.take(~decays & species.is_hadron[kind]), species, draw),
        decay(at_end.take(decays), species, draw),
    ]
    together = Flight.join(made)
    return together.take(together.momentum > _SOFTEST_SECONDARY)


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

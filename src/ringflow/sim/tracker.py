"""The tracker: follow every particle and what it turns into until the calorimeter, then measure the tracks.

In the material photons convert, electrons radiate and hadrons interact. Energies are conserved; the recoil of the nucleus is
left out. Particles that live long decay in flight, by two- and three-body phase space; short-lived ones (K0S, hyperons, charm)
are decayed by the generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from scipy.special import stdtrit
from torch import Tensor

from ringflow.elements.frame import FrameSettings
from ringflow.elements.helix import Helix, Vector
from ringflow.elements.tables import ColumnTable
from ringflow.event.particles import BENDING, SPEED_OF_LIGHT, properties
from ringflow.sim.flight import CHANNELS, NEUTRINO, Draw, Flight, SpeciesTable, born, tilted
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
class Ends(ColumnTable):
    """How each flight ended: kind, transverse path to the end, calorimeter face (if any), tracker hits on the way and the path
    to the last of them."""

    kind: Tensor
    path: Tensor
    face: Tensor
    num_hits: Tensor
    last_hit: Tensor


def cross_layers(helix: Helix, tracker: TrackerGeometry) -> Vector:
    """Crossings of barrel layers and disks, as [layer, particle]: path (infinite where there is none), X0 and hits."""
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
    return torch.cat([path_b, path_d]), thickness / cosine, hits


def enter_calorimeter(helix: Helix, geometry: DetectorGeometry) -> tuple[Tensor, Tensor]:
    """Path to the calorimeter face and which face it is; infinite if it is never met."""
    endcaps = [(endcap.inner, endcap.r_min, endcap.r_max) for endcap in (geometry.ecal.endcap, geometry.hcal.endcap)]
    return helix.to_faces(geometry.face_radius, geometry.sides, geometry.ecal.barrel.half_length, endcaps)


def fly(
    flight: Flight, helix: Helix, species: SpeciesTable, geometry: DetectorGeometry, draw: Draw, last: bool
) -> Ends:
    """Let every particle fly to its end; in the last generation nothing interacts or decays any more."""
    kind_of = flight.species
    calorimeter, face = enter_calorimeter(helix, geometry)
    crossing, radiation_lengths, hits = cross_layers(helix, geometry.tracker)
    charged = species.charge[kind_of] != 0

    rate = PAIR_PRODUCTION * species.is_photon + BREMSSTRAHLUNG * species.is_electron
    rate = rate + geometry.tracker.lambda_per_x0 * species.is_hadron
    chance = -torch.expm1(-rate[kind_of] * radiation_lengths)
    happens = draw.uniform(chance) < chance
    interaction = torch.where(happens, crossing, torch.inf).amin(0)

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
    # A fit takes a looper on its way out: to where it turns back.
    apex = torch.pi / helix.turn.abs().clamp_min(1e-12)
    crossed = (crossing <= torch.minimum(path, apex)) & charged & (hits > 0)
    if (efficiency := geometry.tracker.faults.layer_efficiency) < 1.0:
        crossed &= draw.uniform(chance) < efficiency
    num_hits = (hits * crossed).sum(0).to(torch.int64)
    last_hit = torch.where(crossed, crossing, 0.0).amax(0)
    return Ends(kind, torch.where(path.isfinite(), path, 0.0), face, num_hits, last_hit)


#: Products of a nuclear interaction and how often each kind is one: pions first, knocked-out nucleons after.
_PRODUCTS = ((211, 0.26), (-211, 0.26), (111, 0.26), (2112, 0.12), (2212, 0.10))
_MOST_PRODUCTS = 12
_TRANSVERSE_KICK = 0.3  # GeV


def _scaled(flight: Flight, share: Tensor) -> Vector:
    return flight.px * share, flight.py * share, flight.pz * share


def convert(photons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Photon to electron and positron, sharing the energy uniformly (the Bethe-Heitler spectrum is flat within 20 %)."""
    share = draw.uniform(photons.px)
    legs = ((11, share), (-11, 1.0 - share))
    return Flight.join([born(photons, species.row(pdg), _scaled(photons, part)) for pdg, part in legs])


def radiate(electrons: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Bremsstrahlung: the electron goes on, collinear with a photon of spectrum (4/3 - 4/3 y + y^2)/y."""
    share = SOFTEST_PHOTON ** draw.uniform(electrons.px)
    # Emissions were sampled with the rate of 4/(3y), so the rest of the spectrum is an acceptance.
    accepted = draw.uniform(share) < 1.0 - share + 0.75 * share**2
    share = torch.where(accepted, share, 0.0)
    px, py, pz = _scaled(electrons, 1.0 - share)
    photons = born(electrons, species.row(22), _scaled(electrons, share))
    return Flight.join([replace(electrons, px=px, py=py, pz=pz), photons.take(accepted)])


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
    at = hadrons.take(rows)
    length = at.momentum.clamp_min(1e-9)
    px, py, pz = (momentum * part for part in tilted((at.px / length, at.py / length, at.pz / length), angle, draw))
    return born(at, kind, (px, py, pz))


_MOST_CHANNELS = max(len(channels) for channels in CHANNELS.values())


def decay(parents: Flight, species: SpeciesTable, draw: Draw) -> Flight:
    """Visible daughters of decaying particles."""
    first, upper, kinds, masses, has_three = _channels(species, draw.device)
    channel = first[parents.species]
    chance = draw.uniform(parents.px)
    for _ in range(_MOST_CHANNELS - 1):
        channel = channel + (chance >= upper[channel])
    m1, m2, m3 = masses[channel].unbind(1)
    mother = (parents.px, parents.py, parents.pz, parents.energy(species))
    mass = species.mass[parents.species]
    three = has_three[channel]
    # A decay into three is one into a pair and a third, then one of the pair; in a decay into two the parent is the pair.
    pair_mass = torch.where(three, draw_pair_mass(mass, m1, m2, m3, draw), mass)
    together, third = two_body(mother, mass, torch.where(three, pair_mass, 0.0), m3, draw)
    pair = tuple(torch.where(three, a, b) for a, b in zip(together, mother, strict=True))
    momenta = [*two_body(pair, pair_mass, m1, m2, draw), third]
    made = [born(parents, kinds[channel, k], momenta[k][:3]) for k in range(3)]
    there = (torch.ones_like(three), torch.ones_like(three), three)
    return Flight.join([part.take((part.species >= 0) & seen) for part, seen in zip(made, there, strict=True)])


def _channels(species: SpeciesTable, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Channels of every species, particles and antiparticles, one after the other.

    Per species its first channel; per channel the upper edge of its share of [0, 1) among those of its parent, kinds (-1 for
    neutrinos and missing ones) and masses of three daughters, and whether there are three.
    """
    first: list[int] = []
    rows: list[tuple[float, list[int], list[float], bool]] = []
    for parent in species.pdg:
        first.append(len(rows))
        channels = CHANNELS.get(abs(parent), ())
        total, edge = sum(chance for chance, _ in channels), 0.0
        for chance, products in channels:
            edge += chance / total
            # Photons, neutral pions and neutrinos are their own antiparticles.
            own = (22, 111, NEUTRINO)
            made = [pdg if parent > 0 or pdg in own else -pdg for pdg in (*products, NEUTRINO)[:3]]
            kinds = [-1 if pdg == NEUTRINO else species.row(pdg) for pdg in made]
            rows.append((edge, kinds, [properties(pdg).mass for pdg in made], len(products) == 3))

    def column(number: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.tensor([row[number] for row in rows], dtype=dtype, device=device)

    return torch.tensor(first, device=device), column(0, torch.float64), column(1), column(2, torch.float64), column(3)


def two_body(
    mother: tuple[Tensor, ...], mass: Tensor, m1: Tensor, m2: Tensor, draw: Draw
) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Isotropic decay into two, boosted to the laboratory; vectors are px, py, pz, energy."""
    p = _breakup_momentum(mass, m1, m2)
    cosine = 2.0 * draw.uniform(p) - 1.0
    sine = torch.sqrt(1.0 - cosine**2)
    azimuth = 2.0 * torch.pi * draw.uniform(p)
    px, py, pz = p * sine * torch.cos(azimuth), p * sine * torch.sin(azimuth), p * cosine
    fx, fy, fz, frame_energy = mother
    made = []
    for x, y, z, m in ((px, py, pz, m1), (-px, -py, -pz, m2)):
        energy = torch.sqrt(p**2 + m**2)
        product = fx * x + fy * y + fz * z
        shift = (product / (frame_energy + mass) + energy) / mass
        made.append((x + fx * shift, y + fy * shift, z + fz * shift, (frame_energy * energy + product) / mass))
    return made


def draw_pair_mass(mass: Tensor, m1: Tensor, m2: Tensor, m3: Tensor, draw: Draw) -> Tensor:
    """Mass of the first two of three daughters, by phase space: the product of the two break-up momenta."""
    low, span = m1 + m2, (mass - m1 - m2 - m3).clamp_min(0.0)
    pair = low + span * draw.uniform(mass)
    weight = _breakup_momentum(mass, pair, m3) * _breakup_momentum(pair, m1, m2)
    for _ in range(6):  # Metropolis steps with an independent proposal find the spectrum within a few steps
        other = low + span * draw.uniform(mass)
        other_weight = _breakup_momentum(mass, other, m3) * _breakup_momentum(other, m1, m2)
        accept = draw.uniform(mass) * weight < other_weight
        pair, weight = torch.where(accept, other, pair), torch.where(accept, other_weight, weight)
    return pair


def _breakup_momentum(mass: Tensor, m1: Tensor, m2: Tensor) -> Tensor:
    """Momentum of the daughters of a two-body decay at rest (Kaellen function)."""
    term = (mass**2 - (m1 + m2) ** 2) * (mass**2 - (m1 - m2) ** 2)
    return torch.sqrt(term.clamp_min(0.0)) / (2.0 * mass.clamp_min(1e-9))


_MOST_GENERATIONS = 5
#: Secondaries below this momentum are absorbed on the spot.
_SOFTEST_SECONDARY = 0.003


class TrackerOutput(NamedTuple):
    """Every flight of every generation with its end, and what reaches the calorimeter."""

    flights: Flight
    helices: Helix
    ends: Ends
    entry: Flight  # at the calorimeter face
    face: Tensor  # which face it is


def track_through(primaries: Flight, species: SpeciesTable, geometry: DetectorGeometry, draw: Draw) -> TrackerOutput:
    """Fly all particles, generation by generation, until nothing interacts or decays any more."""
    generation = primaries
    flown: list[tuple[Flight, Helix, Ends]] = []
    next_row = 0
    for depth in range(_MOST_GENERATIONS):
        rows = torch.arange(next_row, next_row + len(generation), device=draw.device)
        generation = replace(generation, root=torch.where(generation.root < 0, rows, generation.root))
        helix = generation.helix(species, geometry.field)
        ends = fly(generation, helix, species, geometry, draw, last=depth == _MOST_GENERATIONS - 1)
        flown.append((generation, helix, ends))
        next_row += len(generation)
        generation = _next_generation(generation, helix, ends, species, draw)
        if len(generation) == 0:
            break
    flights, helices, all_ends = zip(*flown, strict=True)
    flight, helix, ends = Flight.join(flights), Helix.join(helices), Ends.join(all_ends)
    entering = torch.nonzero(ends.kind == CALORIMETER).squeeze(1)
    entry = moved(flight.take(entering), helix.take(entering), ends.path[entering], species)
    return TrackerOutput(flight, helix, ends, entry, ends.face[entering])


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
#: A fit is followed for so many turns behind its last hit, where the tracker is continuous, and finds so many half turns more.
_FOLLOWED_TURNS, _MOST_RETURNS = 1.5, 5.0
#: Spread of the uncertainties of impact parameters against that of others.
_INNERMOST_SPREAD = 4.0
#: A track that begins so far out (mm) misses the silicon that measures its direction, at most by such a factor.
_SILICON, _WITHOUT_SILICON = 100.0, 4.0
#: Share of the tracker below which a track is not measured any worse.
_SHORTEST_ARM = 0.2


@dataclass(frozen=True)
class FittedTracks(ColumnTable):
    """What pattern recognition and fit know of tracks; their columns are made of nothing else."""

    pt: Tensor
    theta: Tensor
    phi: Tensor  # at the perigee
    charge: Tensor
    d0: Tensor
    z0: Tensor
    chi2: Tensor
    ndf: Tensor
    num_hits: Tensor
    dedx: Tensor
    arm: Tensor  # from the first hit to the last, as a share of what the tracker has
    start: Tensor  # distance of its beginning from the beam, mm
    last_x: Tensor
    last_y: Tensor
    last_z: Tensor
    last_phi: Tensor  # azimuth of the momentum at the last hit
    last_time: Tensor


def measure_tracks(
    output: TrackerOutput, species: SpeciesTable, geometry: DetectorGeometry, event_of: Tensor, draw: Draw
) -> tuple[Columns, Tensor]:
    """Columns of the `track` collection, in order of falling pt, and the event of each track.

    `particle` counts over the whole block, as `event_of` does, and is -1 for a track of nobody.
    """
    fitted, particle, event = find_tracks(output, species, geometry, event_of, draw)
    order = torch.argsort(fitted.pt, descending=True, stable=True)
    order = order[torch.argsort(event[order], stable=True)]
    columns = {**track_columns(fitted, geometry), "particle": particle}
    if (spread := geometry.tracker.faults.uncertainty_spread) > 0.0:
        # Angles, ambiguous hits and material differ from track to track more than region and momentum tell, and what hangs on
        # the innermost hits most of all.
        for name in TRACK_PARAMETERS:
            more = _INNERMOST_SPREAD if name in ("d0", "z0") else 1.0
            columns[f"sigma_{name}"] = columns[f"sigma_{name}"] * torch.exp(more * spread * draw.normal(fitted.pt))
    return {name: values[order] for name, values in columns.items()}, event[order]


def find_tracks(
    output: TrackerOutput, species: SpeciesTable, geometry: DetectorGeometry, event_of: Tensor, draw: Draw
) -> tuple[FittedTracks, Tensor, Tensor]:
    """Tracks as pattern recognition and fit return them, with the particle that left each (-1: nobody) and their event."""
    tracker, faults = geometry.tracker, geometry.tracker.faults
    flights, helices = output.flights, output.helices
    root, last, num_hits, momentum = _chains(output)
    pt = (momentum / torch.sqrt(1.0 + helices.tan_lambda[root] ** 2)).clamp_min(1e-6)
    eta = torch.asinh(helices.tan_lambda[root])
    chance = torch.zeros_like(pt)
    for row in tracker.efficiency:
        chance = torch.where((pt >= row.pt_min) & (eta.abs() <= row.eta_max), row.value, chance)
    found = (draw.uniform(pt) < chance) & (num_hits >= tracker.min_hits)
    found &= ~_lost_beside(event_of[flights.particle[root]], eta, helices.phi[root], pt, found, geometry, draw)
    root, last, num_hits, pt = root[found], last[found], num_hits[found], pt[found]

    # Which part of its hits makes a track: all, or a piece of them where pattern recognition went wrong.
    whole = torch.arange(len(root), device=draw.device)
    splits = (draw.uniform(pt) < faults.split) & (root == last)
    again = draw.uniform(pt) < faults.duplicate
    share = 0.3 + 0.4 * draw.uniform(pt)
    of = torch.cat([whole, whole[splits], whole[again]])
    begin = torch.cat([torch.zeros_like(pt), share[splits], torch.zeros_like(pt[again])])
    end = torch.cat([torch.where(splits, share, 1.0), torch.ones_like(pt[splits]), torch.ones_like(pt[again])])
    used = torch.ones_like(end)
    used[len(whole) + int(splits.sum()) :] = 0.6  # of the hits of the first
    hits_of_piece = torch.round(num_hits[of] * (end - begin) * used).to(torch.int64)
    enough = hits_of_piece >= min(tracker.min_hits, 3)
    of, begin, end, used, hits_of_piece = (column[enough] for column in (of, begin, end, used, hits_of_piece))
    root, last, pt = root[of], last[of], pt[of]

    last_hit = end * output.ends.last_hit[last]
    at = moved(flights.take(last), helices.take(last), last_hit, species)
    point = tracker.point_resolution
    last_x, last_y, last_z = (place + point * draw.normal(pt) for place in (at.x, at.y, at.z))
    reach = _reach(last_x, last_y, last_z, tracker)
    if tracker.continuous:
        # Half a turn is all a fit can want, and every further one gives hits.
        turn = helices.turn[last].abs()
        half_turns = turn * last_hit / torch.pi
        reach = torch.maximum(reach, half_turns.clamp_max(1.0))
        more = (turn * output.ends.path[last] / torch.pi - 1.0).clamp(0.0, _MOST_RETURNS)
        hits_of_piece = torch.round(hits_of_piece * (1.0 + more * draw.uniform(pt))).to(torch.int64)
    arm = (end - begin) * used.sqrt() * reach
    start = torch.hypot(flights.x[root], flights.y[root])
    theta = torch.atan2(torch.ones_like(pt), helices.tan_lambda[root])
    scale = torch.ones_like(pt)
    kinked = draw.uniform(pt) < faults.kink
    scale = torch.where(kinked, faults.kink_scale, scale)
    sigma = _resolutions(pt, theta, arm, tracker, start)
    # Errors of the parameters with the correlations of the fit.
    stacked = torch.stack([sigma[name] for name in TRACK_PARAMETERS], dim=1)
    correlation = torch.as_tensor(tracker.correlation_matrix(), device=stacked.device)
    normal = draw.normal(stacked) @ torch.linalg.cholesky(correlation).T.to(stacked.dtype)
    shift = dict(
        zip(TRACK_PARAMETERS, (stacked * normal * (scale * _tail(pt, tracker, draw))[:, None]).unbind(1), strict=True)
    )
    d0, z0, phi = helices.take(root).perigee()
    far = 1.0 + 10.0 * begin  # from the first hit of the piece back to the beam
    kind = flights.species[root]
    ndf = (2 * hits_of_piece - 5).clamp_min(1)
    fitted = FittedTracks(
        # The curvature is what a fit measures, so the relative error is that of 1/pt.
        pt=pt / (1.0 + shift["pt"]).clamp_min(0.05),
        theta=(theta + shift["theta"]).clamp(1e-3, torch.pi - 1e-3),
        phi=_wrapped(phi + shift["phi"]),
        charge=species.charge[kind],
        d0=d0 + far * shift["d0"],
        z0=z0 + far * shift["z0"],
        chi2=2.0 * draw.gamma(0.5 * ndf.to(pt.dtype)) * torch.where(kinked, faults.kink_scale, 1.0),
        ndf=ndf,
        num_hits=hits_of_piece,
        dedx=_energy_loss(flights.momentum[root], species.mass[kind])
        * (1.0 + tracker.dedx_resolution * draw.normal(pt)).clamp_min(0.05),
        arm=arm,
        start=start,
        last_x=last_x,
        last_y=last_y,
        last_z=last_z,
        last_phi=torch.atan2(at.py, at.px) + sigma["phi"] * draw.normal(pt),
        last_time=at.time + tracker.time_resolution * draw.normal(pt),
    )
    particle = flights.particle[root]
    fakes, source = _fakes(fitted, geometry, draw)
    nobody = torch.full_like(source, -1)
    event = event_of[particle]
    return (
        FittedTracks.join([fitted, fakes]),
        torch.cat([particle, nobody]),
        torch.cat([event, event[source]]),
    )


def track_columns(fitted: FittedTracks, geometry: DetectorGeometry) -> Columns:
    """Columns of the `track` collection, without the particle."""
    turn = -BENDING * geometry.field * fitted.charge / fitted.pt
    tan_lambda = 1.0 / torch.tan(fitted.theta)
    helix = Helix(fitted.last_x, fitted.last_y, fitted.last_z, fitted.last_phi, tan_lambda, turn)
    path, _ = enter_calorimeter(helix, geometry)
    turns = (
        min(geometry.tracker.max_turns, _FOLLOWED_TURNS) if geometry.tracker.continuous else geometry.tracker.max_turns
    )
    reaches = path <= 2.0 * torch.pi * turns / turn.abs().clamp_min(1e-12)
    path = torch.where(reaches, path, 0.0)
    point = zip(("calo_x", "calo_y", "calo_z"), helix.position(path), strict=True)
    towards = zip(("calo_dx", "calo_dy", "calo_dz"), helix.direction(path), strict=True)
    sigma = _resolutions(fitted.pt, fitted.theta, fitted.arm, geometry.tracker, fitted.start)
    return {
        **{
            name: getattr(fitted, name)
            for name in ("pt", "phi", "charge", "d0", "z0", "chi2", "ndf", "num_hits", "dedx")
        },
        "eta": -torch.log(torch.tan(0.5 * fitted.theta)),
        **{f"sigma_{name}": sigma[name] for name in TRACK_PARAMETERS},
        "time": fitted.last_time + helix.length(path) / SPEED_OF_LIGHT,
        "reaches_calo": reaches,
        **dict(point),
        **dict(towards),
        **{name: getattr(fitted, name) for name in ("last_x", "last_y", "last_z")},
    }


def _chains(output: TrackerOutput) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tracks as chains of flights with one root: the root, the last row with a hit, all hits, and the momentum averaged over
    the hits."""
    flights, ends = output.flights, output.ends
    rows = torch.arange(len(flights), device=flights.root.device)
    hits = torch.zeros_like(rows).index_add_(0, flights.root, ends.num_hits)
    # Rows are in order of generation, so the largest row of a chain is its last.
    last = torch.zeros_like(rows).scatter_reduce_(
        0, flights.root, torch.where(ends.num_hits > 0, rows, -1), "amax", include_self=False
    )
    weighted = torch.zeros_like(flights.px).index_add_(0, flights.root, flights.momentum * ends.num_hits)
    root = torch.nonzero((flights.root == rows) & (hits > 0)).squeeze(1)
    return root, last[root], hits[root], weighted[root] / hits[root]


def _lost_beside(
    event: Tensor, eta: Tensor, phi: Tensor, pt: Tensor, found: Tensor, geometry: DetectorGeometry, draw: Draw
) -> Tensor:
    """Tracks that pattern recognition gives to a stiffer one beside them: of neighbours in azimuth the softer one, at times."""
    faults = geometry.tracker.faults
    lost = torch.zeros_like(found)
    rows = torch.nonzero(found).squeeze(1)
    if faults.close_loss == 0.0 or len(rows) < 2:
        return lost
    rows = rows[torch.argsort(phi[rows])]
    rows = rows[torch.argsort(event[rows], stable=True)]
    one, other = rows[:-1], rows[1:]
    near = torch.hypot(eta[one] - eta[other], _wrapped(phi[one] - phi[other])) < faults.close_distance
    happens = (event[one] == event[other]) & near & (draw.uniform(pt[one]) < faults.close_loss)
    lost[torch.where(pt[one] < pt[other], one, other)[happens]] = True
    return lost


def _fakes(like: FittedTracks, geometry: DetectorGeometry, draw: Draw) -> tuple[FittedTracks, Tensor]:
    """Tracks of hits that belong to nobody together, each near a track of the same event, and which that is."""
    tracker, faults = geometry.tracker, geometry.tracker.faults
    source = torch.nonzero(draw.uniform(like.pt) < faults.fake).squeeze(1)
    near = like.take(source)
    pt = min(row.pt_min for row in tracker.efficiency) + faults.fake_pt * draw.exponential(near.pt)
    theta = (near.theta + 0.2 * draw.normal(pt)).clamp(0.15, torch.pi - 0.15)
    phi = _wrapped(near.phi + 0.3 * draw.normal(pt))
    charge = torch.where(draw.uniform(pt) < 0.5, -1.0, 1.0).to(near.charge.dtype)
    d0, z0 = 2.0 * draw.normal(pt), 5.0 * draw.normal(pt)
    num_hits = tracker.min_hits + draw.poisson(torch.full_like(pt, 1.0)).to(torch.int64)
    ndf = (2 * num_hits - 5).clamp_min(1)
    arm = 0.25 + 0.75 * draw.uniform(pt)
    turn = -BENDING * geometry.field * charge / pt
    start = Helix(d0 * torch.sin(phi), -d0 * torch.cos(phi), z0, phi, 1.0 / torch.tan(theta), turn)
    radius, half_length = tracker.cylinder
    straight = torch.minimum(radius * torch.ones_like(pt), half_length * torch.tan(theta).abs())
    path = torch.minimum(arm * straight, torch.pi / turn.abs())
    x, y, z = start.position(path)
    fakes = FittedTracks(
        pt=pt,
        theta=theta,
        phi=phi,
        charge=charge,
        d0=d0,
        z0=z0,
        chi2=6.0 * draw.gamma(0.5 * ndf.to(pt.dtype)),
        ndf=ndf,
        num_hits=num_hits,
        dedx=1.0 + draw.exponential(pt),
        arm=arm,
        start=torch.zeros_like(pt),
        last_x=x,
        last_y=y,
        last_z=z,
        last_phi=phi + turn * path,
        last_time=near.last_time + tracker.time_resolution * draw.normal(pt),
    )
    return fakes, source


def _wrapped(angle: Tensor) -> Tensor:
    return torch.remainder(angle + torch.pi, 2.0 * torch.pi) - torch.pi


def _tail(like: Tensor, tracker: TrackerGeometry, draw: Draw) -> Tensor:
    """What makes Student's t out of a Gauss, at the same width of the middle 68 %."""
    if (dof := tracker.faults.tail_dof) is None:
        return torch.ones_like(like)
    narrower = 1.0 / _student_quantile(dof)
    return narrower * torch.rsqrt(2.0 * draw.gamma(torch.full_like(like, 0.5 * dof)) / dof)


@cache
def _student_quantile(dof: float) -> float:
    """Half the width of the middle 68.27 % of Student's t."""
    return float(stdtrit(dof, 0.841345))


def _reach(x: Tensor, y: Tensor, z: Tensor, tracker: TrackerGeometry) -> Tensor:
    """How far out a point lies, as a share of the tracker: one at its end."""
    radius, half_length = tracker.cylinder
    return torch.maximum(torch.hypot(x, y) / radius, z.abs() / half_length).clamp_max(1.0)


def _resolutions(
    pt: Tensor, theta: Tensor, arm: Tensor, tracker: TrackerGeometry, start: Tensor | None = None
) -> dict[str, Tensor]:
    """Uncertainties of the fitted parameters; a shorter arm measures all of them worse. Without a `start` tracks begin at the
    beam."""
    eta = -torch.log(torch.tan(0.5 * theta)).abs()
    sine = torch.sin(theta).clamp_min(1e-3)
    momentum = pt / sine
    worse = arm.clamp_min(_SHORTEST_ARM) ** -1.5

    def spread(parameter: ParameterResolution, scattering_power: float) -> Tensor:
        power = scattering_power if parameter.sine_power is None else parameter.sine_power
        return worse * torch.hypot(
            torch.full_like(pt, parameter.constant), parameter.scattering / (momentum * sine**power)
        )

    edges = torch.tensor([row.eta_max for row in tracker.resolution[:-1]], dtype=pt.dtype, device=pt.device)
    region = torch.bucketize(eta.abs(), edges)
    a, b = (
        torch.tensor([getattr(row, name) for row in tracker.resolution], dtype=pt.dtype, device=pt.device)[region]
        for name in ("a", "b")
    )
    phi, theta_spread = spread(tracker.phi, 0.5), spread(tracker.theta, 0.5)
    d0, z0 = spread(tracker.d0, 1.5), spread(tracker.z0, 2.5)
    if tracker.continuous and start is not None:
        # What begins far from the beam has no hits of silicon, and is extrapolated back to it.
        far = torch.hypot(torch.ones_like(start), start / _SILICON).clamp_max(_WITHOUT_SILICON)
        phi, theta_spread = far * phi, far * theta_spread
        d0 = torch.hypot(d0, start * phi)
        z0 = torch.hypot(z0, start * theta_spread / sine**2)
    return {"pt": worse * torch.hypot(a * pt, b), "phi": phi, "theta": theta_spread, "d0": d0, "z0": z0}


def _energy_loss(momentum: Tensor, mass: Tensor) -> Tensor:
    """Mean energy loss in silicon relative to its minimum, a Bethe curve with I = 173 eV and a density plateau."""
    beta_gamma = (momentum / mass.clamp_min(1e-6)).clamp(0.05, 1e5)
    beta2 = beta_gamma**2 / (1.0 + beta_gamma**2)
    rise = torch.log(2.0 * 0.511e6 * beta_gamma.clamp_max(100.0) ** 2 / 173.0)
    return (rise / beta2 - 1.0) / 11.0


#: Where a frame looks at what is usual: edges of |eta|, and momenta in GeV.
_FRAME_EDGES = (0.5, 1.0, 1.5, 2.0, 2.5)
_FRAME_MOMENTA = (0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 100.0)


def frame_of(geometry: DetectorGeometry) -> FrameSettings:
    """What a network that sees elements relative to their detector has to know of this one."""
    eta = torch.tensor([0.5 * (low + high) for low, high in pairwise((0.0, *_FRAME_EDGES, 3.0))], dtype=torch.float64)
    nothing = torch.zeros_like(eta)
    straight = Helix(nothing, nothing, nothing, nothing, torch.sinh(eta), nothing)
    crossing, _, hits = cross_layers(straight, geometry.tracker)
    usual = (hits * crossing.isfinite()).sum(0) * geometry.tracker.faults.layer_efficiency
    region, momentum = (
        grid.flatten() for grid in torch.meshgrid(eta, torch.tensor(_FRAME_MOMENTA, dtype=eta.dtype), indexing="ij")
    )
    theta = 2.0 * torch.atan(torch.exp(-region))
    sigma = _resolutions(momentum * torch.sin(theta), theta, torch.ones_like(theta), geometry.tracker)
    ecal, hcal = geometry.ecal, geometry.hcal
    lengths = []
    for shape in ("barrel", "endcap"):
        face, crossed, points = getattr(ecal, shape).inner, 0.0, [(0.0, 0.0)]
        for part in (ecal, hcal, geometry.yoke):
            start = getattr(part, shape).inner - face
            points.append((start, crossed))
            crossed += part.layers * part.lambda_per_layer
            points.append((start + part.depth, crossed))
        lengths.append([point for before, point in pairwise([(-1.0, 0.0), *points]) if point[0] > before[0]])
    return FrameSettings(
        detector=geometry.name,
        radius=geometry.face_radius,
        half_length=min(ecal.barrel.half_length, geometry.face_z),
        z=geometry.face_z,
        sides=geometry.sides,
        barrel_lengths=lengths[0],
        endcap_lengths=lengths[1],
        eta_edges=list(_FRAME_EDGES),
        hits=usual.clamp_min(1.0).tolist(),
        momenta=list(_FRAME_MOMENTA),
        errors={name: sigma[name].view(len(eta), -1).clamp_min(1e-12).tolist() for name in TRACK_PARAMETERS},
    )

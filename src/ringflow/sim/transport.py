"""Through the tracker: which layers a particle crosses, and what ends its flight (calorimeter, interaction, decay, nothing)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ringflow.sim.draw import Draw
from ringflow.sim.flight import Flight
from ringflow.sim.geometry import DetectorGeometry, TrackerGeometry
from ringflow.sim.helix import Helix
from ringflow.sim.species import SpeciesTable
from ringflow.sim.table import Table

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
class Ends(Table):
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

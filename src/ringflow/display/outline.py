"""The outline of a detector: what is drawn around an event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringflow.base.errors import UsageError
from ringflow.sim.geometry import CalorimeterGeometry, DetectorGeometry, load_detector

#: Radius and half length that lines are drawn to where the detector is not known: about those of all of them.
_USUAL_FACE = (1500.0, 2300.0)


@dataclass(frozen=True)
class Outline:
    """Cylinders (mm) of a detector, its field (tesla), and the face of its calorimeter, which lines are drawn to."""

    name: str
    field: float
    face_radius: float
    face_z: float
    parts: tuple[dict[str, Any], ...]

    def as_json(self) -> dict[str, Any]:
        """As the page reads it."""
        return {
            "name": self.name,
            "field": self.field,
            "face_radius": self.face_radius,
            "face_z": self.face_z,
            "parts": list(self.parts),
        }


def outline(detector: str, field: float | None = None) -> Outline:
    """The outline of a detector that we know by name; of another one only a tracker of the usual size."""
    try:
        geometry = load_detector(detector)
    except UsageError:
        radius, half_length = _USUAL_FACE
        return Outline(detector, field or 0.0, radius, half_length, (_layer("tracker", radius, half_length),))
    parts = [
        *(_layer("tracker", row[0], row[1]) for row in geometry.tracker.barrel if row[3]),
        *(_disk("tracker", row[0], row[1], row[2]) for row in geometry.tracker.disks),
        *(part for system in ("ecal", "hcal", "yoke") for part in _calorimeter(system, getattr(geometry, system))),
        _coil(geometry),
    ]
    return Outline(detector, field or geometry.field, geometry.face_radius, geometry.face_z, tuple(parts))


def _layer(system: str, radius: float, half_length: float) -> dict[str, Any]:
    return _cylinder(system, radius, radius, -half_length, half_length)


def _disk(system: str, z: float, r_min: float, r_max: float) -> dict[str, Any]:
    return {**_cylinder(system, r_min, r_max, z, z), "both_ends": True}


def _calorimeter(system: str, shape: CalorimeterGeometry) -> tuple[dict[str, Any], ...]:
    barrel, endcap = shape.barrel, shape.endcap
    return (
        _cylinder(system, barrel.inner, barrel.inner + shape.depth, -barrel.half_length, barrel.half_length),
        {
            **_cylinder(system, endcap.r_min, endcap.r_max, endcap.inner, endcap.inner + shape.depth),
            "both_ends": True,
        },
    )


def _coil(geometry: DetectorGeometry) -> dict[str, Any]:
    half_length = geometry.hcal.barrel.half_length
    return _cylinder("coil", geometry.coil.barrel.inner, geometry.coil.barrel.outer, -half_length, half_length)


def _cylinder(system: str, r_min: float, r_max: float, z_min: float, z_max: float) -> dict[str, Any]:
    """A hollow cylinder; `both_ends` asks for its mirror image at negative z too."""
    return {"system": system, "r_min": r_min, "r_max": r_max, "z_min": z_min, "z_max": z_max, "both_ends": False}

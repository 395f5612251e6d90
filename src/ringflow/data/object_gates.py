"""The gates that look at one collection at a time: ranges, codes, multiplicities."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ringflow.data.gates import NONE, Duplicates, EveryValue, Gate, Limits, Ratio, Values, column
from ringflow.data.manifest import Manifest
from ringflow.event.block import EventBlock
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import COLLECTIONS, SUBSYSTEMS

_LAST_CLASS = len(PARTICLE_CLASSES) - 1

#: Kind of sample -> collection -> plausible mean number per event. The ttbar figures are those of full simulation.
_PLAUSIBLE = {
    "ttbar": {"track": Limits(30, 120), "cluster": Limits(30, 300), "hit": Limits(4000, 15000)},
    "collision": {"track": Limits(1, 500), "cluster": Limits(1, 2000), "hit": Limits(100, 100000)},
    "other": {"track": Limits(0, 10000), "cluster": Limits(0, 100000), "hit": Limits(0, 10000000)},
}
_HITS_PER_GEV = {"ttbar": Limits(10, 60), "collision": Limits(5, 100), "other": Limits(0, 10000)}
_EMPTY_FRACTION = {"ttbar": NONE, "collision": Limits(0, 0.05), "other": Limits(0, 0.5)}

#: A part over the whole; sums of float32 numbers agree to a ten-thousandth.
_SHARE = Limits(0, 1.0001)
#: How far from the collision (mm) a calorimeter can be, in any detector.
_IN_A_CALORIMETER = Limits(100, 2e4)
#: Energies below this (GeV) are compared as if they had it.
_SMALL_ENERGY = 1e-6


def object_gates(manifest: Manifest) -> list[Gate]:
    """Values in range, and as many objects as the sample should have."""
    return [
        EveryValue("values that are not finite", (), NONE, _not_finite),
        EveryValue("track pt [GeV]", ("track_pt",), Limits(0.01, 1e4), _values("track_pt")),
        EveryValue("track eta", ("track_eta",), Limits(-5, 5), _values("track_eta")),
        EveryValue("cluster eta", ("cluster_eta",), Limits(-6, 6), _values("cluster_eta")),
        EveryValue("charges", (), Limits(-1, 1), _every("charge", tuple(COLLECTIONS))),
        EveryValue("energies [GeV]", (), Limits(0, 1e5), _every("energy", tuple(COLLECTIONS))),
        EveryValue("labels", (), Limits(0, _LAST_CLASS), _every("label", ("particle", "candidate"))),
        EveryValue("target labels", (), Limits(1, _LAST_CLASS), _every("label", ("target", "hit_target"))),
        EveryValue("hit subsystems", ("hit_subsystem",), Limits(0, len(SUBSYSTEMS) - 1), _values("hit_subsystem")),
        *_shape_gates(),
        *_multiplicity_gates(_kind(manifest)),
        Duplicates(),
    ]


def _kind(manifest: Manifest) -> str:
    settings = manifest.provenance.get("settings")
    generator = settings.get("generator") if isinstance(settings, dict) else None
    simulated = isinstance(generator, dict) and generator.get("sample") == manifest.sample
    if not simulated or manifest.sample == "gamma_gamma" or manifest.sample.startswith("gun_"):
        return "other"
    return manifest.sample if manifest.sample in _PLAUSIBLE else "collision"


def _shape_gates() -> Iterator[Gate]:
    """The finer columns of clusters; data that is older than they are, or of another detector, has none of them."""
    for part in ("front", "peak"):
        needs = (f"cluster_{part}_energy", "cluster_ecal_energy")
        yield EveryValue(f"cluster {part} energy over ECAL energy", needs, _SHARE, _share_of_ecal(f"{part}_energy"))
    for part in ("ecal", "hcal"):
        name = f"cluster_{part}_width"
        yield EveryValue(f"cluster {part.upper()} width [mm]", (name,), Limits(0, 1e4), _values(name))
    for part, what in (("ecal", "ECAL centre"), ("peak", "peak")):
        point = tuple(f"cluster_{part}_{axis}" for axis in "xyz")
        yield EveryValue(f"cluster {what} from the origin [mm]", point, _IN_A_CALORIMETER, _distance(part))
    for angle in ("phi", "theta"):
        name = f"cluster_slope_{angle}"
        yield EveryValue(f"cluster slope in {angle}", (name,), Limits(-1e3, 1e3), _values(name))


def _multiplicity_gates(kind: str) -> Iterator[Gate]:
    for collection, limits in _PLAUSIBLE[kind].items():
        yield Ratio(f"{collection}s per event", (collection,), limits, _per_event(collection))
    needs = ("hit", "particle_energy", "particle_label")
    yield Ratio("hits per visible GeV", needs, _HITS_PER_GEV[kind], _hits_and_visible_energy)
    yield Ratio("fraction of empty events", (), _EMPTY_FRACTION[kind], _empty_events)


def _values(name: str) -> Callable[[EventBlock], Values]:
    collection, _, rest = name.partition("_")
    return lambda block: column(block, collection, rest)


def _every(name: str, collections: tuple[str, ...]) -> Callable[[EventBlock], Values]:
    """A column of all the collections that have it, together."""

    def measure(block: EventBlock) -> Values:
        having = [part for part in collections if part in block and name in block[part].columns]
        return np.concatenate([column(block, part, name) for part in having] or [np.zeros(0)])

    return measure


def _share_of_ecal(name: str) -> Callable[[EventBlock], Values]:
    """A part of the energy in the electromagnetic calorimeter, over all of it."""
    return lambda block: (
        column(block, "cluster", name) / np.maximum(column(block, "cluster", "ecal_energy"), _SMALL_ENERGY)
    )


def _distance(part: str) -> Callable[[EventBlock], Values]:
    def measure(block: EventBlock) -> Values:
        x, y, z = (column(block, "cluster", f"{part}_{axis}").astype(np.float64) for axis in "xyz")
        return np.sqrt(x**2 + y**2 + z**2)

    return measure


def _not_finite(block: EventBlock) -> Values:
    columns = (values for part in block.collections.values() for values in part.columns.values())
    return np.array([np.count_nonzero(~np.isfinite(values)) for values in columns if values.dtype.kind == "f"])


def _per_event(collection: str) -> Callable[[EventBlock], tuple[float, float]]:
    return lambda block: (len(block[collection]), len(block))


def _hits_and_visible_energy(block: EventBlock) -> tuple[float, float]:
    visible = column(block, "particle", "label") > 0
    return len(block["hit"]), float(column(block, "particle", "energy")[visible].sum(dtype=np.float64))


def _empty_events(block: EventBlock) -> tuple[float, float]:
    """Events without anything a reconstruction could look at."""
    inputs = [block[name].counts for name in ("track", "cluster", "hit") if name in block]
    total = np.sum(inputs, axis=0) if inputs else np.ones(len(block))
    return float(np.count_nonzero(total == 0)), len(block)

"""What a gate is: it names the columns it needs, measures block after block, and gives a verdict.

Either every number must lie in a range, or the ratio of two sums over the dataset must, or no two events may be alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ringflow.base.errors import DatasetError
from ringflow.base.log import progress
from ringflow.data.manifest import KNOWN_FILES, MANIFEST_FILE, SPLITS, Columns, Manifest, Shard, read_manifest
from ringflow.data.read import UNREADABLE, read_shard
from ringflow.data.write import arrow_schema, file_hash
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, SUBSYSTEMS, parquet_name

Row = dict[str, Any]
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """An inclusive range and how to write it."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"

    def hold(self, low: float, high: float) -> bool:
        """Whether a range lies inside; NaN never does."""
        return self.low <= low and high <= self.high


#: For a count of things that must not be.
NONE = Limits(0, 0)


class EveryValue:
    """Every number a block gives must lie within the limits; observed: the smallest and the largest."""

    def __init__(
        self, name: str, needs: tuple[str, ...], limits: Limits, measure: Callable[[EventBlock], Values]
    ) -> None:
        self.name, self.needs, self._limits, self._measure = name, needs, limits, measure
        self._low, self._high = np.inf, -np.inf

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        values = self._measure(block)
        if values.size:
            self._low = float(np.minimum(self._low, values.min()))
            self._high = float(np.maximum(self._high, values.max()))

    def row(self) -> Row:
        """The verdict."""
        if self._low == np.inf and self._high == -np.inf:
            return {"gate": self.name, "ok": True, "observed": "nothing to measure", "expected": str(self._limits)}
        observed = f"{self._low:.4g}" if self._low == self._high else f"{self._low:.4g} to {self._high:.4g}"
        return {
            "gate": self.name,
            "ok": self._limits.hold(self._low, self._high),
            "observed": observed,
            "expected": str(self._limits),
        }


class Ratio:
    """The ratio of two sums over the dataset must lie within the limits."""

    def __init__(
        self, name: str, needs: tuple[str, ...], limits: Limits, parts: Callable[[EventBlock], tuple[float, float]]
    ) -> None:
        self.name, self.needs, self._limits, self._parts = name, needs, limits, parts
        self._above, self._below = 0.0, 0.0

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        above, below = self._parts(block)
        self._above += float(above)
        self._below += float(below)

    def row(self) -> Row:
        """The verdict."""
        if not self._below:
            return {"gate": self.name, "ok": True, "observed": "nothing to measure", "expected": str(self._limits)}
        value = self._above / self._below
        ok = self._limits.hold(value, value)
        return {"gate": self.name, "ok": ok, "observed": f"{value:.4g}", "expected": str(self._limits)}


class Duplicates:
    """No two events with the same content."""

    name = "duplicated events"
    needs = ()
    _CONTENT = ("track_pt", "cluster_energy", "hit_energy", "particle_px", "candidate_px")

    def __init__(self) -> None:
        self._digests: list[npt.NDArray[np.uint64]] = []

    def feed(self, block: EventBlock) -> None:
        """Remember 8 bytes per event."""
        columns = [(part, part.offsets, np.ascontiguousarray(part[column])) for part, column in self._content(block)]
        digests = []
        for event in range(len(block)):
            content = hashlib.blake2b(digest_size=8)
            for _, offsets, values in columns:
                content.update(values[offsets[event] : offsets[event + 1]].tobytes() + b"|")
            if any(part.counts[event] for part, _, _ in columns):  # empty events are all alike
                digests.append(int.from_bytes(content.digest(), "little"))
        self._digests.append(np.array(digests, dtype=np.uint64))

    def _content(self, block: EventBlock) -> Iterator[tuple[Collection, str]]:
        for collection, part in block.collections.items():
            for column in part.columns:
                if parquet_name(collection, column) in self._CONTENT:
                    yield part, column

    def row(self) -> Row:
        """The verdict."""
        digests = np.concatenate(self._digests) if self._digests else np.zeros(0, dtype=np.uint64)
        repeated = len(digests) - len(np.unique(digests))
        return {"gate": self.name, "ok": repeated == 0, "observed": repeated, "expected": 0}


Gate = EveryValue | Ratio | Duplicates


def column(block: EventBlock, collection: str, name: str) -> Values:
    """A flat column, as numbers."""
    return np.asarray(block[collection][name])


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


#: Sums of float32 numbers, in whatever order, agree to this relative precision.
SUM_PRECISION = Limits(0, 1e-4)
#: Four-momenta are accounted for to this fraction of the visible energy of the event.
ACCOUNTING_PRECISION = Limits(0, 1e-5)
#: Energies below this (GeV) are compared as if they had it.
SMALL_ENERGY = 1e-6
#: Of its energy a visible particle left more than this in the calorimeter, or it left a track.
VISIBLE_SHARE = 0.1


def link_gates() -> Iterator[EveryValue]:
    """Indices point to something; energies are the sums of their parts."""
    yield EveryValue("indices out of range", (), NONE, _indices_out_of_range)
    for collection in ("hit", "cluster"):
        link = f"{collection}_link"
        needs = (f"{collection}_energy", f"{link}_{collection}", f"{link}_energy")
        name = f"{collection} energy against its links"
        yield EveryValue(name, needs, SUM_PRECISION, _energy_against(collection, link, collection))
    from_hits = ("cluster_energy", "hit_cluster", "hit_energy")
    yield EveryValue(
        "cluster energy against its hits", from_hits, SUM_PRECISION, _energy_against("cluster", "hit", "cluster")
    )
    from_subsystems = ("cluster_energy", "cluster_ecal_energy", "cluster_hcal_energy", "cluster_muon_energy")
    yield EveryValue("cluster energy against its subsystems", from_subsystems, SUM_PRECISION, _subsystem_sum)
    yield EveryValue("cluster hit counts that differ", ("cluster_num_hits", "hit_cluster"), NONE, _wrong_hit_counts)


def accounting_gates() -> Iterator[EveryValue]:
    """The four-momenta of the targets of an event add up to those of its visible particles.

    Visible means visible in the elements: a soft photon can leave hits that no cluster took. `label` speaks of tracks and
    clusters, and so does `target`; `hit_target` has particles of its own.
    """
    momentum = ("px", "py", "pz", "energy")
    for collection, mark in (("target", "label"), ("hit_target", "hit_target")):
        columns = (f"{part}_{column}" for part in ("particle", collection) for column in momentum)
        needs = (f"particle_{mark}", *columns)
        yield EveryValue(f"{collection} four-momentum", needs, ACCOUNTING_PRECISION, _unaccounted(collection))


def target_gates() -> Iterator[EveryValue]:
    """Every target has one primary element of its own and the particles it says it has."""
    for collection, element in (("target", "cluster"), ("hit_target", "hit")):
        needs = (f"{collection}_track", f"{collection}_{element}")
        name = f"{collection}s without exactly one element"
        yield EveryValue(name, needs, NONE, _without_one_element(collection, element))
        yield EveryValue(f"elements with two {collection}s", needs, NONE, _claimed_twice(collection, element))
        counted = (f"particle_{collection}", f"{collection}_num_particles")
        yield EveryValue(
            f"{collection}s with another number of particles", counted, NONE, _wrong_particle_counts(collection)
        )
    needs = ("particle_label", "particle_target")
    yield EveryValue("visible particles without a target", needs, NONE, _lost_on_clusters)
    needs_energy = ("particle_label", "particle_hit_target", "particle_energy", "particle_calo_energy")
    yield EveryValue("visible particles without a hit_target", needs_energy, NONE, _lost_on_hits)


def event_of(block: EventBlock, collection: str) -> Values:
    """Row of the event in the block, for every object."""
    return np.repeat(np.arange(len(block)), block[collection].counts)


def flat_index(block: EventBlock, collection: str, name: str, points_to: str) -> Values:
    """An index within the event as an index into the flat column it points to; -1 where it points nowhere."""
    index = column(block, collection, name).astype(np.int64)
    event = event_of(block, collection)
    good = (index >= 0) & (index < block[points_to].counts[event])
    return np.where(good, block[points_to].offsets[event] + index, -1)


def sum_at(index: Values, weights: Values, length: int) -> Values:
    """Sum of the weights per index; index -1 is left out."""
    return np.bincount(index[index >= 0], weights[index >= 0].astype(np.float64), minlength=length)


def _indices_out_of_range(block: EventBlock) -> Values:
    wrong = [np.zeros(0, dtype=bool)]
    for name, part in block.collections.items():
        for described in COLLECTIONS[name]:
            if described.points_to in block.collections and described.name in part.columns:
                index = column(block, name, described.name)
                limit = block[described.points_to].counts[event_of(block, name)]
                wrong.append((index < -1) | (index >= limit))
    return np.array([np.count_nonzero(part) for part in wrong])


def _energy_against(whole: str, parts: str, index_column: str) -> Callable[[EventBlock], Values]:
    """Relative difference between an energy and the sum of its parts."""

    def measure(block: EventBlock) -> Values:
        index = flat_index(block, parts, index_column, whole)
        energy = column(block, whole, "energy").astype(np.float64)
        return _relative(sum_at(index, column(block, parts, "energy"), len(energy)), energy)

    return measure


def _relative(value: Values, reference: Values) -> Values:
    return np.asarray(np.abs(value - reference) / np.maximum(np.abs(reference), SMALL_ENERGY))


def _subsystem_sum(block: EventBlock) -> Values:
    parts = [column(block, "cluster", f"{part}_energy") for part in ("ecal", "hcal", "muon")]
    total = np.asarray(np.sum(parts, axis=0, dtype=np.float64))
    return _relative(total, column(block, "cluster", "energy").astype(np.float64))


def _wrong_hit_counts(block: EventBlock) -> Values:
    index = flat_index(block, "hit", "cluster", "cluster")
    counted = np.bincount(index[index >= 0], minlength=len(block["cluster"]))
    return np.array([np.count_nonzero(counted != column(block, "cluster", "num_hits"))])


def _unaccounted(collection: str) -> Callable[[EventBlock], Values]:
    """Largest lost or invented component of the four-momentum, as a fraction of the visible energy."""

    def measure(block: EventBlock) -> Values:
        seen = column(block, "particle", "label") > 0
        if collection == "hit_target":
            seen = column(block, "particle", "hit_target") >= 0
        visible = np.where(seen, event_of(block, "particle"), -1)
        owner = event_of(block, collection)
        worst = np.zeros(len(block))
        scale = np.maximum(sum_at(visible, column(block, "particle", "energy"), len(block)), SMALL_ENERGY)
        for component in ("px", "py", "pz", "energy"):
            truth = sum_at(visible, column(block, "particle", component), len(block))
            carried = sum_at(owner, column(block, collection, component), len(block))
            worst = np.maximum(worst, np.abs(carried - truth) / scale)
        return worst

    return measure


def _without_one_element(collection: str, element: str) -> Callable[[EventBlock], Values]:
    def measure(block: EventBlock) -> Values:
        elements = [column(block, collection, kind) >= 0 for kind in ("track", element)]
        return np.array([np.count_nonzero(np.sum(elements, axis=0) != 1)])

    return measure


def _claimed_twice(collection: str, element: str) -> Callable[[EventBlock], Values]:
    def measure(block: EventBlock) -> Values:
        indices = [flat_index(block, collection, kind, kind) for kind in ("track", element) if kind in block]
        return np.array([np.count_nonzero(np.bincount(index[index >= 0]) > 1) for index in indices])

    return measure


def _wrong_particle_counts(collection: str) -> Callable[[EventBlock], Values]:
    def measure(block: EventBlock) -> Values:
        index = flat_index(block, "particle", collection, collection)
        counted = np.bincount(index[index >= 0], minlength=len(block[collection]))
        return np.array([np.count_nonzero(counted != column(block, collection, "num_particles"))])

    return measure


def _lost_on_clusters(block: EventBlock) -> Values:
    """Particles with a label and no target, or the other way round."""
    return np.array([np.sum((column(block, "particle", "label") > 0) != (column(block, "particle", "target") >= 0))])


def _lost_on_hits(block: EventBlock) -> Values:
    """Particles without a target on hits that have one on clusters, or left enough in the hits to have one."""
    enough = column(block, "particle", "calo_energy") > VISIBLE_SHARE * (1 + 1e-4) * column(block, "particle", "energy")
    visible = enough | (column(block, "particle", "label") > 0)
    return np.array([np.sum(visible & (column(block, "particle", "hit_target") < 0))])


def check(path: Path) -> list[Row]:
    """Rows `{gate, ok, observed, expected}`; a folder that is no dataset at all is an error."""
    try:
        manifest = read_manifest(path)
    except DatasetError as error:
        if not (path / MANIFEST_FILE).is_file():
            raise
        return [_row("manifest readable", False, str(error), "a manifest of this schema version")]
    shards = _Shards(path, manifest)
    events = _Numbers(manifest)
    gates = [*object_gates(manifest), *link_gates(), *accounting_gates(), *target_gates()]
    present = [gate for gate in gates if _has(manifest.columns, gate.needs)]
    with progress(manifest.num_events, f"checking {manifest.sample}") as advance:
        for block in shards.blocks():
            events.feed(block)
            for gate in present:
                gate.feed(block)
            advance(len(block))
    return [
        _row("manifest readable", True, MANIFEST_FILE, MANIFEST_FILE),
        _row("schema version", True, manifest.schema_version, SCHEMA_VERSION),
        *shards.rows(),
        *events.rows(),
        *(gate.row() if gate in present else _absent(gate) for gate in gates),
    ]


def _row(gate: str, ok: bool, observed: object, expected: object) -> Row:
    return {"gate": gate, "ok": bool(ok), "observed": observed, "expected": expected}


def _absent(gate: Gate) -> Row:
    return _row(gate.name, True, "absent", f"skipped without {', '.join(gate.needs)}")


def _has(columns: Columns, needs: tuple[str, ...]) -> bool:
    names = {parquet_name(collection, column) for collection, present in columns.items() for column in present}
    return all(name in names or name in columns for name in needs)


class _Shards:
    """What can be wrong with files: missing, changed, unreadable, of other columns, or not ours."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path, self._manifest = path, manifest
        self._missing: list[str] = []
        self._changed: list[str] = []
        self._unreadable: list[str] = []
        self._other_columns: list[str] = []

    def blocks(self) -> Iterator[EventBlock]:
        """The blocks of all shards that can be read."""
        for shard in self._manifest.shards:
            try:
                if self._examine(shard):
                    yield from read_shard(self._path, shard, self._manifest.columns)
            except DatasetError as error:
                self._unreadable.append(str(error))

    def _examine(self, shard: Shard) -> bool:
        path = self._path / shard.file
        if not path.is_file():
            self._missing.append(shard.file)
            return False
        if path.stat().st_size != shard.bytes or file_hash(path) != shard.sha256:
            self._changed.append(shard.file)
        try:
            schema = pq.read_schema(path)
        except UNREADABLE as error:
            raise DatasetError(f"{shard.file}: {' '.join(str(error).split())[:100]}") from None
        if not schema.equals(arrow_schema(self._manifest.columns), check_metadata=True):
            self._other_columns.append(shard.file)
        return True

    def rows(self) -> Iterator[Row]:
        """The verdicts."""
        known = KNOWN_FILES | {shard.file for shard in self._manifest.shards}
        strays = sorted(path.name for path in self._path.iterdir() if path.name not in known)
        for name, found in (
            ("missing shards", self._missing),
            ("shards with another hash than the manifest's", self._changed),
            ("shards that cannot be read", self._unreadable),
            ("shards with other columns, types or units", self._other_columns),
            ("files that do not belong here", strays),
        ):
            yield _row(name, not found, _first_of(found), 0)


def _first_of(found: list[str]) -> object:
    return f"{len(found)}, first: {found[0]}" if found else 0


class _Numbers:
    """What can be wrong with event numbers, counts and splits."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._numbers: list[npt.NDArray[np.int64]] = []
        self._counts = dict.fromkeys(manifest.columns, 0)

    def feed(self, block: EventBlock) -> None:
        """Remember the numbers of a block and count its objects."""
        self._numbers.append(block.event_number)
        for name in self._counts:
            self._counts[name] += len(block[name])

    def rows(self) -> Iterator[Row]:
        """The verdicts."""
        manifest = self._manifest
        numbers = np.concatenate(self._numbers) if self._numbers else np.zeros(0, dtype=np.int64)
        yield _row("events", len(numbers) == manifest.num_events, len(numbers), manifest.num_events)
        falling = int(np.count_nonzero(np.diff(numbers) <= 0))
        yield _row("event numbers that do not rise or are repeated", falling == 0, falling, 0)
        gaps = _gaps([(int(n[0]), int(n[-1]), len(n)) for n in self._numbers])
        expected = _gaps([(shard.first_event, shard.last_event, shard.num_events) for shard in manifest.shards])
        yield _row("gaps in the event numbers", gaps == expected, gaps, expected)
        yield _row(
            "objects per collection", self._counts == manifest.counts, _line(self._counts), _line(manifest.counts)
        )
        memberships = sum(manifest.split_rule.select(numbers, split).astype(int) for split in SPLITS)
        wrong = int(np.count_nonzero(memberships != 1))
        yield _row("events not in exactly one split", wrong == 0, wrong, 0)
        splits = manifest.split_rule.count(numbers)
        yield _row("events per split", splits == manifest.splits, _line(splits), _line(manifest.splits))


def _gaps(ranges: list[tuple[int, int, int]]) -> int:
    """Numbers left out between the first and the last event."""
    if not ranges:
        return 0
    return ranges[-1][1] - ranges[0][0] + 1 - sum(count for _, _, count in ranges)


def _line(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())

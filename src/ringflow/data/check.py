"""Check a dataset: about fifty gates, streamed shard by shard.

A gate names the columns it needs, measures block after block, and gives a verdict: either every number must lie in a range, or
the ratio of two sums over the dataset must, or no two events may be alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ringflow.base.errors import DatasetError
from ringflow.base.log import progress
from ringflow.data.manifest import KNOWN_FILES, MANIFEST_FILE, SPLITS, Manifest, Shard, read_manifest
from ringflow.data.read import UNREADABLE, read_shard
from ringflow.data.write import arrow_schema, file_hash
from ringflow.event.block import EventBlock
from ringflow.event.particles import PARTICLE_CLASSES
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, SUBSYSTEMS, parquet_name

Row = dict[str, Any]
Values = npt.NDArray[Any]
Measure = Callable[[EventBlock], Any]  # numbers of a block, or one

#: Energies below this (GeV) are compared as if they had it.
_SMALL_ENERGY = 1e-6
#: Of its energy a visible particle left more than this in the calorimeter, or it left a track.
_VISIBLE_SHARE = 0.1
_MOMENTUM = ("px", "py", "pz", "energy")
_PLACES = {parquet_name(name, column.name): (name, column.name) for name in COLLECTIONS for column in COLLECTIONS[name]}


class Within(NamedTuple):
    """An inclusive range and how to write it."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


#: For a count of things that must not be.
NONE = Within(0, 0)
#: Sums of float32 numbers, in whatever order, agree to this relative precision.
_SUMS = Within(0, 1e-4)

#: Kind of sample -> plausible mean number per event. The ttbar figures are those of full simulation.
_PLAUSIBLE = {
    "ttbar": {"track": Within(30, 120), "cluster": Within(30, 300), "hit": Within(4000, 15000)},
    "collision": {"track": Within(1, 500), "cluster": Within(1, 2000), "hit": Within(100, 100000)},
    "other": {"track": Within(0, 10000), "cluster": Within(0, 100000), "hit": Within(0, 10000000)},
}
_HITS_PER_GEV = {"ttbar": Within(10, 60), "collision": Within(5, 100), "other": Within(0, 10000)}
_EMPTY_FRACTION = {"ttbar": NONE, "collision": Within(0, 0.05), "other": Within(0, 0.5)}


class Gate:
    """Every number a block gives must lie within the limits; observed: the smallest and the largest."""

    def __init__(self, name: str, needs: str, limits: Within, measure: Measure) -> None:
        self.name, self.needs, self._limits, self._measure = name, needs.split(), limits, measure
        self._low, self._high = np.inf, -np.inf

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        values = np.asarray(self._measure(block))
        if values.size:
            self._low = float(np.minimum(self._low, values.min()))
            self._high = float(np.maximum(self._high, values.max()))

    def row(self) -> Row:
        """The verdict; NaN is in no range."""
        if self._low == np.inf and self._high == -np.inf:
            return _row(self.name, True, "nothing to measure", str(self._limits))
        observed = f"{self._low:.4g}" if self._low == self._high else f"{self._low:.4g} to {self._high:.4g}"
        ok = self._limits.low <= self._low and self._high <= self._limits.high
        return _row(self.name, ok, observed, str(self._limits))


class Ratio(Gate):
    """The ratio of two sums over the dataset must lie within the limits; a block gives a part of both."""

    _above = _below = 0.0

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        above, below = self._measure(block)
        self._above, self._below = self._above + float(above), self._below + float(below)

    def row(self) -> Row:
        """The verdict."""
        if self._below:
            self._low = self._high = self._above / self._below
        return super().row()


class Duplicates(Gate):
    """No two events with the same content; of an event 8 bytes are remembered."""

    _CONTENT = ("track_pt", "cluster_energy", "hit_energy", "particle_px", "candidate_px")

    def __init__(self) -> None:
        super().__init__("duplicated events", "", NONE, len)
        self._digests: list[bytes] = []

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        found = [_PLACES[name] for name in self._CONTENT]
        parts = [(block[c], c, name) for c, name in found if c in block and name in block[c].columns]
        columns = [(part.offsets, np.ascontiguousarray(part[name])) for part, _, name in parts]
        for event in range(len(block)):
            slices = [values[offsets[event] : offsets[event + 1]].tobytes() for offsets, values in columns]
            if any(slices):  # empty events are all alike
                self._digests.append(hashlib.blake2b(b"|".join(slices), digest_size=8).digest())

    def row(self) -> Row:
        """The verdict."""
        repeated = len(self._digests) - len(set(self._digests))
        return _row(self.name, repeated == 0, repeated, 0)


def check(path: Path) -> list[Row]:
    """Rows `{gate, ok, observed, expected}`; a folder that is no dataset at all is an error."""
    try:
        manifest = read_manifest(path)
    except DatasetError as error:
        if not (path / MANIFEST_FILE).is_file():
            raise
        return [_row("manifest readable", False, str(error), "a manifest of this schema version")]
    files, numbers = _Files(path, manifest), _Numbers(manifest)
    gates = [*_object_gates(manifest), *_link_gates(), *_target_gates()]
    names = {*manifest.columns, *(parquet_name(c, column) for c in manifest.columns for column in manifest.columns[c])}
    present = [gate for gate in gates if names.issuperset(gate.needs)]
    with progress(manifest.num_events, f"checking {manifest.sample}") as advance:
        for block in files.blocks():
            numbers.feed(block)
            for gate in present:
                gate.feed(block)
            advance(len(block))
    return [
        _row("manifest readable", True, MANIFEST_FILE, MANIFEST_FILE),
        _row("schema version", True, manifest.schema_version, SCHEMA_VERSION),
        *files.rows(),
        *numbers.rows(),
        *(
            gate.row()
            if gate in present
            else _row(gate.name, True, "absent", f"skipped without {', '.join(gate.needs)}")
            for gate in gates
        ),
    ]


def _row(gate: str, ok: bool, observed: object, expected: object) -> Row:
    return {"gate": gate, "ok": bool(ok), "observed": observed, "expected": expected}


class _Files:
    """What can be wrong with files: missing, changed, unreadable, of other columns, or not ours."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path, self._manifest = path, manifest
        known = KNOWN_FILES | {shard.file for shard in manifest.shards}
        self._found: dict[str, list[str]] = {
            "missing shards": [],
            "shards with another hash than the manifest's": [],
            "shards that cannot be read": [],
            "shards with other columns, types or units": [],
            "files that do not belong here": sorted(file.name for file in path.iterdir() if file.name not in known),
        }

    def blocks(self) -> Iterator[EventBlock]:
        """The blocks of all shards that can be read."""
        for shard in self._manifest.shards:
            try:
                if self._examine(shard):
                    yield from read_shard(self._path, shard, self._manifest.columns)
            except DatasetError as error:
                self._found["shards that cannot be read"].append(str(error))

    def _examine(self, shard: Shard) -> bool:
        path = self._path / shard.file
        if not path.is_file():
            self._found["missing shards"].append(shard.file)
            return False
        if path.stat().st_size != shard.bytes or file_hash(path) != shard.sha256:
            self._found["shards with another hash than the manifest's"].append(shard.file)
        try:
            schema = pq.read_schema(path)
        except UNREADABLE as error:
            raise DatasetError(f"{shard.file}: {' '.join(str(error).split())[:100]}") from None
        if not schema.equals(arrow_schema(self._manifest.columns), check_metadata=True):
            self._found["shards with other columns, types or units"].append(shard.file)
        return True

    def rows(self) -> Iterator[Row]:
        """The verdicts."""
        for gate, found in self._found.items():
            yield _row(gate, not found, f"{len(found)}, first: {found[0]}" if found else 0, 0)


class _Numbers:
    """What can be wrong with event numbers, counts and splits."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._numbers = [np.zeros(0, np.int64)]
        self._counts = dict.fromkeys(manifest.columns, 0)

    def feed(self, block: EventBlock) -> None:
        """Remember the numbers of a block and count its objects."""
        self._numbers.append(block.event_number)
        for name in self._counts:
            self._counts[name] += len(block[name])

    def rows(self) -> Iterator[Row]:
        """The verdicts."""
        manifest, numbers = self._manifest, np.concatenate(self._numbers)
        yield _row("events", len(numbers) == manifest.num_events, len(numbers), manifest.num_events)
        falling = int(np.count_nonzero(np.diff(numbers) <= 0))
        yield _row("event numbers that do not rise or are repeated", falling == 0, falling, 0)
        gaps = int(numbers[-1] - numbers[0]) + 1 - len(numbers) if len(numbers) else 0
        span = manifest.shards[-1].last_event - manifest.shards[0].first_event + 1 if manifest.shards else 0
        expected = span - sum(shard.num_events for shard in manifest.shards)
        yield _row("gaps in the event numbers", gaps == expected, gaps, expected)
        counts = manifest.counts
        yield _row("objects per collection", self._counts == counts, _line(self._counts), _line(counts))
        memberships = sum(manifest.split_rule.select(numbers, split).astype(int) for split in SPLITS)
        wrong = int(np.count_nonzero(memberships != 1))
        yield _row("events not in exactly one split", wrong == 0, wrong, 0)
        splits = manifest.split_rule.count(numbers)
        yield _row("events per split", splits == manifest.splits, _line(splits), _line(manifest.splits))


def _line(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _object_gates(manifest: Manifest) -> Iterator[Gate]:
    """Values in range, and as many objects as the sample should have."""
    last, everywhere = len(PARTICLE_CLASSES) - 1, tuple(COLLECTIONS)
    yield Gate("values that are not finite", "", NONE, _not_finite)
    yield _range_of("track pt [GeV]", "track_pt", 0.01, 1e4)
    yield _range_of("track eta", "track_eta", -5, 5)
    yield _range_of("cluster eta", "cluster_eta", -6, 6)
    yield Gate("charges", "", Within(-1, 1), _every("charge", everywhere))
    yield Gate("energies [GeV]", "", Within(0, 1e5), _every("energy", everywhere))
    yield Gate("labels", "", Within(0, last), _every("label", ("particle", "candidate")))
    yield Gate("target labels", "", Within(1, last), _every("label", ("target", "hit_target")))
    yield _range_of("hit subsystems", "hit_subsystem", 0, len(SUBSYSTEMS) - 1)
    # The finer columns of clusters; data that is older than they are, or of another detector, has none of them.
    for part in ("front", "peak"):
        needs = f"cluster_{part}_energy cluster_ecal_energy"
        yield Gate(f"cluster {part} energy over ECAL energy", needs, Within(0, 1.0001), _share_of_ecal(part))
    for part in ("ecal", "hcal"):
        yield _range_of(f"cluster {part.upper()} width [mm]", f"cluster_{part}_width", 0, 1e4)
    for part, what in (("ecal", "ECAL centre"), ("peak", "peak")):
        needs = " ".join(f"cluster_{part}_{axis}" for axis in "xyz")
        # No calorimeter of any detector is nearer to the collision (mm), or farther from it.
        yield Gate(f"cluster {what} from the origin [mm]", needs, Within(100, 2e4), _distance(needs))
    for angle in ("phi", "theta"):
        yield _range_of(f"cluster slope in {angle}", f"cluster_slope_{angle}", -1e3, 1e3)
    kind = _kind(manifest)
    for name, limits in _PLAUSIBLE[kind].items():
        yield Ratio(f"{name}s per event", name, limits, _per_event(name))
    yield Ratio("hits per visible GeV", "hit particle_energy particle_label", _HITS_PER_GEV[kind], _hits_and_energy)
    yield Ratio("fraction of empty events", "", _EMPTY_FRACTION[kind], _empty_events)
    yield Duplicates()


def _kind(manifest: Manifest) -> str:
    settings = manifest.provenance.get("settings")
    generator = settings.get("generator") if isinstance(settings, dict) else None
    simulated = isinstance(generator, dict) and generator.get("sample") == manifest.sample
    if not simulated or manifest.sample == "gamma_gamma" or manifest.sample.startswith("gun_"):
        return "other"
    return manifest.sample if manifest.sample in _PLAUSIBLE else "collision"


def _link_gates() -> Iterator[Gate]:
    """Indices point to something; energies are the sums of their parts."""
    yield Gate("indices out of range", "", NONE, _indices_out_of_range)
    for whole, parts, what in (
        ("hit", "hit_link", "links"),
        ("cluster", "cluster_link", "links"),
        ("cluster", "hit", "hits"),
    ):
        needs = f"{whole}_energy {parts}_{whole} {parts}_energy"
        yield Gate(f"{whole} energy against its {what}", needs, _SUMS, _energy_against(whole, parts))
    needs = "cluster_energy cluster_ecal_energy cluster_hcal_energy cluster_muon_energy"
    yield Gate("cluster energy against its subsystems", needs, _SUMS, _subsystem_sum)
    needs = "cluster_num_hits hit_cluster"
    yield Gate("cluster hit counts that differ", needs, NONE, _wrong_counts("cluster_num_hits", "hit_cluster"))


def _target_gates() -> Iterator[Gate]:
    """The targets of an event carry what is visible of its particles; each has one element of its own.

    Visible means visible in the elements: a soft photon can leave hits that no cluster took. `label` speaks of tracks and
    clusters, and so does `target`; `hit_target` has particles of its own.
    """
    for name, mark in (("target", "label"), ("hit_target", "hit_target")):
        columns = " ".join(f"{part}_{column}" for part in ("particle", name) for column in _MOMENTUM)
        # To this fraction of the visible energy of the event.
        yield Gate(f"{name} four-momentum", f"particle_{mark} {columns}", Within(0, 1e-5), _unaccounted(name))
    for name, element in (("target", "cluster"), ("hit_target", "hit")):
        needs = f"{name}_track {name}_{element}"
        yield Gate(f"{name}s without exactly one element", needs, NONE, _without_one_element(needs))
        yield Gate(f"elements with two {name}s", needs, NONE, _claimed_twice(needs))
        needs = f"particle_{name} {name}_num_particles"
        yield Gate(f"{name}s with another number of particles", needs, NONE, _wrong_counts(*needs.split()[::-1]))
    yield Gate("visible particles without a target", "particle_label particle_target", NONE, _lost_on_clusters)
    needs = "particle_label particle_hit_target particle_energy particle_calo_energy"
    yield Gate("visible particles without a hit_target", needs, NONE, _lost_on_hits)


def _column(block: EventBlock, name: str) -> Values:
    """A flat column, by its name on disk."""
    collection, column = _PLACES[name]
    return block[collection][column]


def _range_of(gate: str, column: str, low: float, high: float) -> Gate:
    return Gate(gate, column, Within(low, high), lambda block: _column(block, column))


def _every(name: str, collections: tuple[str, ...]) -> Measure:
    """A column of all the collections that have it, together."""

    def measure(block: EventBlock) -> Any:
        having = [part for part in collections if part in block and name in block[part].columns]
        return np.concatenate([block[part][name] for part in having] or [np.zeros(0)])

    return measure


def _share_of_ecal(part: str) -> Measure:
    """A part of the energy in the electromagnetic calorimeter, over all of it."""
    return lambda block: (
        _column(block, f"cluster_{part}_energy") / np.maximum(_column(block, "cluster_ecal_energy"), _SMALL_ENERGY)
    )


def _distance(point: str) -> Measure:
    return lambda block: np.sqrt(sum(_column(block, name).astype(np.float64) ** 2 for name in point.split()))


def _not_finite(block: EventBlock) -> Any:
    columns = (values for part in block.collections.values() for values in part.columns.values())
    return [np.count_nonzero(~np.isfinite(values)) for values in columns if values.dtype.kind == "f"]


def _per_event(name: str) -> Measure:
    return lambda block: (len(block[name]), len(block))


def _hits_and_energy(block: EventBlock) -> tuple[float, float]:
    visible = _column(block, "particle_label") > 0
    return len(block["hit"]), float(_column(block, "particle_energy")[visible].sum(dtype=np.float64))


def _empty_events(block: EventBlock) -> tuple[float, float]:
    """Events without anything a reconstruction could look at."""
    inputs = [block[name].counts for name in ("track", "cluster", "hit") if name in block]
    total = np.sum(inputs, axis=0) if inputs else np.ones(len(block))
    return float(np.count_nonzero(total == 0)), len(block)


def _event_of(block: EventBlock, collection: str) -> Values:
    """Row of the event in the block, for every object."""
    return np.repeat(np.arange(len(block)), block[collection].counts)


def _flat_index(block: EventBlock, name: str) -> tuple[Values, int]:
    """Indices within the event as indices into what they point to, -1 where they point nowhere; how many that has."""
    collection, column = _PLACES[name]
    points_to = next(c.points_to for c in COLLECTIONS[collection] if c.name == column)
    assert points_to is not None
    index, event = block[collection][column].astype(np.int64), _event_of(block, collection)
    good = (index >= 0) & (index < block[points_to].counts[event])
    return np.where(good, block[points_to].offsets[event] + index, -1), len(block[points_to])


def _sum_at(index: Values, weights: Values, length: int) -> Values:
    """Sum of the weights per index; index -1 is left out."""
    return np.bincount(index[index >= 0], weights[index >= 0].astype(np.float64), minlength=length)


def _indices_out_of_range(block: EventBlock) -> Any:
    wrong = []
    for name, part in block.collections.items():
        for described in COLLECTIONS[name]:
            if described.points_to in block.collections and described.name in part.columns:
                index, limit = part[described.name], block[described.points_to].counts[_event_of(block, name)]
                wrong.append(np.count_nonzero((index < -1) | (index >= limit)))
    return wrong


def _relative(value: Values, reference: Values) -> Values:
    return np.asarray(np.abs(value - reference) / np.maximum(np.abs(reference), _SMALL_ENERGY))


def _energy_against(whole: str, parts: str) -> Measure:
    """Relative difference between an energy and the sum of its parts."""

    def measure(block: EventBlock) -> Any:
        index, number = _flat_index(block, f"{parts}_{whole}")
        energy = _column(block, f"{whole}_energy").astype(np.float64)
        return _relative(_sum_at(index, _column(block, f"{parts}_energy"), number), energy)

    return measure


def _subsystem_sum(block: EventBlock) -> Any:
    parts = [_column(block, f"cluster_{part}_energy") for part in ("ecal", "hcal", "muon")]
    return _relative(
        np.asarray(np.sum(parts, axis=0, dtype=np.float64)), _column(block, "cluster_energy").astype(np.float64)
    )


def _wrong_counts(told: str, pointing: str) -> Measure:
    """Objects that tell another number than point to them."""

    def measure(block: EventBlock) -> Any:
        index, number = _flat_index(block, pointing)
        return np.count_nonzero(np.bincount(index[index >= 0], minlength=number) != _column(block, told))

    return measure


def _unaccounted(collection: str) -> Measure:
    """Largest lost or invented component of the four-momentum, as a fraction of the visible energy."""

    def measure(block: EventBlock) -> Any:
        on_hits = collection == "hit_target"
        seen = _column(block, "particle_hit_target") >= 0 if on_hits else _column(block, "particle_label") > 0
        visible, owner = np.where(seen, _event_of(block, "particle"), -1), _event_of(block, collection)
        scale = np.maximum(_sum_at(visible, _column(block, "particle_energy"), len(block)), _SMALL_ENERGY)
        lost = [
            _sum_at(owner, block[collection][part], len(block)) - _sum_at(visible, block["particle"][part], len(block))
            for part in _MOMENTUM
        ]
        return np.asarray(np.max(np.abs(lost), axis=0) / scale)

    return measure


def _without_one_element(indices: str) -> Measure:
    return lambda block: np.count_nonzero(sum((_column(block, name) >= 0).astype(int) for name in indices.split()) != 1)


def _claimed_twice(indices: str) -> Measure:
    def measure(block: EventBlock) -> Any:
        pointing = [name for name in indices.split() if name.rsplit("_", 1)[1] in block]
        found = [_flat_index(block, name)[0] for name in pointing]
        return [np.count_nonzero(np.bincount(index[index >= 0]) > 1) for index in found]

    return measure


def _lost_on_clusters(block: EventBlock) -> Any:
    """Particles with a label and no target, or the other way round."""
    return np.count_nonzero((_column(block, "particle_label") > 0) != (_column(block, "particle_target") >= 0))


def _lost_on_hits(block: EventBlock) -> Any:
    """Particles without a target on hits that have one on clusters, or left enough in the hits to have one."""
    enough = _column(block, "particle_calo_energy") > _VISIBLE_SHARE * (1 + 1e-4) * _column(block, "particle_energy")
    visible = enough | (_column(block, "particle_label") > 0)
    return np.count_nonzero(visible & (_column(block, "particle_hit_target") < 0))

"""Check a dataset: about fifty gates, streamed shard by shard.

A gate names the columns it needs, measures block after block, and gives a verdict: either every number must lie in a range, or
the ratio of two sums over the dataset must, or no two events may be alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ringflow.base.errors import DatasetError
from ringflow.base.log import progress
from ringflow.data.manifest import KNOWN_FILES, MANIFEST_FILE, PACKED_FOLDER, SPLITS, Manifest, read_manifest, reason_of
from ringflow.data.read import UNREADABLE, is_whole, read_shard
from ringflow.data.write import arrow_schema, file_hash
from ringflow.event.block import EventBlock, dangling
from ringflow.event.particles import PARTICLE_CLASSES, SPEED_OF_LIGHT
from ringflow.event.schema import COLLECTIONS, SCHEMA_VERSION, SUBSYSTEMS, parquet_name

Row = dict[str, Any]
Values = npt.NDArray[Any]
Measure = Callable[..., Any]  # of a block and the columns that a gate needs: numbers, or one

#: Energies below this (GeV) are compared as if they had it.
_SMALL_ENERGY = 1e-6
#: Of its energy a visible particle left more than this in the calorimeter, or it left a track.
_VISIBLE_SHARE = 0.1
_MOMENTUM = ("px", "py", "pz", "energy")
_PLACES = {parquet_name(name, column.name): (name, column) for name in COLLECTIONS for column in COLLECTIONS[name]}
#: What two events with the same content have in common.
_CONTENT = ("track_pt", "cluster_energy", "hit_energy", "particle_px", "candidate_px")


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


#: When the hits of any detector come (ns), by `hit_lateness`; light needs 4 ns and more to a calorimeter.
PROMPT = Within(-3, 3)
#: Hits that come later or earlier (ns) are noise, or of slow neutrons; fewer than these tell nothing.
_MOST_LATENESS, _ENOUGH_HITS = 20.0, 30


class _Plausible(NamedTuple):
    """What a kind of sample may have: mean numbers per event, hits per visible GeV, fraction of empty events."""

    track: Within
    cluster: Within
    hit: Within
    hits_per_gev: Within
    empty: Within


#: The ttbar figures are those of full simulation.
_PLAUSIBLE = {
    "ttbar": _Plausible(Within(30, 120), Within(30, 300), Within(4000, 15000), Within(10, 60), NONE),
    "collision": _Plausible(Within(1, 500), Within(1, 2000), Within(100, 1e5), Within(5, 100), Within(0, 0.05)),
    "other": _Plausible(Within(0, 1e4), Within(0, 1e5), Within(0, 1e7), Within(0, 1e4), Within(0, 0.5)),
}


def check(path: Path) -> list[Row]:
    """Rows `{gate, ok, observed, expected}`; a folder that is no dataset at all is an error."""
    try:
        manifest = read_manifest(path)
    except DatasetError as error:
        if not (path / MANIFEST_FILE).is_file():
            raise
        return [_row("manifest readable", False, str(error), "a manifest of this schema version")]
    known = KNOWN_FILES | {shard.file for shard in manifest.shards}
    found: dict[str, list[str]] = {
        "missing shards": [],
        "shards with another hash than the manifest's": [],
        "shards that cannot be read": [],
        "shards with other columns, types or units": [],
        "files that do not belong here": sorted(file.name for file in path.iterdir() if file.name not in known),
        "cached files that are not what was written": sorted(_broken_caches(path)),
    }
    names = {*manifest.columns, *(parquet_name(c, column) for c in manifest.columns for column in manifest.columns[c])}
    gates = list(_gates(manifest))
    present = [gate for gate in gates if names.issuperset(gate.needs)]
    numbers, counts = [np.zeros(0, np.int64)], dict.fromkeys(manifest.columns, 0)
    # What is computed with values that are none is none, and fails its gate.
    with progress(manifest.num_events, f"checking {manifest.sample}") as advance, np.errstate(all="ignore"):
        for block in _blocks(path, manifest, found):
            numbers.append(block.event_number)
            for name in counts:
                counts[name] += len(block[name])
            for gate in present:
                gate.feed(block)
            advance(len(block))
    return [
        _row("manifest readable", True, MANIFEST_FILE, MANIFEST_FILE),
        _row("schema version", True, manifest.schema_version, SCHEMA_VERSION),
        *(_row(gate, not bad, f"{len(bad)}, first: {bad[0]}" if bad else 0, 0) for gate, bad in found.items()),
        *_accounts(manifest, np.concatenate(numbers), counts),
        *(gate.row(measured=gate in present) for gate in gates),
    ]


def _row(gate: str, ok: bool, observed: object, expected: object) -> Row:
    return {"gate": gate, "ok": bool(ok), "observed": observed, "expected": expected}


def _broken_caches(path: Path) -> Iterator[str]:
    """Caches whose names tell another hash than theirs; they are made again when they are wanted."""
    for file in (path / PACKED_FOLDER).rglob("*-*.*"):
        if file.suffix in (".arrow", ".safetensors") and not is_whole(file):
            yield str(file.relative_to(path))


def _blocks(path: Path, manifest: Manifest, found: dict[str, list[str]]) -> Iterator[EventBlock]:
    """The blocks of all shards that can be read; what is wrong with a file is noted."""
    expected = _without_words(arrow_schema(manifest.columns))
    for shard in manifest.shards:
        file = path / shard.file
        if not file.is_file():
            found["missing shards"].append(shard.file)
            continue
        if file.is_symlink():
            found["shards that cannot be read"].append(f"{shard.file}: it is a link")
            continue
        if file.stat().st_size != shard.bytes or file_hash(file) != shard.sha256:
            found["shards with another hash than the manifest's"].append(shard.file)
        try:
            if not _without_words(pq.read_schema(file)).equals(expected, check_metadata=True):
                found["shards with other columns, types or units"].append(shard.file)
            yield from read_shard(path, shard, manifest.columns, verify=False)
        except (DatasetError, *UNREADABLE) as error:
            found["shards that cannot be read"].append(f"{shard.file}: {reason_of(error)}")


def _without_words(schema: pa.Schema) -> pa.Schema:
    """The schema without what it tells of a column in words, which may be told better later."""
    fields = (
        field.with_metadata({key: value for key, value in (field.metadata or {}).items() if key != b"meaning"})
        for field in schema
    )
    return pa.schema(fields, metadata=schema.metadata)


def _accounts(manifest: Manifest, numbers: Values, counts: dict[str, int]) -> Iterator[Row]:
    """What can be wrong with event numbers, counts and splits."""

    def line(having: dict[str, int]) -> str:
        return ", ".join(f"{name} {count}" for name, count in having.items())

    yield _row("events", len(numbers) == manifest.num_events, len(numbers), manifest.num_events)
    falling = int(np.count_nonzero(numbers[1:] <= numbers[:-1]))
    yield _row("event numbers that do not rise or are repeated", falling == 0, falling, 0)
    gaps = int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers) if len(numbers) else 0
    span = manifest.shards[-1].last_event - manifest.shards[0].first_event + 1 if manifest.shards else 0
    expected = span - sum(shard.num_events for shard in manifest.shards)
    yield _row("gaps in the event numbers", gaps == expected, gaps, expected)
    yield _row("objects per collection", counts == manifest.counts, line(counts), line(manifest.counts))
    memberships = sum(manifest.split_rule.select(numbers, split).astype(int) for split in SPLITS)
    wrong = int(np.count_nonzero(memberships != 1))
    yield _row("events not in exactly one split", wrong == 0, wrong, 0)
    splits = manifest.split_rule.count(numbers)
    yield _row("events per split", splits == manifest.splits, line(splits), line(manifest.splits))


class Gate:
    """Every number a block gives must lie within the limits; observed: the smallest and the largest."""

    def __init__(self, name: str, needs: str, limits: Within, measure: Measure) -> None:
        self.name, self.needs, self._limits, self._measure = name, needs.split(), limits, measure
        self._low, self._high = np.inf, -np.inf

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        values = np.asarray(self._measured(block))
        if values.size:
            self._low = float(np.minimum(self._low, values.min()))
            self._high = float(np.maximum(self._high, values.max()))

    def _measured(self, block: EventBlock) -> Any:
        places = [_PLACES[name] for name in self.needs if name in _PLACES]
        return self._measure(block, *(block[collection][column.name] for collection, column in places))

    def row(self, *, measured: bool) -> Row:
        """The verdict; NaN is in no range."""
        if not measured:
            return _row(self.name, True, "absent", f"skipped without {', '.join(self.needs)}")
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
        above, below = self._measured(block)
        self._above, self._below = self._above + float(above), self._below + float(below)
        if self._below:
            self._low = self._high = self._above / self._below


class Duplicates(Gate):
    """No two events with the same content; of an event 8 bytes are remembered."""

    def __init__(self) -> None:
        super().__init__("duplicated events", "", NONE, len)
        self._digests: list[bytes] = []

    def feed(self, block: EventBlock) -> None:
        """Measure one more block."""
        places = [_PLACES[name] for name in _CONTENT]
        parts = [(block[c], column.name) for c, column in places if c in block and column.name in block[c].columns]
        columns = [(part.offsets, np.ascontiguousarray(part[name])) for part, name in parts]
        for event in range(len(block)):
            slices = [values[offsets[event] : offsets[event + 1]].tobytes() for offsets, values in columns]
            if any(slices):  # empty events are all alike
                self._digests.append(hashlib.blake2b(b"|".join(slices), digest_size=8).digest())

    def row(self, *, measured: bool) -> Row:
        """The verdict."""
        repeated = len(self._digests) - len(set(self._digests))
        return _row(self.name, repeated == 0, repeated, 0)


def _gates(manifest: Manifest) -> Iterator[Gate]:
    """Values in range, as many objects as the sample should have, indices that point to something, energies that add up.

    The targets of an event carry what is visible of its particles; each has one element of its own. Visible means visible in
    the elements: a soft photon can leave hits that no cluster took. `label` speaks of tracks and clusters, and so does
    `target`; `hit_target` has particles of its own.
    """

    def within(name: str, column: str, low: float, high: float) -> Gate:
        return Gate(name, column, Within(low, high), lambda _, values: values)

    last, everywhere = len(PARTICLE_CLASSES) - 1, tuple(COLLECTIONS)
    yield Gate("values that are not finite", "", NONE, _not_finite)
    yield within("track pt [GeV]", "track_pt", 0.01, 1e4)
    yield within("track eta", "track_eta", -5, 5)
    yield within("cluster eta", "cluster_eta", -6, 6)
    yield Gate("charges", "", Within(-1, 1), partial(_every, "charge", everywhere))
    yield Gate("energies [GeV]", "", Within(0, 1e5), partial(_every, "energy", everywhere))
    yield Gate("labels", "", Within(0, last), partial(_every, "label", ("particle", "candidate")))
    yield Gate("target labels", "", Within(1, last), partial(_every, "label", ("target", "hit_target")))
    yield within("hit subsystems", "hit_subsystem", 0, len(SUBSYSTEMS) - 1)
    yield Gate(
        "median hit time after light from the collision [ns]",
        "hit_time hit_x hit_y hit_z",
        PROMPT,
        lambda _, *hits: hit_lateness(*hits),
    )
    # The finer columns of clusters; data that is older than they are, or of another detector, has none of them.
    for part in ("front", "peak"):
        needs, limits = f"cluster_{part}_energy cluster_ecal_energy", Within(0, 1.0001)
        yield Gate(
            f"cluster {part} energy over ECAL energy", needs, limits, lambda _, a, b: a / np.maximum(b, _SMALL_ENERGY)
        )
    for part in ("ecal", "hcal"):
        yield within(f"cluster {part.upper()} width [mm]", f"cluster_{part}_width", 0, 1e4)
    for part, what in (("ecal", "ECAL centre"), ("peak", "peak")):
        needs = " ".join(f"cluster_{part}_{axis}" for axis in "xyz")
        limits = Within(100, 2e4)  # no calorimeter of any detector is nearer to the collision (mm), or farther from it
        yield Gate(
            f"cluster {what} from the origin [mm]",
            needs,
            limits,
            lambda _, *xyz: np.sqrt(sum(np.square(part, dtype=np.float64) for part in xyz)),
        )
    for angle in ("phi", "theta"):
        yield within(f"cluster slope in {angle}", f"cluster_slope_{angle}", -1e3, 1e3)
    plausible = _PLAUSIBLE[_kind(manifest)]
    for name in ("track", "cluster", "hit"):
        counted = partial(lambda name, block: (len(block[name]), len(block)), name)
        yield Ratio(f"{name}s per event", name, getattr(plausible, name), counted)
    yield Ratio(
        "hits per visible GeV",
        "hit particle_energy particle_label",
        plausible.hits_per_gev,
        lambda block, energy, label: (len(block["hit"]), energy[label > 0].sum(dtype=np.float64)),
    )
    yield Ratio("fraction of empty events", "", plausible.empty, _empty_events)
    yield Duplicates()
    yield Gate("indices out of range", "", NONE, _indices_out_of_range)
    for whole in ("hit", "cluster"):  # noise is of nobody, so links may have less than what they are of, never more
        index = f"{whole}_link_{whole}"
        needs = f"{whole}_energy {index} {whole}_link_energy"
        yield Gate(f"{whole} energy against its links", needs, _SUMS, partial(_energy_against, index, at_most=True))
        nobody = partial(_of_nobody, index)
        yield Ratio(f"fraction of the energy of {whole}s that is of nobody", needs, Within(-1e-4, 0.05), nobody)
    needs = "cluster_energy hit_cluster hit_energy"
    yield Gate("cluster energy against its hits", needs, _SUMS, partial(_energy_against, "hit_cluster"))
    yield Gate(
        "cluster energy against its subsystems",
        "cluster_energy cluster_ecal_energy cluster_hcal_energy cluster_muon_energy",
        _SUMS,
        lambda _, energy, *parts: _relative(np.sum(parts, axis=0, dtype=np.float64), energy.astype(np.float64)),
    )
    counted = partial(_wrong_counts, "cluster_num_hits", "hit_cluster")
    yield Gate("cluster hit counts that differ", "cluster_num_hits hit_cluster", NONE, counted)
    for name, mark in (("target", "label"), ("hit_target", "hit_target")):
        columns = " ".join(f"{part}_{column}" for part in ("particle", name) for column in _MOMENTUM)
        limits = Within(0, 1e-5)  # of the visible energy of the event
        yield Gate(f"{name} four-momentum", f"particle_{mark} {columns}", limits, partial(_unaccounted, name))
    for name, element in (("target", "cluster"), ("hit_target", "hit")):
        needs = f"{name}_track {name}_{element}"
        yield Gate(
            f"{name}s without exactly one element",
            needs,
            NONE,
            lambda _, *indices: np.count_nonzero(np.sum([index >= 0 for index in indices], axis=0) != 1),
        )
        yield Gate(f"elements with two {name}s", needs, NONE, partial(_claimed_twice, needs))
        counted = partial(_wrong_counts, f"{name}_num_particles", f"particle_{name}")
        yield Gate(f"{name}s with another number of particles", f"particle_{name} {name}_num_particles", NONE, counted)
    yield Gate(
        "visible particles without a target",  # or the other way round
        "particle_label particle_target",
        NONE,
        lambda _, label, target: np.count_nonzero((label > 0) != (target >= 0)),
    )
    needs = "particle_label particle_hit_target particle_energy particle_calo_energy"
    yield Gate("visible particles without a hit_target", needs, NONE, _lost_on_hits)


def hit_lateness(time: Values, x: Values, y: Values, z: Values) -> Values:
    """Median time (ns) of the hits after light from the collision would be there; nothing where there are few hits."""
    late = (
        time
        - np.sqrt(np.square(x, dtype=np.float64) + np.square(y, dtype=np.float64) + np.square(z, dtype=np.float64))
        / SPEED_OF_LIGHT
    )
    late = late[np.abs(late) < _MOST_LATENESS]
    return np.median(late, keepdims=True) if len(late) >= _ENOUGH_HITS else np.zeros(0)


def _kind(manifest: Manifest) -> str:
    settings = manifest.provenance.get("settings")
    generator = settings.get("generator") if isinstance(settings, dict) else None
    simulated = isinstance(generator, dict) and generator.get("sample") == manifest.sample
    if not simulated or manifest.sample.startswith(("gamma_gamma", "gun_")):
        return "other"
    return manifest.sample if manifest.sample in _PLAUSIBLE else "collision"


def _every(name: str, collections: tuple[str, ...], block: EventBlock) -> Values:
    """A column of all the collections that have it, together."""
    having = [part for part in collections if part in block and name in block[part].columns]
    return np.concatenate([block[part][name] for part in having] or [np.zeros(0)])


def _not_finite(block: EventBlock) -> Any:
    columns = (values for part in block.collections.values() for values in part.columns.values())
    return [np.count_nonzero(~np.isfinite(values)) for values in columns if values.dtype.kind == "f"]


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
    assert column.points_to is not None
    index, event = block[collection][column.name].astype(np.int64), _event_of(block, collection)
    target = block[column.points_to]
    good = (index >= 0) & (index < target.counts[event])
    return np.where(good, target.offsets[event] + index, -1), len(target)


def _sum_at(index: Values, weights: Values, length: int) -> Values:
    """Sum of the weights per index; index -1 is left out."""
    return np.bincount(index[index >= 0], weights[index >= 0].astype(np.float64), minlength=length)


def _indices_out_of_range(block: EventBlock) -> Any:
    return [np.count_nonzero(wrong) for _, _, wrong in dangling(block)]


def _relative(value: Any, reference: Values) -> Values:
    return np.asarray(np.abs(value - reference) / np.maximum(np.abs(reference), _SMALL_ENERGY))


def _energy_against(
    pointing: str, block: EventBlock, energy: Values, _: Values, parts: Values, at_most: bool = False
) -> Values:
    """Relative difference between an energy and the sum of its parts, which may fall short of it if they are `at_most` it."""
    index, number = _flat_index(block, pointing)
    total = _sum_at(index, parts, number)
    return _relative(np.maximum(total, energy) if at_most else total, energy.astype(np.float64))


def _of_nobody(pointing: str, _: EventBlock, energy: Values, __: Values, parts: Values) -> tuple[float, float]:
    """Energy that no particle left, and all of it."""
    total = energy.sum(dtype=np.float64)
    return total - parts.sum(dtype=np.float64), total


def _wrong_counts(told: str, pointing: str, block: EventBlock, *_: Values) -> Any:
    """Objects that tell another number than point to them."""
    collection, column = _PLACES[told]
    index, number = _flat_index(block, pointing)
    return np.count_nonzero(np.bincount(index[index >= 0], minlength=number) != block[collection][column.name])


def _unaccounted(collection: str, block: EventBlock, mark: Values, *_: Values) -> Values:
    """Largest lost or invented component of the four-momentum, as a fraction of the visible energy."""
    particles, seen = block["particle"], mark >= 0 if collection == "hit_target" else mark > 0
    visible, owner = np.where(seen, _event_of(block, "particle"), -1), _event_of(block, collection)
    scale = np.maximum(_sum_at(visible, particles["energy"], len(block)), _SMALL_ENERGY)
    lost = [
        _sum_at(owner, block[collection][part], len(block)) - _sum_at(visible, particles[part], len(block))
        for part in _MOMENTUM
    ]
    return np.asarray(np.max(np.abs(lost), axis=0) / scale)


def _claimed_twice(indices: str, block: EventBlock, *_: Values) -> Any:
    pointing = [name for name in indices.split() if name.rsplit("_", 1)[1] in block]
    found = [_flat_index(block, name)[0] for name in pointing]
    return [np.count_nonzero(np.bincount(index[index >= 0]) > 1) for index in found]


def _lost_on_hits(_: EventBlock, label: Values, target: Values, energy: Values, left: Values) -> Any:
    """Particles without a target on hits that have one on clusters, or left enough in the hits to have one."""
    visible = (left > _VISIBLE_SHARE * (1 + 1e-4) * energy) | (label > 0)
    return np.count_nonzero(visible & (target < 0))

"""The gates: a good dataset passes all of them, and every kind of damage fails the gate that is about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.fake_events import emptied, fake_block, replaced
from ringflow.base.rundir import SETTINGS_FILE
from ringflow.data.check import check
from ringflow.data.manifest import EDM4HEP, after_check, make_manifest, read_manifest, to_json, write_manifest
from ringflow.data.outside import write_dataset
from ringflow.data.read import Dataset
from ringflow.data.write import ShardWriter, columns_of
from ringflow.event.block import EventBlock, concatenate


def write(folder: Path, block: EventBlock, provenance: dict[str, object] | None = None) -> Path:
    """A dataset of whatever is in the block."""
    folder.mkdir()
    with ShardWriter(folder / "shard-00000.parquet") as writer:
        writer.append(block)
        shards = [writer.finish()]
    sample = "ttbar" if provenance else "fake"
    write_manifest(
        folder,
        make_manifest(
            detector="fake", sample=sample, columns=columns_of(block), shards=shards, provenance=provenance or {}
        ),
    )
    return folder


def failed(folder: Path) -> list[str]:
    return [row["gate"] for row in check(folder) if not row["ok"]]


def test_a_good_dataset_passes_every_gate(dataset: Path) -> None:
    rows = check(dataset)
    assert [row for row in rows if not row["ok"]] == []
    assert len({row["gate"] for row in rows}) == len(rows) >= 40
    assert "absent" not in {row["observed"] for row in rows}
    assert all(set(row) == {"gate", "ok", "observed", "expected"} for row in rows)
    json.dumps(rows)


Damage = Callable[[EventBlock], EventBlock]


def set_first(collection: str, column: str, value: float) -> Damage:
    def damage(block: EventBlock) -> EventBlock:
        values = np.array(block[collection][column])
        values[0] = value
        return replaced(block, collection, column, values)

    return damage


def scale(collection: str, column: str, factor: float) -> Damage:
    return lambda block: replaced(block, collection, column, np.array(block[collection][column]) * factor)


def lose_a_target(block: EventBlock) -> EventBlock:
    """What an overwritten merge does: the four-momentum of a target is gone."""
    for column in ("px", "py", "pz", "energy"):
        block = set_first("target", column, 0)(block)
    return block


def claim_twice(block: EventBlock) -> EventBlock:
    tracks = np.array(block["target"]["track"])
    first, second, *_ = np.flatnonzero(tracks[: block["target"].counts[0]] >= 0)
    tracks[second] = tracks[first]
    return replaced(block, "target", "track", tracks)


def subtract_flight(block: EventBlock) -> EventBlock:
    """Hit times of a file that has them less the flight of light, taken for times from the collision."""
    return replaced(block, "hit", "time", np.array(block["hit"]["time"]) - 7.2)


def duplicate(block: EventBlock) -> EventBlock:
    return EventBlock(np.arange(13), concatenate([block, fake_block(2, 1)]).collections)


def leave_most_empty(block: EventBlock) -> EventBlock:
    return concatenate([block.take(0, 5), EventBlock(block.event_number[5:], emptied(block.take(5, 12)).collections)])


@pytest.mark.parametrize(
    ("damage", "gate"),
    [
        (claim_twice, "elements with two targets"),
        (duplicate, "duplicated events"),
        (leave_most_empty, "fraction of empty events"),
        (
            lambda block: EventBlock(block.event_number - (block.event_number == 4), block.collections),
            "event numbers that do not rise or are repeated",
        ),
        (set_first("track", "d0", np.nan), "values that are not finite"),
        (set_first("track", "pt", np.nan), "track pt [GeV]"),
        (set_first("track", "eta", 6), "track eta"),
        (set_first("cluster", "eta", -7), "cluster eta"),
        (set_first("track", "charge", 2), "charges"),
        (set_first("hit", "energy", -0.1), "energies [GeV]"),
        (set_first("particle", "label", 8), "labels"),
        (set_first("target", "label", 0), "target labels"),
        (set_first("hit", "subsystem", 6), "hit subsystems"),
        (subtract_flight, "median hit time after light from the collision [ns]"),
        (scale("cluster", "front_energy", 3.4), "cluster front energy over ECAL energy"),
        (scale("cluster", "peak_energy", 1.26), "cluster peak energy over ECAL energy"),
        (set_first("cluster", "ecal_width", -1), "cluster ECAL width [mm]"),
        (set_first("cluster", "hcal_width", np.nan), "cluster HCAL width [mm]"),
        (scale("cluster", "ecal_x", 0), "cluster ECAL centre from the origin [mm]"),
        (set_first("cluster", "peak_y", -3e4), "cluster peak from the origin [mm]"),
        (set_first("cluster", "slope_phi", 2e3), "cluster slope in phi"),
        (set_first("cluster", "slope_theta", -2e3), "cluster slope in theta"),
        (set_first("track", "particle", 99), "indices out of range"),
        (set_first("hit_link", "energy", 1.0), "hit energy against its links"),
        (scale("cluster_link", "energy", 1.01), "cluster energy against its links"),
        (scale("hit", "energy", 1.01), "cluster energy against its hits"),
        (scale("cluster", "ecal_energy", 0.99), "cluster energy against its subsystems"),
        (set_first("cluster", "num_hits", 99), "cluster hit counts that differ"),
        (lose_a_target, "target four-momentum"),
        (scale("hit_target", "pz", 1.001), "hit_target four-momentum"),
        (set_first("target", "track", -1), "targets without exactly one element"),
        (set_first("hit_target", "hit", 0), "hit_targets without exactly one element"),
        (set_first("target", "num_particles", 2), "targets with another number of particles"),
        (set_first("hit_target", "num_particles", 2), "hit_targets with another number of particles"),
        (set_first("particle", "target", -1), "visible particles without a target"),
        (set_first("particle", "hit_target", -1), "visible particles without a hit_target"),
    ],
)
def test_damage_fails_its_gate(tmp_path: Path, damage: Damage, gate: str) -> None:
    assert gate in failed(write(tmp_path / "bad", damage(fake_block(0, 12))))


def test_multiplicities_that_a_sample_cannot_have(tmp_path: Path) -> None:
    provenance = {"settings": {"generator": {"sample": "ttbar"}}}
    gates = failed(write(tmp_path / "bad", fake_block(0, 12), provenance))
    assert gates == ["tracks per event", "clusters per event", "hits per event", "hits per visible GeV"]


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path, at: int = 2000) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _of_another_type(path: Path) -> None:
    table = pq.read_table(path)
    position = table.schema.get_field_index("track_pt")
    pq.write_table(table.set_column(position, "track_pt", table["track_pt"].cast(pa.list_(pa.float64()))), path)


def _of_another_unit(path: Path) -> None:
    table = pq.read_table(path)
    field = table.schema.field("track_pt")
    changed = field.with_metadata({**field.metadata, b"unit": b"MeV"})
    pq.write_table(table.cast(table.schema.set(table.schema.get_field_index("track_pt"), changed)), path)


@pytest.mark.parametrize(
    ("harm", "gates"),
    [
        (_truncated, {"shards with another hash than the manifest's", "shards that cannot be read", "events"}),
        (flipped, {"shards with another hash than the manifest's"}),
        (Path.unlink, {"missing shards", "events"}),
        (_of_another_type, {"shards with other columns, types or units"}),
        (_of_another_unit, {"shards with other columns, types or units"}),
    ],
)
def test_a_damaged_shard_is_a_failure_not_a_crash(dataset: Path, harm: Callable[[Path], None], gates: set[str]) -> None:
    harm(dataset / "shard-00001.parquet")
    assert gates <= set(failed(dataset))


def test_a_file_that_does_not_belong_here(dataset: Path) -> None:
    Dataset(dataset).packed(["track"])
    assert failed(dataset) == []
    (dataset / "notes.txt").write_text("?")
    assert failed(dataset) == ["files that do not belong here"]


def test_counts_and_splits_that_differ_from_the_manifest(dataset: Path) -> None:
    manifest = read_manifest(dataset)
    *others, last = manifest.shards
    splits = {**last.splits, "train": 4, "test": 1}
    # That an event may be missing, the manifest says; without one it would be refused as a whole.
    wrong = {"counts": {**last.counts, "hit": 1}, "splits": splits, "last_event": last.last_event + 1}
    shards = (*others, last.model_copy(update=wrong))
    changed = manifest.model_copy(update={"shards": shards, "splits": {"train": 20, "valid": 2, "test": 3}})
    (dataset / "manifest.json").write_text(to_json(changed))
    assert failed(dataset) == ["gaps in the event numbers", "objects per collection", "events per split"]
    rule = manifest.split_rule.model_copy(update={"valid": ()})
    shards = tuple(
        shard.model_copy(update={"splits": rule.count_between(shard.first_event, shard.last_event)})
        for shard in manifest.shards
    )
    splits = {**manifest.splits, "valid": 0}
    changed = manifest.model_copy(update={"split_rule": rule, "shards": shards, "splits": splits})
    (dataset / "manifest.json").write_text(to_json(changed))
    assert failed(dataset) == ["events not in exactly one split"]
    (dataset / "manifest.json").write_text("{")
    assert failed(dataset) == ["manifest readable"]


def test_a_cache_that_is_not_what_was_written(dataset: Path) -> None:
    Dataset(dataset).packed(["track"])
    flipped(next((dataset / "packed").iterdir()), 700)
    assert failed(dataset) == ["cached files that are not what was written"]
    assert Dataset(dataset).packed(["track"]).event_number.tolist() == list(range(25))
    assert failed(dataset) == []


def test_data_without_the_finer_columns_of_clusters_passes(tmp_path: Path) -> None:
    """As datasets have it that were made before there were such columns."""
    block = fake_block(0, 12)
    clusters = block["cluster"]
    names = list(clusters.columns)
    kept = {name: clusters[name] for name in names[: names.index("front_energy")]}
    older = EventBlock(block.event_number, {**block.collections, "cluster": type(clusters)(clusters.counts, kept)})
    rows = {row["gate"]: row for row in check(write(tmp_path / "older", older))}
    assert [gate for gate, row in rows.items() if not row["ok"]] == []
    absent = {gate for gate, row in rows.items() if row["observed"] == "absent"}
    assert len(absent) == 8
    assert all(gate.startswith("cluster ") for gate in absent)


def test_what_to_do_next_fits_where_the_events_come_from(dataset: Path, tmp_path: Path) -> None:
    """Nobody can simulate again what was never simulated."""
    assert after_check(dataset, passed=True) == f"ringflow evaluate {dataset} --out report"
    mine = tmp_path / "mine"
    write_dataset(mine, detector="mine", tracks={"pt": [[1.0]]}, provenance={"generator": "a colleague's"})
    assert after_check(mine, passed=True) == f"ringflow display {mine}"
    told = after_check(mine, passed=False)
    assert "simulate" not in told
    assert told.endswith(f"else write {mine} again")
    converted = write(tmp_path / "converted", fake_block(0, 2), {"source": EDM4HEP})
    assert after_check(converted, passed=False).endswith("else ringflow convert --overwrite")
    (converted / SETTINGS_FILE).touch()  # only what was simulated has settings
    assert after_check(converted, passed=False).startswith(f"ringflow simulate --settings {converted / SETTINGS_FILE}")
    (converted / "manifest.json").write_text("{")
    assert after_check(converted, passed=False).startswith(f"make {converted} again")

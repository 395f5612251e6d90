"""Small random events that obey the schema and every gate, and a source of blocks of them."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringflow.base.errors import InputFileError
from ringflow.event.block import Collection, EventBlock, cast, concatenate
from ringflow.event.schema import COLLECTIONS
from ringflow.recipes.production import Request, produce
from ringflow.recipes.workers import Plan

CHARGED_LABELS = (1, 4, 5)


def fake_block(first: int, count: int, seed: int = 1) -> EventBlock:
    """Events `first` to `first + count - 1`; event n depends on the seed and on n only."""
    return concatenate([fake_event(first + n, seed) for n in range(count)])


def fake_event(number: int, seed: int = 1) -> EventBlock:
    """Every visible particle leaves one cluster of a few hits, and a track if it is charged."""
    rng = np.random.default_rng([seed, number])
    labels = rng.integers(0, 6, rng.integers(3, 9))
    labels[0] = 1
    visible = np.flatnonzero(labels > 0)
    charged = np.isin(labels, CHARGED_LABELS)
    particle = _random("particle", len(labels), rng)
    particle |= _momentum(rng, len(labels))
    particle |= {"calo_energy": np.where(labels > 0, particle["energy"], 0)}
    particle |= {"label": labels, "charge": np.where(charged, 1, 0), "interaction": np.zeros(len(labels))}
    target_of = np.full(len(labels), -1)
    target_of[visible] = np.arange(len(visible))
    particle |= {"target": target_of, "hit_target": target_of}

    tracks = np.flatnonzero(charged)
    track = _random("track", len(tracks), rng)
    track |= {"particle": tracks, "charge": np.ones(len(tracks)), "pt": rng.uniform(0.5, 50, len(tracks))}

    hits_per_cluster = rng.integers(1, 7, len(visible))
    cluster_of_hit = np.repeat(np.arange(len(visible)), hits_per_cluster)
    hit = _random("hit", len(cluster_of_hit), rng)
    hit |= {"energy": rng.exponential(1.0, len(cluster_of_hit)).astype(np.float32), "cluster": cluster_of_hit}
    hit |= {"subsystem": rng.integers(0, 6, len(cluster_of_hit)), "layer": rng.integers(0, 40, len(cluster_of_hit))}
    energy = np.bincount(cluster_of_hit, hit["energy"], minlength=len(visible))
    cluster = _random("cluster", len(visible), rng)
    cluster |= {"energy": energy, "ecal_energy": energy, "hcal_energy": 0 * energy, "muon_energy": 0 * energy}
    cluster |= {"num_hits": hits_per_cluster, "front_energy": 0.3 * energy, "peak_energy": 0.8 * energy}
    cluster |= {"ecal_width": 5.0 + energy, "hcal_width": 0 * energy, "ecal_x": 1500 + energy, "peak_x": 1520 + energy}

    is_charged = charged[visible]
    track_of = np.where(is_charged, np.cumsum(is_charged) - 1, -1)
    first_hit = np.cumsum(hits_per_cluster) - hits_per_cluster
    target = {name: particle[name][visible] for name in ("label", "charge", "px", "py", "pz", "energy")}
    target |= {"track": track_of, "num_particles": np.ones(len(visible))}
    made = {
        "track": track,
        "cluster": cluster,
        "hit": hit,
        "particle": particle,
        "target": {**target, "cluster": np.where(is_charged, -1, np.arange(len(visible)))},
        "hit_target": {**target, "hit": np.where(is_charged, -1, first_hit)},
        "cluster_link": {"cluster": np.arange(len(visible)), "particle": visible, "energy": energy},
        "hit_link": {
            "hit": np.arange(len(cluster_of_hit)),
            "particle": visible[cluster_of_hit],
            "energy": hit["energy"],
        },
    }
    parts = {name: cast(name, np.array([len(next(iter(c.values())))]), c) for name, c in made.items()}
    return EventBlock(np.array([number]), parts)


def _momentum(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    px, py, pz = rng.normal(0, 10, (3, size))
    return {"px": px, "py": py, "pz": pz, "energy": np.sqrt(px**2 + py**2 + pz**2)}


def _random(collection: str, size: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        c.name: rng.uniform(-1, 1, size) if c.dtype.startswith("f") else rng.integers(0, 100, size)
        for c in COLLECTIONS[collection]
    }


def replaced(block: EventBlock, collection: str, column: str, values: np.ndarray) -> EventBlock:
    """The block with other values in one column, or with the column added."""
    part = block[collection]
    columns = {
        **part.columns,
        column: values.astype(next(c.dtype for c in COLLECTIONS[collection] if c.name == column)),
    }
    return EventBlock(block.event_number, {**block.collections, collection: Collection(part.counts, columns)})


def same(first: EventBlock, second: EventBlock) -> bool:
    """Whether two blocks are equal to the last bit."""
    return (
        np.array_equal(first.event_number, second.event_number)
        and first.collections.keys() == second.collections.keys()
        and all(
            np.array_equal(part.counts, second[name].counts)
            and part.columns.keys() == second[name].columns.keys()
            and all(
                np.array_equal(part[c], second[name][c]) and part[c].dtype == second[name][c].dtype
                for c in part.columns
            )
            for name, part in first.collections.items()
        )
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@dataclass(frozen=True)
class FakeBlocks:
    """A source of fake events that can go wrong in one block; calling it opens it."""

    block_events: int
    seed: int = 1
    bad_block: int = -1
    trouble: str = ""
    pause: float = 0.0
    quick_blocks: tuple[int, ...] = ()
    available: int = 10**9

    def __call__(self) -> FakeBlocks:
        return self

    def block(self, index: int) -> EventBlock:
        if index not in self.quick_blocks:
            time.sleep(self.pause)
        if index == self.bad_block:
            if self.trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "bad file":
                raise InputFileError("events.hepmc: event 7 is broken; make it again")
            if self.trouble == "bug":
                raise ValueError("a bug\nof two lines")
        first = index * self.block_events
        return fake_block(first, min(self.block_events, self.available - first), self.seed)

    def close(self) -> None:
        pass


def fake_request(events: int, seed: int = 1, events_per_shard: int = 10, block_events: int = 4) -> Request:
    """What `produce` is asked for, to make fake events."""
    production = {"events": events, "events_per_shard": events_per_shard, "block_events": block_events}
    settings = {"production": production, "generator": {"seed": seed}}
    return Request(
        plan=Plan(events, events_per_shard, block_events),
        record={"settings": settings, "inputs": [], "packages": {"numpy": "2.0"}},
        detector="fake",
        sample="fake",
        settings="detector = 'fake'\n",
        event_bytes=1000,
    )


def write_fake_dataset(folder: Path, events: int = 25, workers: int = 1) -> Path:
    """A dataset of fake events."""
    request = fake_request(events)
    produce(folder, request, FakeBlocks(request.plan.block_events), workers=workers)
    return folder

"""The cost model: limits that are known, constants that a fit finds again, and what a prediction says of itself."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from fixtures.even_costs import free_model
from ringflow.base.errors import InputFileError, SettingsError, UsageError
from ringflow.launch.scaling import (
    ALGORITHMS,
    CLUSTERS,
    DEVICES,
    SHIPPED,
    CostModel,
    Link,
    check_against,
    fit_compute,
    fit_link,
    predict,
    read_measured,
    slowest_of,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
LINKS = (
    *("hardware.usable=1", "hardware.inside_bandwidth=400e9", "hardware.inside_latency=2e-6"),
    *("hardware.between_bandwidth=50e9", "hardware.between_latency=5e-6"),
)
WORK = ("work.parameters=1000000", "work.seconds_per_event=1e-5", "work.events=1000")


def model(*words: str) -> CostModel:
    return free_model(*LINKS, *WORK, *words)


def test_sums_move_their_bytes_in_their_messages() -> None:
    size = 8e6
    ring, hierarchical, tree, server = (model(f"work.algorithm={name}") for name in ALGORITHMS)
    assert ring.sum_seconds(1, size) == 0.0
    # Inside a node, and through the slower links of several.
    assert ring.sum_seconds(4, size) == pytest.approx(2 * 3 / 4 * size / 400e9 + 6 * 2e-6)
    assert ring.sum_seconds(64, size) == pytest.approx(2 * 63 / 64 * size / 50e9 + 126 * 5e-6)
    assert server.sum_seconds(64, size) == pytest.approx(2 * 64 * size / 50e9 + 2 * 5e-6)
    # Inside first, then between nodes.
    inside, between = 2 * 7 / 8 * size / 400e9 + 14 * 2e-6, 2 * 7 / 8 * size / 50e9
    assert hierarchical.sum_seconds(64, size) == pytest.approx(inside + between + 14 * 5e-6)
    assert tree.sum_seconds(64, size) == pytest.approx(inside + between + 6 * 5e-6)
    assert tree.sum_seconds(8, size) == ring.sum_seconds(8, size)
    # Where that takes no time it scales perfectly.
    assert free_model(*WORK).efficiency(4096) == pytest.approx(1.0)


def test_what_is_in_the_way() -> None:
    # What hides behind the computation costs nothing, but no more than the making of gradients can hide anything.
    open_, hidden = model().step(64), model("work.overlap=1").step(64)
    assert open_.communication > 0.0
    assert (hidden.communication, hidden.hidden) == (0.0, pytest.approx(open_.communication))
    short = model("work.overlap=1", "work.seconds_per_event=1e-9").step(64)
    assert short.hidden == pytest.approx(0.6667 * short.compute)
    # The slowest of many is waited for.
    draw = random.Random(1)
    for devices in (2, 16, 256):
        largest = [max(draw.gauss(0.0, 1.0) for _ in range(devices)) for _ in range(2000)]
        assert slowest_of(devices) == pytest.approx(sum(largest) / 2000, abs=0.06)
    step = model("work.spread=0.1").step(16)
    assert step.waiting == pytest.approx(step.compute * (math.exp(0.1 * slowest_of(16)) - 1))
    # A file system limits the throughput.
    limited = model("upkeep.loading=3e6")
    assert limited.throughput(8) < 1e6
    assert limited.throughput(1024) == pytest.approx(3e6)
    assert limited.step(1024).data > 0.0
    # Devices that share memory slow each other down.
    crowded = model("hardware.contention=1.7")
    assert [crowded.slowdown(n) for n in (1, 2, 8, 64)] == pytest.approx([1.0, 1.1, 1.7, 1.7])
    assert crowded.step(64).compute == pytest.approx(1.7 * model().step(64).compute)


def test_checkpoints_and_failures_take_their_share() -> None:
    upkeep = ("upkeep.checkpoint_seconds=10", "upkeep.checkpoint_interval=100")
    assert model(*upkeep).throughput(1) == pytest.approx(1e5 / 1.1)
    # A tenth is lost.
    failing = model(*upkeep, f"upkeep.node_lifetime_hours={1000 / 3600}", "upkeep.restart_seconds=45")
    assert failing.throughput(8) == pytest.approx(0.9 * model(*upkeep).throughput(8))
    assert failing.throughput(80) == 0.0  # it fails faster than it gets on
    assert failing.best_checkpoint_interval(8) == pytest.approx(math.sqrt(20.0 * 1000.0))


def test_a_fixed_batch_is_shared() -> None:
    fixed = model("work.global_batch=fixed", "work.events=64000", "work.seconds_per_step=1e-3")
    assert fixed.events_per_step(64) == 64_000
    assert fixed.step(64).compute == pytest.approx(1e-3 + 1000 * 1e-5)
    assert fixed.efficiency(4096) < fixed.efficiency(64) < 1.0


def of_two(*words: str) -> CostModel:
    """A machine of four places whose link is known."""
    link = ("hardware.inside_bandwidth=2e9", "hardware.inside_latency=40e-6", "hardware.usable=1")
    return free_model("hardware.devices_per_node=4", "work.algorithm=ring", *link, *words)


def test_fits_find_the_constants_again() -> None:
    noise = random.Random(2)
    steps = [(events, (3e-3 + 2e-5 * events) * noise.gauss(1.0, 0.005)) for events in (16, 64, 16384, 65536)]
    # Errors are relative: the large steps must not drown what the small ones say.
    assert fit_compute(steps) == pytest.approx((2e-5, 3e-3), rel=0.03)
    sums = [(size, of_two().sum_seconds(4, size) * noise.gauss(1.0, 0.002)) for size in (4e3, 6e4, 1e6, 3e6)]
    assert fit_link(4, sums) == pytest.approx(Link(2e9, 40e-6), rel=0.02)
    assert fit_compute([(100, 0.5)]) == (0.005, 0.0)


def record(**changes: Any) -> dict[str, Any]:
    """What `ringflow bench scaling` writes, of a machine whose constants are known."""
    work = ("work.parameters=500000", "work.seconds_per_event=8e-3", "work.events=64", "work.spread=0.03")
    true = of_two("hardware.devices_per_node=2", "hardware.contention=1.25", *work)
    sums = [{"bytes": size, "seconds": true.sum_seconds(2, size)} for size in (4096, 65536, 2_000_000)]
    alone, together = true.step(1).total, true.step(2).total

    def row(engine: str, workers: int, seconds: float) -> dict[str, Any]:
        speed = {"events_per_second": workers * 64 / seconds, "seconds_per_step": seconds}
        return {"engine": engine, "workers": workers, "events_per_step": 64, "step_spread": 0.03, **speed}

    rows = [row("local", 1, alone), row("local", 2, together), row("apart", 2, 1.25 * alone)]
    rows.append({"engine": "ray", "workers": 2, "error": "ray is not installed"})
    described = {"benchmark": "scaling", "parameters": 500_000, "num_elements": 128, "processor": "a CPU"}
    return {**described, "rows": rows, "all_reduce": sums, **changes}


def written(folder: Path, content: object) -> Path:
    path = folder / "scaling.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_check_finds_what_made_the_measurement(tmp_path: Path) -> None:
    (row,) = check_against(written(tmp_path, record()))
    assert row["error_percent"] == pytest.approx(0.0, abs=0.1)
    assert (row["bandwidth"], row["latency"], row["contention"]) == pytest.approx((2e9, 40e-6, 1.25), rel=1e-3)
    slower = record()
    slower["rows"][1]["events_per_second"] /= 1.2
    assert check_against(written(tmp_path, slower))[0]["error_percent"] == pytest.approx(20.0, abs=0.2)


def test_a_measurement_here_is_a_start(tmp_path: Path) -> None:
    measured = read_measured([written(tmp_path, record())])
    assert (measured.parameters, measured.device, measured.spread) == (500_000, "a CPU", 0.03)
    assert measured.steps == [(64, pytest.approx(64 * 8e-3))]
    result = predict("vega", measured=[tmp_path / "scaling.json"], devices=[1])
    # The speed of a named cluster is relative to our own measurement, not to this one.
    assert result["rows"][0]["compute"] == pytest.approx(64 * 8e-3)
    assert result["settings"]["hardware"]["speed"] == 1.0
    (tmp_path / "a").mkdir()
    with pytest.raises(UsageError, match="give records of one network"):
        read_measured([tmp_path / "scaling.json", written(tmp_path / "a", record(parameters=7))])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no json", "is no JSON"),
        ({"benchmark": "serve"}, "is no record of"),
        (record(rows=[]), "has no row 'local' of 1 processes"),
        (record(all_reduce=[]), "has one process only"),
        ({"benchmark": "scaling", "parameters": 1, "num_elements": 1}, "is no record of"),
        ([1, 2], "is no record of"),
    ],
)
def test_what_is_no_record_is_told(content: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match=message):
        check_against(written(tmp_path, content))
    with pytest.raises(InputFileError, match="cannot be read"):
        check_against(tmp_path / "nowhere.json")
    with pytest.raises(InputFileError, match="give one of `bench scaling`"):
        check_against(RESULTS / "train_attention_128_h200.json")


def test_the_measurement_of_ours_is_that_of_the_record() -> None:
    kept = SHIPPED
    found = read_measured([RESULTS / Path(kept.source).name])
    assert (kept.device, kept.parameters, kept.num_elements) == (found.device, found.parameters, found.num_elements)
    assert [number for step in kept.steps for number in step] == pytest.approx(
        [number for step in found.steps for number in step], rel=1e-4
    )


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("batch", ["grows", "fixed"])
def test_a_prediction_of_every_cluster(name: str, batch: str) -> None:
    result = predict(name, [f"work.global_batch={batch}"])
    assert [row["devices"] for row in result["rows"]] == [*DEVICES] * len(ALGORITHMS)
    assert result["rows"][0]["algorithm"] == result["algorithm"] == "tree"
    for row in result["rows"]:
        parts = ("compute", "communication", "waiting", "data", "checkpoint", "lost")
        assert row["step_seconds"] == pytest.approx(sum(row[part] for part in parts))
        assert row["events_per_second"] == pytest.approx(row["events_per_step"] / row["step_seconds"])
        assert 0.0 < row["efficiency"] <= 1.0
    best = {row["algorithm"]: row["events_per_second"] for row in result["rows"] if row["devices"] == 4096}
    assert best["tree"] >= best["hierarchical"] >= best["ring"] > best["server"]
    assert len(result["assumptions"]) >= 10


def test_wrong_names_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cluster or TOML file 'vegas'; did you mean 'vega'"):
        predict("vegas")
    with pytest.raises(SettingsError, match=r"unknown setting 'work\.overlaps'; did you mean 'work\.overlap'"):
        predict("h200", ["work.overlaps=1"])
    own = tmp_path / "own.toml"
    own.write_text("devices_per_node = 4\nbetween_bandwidth = 1e9\n")
    assert predict(str(own))["settings"]["hardware"]["devices_per_node"] == 4
    own.write_text("devices_per_node = ")
    with pytest.raises(SettingsError, match="not a TOML file"):
        predict(str(own))

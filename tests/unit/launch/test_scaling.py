"""The cost model: limits that are known, constants that a fit finds again, and what a prediction says of itself."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import InputFileError, SettingsError, UsageError
from ringflow.launch.scaling import (
    ALGORITHMS,
    CLUSTERS,
    DEVICES,
    Cluster,
    CostModel,
    Link,
    Upkeep,
    Work,
    check_against,
    default_measured,
    fit_compute,
    fit_link,
    predict,
    read_measured,
    slowest_of,
    sum_seconds,
)

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
CLUSTER = Cluster(8, Link(400e9, 2e-6), Link(50e9, 5e-6))
WORK = Work(parameters=1_000_000, seconds_per_event=1e-5, events=1000)


def test_without_anything_in_the_way_it_scales_perfectly() -> None:
    free = Cluster(8, Link(math.inf, 0.0), Link(math.inf, 0.0))
    for algorithm in ALGORITHMS:
        model = CostModel(free, WORK, algorithm=algorithm)
        assert model.efficiency(4096) == pytest.approx(1.0)
        assert model.throughput(4096) == pytest.approx(4096 * 1e5)


def test_a_ring_moves_its_bytes_in_its_messages() -> None:
    size = 8e6
    assert sum_seconds("ring", 1, size, CLUSTER) == 0.0
    # Inside a node, and through the slower links of several.
    assert sum_seconds("ring", 4, size, CLUSTER) == pytest.approx(2 * 3 / 4 * size / 400e9 + 6 * 2e-6)
    assert sum_seconds("ring", 64, size, CLUSTER) == pytest.approx(2 * 63 / 64 * size / 50e9 + 126 * 5e-6)
    assert sum_seconds("server", 64, size, CLUSTER) == pytest.approx(2 * 64 * size / 50e9 + 2 * 5e-6)


def test_nodes_add_up_inside_first() -> None:
    size = 8e6
    inside = 2 * 7 / 8 * size / 400e9 + 14 * 2e-6
    between = 2 * 7 / 8 * size / 50e9
    assert sum_seconds("hierarchical", 64, size, CLUSTER) == pytest.approx(inside + between + 14 * 5e-6)
    assert sum_seconds("tree", 64, size, CLUSTER) == pytest.approx(inside + between + 6 * 5e-6)
    assert sum_seconds("tree", 8, size, CLUSTER) == sum_seconds("ring", 8, size, CLUSTER)


def test_what_hides_behind_the_computation_costs_nothing() -> None:
    open_, hidden = (CostModel(CLUSTER, replace(WORK, overlap=part)).step(64) for part in (0.0, 1.0))
    assert open_.communication > 0.0
    assert (hidden.communication, hidden.hidden) == (0.0, pytest.approx(open_.communication))
    # No more than the making of gradients can hide anything.
    short = CostModel(CLUSTER, replace(WORK, overlap=1.0, seconds_per_event=1e-9)).step(64)
    assert short.hidden == pytest.approx(2 / 3 * short.compute)


def test_the_slowest_of_many_is_waited_for() -> None:
    draw = random.Random(1)
    for devices in (2, 16, 256):
        largest = [max(draw.gauss(0.0, 1.0) for _ in range(devices)) for _ in range(2000)]
        assert slowest_of(devices) == pytest.approx(sum(largest) / 2000, abs=0.06)
    step = CostModel(CLUSTER, replace(WORK, spread=0.1)).step(16)
    assert step.waiting == pytest.approx(step.compute * (math.exp(0.1 * slowest_of(16)) - 1))


def test_a_file_system_limits_the_throughput() -> None:
    model = CostModel(CLUSTER, WORK, Upkeep(loading=3e6))
    assert model.throughput(8) < 1e6
    assert model.throughput(1024) == pytest.approx(3e6)
    assert model.step(1024).data > 0.0


def test_checkpoints_and_failures_take_their_share() -> None:
    upkeep = Upkeep(checkpoint_seconds=10.0, checkpoint_interval=100.0)
    assert CostModel(CLUSTER, WORK, upkeep).throughput(1) == pytest.approx(1e5 / 1.1)
    failing = replace(upkeep, node_lifetime=1000.0, restart_seconds=45.0)  # a tenth is lost
    assert CostModel(CLUSTER, WORK, failing).throughput(8) == pytest.approx(
        0.9 * CostModel(CLUSTER, WORK, upkeep).throughput(8)
    )
    assert CostModel(CLUSTER, WORK, failing).throughput(80) == 0.0  # it fails faster than it gets on
    assert CostModel(CLUSTER, WORK, failing).best_checkpoint_interval(8) == pytest.approx(math.sqrt(20.0 * 1000.0))
    assert CostModel(CLUSTER, WORK, failing).restart_seconds == 45.0


def test_a_fixed_batch_is_shared() -> None:
    model = CostModel(CLUSTER, replace(WORK, fixed_global_batch=True, events=64_000, seconds_per_step=1e-3))
    assert model.events_per_step(64) == 64_000
    assert model.step(64).compute == pytest.approx(1e-3 + 1000 * 1e-5)
    assert model.efficiency(4096) < model.efficiency(64) < 1.0


def test_devices_that_share_memory_slow_each_other_down() -> None:
    crowded = replace(CLUSTER, contention=1.7)
    assert [crowded.slowdown(n) for n in (1, 2, 8, 64)] == pytest.approx([1.0, 1.1, 1.7, 1.7])
    assert CostModel(crowded, WORK).step(64).compute == pytest.approx(1.7 * CostModel(CLUSTER, WORK).step(64).compute)


def test_fits_find_the_constants_again() -> None:
    noise = random.Random(2)
    steps = [(events, (3e-3 + 2e-5 * events) * noise.gauss(1.0, 0.005)) for events in (16, 64, 16384, 65536)]
    # Errors are relative: the large steps must not drown what the small ones say.
    assert fit_compute(steps) == pytest.approx((2e-5, 3e-3), rel=0.03)
    link = Link(2e9, 40e-6)
    cluster = Cluster(4, link, link)
    sums = [(size, sum_seconds("ring", 4, size, cluster) * noise.gauss(1.0, 0.002)) for size in (4e3, 6e4, 1e6, 3e6)]
    found = fit_link(4, sums)
    assert (found.bandwidth, found.latency) == pytest.approx((2e9, 40e-6), rel=0.02)
    assert fit_compute([(100, 0.5)]) == (0.005, 0.0)


def record(**changes: Any) -> dict[str, Any]:
    """What `ringflow bench scaling` writes, of a machine whose constants are known."""
    link = Link(1e9, 50e-6)
    true = CostModel(Cluster(2, link, link, contention=1.25), Work(500_000, 8e-3, 64, spread=0.03), algorithm="ring")
    sums = [{"bytes": size, "seconds": sum_seconds("ring", 2, size, true.cluster)} for size in (4096, 65536, 2_000_000)]
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
    assert (row["bandwidth"], row["latency"], row["contention"]) == pytest.approx((1e9, 50e-6, 1.25), rel=1e-3)
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


def test_records_of_two_networks_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    paths = [written(tmp_path, record()), written(tmp_path / "a", record(parameters=7))]
    with pytest.raises(UsageError, match="give records of one network"):
        read_measured(paths)


def test_the_measurement_of_ours_is_that_of_the_record() -> None:
    kept = default_measured()
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
    with pytest.raises(InputFileError, match="is no TOML file"):
        predict(str(own))

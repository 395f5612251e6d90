"""The page of a prediction needs nothing else, and the command says what it made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import UsageError
from ringflow.bench.scaling_page import in_words, write_page
from ringflow.launch.scaling import predict

CHECK = {"workers": 2, "predicted_events_per_second": 150.0, "measured_events_per_second": 160.0}
CHECK |= {"error_percent": -6.25, "bandwidth": 1_000_000_000, "latency": 5e-5, "contention": 1.1}


def test_the_page_holds_all_it_shows(tmp_path: Path) -> None:
    overrides = ["work.global_batch=fixed", "work.algorithm=ring", "upkeep.loading=1e6"]
    result: dict[str, Any] = {**predict("h200", overrides), "check": [CHECK]}
    page = write_page(result, tmp_path / "page")
    text = page.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert len(list((page.parent / "figures").glob("*.svg"))) == text.count("<img ") == 4
    assert all(alt for alt in re.findall(r'alt="([^"]*)"', text))
    last = [row for row in result["rows"] if row["algorithm"] == result["algorithm"]][-1]
    assert f"4,096 devices would train {in_words(last['events_per_second'])} events per second" in text
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    assert ["4,096", f"{last['events_per_second']:,.0f}"] in [row[:2] for row in cells]
    assert "-6.2 %" in text
    assert text.count("<li>") == len(result["assumptions"])
    assert json.loads((page.parent / "prediction.json").read_text())["rows"][-1]["devices"] == 4096


def test_one_device_and_a_cluster_that_never_gets_on_are_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one node fails every 0\.001 hours, before it gets on"):
        predict("h200", ["upkeep.node_lifetime_hours=0.001"])
    result = predict("h200", ["upkeep.node_lifetime_hours=50"], devices=[1, 64, 4096])
    text = write_page(result, tmp_path / "page").read_text()
    assert "would train 0 events per second" in text
    assert "∞" in text
    # Once more, into the same folder; but not into that of somebody else.
    assert write_page(predict("h200", devices=[1]), tmp_path / "page").read_text().count("<img ") == 3
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="holds files that ringflow did not make"):
        write_page(result, tmp_path)


@pytest.mark.parametrize(
    ("number", "words"), [(12.4, "12"), (83_084.6, "83,085"), (1.284e6, "1.28 million"), (3.11e9, "3.11 billion")]
)
def test_large_numbers_in_words(number: float, words: str) -> None:
    assert in_words(number) == words


def test_the_command_speaks_to_people_and_machines(tmp_path: Path, command: Callable[..., Any]) -> None:
    result = json.loads(command("scaling-model", "work.algorithm=ring", "--devices", 1, 64, "--json").stdout)
    assert (result["hardware"], result["algorithm"]) == ("h200", "ring")
    assert [row["devices"] for row in result["rows"][:2]] == [1, 64]
    said = command("scaling-model", "vega", "--devices", 1, "--out", tmp_path / "page")
    assert said.stdout == ""
    assert "HPC Vega" in said.stderr
    assert f"made: {tmp_path / 'page' / 'index.html'}" in said.stderr

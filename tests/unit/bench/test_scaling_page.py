"""The page of a prediction needs nothing else, and the command says what it made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import UsageError
from ringflow.bench.scaling_page import in_words, write_page
from ringflow.cli.benchmarks import scaling_model as scaling_model_command
from ringflow.launch.scaling import predict

CHECK = {
    "workers": 2,
    "predicted_events_per_second": 150.0,
    "measured_events_per_second": 160.0,
    "error_percent": -6.25,
    "bandwidth": 1_000_000_000,
    "latency": 5e-5,
    "contention": 1.1,
}


def rows_of(page: str) -> list[list[str]]:
    """The cells of the tables."""
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]


@pytest.mark.parametrize("overrides", [[], ["work.global_batch=fixed", "work.algorithm=ring", "upkeep.loading=1e6"]])
def test_the_page_holds_all_it_shows(overrides: list[str], tmp_path: Path) -> None:
    result: dict[str, Any] = {**predict("h200", overrides), "check": [CHECK]}
    page = write_page(result, tmp_path / "page")
    text = page.read_text()
    assert "default-src 'none'" in text
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert {path.stem for path in (page.parent / "figures").glob("*.png")} == {
        path.stem for path in (page.parent / "figures").glob("*.svg")
    }
    assert text.count("<img ") == 5
    assert all(alt for alt in re.findall(r'alt="([^"]*)"', text))
    last = [row for row in result["rows"] if row["algorithm"] == result["algorithm"]][-1]
    assert f"4,096 devices would train {in_words(last['events_per_second'])} events per second" in text
    assert ["4,096", f"{last['events_per_second']:,.0f}"] in [row[:2] for row in rows_of(text)]
    assert "-6.2 %" in text
    assert text.count("<li>") == len(result["assumptions"])
    assert json.loads((page.parent / "prediction.json").read_text())["rows"][-1]["devices"] == 4096
    assert write_page(result, page.parent) == page  # once more, into the same folder


def test_one_device_and_a_cluster_that_never_gets_on_are_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"one node fails every 0\.001 hours, before it gets on"):
        predict("h200", ["upkeep.node_lifetime_hours=0.001"])
    result = predict("h200", ["upkeep.node_lifetime_hours=50"], devices=[1, 64, 4096])
    text = write_page(result, tmp_path / "never").read_text()
    assert "would train 0 events per second" in text
    assert "∞" in text
    text = write_page(predict("h200", devices=[1]), tmp_path / "one").read_text()
    assert text.count("<img ") == 3


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="holds files that ringflow did not make"):
        write_page(predict("h200", devices=[1]), tmp_path)


@pytest.mark.parametrize(
    ("number", "words"), [(12.4, "12"), (83_084.6, "83,085"), (1.284e6, "1.28 million"), (3.11e9, "3.11 billion")]
)
def test_large_numbers_in_words(number: float, words: str) -> None:
    assert in_words(number) == words


def test_the_command_speaks_to_people_and_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scaling_model_command("work.algorithm=ring", devices=(1, 64), as_json=True)
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["hardware"], result["algorithm"]) == ("h200", "ring")
    assert [row["devices"] for row in result["rows"][:2]] == [1, 64]
    assert said.err.startswith("next: ")
    scaling_model_command("vega", devices=(1, 64), out=tmp_path / "page")
    said = capsys.readouterr()
    assert said.out == ""
    assert "HPC Vega" in said.err
    assert f"made: {tmp_path / 'page' / 'index.html'}" in said.err

"""A run and a dataset come again, bit by bit; what is different is found, named and told with exit code 1."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from ringflow.base.errors import FailureError, InputFileError, UsageError
from ringflow.cli.inspection import reproduce as reproduce_command
from ringflow.data.manifest import read_manifest
from ringflow.provenance import reproduce
from ringflow.provenance.reproduce import (
    compare_histories,
    compare_weights,
    differences,
    reproduce_dataset,
    reproduce_run,
)
from ringflow.provenance.trace import sha256_of
from ringflow.train.runs import read_history

CODE = {"commit": "0123456789abcdef", "dirty": False}


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of this very code and machine, to be changed."""
    monkeypatch.setattr(reproduce, "code_version", lambda: CODE)
    folder = Path(shutil.copytree(made / "run", tmp_path / "run"))
    change(folder, code=CODE)
    return folder


def change(run: Path, **told: Any) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, **told}))


def rewrite(run: Path, figure: str, factor: float, step: int) -> None:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    changed = [{**line, figure: line[figure] * factor} if line["step"] == step else line for line in lines]
    (run / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))


def test_a_run_comes_again_bit_by_bit(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert reproduce_command(run, as_json=True) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["differences"] == []
    assert [row["found"] for row in result["rows"]] == ["equal"] * 3  # history, best and last network
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
    assert not list(tmp_path.glob("ringflow-reproduce-*"))


def test_a_weight_that_is_not_the_same_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "last.safetensors"
    with safe_open(path, framework="numpy") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = sorted(tensors)[0]
    tensors[name] = np.nextafter(tensors[name], np.float32(np.inf))
    save_file(tensors, path, metadata)
    assert reproduce_command(run, as_json=True) == 1
    best, last = json.loads(capsys.readouterr().out)["rows"][1:]
    assert (best["ok"], last["ok"]) == (True, False)
    assert last["found"].startswith("1 differ, by")


def test_the_first_step_that_differs_is_named(run: Path) -> None:
    steps = [line["step"] for line in read_history(run)]
    rewrite(run, "loss_label", 1 + 1e-9, steps[1])
    result = reproduce_run(run)
    assert not result["same"]
    assert result["rows"][0]["found"].startswith(f"first at step {steps[1]}: validation loss_label ")


def test_elsewhere_losses_are_compared_within_a_tolerance(run: Path) -> None:
    change(run, packages={"torch": "1.0"})
    rewrite(run, "loss", 1.02, read_history(run)[-1]["step"])
    result = reproduce_run(run)
    assert [difference["what"] for difference in result["differences"]] == ["torch"]
    assert result["same"]
    assert result["rows"][0]["asked"] == "loss within 0.05"
    assert not reproduce_run(run, tolerance=0.01)["same"]


def test_the_beginning_alone_can_be_repeated(run: Path, tmp_path: Path) -> None:
    first = read_history(run)[0]
    result = reproduce_run(run, tmp_path / "again", events=first["events"])
    assert result["same"]
    assert result["rows"][0]["compared"].endswith("of 1 lines")
    assert read_history(tmp_path / "again")[-1]["events"] == first["events"]
    with pytest.raises(UsageError, match=f"ask for {first['events']} or more"):
        reproduce_run(run, events=first["events"] - 1)
    with pytest.raises(UsageError, match="is not empty"):
        reproduce_run(run, tmp_path / "again")


def test_steps_that_are_not_the_same_are_a_difference(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    shifted = "".join(json.dumps({**line, "step": line["step"] + 1}) + "\n" for line in lines)
    (run / "history.jsonl").write_text(shifted)
    (row,) = reproduce_run(run)["rows"]
    assert not row["ok"]
    assert f"validation at step {lines[0]['step'] + 1}" in row["found"]


def test_what_cannot_be_repeated_is_refused(run: Path, tmp_path: Path, made: Path) -> None:
    settings = run / "settings.toml"
    text = settings.read_text()
    settings.write_text(text.replace('sync = "allreduce"', 'sync = "downpour"'))
    with pytest.raises(UsageError, match="sync=downpour"):
        reproduce_run(run)
    settings.write_text(text)
    change(run, data=[{"dataset": "data", "manifest_sha256": "0" * 64}])
    with pytest.raises(FailureError, match="are not what they were"):
        reproduce_run(run)
    (run / "history.jsonl").write_text("")
    with pytest.raises(InputFileError, match="no validation yet"):
        reproduce_run(run)
    with pytest.raises(UsageError, match="neither a run nor a dataset"):
        reproduce_command(made)
    with pytest.raises(UsageError, match="was not simulated"):
        reproduce_dataset(made / "data")


def test_shards_come_again_byte_by_byte(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce_command(made / "gun", as_json=True) == 0
    assert [row["compared"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["shard-00000.parquet"]
    result = reproduce_dataset(made / "gun", tmp_path / "again", events=6)
    assert (len(result["rows"]), result["same"], result["events"]) == (2, True, 10)
    first = read_manifest(made / "gun").shards[0].file
    assert (tmp_path / "again" / first).read_bytes() == (made / "gun" / first).read_bytes()


def test_the_first_value_that_differs_is_named(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text().replace("seed = 7", "seed = 8"))
    result = reproduce_dataset(folder)
    assert not result["same"]
    assert result["rows"][0]["found"].startswith("first at event 0: ")


def test_a_damaged_shard_is_told_beside(made: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    (folder / "shard-00000.parquet").write_bytes(b"nothing")
    (row,) = reproduce_dataset(folder)["rows"]
    assert (row["ok"], row["found"]) == (False, "equal; the file in the dataset is not what its manifest says")


def test_differences_name_code_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "code_version", lambda: {"commit": "f" * 40, "dirty": True})
    found = {
        part["what"]: (part["was"], part["now"]) for part in differences({"code": CODE, "packages": {}}, {"threads": 2})
    }
    assert found["commit"] == ("0123456789ab", "f" * 12)
    assert found["source"] == ("as committed", "changed since its commit")
    assert found["threads"] == ("not recorded", "2")
    assert found["ringflow"][0] == "not recorded"


def test_lines_of_steps_are_compared_only_if_they_begin_at_the_same_step(tmp_path: Path) -> None:
    def line(kind: str, step: int, loss: float) -> dict[str, Any]:
        return {"kind": kind, "step": step, "events": 10 * step, "loss": loss, "events_per_second": loss}

    before = [line("train", 100, 1.0), line("validation", 150, 2.0), line("train", 210, 3.0)]
    now = [line("train", 90, 9.0), line("validation", 150, 2.5), line("train", 210, 9.0)]
    lines, values, (departure,) = compare_histories(before, now)
    assert (lines, values, departure.size) == (1, 1, 0.25)
    assert compare_histories(before, before)[2] == []
    assert compare_histories(before, [{**before[0], "loss": None}])[2][0].size == float("inf")


def test_tensors_of_another_shape_are_different(made: Path, tmp_path: Path) -> None:
    save_file({"a": np.zeros(3, np.float32), "b": np.zeros(1, np.float32)}, tmp_path / "one.safetensors")
    save_file({"a": np.zeros(4, np.float32)}, tmp_path / "other.safetensors")
    assert compare_weights(tmp_path / "one.safetensors", tmp_path / "other.safetensors")[1] == ["a", "b"]


def test_equal_events_in_other_bytes_are_the_same_only_for_other_code(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(made / "gun", tmp_path / "gun"))
    path = folder / "shard-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["cluster_peak_x"]), path, compression="none")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["columns"]["cluster"].remove("peak_x")
    manifest["shards"][0] |= {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
    manifest["provenance"]["code"] = CODE
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(reproduce, "code_version", lambda: CODE)
    (row,) = reproduce_dataset(folder)["rows"]
    found = "every value is equal, but not the bytes: 1 columns are new, such as cluster_peak_x"
    assert (row["found"], row["ok"]) == (found, False)
    monkeypatch.setattr(reproduce, "code_version", lambda: {**CODE, "commit": "f" * 40})
    assert reproduce_dataset(folder)["same"]

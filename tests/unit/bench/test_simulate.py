"""The simulation benchmark: what it reports, not how fast it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ringflow.base.errors import UsageError
from ringflow.bench.record import write_record
from ringflow.bench.simulate import run


def test_a_production_is_timed_and_the_machine_described(tmp_path: Path):
    result = run(events=50, workers=1, detector="clic", device="cpu")
    assert result["events_per_second_per_core"] == pytest.approx(result["events_per_second"], abs=0.01)
    assert result["events_per_second"] > 0
    assert result["kilobytes_per_event"] > 10
    assert set(result["milliseconds_per_event"]) == {"generate", "detector"}
    assert result["cores"] >= 1
    path = write_record(result, tmp_path / "record.json")
    assert json.loads(path.read_text(encoding="utf-8")) == result


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_a_usage_error():
    with pytest.raises(UsageError, match="device 'cuda' cannot be used here"):
        run(events=10, workers=1, detector="clic", device="cuda")

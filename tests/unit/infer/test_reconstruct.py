"""Parts: those of another request are dropped, and the folder of somebody else is left alone.

That interrupted work goes on is tested through the command, in `tests/unit/recipes/test_reconstruct.py` and `test_remote.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fixtures.fake_events import fake_block, same
from ringflow.base.errors import UsageError
from ringflow.event.block import EventBlock, cast
from ringflow.infer import reconstruct as engine
from ringflow.infer.reconstruct import Parts, after, drop, parts_folder
from ringflow.infer.runtime import ROW

RECORD = {"manifest_sha256": "", "sample": "fake", "detector": "fake", "reconstruction": "model", "provenance": {}}


def made() -> list[EventBlock]:
    """Candidates of twenty events in blocks of four."""
    blocks = [fake_block(4 * n, 4) for n in range(5)]
    columns = [{name: block["target"][name] for name in ROW} for block in blocks]
    return [
        EventBlock(block.event_number, {"candidate": cast("candidate", block["target"].counts, own)})
        for block, own in zip(blocks, columns, strict=True)
    ]


def test_parts_are_whole_and_of_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(engine, "EVENTS_PER_PART", 8)
    out = tmp_path / "out.parquet"
    with Parts(out, {"request": "a"}) as parts:
        parts.keep(made()[:2], RECORD, lambda steps: None)
    (tmp_path / "out.parquet.parts" / ".part-000001.parquet.1.part").write_text("half of a part")
    with Parts(out, {"request": "a"}) as parts:
        assert parts.num_events == 8
        with pytest.raises(UsageError, match="another command is writing"), Parts(out, {"request": "a"}):
            pass
        drop(parts_folder(out))  # not while somebody is at work
        assert parts.keep(after(made(), 8), RECORD, lambda steps: None) == 12
        assert all(same(one, other) for one, other in zip(parts.blocks(), made(), strict=True))
        assert np.concatenate([block.event_number for block in parts.blocks()]).tolist() == list(range(20))
    with Parts(out, {"request": "b"}) as parts:
        assert parts.num_events == 0
        assert "is of another request: starting anew" in capsys.readouterr().err
        parts.remove()
    assert list(tmp_path.iterdir()) == []
    with Parts(out, {"request": "b"}):
        pass
    drop(parts_folder(out))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path):
    other = tmp_path / "out.parquet.parts" / "mine.txt"
    other.parent.mkdir()
    other.write_text("mine")
    with pytest.raises(UsageError, match="holds files that ringflow did not make"), Parts(tmp_path / "out.parquet", {}):
        pass
    drop(other.parent)
    assert other.read_text() == "mine"

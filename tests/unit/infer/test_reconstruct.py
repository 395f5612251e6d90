"""Parts: only whole ones count, those of another request are dropped, and the blocks come back as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fixtures.fake_events import fake_block, same
from ringflow.base.errors import UsageError
from ringflow.event.block import Collection, EventBlock, cast
from ringflow.infer import reconstruct as engine
from ringflow.infer.reconstruct import Parts

RECORD = {"manifest_sha256": "", "sample": "fake", "detector": "fake", "reconstruction": "model", "provenance": {}}


class EchoSession:
    """Makes one candidate of every track."""

    threshold = 0.5
    kinds = ("track", "cluster")
    detector = None

    def __init__(self, stop_after: int = 10**9) -> None:
        self.card: dict[str, object] = {}
        self.left = stop_after

    def reconstruct(self, block: EventBlock) -> Collection:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        tracks = block["track"]
        momentum = dict.fromkeys(("px", "py", "pz", "energy"), tracks["pt"])
        index = {"track": np.arange(len(tracks)), "cluster": np.full(len(tracks), -1)}
        return cast(
            "candidate", tracks.counts, {**momentum, **index, "label": tracks["charge"], "charge": tracks["charge"]}
        )


def source() -> Iterator[EventBlock]:
    return (fake_block(4 * n, 4) for n in range(5))


def work(out: Path, session: EchoSession, request: str = "a") -> tuple[Parts, int]:
    parts = Parts(out, {"request": request})
    return parts, go_on(parts, session)


def go_on(parts: Parts, session: EchoSession) -> int:
    made = engine.made_of(session.reconstruct, engine.after(source(), parts.num_events))
    return parts.keep(made, RECORD, lambda steps: None)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "EVENTS_PER_PART", 8)


def test_blocks_come_back(tmp_path: Path):
    parts, new = work(tmp_path / "out.parquet", EchoSession())
    assert new == parts.num_events == 20
    made = list(parts.blocks())
    assert [len(block) for block in made] == [4] * 5
    assert np.concatenate([block.event_number for block in made]).tolist() == list(range(20))
    for block, given in zip(made, source(), strict=True):
        assert np.array_equal(block["candidate"]["px"], given["track"]["pt"])
    parts.remove()
    assert list(tmp_path.iterdir()) == []


def test_interrupted_work_goes_on(tmp_path: Path):
    whole, _ = work(tmp_path / "whole.parquet", EchoSession())
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "out.parquet", EchoSession(stop_after=3))
    (tmp_path / "out.parquet.parts" / ".part-000001.parquet.1.part").write_text("half of a part")
    parts = Parts(tmp_path / "out.parquet", {"request": "a"})
    assert parts.num_events == 8  # the third block was not in a whole part
    new = go_on(parts, EchoSession())
    assert new == 12
    assert all(same(one, other) for one, other in zip(parts.blocks(), whole.blocks(), strict=True))


def test_another_request_starts_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(KeyboardInterrupt):
        work(tmp_path / "out.parquet", EchoSession(stop_after=3))
    parts, new = work(tmp_path / "out.parquet", EchoSession(), request="b")
    assert "is of another request: starting anew" in capsys.readouterr().err
    assert new == parts.num_events == 20


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path):
    other = tmp_path / "out.parquet.parts" / "mine.txt"
    other.parent.mkdir()
    other.write_text("mine")
    with pytest.raises(UsageError, match="holds files that ringflow did not make"):
        Parts(tmp_path / "out.parquet", {})
    assert other.read_text() == "mine"

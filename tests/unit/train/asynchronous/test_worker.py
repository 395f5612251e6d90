"""A worker: which batches it takes, what it reports, when it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from ringflow.base.errors import DivergenceError
from ringflow.train.asynchronous.account import Account, Stopwatch
from ringflow.train.asynchronous.downpour import DownpourWorker
from ringflow.train.asynchronous.easgd import ElasticWorker
from ringflow.train.asynchronous.messages import Answer, row_for
from ringflow.train.asynchronous.worker import Start, Worker, make_feeds
from ringflow.train.batches import BEGINNING, DataPosition
from ringflow.train.settings import TrainSettings
from ringflow.train.signals import Wish
from ringflow.train.step import TrainingStep

Tiny = Callable[..., TrainSettings]
CPU = torch.device("cpu")
FRESH = Start(False, False, 0, 0, [BEGINNING, BEGINNING], None, True)


@pytest.fixture
def work(make_step: Callable[..., TrainingStep], post: Any, run: Path) -> Callable[..., Any]:
    """A worker that hears prepared answers, each with a row of zeros; what it sends."""

    def go(settings: TrainSettings, sources: dict[int, Any], *answers: Answer, wish: Wish | None = None) -> Any:
        step = make_step(settings)
        method = ElasticWorker(step, lambda events: 1e-3) if settings.sync == "easgd" else DownpourWorker(step)
        heard = post(*((0, answer, torch.zeros_like(row_for(step.model))) for answer in answers))
        feeds = make_feeds(sources, settings, FRESH, CPU)
        Worker(settings, run, feeds, step, method, wish or Wish()).go(heard, FRESH, Stopwatch())
        assert not heard.script
        heard.model = step.model
        return heard

    return go


def test_it_takes_its_lanes_in_turn_and_reports_where_they_are(tiny: Tiny, work: Callable[..., Any], source: Any):
    settings = tiny("sync=downpour", "asynchronous.period=3", "source.lanes=2")
    wish = Wish()
    wish.signal_name = "SIGTERM"
    answers = Answer(5, 70), Answer(9, 120, go_on=False)
    heard = work(settings, {0: source(60), 1: source(60)}, *answers, wish=wish)
    (_, first, _), (_, second, _), (_, account, nothing) = heard.sent
    assert [report.version for report in (first, second)] == [0, 5]
    assert [report.positions for report in (first, second)] == [
        {0: DataPosition(0, 0, 2), 1: DataPosition(0, 0, 1)},
        {0: DataPosition(0, 0, 3), 1: DataPosition(0, 0, 3)},
    ]
    assert first.signal == "SIGTERM"
    assert first.computed == first.real > 0
    assert {"total", "gradient"} < set(first.values)
    assert isinstance(account, Account)
    assert nothing is None
    assert account.seconds["data"] > 0


def test_it_hands_over_its_state_when_asked(tiny: Tiny, work: Callable[..., Any], source: Any):
    settings = tiny("sync=easgd", "asynchronous.period=2", "source.lanes=1")
    heard = work(settings, {0: source()}, Answer(1, 20, wants_state=True), Answer(2, 40, go_on=False))
    _, (to, state, _), _, _ = heard.sent
    assert to == 0
    assert {name.split("/")[0] for name in state} == {"weights", "average", "optimizer"}
    assert int(state["optimizer/step/norm.weight"]) == 2


def test_random_features_are_drawn_when_the_master_draws_them(
    tiny: Tiny, work: Callable[..., Any], source: Any, make_step: Callable[..., TrainingStep]
):
    settings = tiny("sync=easgd", "model.backbone=kernel", "model.kernel.redraw_steps=4", "source.lanes=1")
    drawn = {version: make_step(settings) for version in (0, 4, 8)}
    for version, step in drawn.items():
        step.redraw(version)
    features = {version: step.model.blocks[0].mixer.projection_ME for version, step in drawn.items()}
    for last, expected in ((3, 0), (4, 4), (7, 4), (9, 8)):  # it may miss the moment itself
        heard = work(settings, {0: source()}, Answer(2, 20), Answer(last, 40, go_on=False))
        assert torch.equal(heard.model.blocks[0].mixer.projection_ME, features[expected])


@pytest.mark.parametrize(("sync", "positions"), [("downpour", 4), ("easgd", 1)])
def test_what_is_not_finite_is_not_sent(
    sync: str, positions: int, tiny: Tiny, work: Callable[..., Any], source: Any, run: Path
):
    settings = tiny(f"sync={sync}", "asynchronous.period=4", "source.lanes=1", "seed=4")
    answers = [Answer(n, 10 * n) for n in range(1, 9)]
    with pytest.raises(DivergenceError, match=r"became NaN or infinite at step \d+; the batch is in .*bad_batch"):
        work(settings, {0: source(spoiled=(0,))}, *answers)
    with safe_open(run / "bad_batch.safetensors", framework="pt") as file:
        assert len(json.loads(file.metadata()["positions"])) == positions
        assert file.get_tensor("targets.momentum_N4").isinf().any()


def test_it_goes_on_where_lanes_were_and_with_other_batches_at_the_next_turn(tiny: Tiny, source: Any):
    settings = tiny("source.lanes=2", "source.reuse=2")
    positions = [DataPosition(3, 0, 2), DataPosition(3, 1, 0)]
    start = Start(True, False, 9, 100, positions, None, True)
    feeds = make_feeds({0: source(), 1: source()}, settings, start, CPU)
    assert [feed.position for feed in feeds.values()] == positions
    feeds = make_feeds({0: source(), 1: source()}, settings, start._replace(same_batches=False), CPU)
    assert [feed.position for feed in feeds.values()] == [DataPosition(3, 1, 0), DataPosition(3, 1, 0)]

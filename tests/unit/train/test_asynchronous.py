"""Master and workers: what rows do to weights, who takes which batches, when they end, and how the error of one ends all."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from ringflow.base.errors import DivergenceError, FailureError, UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.model import Model
from ringflow.train.asynchronous import (
    METHODS,
    Answer,
    Downpour,
    ElasticAveraging,
    Master,
    Stopwatch,
    WorkerReport,
    rate_after,
    require_workers,
)
from ringflow.train.asynchronous import work as follow
from ringflow.train.batches import BEGINNING, DataPosition, Feed, TrainingBatch
from ringflow.train.checkpoint import TrainingState, read_checkpoint
from ringflow.train.data import TrainingData
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep
from ringflow.train.trainer import Trainer, make_feeds
from ringflow.train.world import StopRequest, pack, unpack

Tiny = Callable[..., TrainSettings]
MakeStep = Callable[[TrainSettings], TrainingStep]
CPU = torch.device("cpu")


class ScriptedMessages:
    """Receives what is in its script, one after the other, and remembers what was sent."""

    def __init__(self, *script: tuple[int, Any, Tensor | None]) -> None:
        self.script = deque(script)
        self.sent: list[tuple[int, Any, Tensor | None]] = []
        self.phases = Stopwatch()

    def send(self, to: int, message: Any, row: Tensor | None = None, kind: Any = Any) -> None:
        self.sent.append((to, message, None if row is None else row.clone()))

    def receive(self, row: Tensor, source: int | None = None, kind: Any = Any) -> tuple[int, Any]:
        sender, message, content = self.script.popleft()
        assert source in (None, sender), f"{source} was expected, not {sender}"
        if content is not None:
            row.copy_(content)
        return sender, unpack(pack(message, kind), kind)

    def account(self) -> dict[str, Any]:
        return {"seconds": self.phases.seconds}


@pytest.fixture
def make_step() -> Callable[[TrainSettings], TrainingStep]:
    def make(settings: TrainSettings) -> TrainingStep:
        torch.manual_seed(settings.seed)
        return TrainingStep(Model(settings.model), settings, torch.device("cpu"))

    return make


def batches(source: Any, count: int) -> list[TrainingBatch]:
    feed = Feed(source, budget=100, reuse=1, seed=1, device=torch.device("cpu"))
    return [feed.next(1) for _ in range(count)]


def test_several_batches_make_one_gradient(tiny: Tiny, make_step: MakeStep, source: Callable[..., Any]):
    step = make_step(tiny("source.hide=0"))
    two = batches(source(), 2)
    row = torch.empty(step.model.num_parameters)
    (record,) = Downpour(step, tiny(), 1).work(two, row, 7, 0)
    assert (record.step, record.positions) == (8, tuple(batch.position for batch in two))
    step.gradients(two)
    whole = torch.cat([weight.grad.flatten() for weight in step.model.parameters() if weight.grad is not None])
    torch.testing.assert_close(row, whole)


def test_a_worker_takes_a_step_for_every_batch(tiny: Tiny, make_step: MakeStep, source: Callable[..., Any]):
    settings = tiny("sync=easgd", "length.events=5000")
    alone, step, three = make_step(settings), make_step(settings), batches(source(), 3)
    row = torch.empty(step.model.num_parameters)
    records = ElasticAveraging(step, settings, 1).work(three, row, 4, 1000)
    events = 1000
    for number, batch in enumerate(three):
        events += batch.num_events
        alone.take([batch], number, rate_after(settings, events))
        assert alone.read()[0].values == records[number].values
    assert torch.equal(row, torch.cat([weight.detach().flatten() for weight in alone.model.parameters()]))


def test_the_rate_follows_the_events_and_the_size_of_a_move(tiny: Tiny):
    words = ("optimizer.rate=0.01", "optimizer.warmup=0.5", "optimizer.rule=linear", "optimizer.rule_elements=100")
    settings = tiny("sync=downpour", "asynchronous.period=3", *words)
    assert rate_after(settings, 30) == pytest.approx(0.01 * 3 * 0.5)
    assert rate_after(tiny("sync=easgd", "asynchronous.period=3", *words), 30) == pytest.approx(0.01 * 0.5)


FRESH = TrainingState(positions=[BEGINNING, BEGINNING])


@pytest.fixture
def work(make_step: Callable[..., TrainingStep], run: Path) -> Callable[..., Any]:
    """A worker that hears prepared answers, each with a row of zeros; what it sends."""

    def go(settings: TrainSettings, sources: dict[int, Any], *answers: Answer, stop: StopRequest | None = None) -> Any:
        step = make_step(settings)
        method = METHODS[settings.sync](step, settings, 1)
        heard = ScriptedMessages(
            *((0, answer, torch.zeros_like(torch.empty(step.model.num_parameters))) for answer in answers)
        )
        feeds = make_feeds(sources, settings, FRESH, CPU)
        follow(settings, run, feeds, step, method, stop or StopRequest(), heard, FRESH)
        assert not heard.script
        heard.model = step.model
        return heard

    return go


def test_it_takes_its_lanes_in_turn_and_reports_where_they_are(tiny: Tiny, work: Callable[..., Any], source: Any):
    settings = tiny("sync=downpour", "asynchronous.period=3", "source.lanes=2")
    stop = StopRequest()
    stop.signal_name = "SIGTERM"
    answers = Answer(5, 70), Answer(9, 120, go_on=False)
    heard = work(settings, {0: source(60), 1: source(60)}, *answers, stop=stop)
    (_, first, _), (_, second, _) = heard.sent
    assert [report.version for report in (first, second)] == [0, 5]
    assert [report.positions for report in (first, second)] == [
        {0: DataPosition(0, 0, 2), 1: DataPosition(0, 0, 1)},
        {0: DataPosition(0, 0, 3), 1: DataPosition(0, 0, 3)},
    ]
    assert first.signal == "SIGTERM"
    assert first.computed == first.real > 0
    assert {"total", "gradient"} < set(first.values)
    assert heard.phases.seconds["data"] > 0


def test_it_hands_over_its_state_when_asked(tiny: Tiny, work: Callable[..., Any], source: Any):
    settings = tiny("sync=easgd", "asynchronous.period=2", "source.lanes=1")
    heard = work(settings, {0: source()}, Answer(1, 20, wants_state=True), Answer(2, 40, go_on=False))
    _, (to, state, _), _ = heard.sent
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


VALUES = {"total": 1.0, "gradient": 2.0}


class Steps:
    """A rule that puts the number of the step into the row."""

    def __init__(self, needs_states: bool) -> None:
        self.needs_states, self.rates = needs_states, []

    def take_in(self, row: Tensor, number: int, rate: float) -> float | None:
        self.rates.append(rate)
        row.fill_(number)
        return None


def report(version: int, batch: int, lane: int = 0, **more: Any) -> WorkerReport:
    place = {lane: DataPosition(0, 0, batch)}
    return WorkerReport(version, events=20, computed=100, real=90, positions=place, shape=None, values=VALUES, **more)


@pytest.fixture
def lead(
    tiny: Tiny, make_step: Callable[..., TrainingStep], events: Callable[..., ElementBatch], run: Path
) -> Callable[..., Any]:
    """A master who hears prepared reports of workers, and what it then has to say."""

    def go(script: list[tuple[int, Any]], *words: str, needs_states: bool = False, workers: int = 2) -> tuple[Any, ...]:
        settings = tiny("source.lanes=2", "sync=easgd" if needs_states else "sync=downpour", *words)
        progress = Trainer(settings, TrainingData({}, events(6, 99)), run)
        step, rule = make_step(settings), Steps(needs_states)
        row = torch.empty(step.model.num_parameters)
        heard = ScriptedMessages(
            *((who, what, row if isinstance(what, WorkerReport) else None) for who, what in script)
        )
        stopped = Master(progress, step, rule, StopRequest(), heard, workers).run()
        assert not heard.script
        return heard, progress, stopped, rule, settings

    return go


def ended(seconds: float = 1.0) -> dict[str, Any]:
    return {"seconds": {"forward": seconds}}


def test_every_report_counts_and_the_last_ones_are_answered_with_the_end(lead: Callable[..., Any], run: Path):
    script = [
        (1, report(0, 1)),
        (2, report(0, 1, lane=1)),
        (1, report(1, 2)),
        (1, ended()),
        (2, report(2, 2, lane=1)),
        (2, ended(2.0)),
    ]
    heard, progress, stopped, rule, settings = lead(script, "length.events=60", "length.validate_every=1000")
    assert stopped is None
    answers = [(to, answer.version, answer.events, answer.go_on, int(row[0])) for to, answer, row in heard.sent]
    assert answers == [(1, 1, 20, True, 0), (2, 2, 40, True, 1), (1, 3, 60, False, 2), (2, 4, 80, False, 3)]
    assert rule.rates == [rate_after(settings, events) for events in (20, 40, 60, 80)]
    state = progress.state
    assert (state.step, state.events, state.computed, state.padding) == (4, 80, 400, 40)
    found = read_checkpoint(run)
    assert found is not None
    assert (found.state.step, found.state.positions) == (4, [DataPosition(0, 0, 2)] * 2)
    record = json.loads((run / "asynchronous.json").read_text())
    assert (record["staleness_mean"], record["staleness_largest"]) == (pytest.approx((0 + 1 + 1 + 1) / 4), 1)
    assert [rank["role"] for rank in record["ranks"]] == ["master", "worker", "worker"]
    assert record["ranks"][2]["seconds"] == {"forward": 2.0}


def validations(run: Path) -> list[int]:
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    return [line["events"] for line in lines if line["kind"] == "validation"]


def test_it_validates_on_the_way_and_once_at_the_end(lead: Callable[..., Any], run: Path):
    script = [(1, report(n, n + 1)) for n in range(5)]
    lead([*script, (1, ended())], "length.events=100", "length.validate_every=50", workers=1)
    assert validations(run) == [60, 100]


def test_it_stops_when_nothing_gets_better(lead: Callable[..., Any], run: Path, capsys: pytest.CaptureFixture[str]):
    script = [(1, report(n, n + 1)) for n in range(4)]  # the weights do not move: nothing gets better
    words = ("length.events=1000", "length.validate_every=20", "length.patience=2")
    _, progress, stopped, *_ = lead([*script, (1, ended())], *words, workers=1)
    assert (stopped, progress.stopped_early, validations(run)) == (None, True, [20, 40, 60])
    assert "stopped early: 2 validations without a better one" in capsys.readouterr().err


def test_a_signal_of_a_worker_stops_all(lead: Callable[..., Any], run: Path):
    script = [(2, report(0, 1, lane=1, signal="SIGUSR1")), (2, ended()), (1, report(0, 1)), (1, ended())]
    heard, _, stopped, *_ = lead(script, "length.events=1000", "length.validate_every=1000")
    assert str(stopped).startswith("stopped by SIGUSR1 after 40 events, and all is saved")
    assert [answer.go_on for _, answer, _ in heard.sent] == [False, False]
    found = read_checkpoint(run)
    assert found is not None
    assert found.state.events == 40


def state_of(worker: int, number: int) -> dict[str, Tensor]:
    return {"weights/w": torch.tensor([float(worker), float(number)])}


def test_a_checkpoint_has_the_state_of_every_worker_as_of_its_last_report(lead: Callable[..., Any], run: Path):
    script = [
        (1, report(0, 1)),  # it is time for a checkpoint: all are asked from now on
        (1, report(1, 2)),
        (1, state_of(1, 2)),
        (1, report(2, 3)),
        (1, state_of(1, 3)),
        (2, report(0, 1, lane=1)),
        (2, state_of(2, 1)),  # written here
    ]
    # The script ends: the master dies after the checkpoint, and what is there is what it wrote.
    with pytest.raises(IndexError):
        lead(script, "length.events=1000", "length.validate_every=20", needs_states=True)
    found = read_checkpoint(run)
    assert found is not None
    assert (found.state.step, found.state.positions) == (4, [DataPosition(0, 0, 3), DataPosition(0, 0, 1)])
    assert found.tensors["worker-1/weights/w"].tolist() == [1.0, 3.0]
    assert found.tensors["worker-2/weights/w"].tolist() == [2.0, 1.0]


def test_the_error_of_a_worker_ends_all_and_what_is_there_stays(lead: Callable[..., Any], run: Path):
    failure = FailureError("no memory left")
    script = [(1, report(0, 1)), (2, failure), (1, report(1, 2)), (1, ended())]
    heard, _, stopped, *_ = lead(script, "length.events=1000", "length.validate_every=1000")
    assert (type(stopped), str(stopped)) == (FailureError, str(failure))
    assert [(to, answer.go_on) for to, answer, _ in heard.sent] == [(1, True), (1, False)]
    assert read_checkpoint(run) is None


def test_what_cannot_be_a_master_and_workers_is_refused(tiny: Tiny):
    with pytest.raises(
        UsageError, match=r"sync=downpour needs a master and at least one worker; start it with `ringflow"
    ):
        require_workers(tiny("sync=downpour"), 1)
    with pytest.raises(UsageError, match=r"use compute.strategy=replicate, not shard, or sync=allreduce"):
        require_workers(tiny("sync=downpour", "compute.strategy=shard"), 3)

"""The loop: it learns, stops, goes on, is paced and resized, and says what went wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from fixtures.made_up import Ends, assert_same_weights, dying_at, history, weights
from fixtures.networks import random_network
from ringflow.base.errors import DivergenceError, FailureError, InputFileError, UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model, decode
from ringflow.train import step as step_module
from ringflow.train import trainer as trainer_module
from ringflow.train.batches import DataPosition, Feed
from ringflow.train.checkpoint import TrainingState, read_checkpoint
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]
Source = Callable[..., Any]
Start = Callable[..., Any]

EVERY_STEP, NEVER = "length.checkpoint_seconds=1e-9", "length.checkpoint_seconds=1e9"


def state_of(folder: Path) -> TrainingState:
    found = read_checkpoint(folder)
    assert found is not None
    return found.state


def begin(start: Start, settings: TrainSettings, folder: Path, step: int, pace: Any = None) -> None:
    """Train up to a step, and die there."""
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, step)
        with pytest.raises(Ends):
            start(settings, folder, pace=pace)
    torch.rand(5)


def test_the_loss_falls_and_the_best_network_is_there(tiny: Tiny, start: Start, run: Path, events: Events):
    words = ("length.events=1100", "length.validate_every=220", "optimizer.rate=0.01")
    result = start(tiny(*words), card={"by": "a test"})
    losses = [line["loss"] for line in history(run, "validation")]
    assert len(losses) == 5
    assert losses[-1] < 0.7 * losses[0]
    assert result.best["loss"] == min(losses)
    assert result.events >= 1100
    assert result.padding_share == 0.0
    assert result.events / result.seconds < result.events_per_second < 1e6  # steps are a part of the time
    assert result.peak_memory_bytes > 0
    loaded = load_model(run / "model.safetensors")
    assert loaded.card["by"] == "a test"
    assert loaded.card["metrics"]["loss"] == min(losses)
    assert loaded.card["settings"]["length"]["events"] == 1100
    assert load_model(run / "last.safetensors").card["metrics"]["loss"] == losses[-1]
    first_chunk = events(24, 0).features_NF
    assert torch.allclose(loaded.model.embedding.mean_F, first_chunk.nanmean(0), atol=1e-5), "scaled to the first chunk"
    (line, *_) = history(run, "train")
    assert {"loss", "loss_jet", "rate", "gradient", "events_per_second", "padding_share"} <= set(line)


@pytest.mark.parametrize(
    ("stop", "words"),
    [(0, (EVERY_STEP,)), (7, (EVERY_STEP,)), (13, (NEVER,)), (13, (EVERY_STEP, "source.lanes=2"))],
)
def test_a_training_goes_on_as_if_it_had_not_stopped(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, stop: int, words: tuple[str, ...]
):
    settings = tiny("model.dropout=0.1", "source.reuse=2", "length.events=240", *words)
    whole = start(settings, tmp_path / "whole")
    assert whole.steps > 13
    begin(start, settings, run, stop)
    result = start(settings)
    assert (result.steps, result.events, result.best) == (whole.steps, whole.events, whole.best)
    assert_same_weights(run, tmp_path / "whole")


def test_a_history_has_no_doubles(tiny: Tiny, start: Start, run: Path):
    settings = tiny("length.events=1300", "length.validate_every=400", NEVER)
    begin(start, settings, run, 110)  # after the line of step 100, long after the last checkpoint
    assert [line["step"] for line in history(run, "train")] == [100]
    start(settings)
    for kind in ("train", "validation"):
        steps = [line["step"] for line in history(run, kind)]
        assert steps == sorted(set(steps))
    assert [line["events"] // 400 for line in history(run, "validation")] == [1, 2, 3, 3]  # the last at the end


def test_a_finished_training_says_so_and_a_longer_one_goes_on(
    tiny: Tiny, start: Start, source: Source, capsys: pytest.CaptureFixture[str]
):
    first = start(tiny())
    capsys.readouterr()
    untouched = source()
    again = start(tiny("source.lanes=2"), sources={0: untouched})  # it has no lanes to change
    assert (again.steps, again.events, again.best) == (first.steps, first.events, first.best)
    assert untouched.asked == []
    said = capsys.readouterr().err
    assert "is finished; give a larger length.events" in said
    assert "source.lanes" not in said
    longer = start(tiny("length.events=240"))
    assert longer.steps > first.steps
    assert longer.seconds > first.seconds > 0


def test_another_batch_size_takes_up_the_next_pass(
    tiny: Tiny, start: Start, run: Path, source: Source, capsys: pytest.CaptureFixture[str]
):
    begin(start, tiny(EVERY_STEP), run, 1)
    taken_up = source()
    assert start(tiny("compute.batch_elements=60"), sources={0: taken_up}).events >= 120
    assert taken_up.asked[0] == 1
    assert "the rest of this pass through the events is left out" in capsys.readouterr().err


@pytest.mark.parametrize("seen_late", [False, True], ids=["seen at once", "seen many steps later"])
def test_a_nan_stops_and_leaves_the_batch_and_the_last_good_checkpoint(
    tiny: Tiny, start: Start, source: Source, run: Path, monkeypatch: pytest.MonkeyPatch, seen_late: bool
):
    if seen_late:
        monkeypatch.setattr(step_module, "is_accelerator", lambda device: True)
    words = ("seed=4", "length.validate_every=70", NEVER if seen_late else EVERY_STEP)
    expected = r"became NaN or infinite at step 5; the batch is in .*bad_batch"
    with pytest.raises(DivergenceError, match=expected) as caught:
        start(tiny(*words), sources={0: source(spoiled=(1,))})
    assert "\n" not in str(caught.value)
    with safe_open(run / "bad_batch.safetensors", framework="pt") as file:
        metadata, momentum, names = file.metadata(), file.get_tensor("targets.momentum_N4"), set(file.keys())
    assert {"kind_N", "features_NF", "offsets_B", "targets.label_N"} <= names
    assert momentum.isinf().any()
    assert (metadata["step"], json.loads(metadata["positions"])) == ("5", [[1, 0, 1]])
    if not seen_late:
        assert not any(value.isnan().any() for value in weights(run).values() if value.is_floating_point())


def test_out_of_memory_names_what_to_try(tiny: Tiny, start: Start, source: Source, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    given = source()
    monkeypatch.setattr(given, "chunk", full)
    with pytest.raises(
        FailureError, match=r"^out of memory with a chunk of events; try a smaller source.chunk_events$"
    ):
        start(tiny(), sources={0: given})
    monkeypatch.setattr(TrainingStep, "take", full)
    expected = r"^out of memory with batches of 100 elements; try compute.batch_elements=50$"
    with pytest.raises(FailureError, match=expected):
        start(tiny())
    monkeypatch.setattr(TrainingStep, "take", lambda *arguments: [][1])
    with pytest.raises(IndexError):
        start(tiny())


def test_a_broken_checkpoint_does_not_stop_a_training(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = start(tiny("length.events=240"), tmp_path / "whole")
    start(tiny("length.events=240"))
    last = sorted((run / "checkpoints").iterdir())[-1] / "tensors.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    assert start(tiny("length.events=240")).best == whole.best
    assert "is broken" in capsys.readouterr().err
    assert_same_weights(run, tmp_path / "whole")


class Judge:
    """Gives figures from a list, and remembers what it was shown."""

    def __init__(self, *figures: float) -> None:
        self.figures, self.shown = list(figures), []

    def __call__(self, model: Model) -> dict[str, float]:
        torch.rand(3)
        self.shown.append(model.training)
        return {"jet_iqr_over_median": self.figures.pop(0), "f1": 0.5}


def test_it_stops_when_nothing_gets_better(tiny: Tiny, start: Start, run: Path):
    judge = Judge(0.5, 0.3, 0.4, float("nan"), 0.1)
    settings = tiny("length.events=1000", "length.validate_every=30", "length.patience=2")
    result = start(settings, validate=judge)
    assert result.stopped_early
    assert judge.figures == [0.1]
    assert judge.shown == [False] * 4
    lines = history(run, "validation")
    assert [line["jet_iqr_over_median"] for line in lines] == [0.5, 0.3, 0.4, None]
    assert result.best["jet_iqr_over_median"] == 0.3
    assert result.best["step"] == lines[1]["step"]
    assert load_model(run / "model.safetensors").card["metrics"]["jet_iqr_over_median"] == 0.3
    assert load_model(run / "last.safetensors").card["training"]["steps"] == lines[3]["step"]
    assert start(settings).steps == result.steps


def test_filled_batches_train_the_same_network(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # Without what is drawn per event or element, the rows that fill up must not matter.
    settings = tiny("source.hide=0", "loss.jet=0")
    start(settings, tmp_path / "plain")
    monkeypatch.setattr(trainer_module, "Feed", lambda source, **options: Feed(source, **options, fill=True))
    assert 0.0 < start(settings).padding_share < 0.5
    plain, filled = weights(tmp_path / "plain"), weights(run)
    for name in plain:
        if name.startswith("weights/"):
            assert torch.allclose(plain[name], filled[name], rtol=1e-3, atol=1e-4), name


def test_a_training_from_a_file_begins_with_its_weights_and_goes_on_without_it(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path
):
    earlier, still = tmp_path / "earlier.safetensors", ("optimizer.rate=1e-9", "length.events=30")
    torch.manual_seed(77)
    model = Model(tiny().model)
    model.embedding.mean_F.fill_(0.25)
    save_model(earlier, model)
    start(tiny(*still, f"start={earlier}"))
    made = load_model(run / "last.safetensors").model.state_dict()
    torch.testing.assert_close(made, model.state_dict(), atol=1e-6, rtol=0.0)
    start(tiny(*still), tmp_path / "other")
    fresh = load_model(tmp_path / "other" / "last.safetensors").model.state_dict()
    assert not torch.allclose(fresh["heads.hidden.0.weight"], made["heads.hidden.0.weight"])
    earlier.unlink()
    start(tiny("optimizer.rate=1e-9", "length.events=60", f"start={earlier}"))
    with pytest.raises(InputFileError, match="no model file at"):
        start(tiny(f"start={earlier}"), tmp_path / "new")


@pytest.mark.parametrize(
    ("detector", "scaling", "anew"),
    [
        ("other", "auto", True),
        ("clic", "auto", False),
        (None, "auto", False),
        ("other", "kept", False),
        ("clic", "new", True),
    ],
)
def test_a_network_of_another_detector_is_scaled_anew_and_finds_the_same(
    tiny: Tiny,
    start: Start,
    run: Path,
    tmp_path: Path,
    events: Events,
    capsys: pytest.CaptureFixture[str],
    detector: str | None,
    scaling: str,
    anew: bool,
):
    earlier, model = tmp_path / "earlier.safetensors", random_network()
    model.embedding.fit(1.05 * events(400, 5).features_NF - 0.05)
    save_model(earlier, model, card={"detector": detector} if detector else {})
    settings = tiny("optimizer.rate=1e-9", "length.events=30", f"start={earlier}", f"scaling={scaling}", EVERY_STEP)
    begin(start, settings, run, 1)
    start(settings)  # what goes on is not scaled again
    made, batch = load_model(run / "last.safetensors").model, events(24, 0)
    assert ("features are scaled anew" in capsys.readouterr().err) == anew
    expected = batch.features_NF.nanmean(0) if anew else model.embedding.mean_F
    torch.testing.assert_close(made.embedding.mean_F, expected, atol=1e-5, rtol=0.0)
    with torch.no_grad():
        found, before = (decode(network.eval().predict(batch), batch) for network in (made, model))
    assert 5 < len(before.row) < len(batch.kind_N)
    for name in ("row", "label", "charge"):
        assert torch.equal(getattr(found, name), getattr(before, name))
    torch.testing.assert_close(found.momentum, before.momentum, atol=1e-3, rtol=1e-3)


class Rungs:
    """Sends a training from one number of events to the next, and ends it at the last; remembers what it was told."""

    def __init__(self, *rungs: int, look: Callable[[int], None] = lambda events: None) -> None:
        self.rungs, self.told, self._look = rungs, [], look

    def __call__(self, events: int, figures: Mapping[str, float | None]) -> int:
        self._look(events)
        self.told.append((events, dict(figures)))
        return next((rung for rung in self.rungs if rung > events), 0)

    def losses(self) -> list[tuple[int, float | None]]:
        return [(events, figures["loss"]) for events, figures in self.told if figures]


def validations(run: Path) -> list[tuple[int, float]]:
    return [(line["events"], line["loss"]) for line in history(run, "validation")]


LONG = ("length.events=1000", "model.dropout=0.1")


def test_it_goes_as_far_as_it_is_told_and_everything_is_on_disk_when_it_asks(tiny: Tiny, start: Start, run: Path):
    def look(events: int) -> None:
        found = read_checkpoint(run)
        assert (found.state.events, found.state.last["events"]) == (events, events) if found else events == 0
        if events:
            assert validations(run)[-1][0] == events
            assert (run / "model.safetensors").is_file()

    pace = Rungs(25, 90, 200, look=look)
    result = start(tiny("length.events=1000"), pace=pace)
    assert pace.told[0] == (0, {})
    assert pace.losses() == validations(run)
    reached = [events for events, _ in validations(run)]
    # At its rungs and at every 60 events, with the rest of a batch.
    for expected, events in zip([25, 60, 90, 120, 180, 200], reached, strict=True):
        assert expected <= events < expected + 20
    assert (result.ended_by_pace, result.stopped_early, result.events) == (True, False, reached[-1])


def test_a_pace_that_wants_all_and_a_validation_change_nothing(tiny: Tiny, start: Start, run: Path, tmp_path: Path):
    without = start(tiny("model.dropout=0.1"), tmp_path / "without")
    pace = Rungs(10**9)
    result = start(tiny("model.dropout=0.1"), pace=pace, validate=Judge(*[0.5] * 9))
    assert (result.steps, result.ended_by_pace) == (without.steps, False)
    assert pace.losses() == validations(run)
    assert_same_weights(run, tmp_path / "without")
    again = Rungs(0)  # a finished one tells its last validation once, whatever the answer
    assert not start(tiny("model.dropout=0.1"), pace=again).ended_by_pace
    assert again.losses() == validations(run)[-1:]
    nothing = start(tiny(), tmp_path / "nothing", pace=Rungs(0))
    assert (nothing.ended_by_pace, nothing.steps, nothing.events) == (True, 0, 0)


def test_one_that_was_ended_asks_again_and_may_go_on(tiny: Tiny, start: Start, run: Path, tmp_path: Path):
    first, again, further, whole = Rungs(25), Rungs(25), Rungs(25, 90), Rungs(25, 90)
    ended = start(tiny(*LONG), pace=first)
    assert start(tiny(*LONG), pace=again).ended_by_pace
    assert again.told == first.told[-1:]
    assert start(tiny(*LONG), pace=further).steps > ended.steps
    start(tiny(*LONG), tmp_path / "whole", pace=whole)
    assert [*first.told[:-1], *further.told] == whole.told
    assert_same_weights(run, tmp_path / "whole")


@pytest.mark.parametrize(("asks", "step"), [(0, -1), (1, -1), (2, -1), (99, 1), (99, 9)])
def test_one_killed_while_it_asks_or_trains_tells_what_happened_and_does_no_step_twice(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, asks: int, step: int, monkeypatch: pytest.MonkeyPatch
):
    def dies(events: int) -> None:
        if len(killed.told) == asks:
            raise Ends

    settings = tiny(*LONG, EVERY_STEP)
    whole, killed, after = Rungs(25, 90), Rungs(25, 90, look=dies), Rungs(25, 90)
    start(settings, tmp_path / "whole", pace=whole)
    begin(start, settings, run, step, pace=killed)
    before = state_of(run).step if (run / "checkpoints").exists() else 0
    steps = dying_at(monkeypatch, -1)
    start(settings, pace=after)
    # The last validation before the end is told again, and nothing else is.
    assert [*killed.told, *(after.told[1:] if asks == 99 else after.told)] == whole.told
    assert asks < 99 or after.told[0] == killed.told[-1]
    assert [number for number, *_ in steps] == list(range(before, state_of(run).step))
    assert_same_weights(run, tmp_path / "whole")


def test_a_goal_that_is_already_passed_is_validated_at_the_next_step(tiny: Tiny, start: Start, run: Path):
    begin(start, tiny(*LONG, EVERY_STEP), run, 4, pace=Rungs(55))
    before, pace = state_of(run), Rungs(20)
    assert before.events > 20
    result = start(tiny(*LONG, EVERY_STEP), pace=pace)
    assert result.steps == before.step + 1
    assert [events for events, _ in pace.told] == [0, result.events]


@pytest.mark.parametrize("sync", ["downpour", "easgd"])
def test_without_waiting_for_each_other_there_is_no_pace(tmp_path: Path, tiny: Tiny, sync: str):
    with pytest.raises(UsageError, match=f"paced from outside needs sync=allreduce, not sync={sync}"):
        train(tiny(f"sync={sync}"), tmp_path / "run", pace=Rungs(1))
    assert not (tmp_path / "run").exists()


MANY = ("length.events=400", "length.validate_every=100", "model.dropout=0.1", "source.reuse=2")


@pytest.mark.parametrize(
    ("before", "lanes", "chunk", "cut"),
    [
        ([(3, 0, 2)], 2, 4, True),
        ([(3, 1, 0)], 2, 4, True),  # a chunk that was gone through once is begun
        ([(3, 0, 0)], 4, 3, False),
        ([(3, 0, 0), (2, 1, 7)], 1, 3, True),
        ([(3, 0, 1), (2, 1, 7)], 3, 4, True),
    ],
)
def test_lanes_begin_with_a_chunk_that_none_has_begun(
    before: list[tuple[int, int, int]], lanes: int, chunk: int, cut: bool
):
    state = TrainingState(step=9, events=70, positions=[DataPosition(*position) for position in before])
    assert state.resize(lanes) == cut
    assert state.positions == [DataPosition(chunk, 0, 0)] * lanes
    assert state.resized_at == 70


def test_it_goes_on_with_more_lanes_in_chunks_that_are_new_and_with_fewer(
    tiny: Tiny, start: Start, source: Source, run: Path, capsys: pytest.CaptureFixture[str]
):
    begin(start, tiny(*MANY, EVERY_STEP), run, 9)
    before, sources = state_of(run), {lane: source() for lane in range(2)}
    assert before.positions[0][1:] != (0, 0), "in the middle of a chunk"
    assert start(tiny(*MANY, EVERY_STEP, "source.lanes=2"), sources=sources).events >= 400
    said = capsys.readouterr().err
    assert "source.lanes=2, not 1 as before; the rest of this pass through the events is left out\n" in said
    following = before.positions[0].chunk + 1
    for given in sources.values():
        assert sorted(set(given.asked)) == list(range(following, max(given.asked) + 1))
    assert min(state_of(run).positions) > (following, 0, 0)
    start(tiny(*MANY, EVERY_STEP, "source.lanes=2", "length.events=500"), sources=sources)
    after = state_of(run)
    assert (len(after.positions), after.resized_at) == (2, before.events), "the same number of lanes is no change"
    start(tiny(*MANY, "length.events=600"))
    fewer = state_of(run)
    assert (len(fewer.positions), fewer.resized_at) == (1, after.events)
    assert fewer.positions[0].chunk > min(after.positions).chunk


def test_a_step_grows_and_its_rate_with_it_and_the_loss_keeps_falling(
    tiny: Tiny, start: Start, run: Path, monkeypatch: pytest.MonkeyPatch
):
    even = ("optimizer.rate=0.01", "optimizer.warmup=0", "optimizer.final=1", "optimizer.rewarmup=0.1")
    words = (*even, "optimizer.rule=sqrt", "optimizer.rule_elements=100", "length.validate_every=150")
    before = start(tiny(*words, "length.events=600"))
    taken = dying_at(monkeypatch, -1)
    start(tiny(*words, "length.events=1200", "source.lanes=2"))
    full, shown, factors = 0.01 * 2**0.5, before.events, []
    for _, events, rate in taken:
        shown += events
        factors.append(rate / full)
        assert factors[-1] == pytest.approx(min(1.0, 0.5 + 0.5 * (shown - before.events) / 120))
    assert len([factor for factor in factors if factor < 1.0]) > 2
    losses = [line["loss"] for line in history(run, "validation")]
    assert len(losses) == 8
    assert min(losses[4:]) < 0.95 * min(losses[:4])


@pytest.mark.parametrize("checkpoints", [EVERY_STEP, pytest.param(NEVER, marks=pytest.mark.heavy)])
def test_it_goes_on_as_if_it_had_only_been_resized(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, checkpoints: str
):
    for folder in (run, tmp_path / "whole"):
        begin(start, tiny(*MANY, EVERY_STEP), folder, 9)
    two = tiny(*MANY, "source.lanes=2", checkpoints)
    whole = start(two, tmp_path / "whole")
    begin(start, two, run, 17)
    result = start(two)
    assert (result.steps, result.events, result.best) == (whole.steps, whole.events, whole.best)
    assert state_of(run).resized_at == state_of(tmp_path / "whole").resized_at
    assert_same_weights(run, tmp_path / "whole")

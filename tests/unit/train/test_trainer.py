"""The loop: it learns, stops, goes on, and says what went wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from fixtures.made_up import Ends, assert_same_weights, dying_at, history, weights
from ringflow.base.errors import DivergenceError, FailureError, InputFileError, UsageError
from ringflow.elements.batch import ElementBatch
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.train import step as step_module
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

Events = Callable[..., ElementBatch]
Tiny = Callable[..., TrainSettings]
Source = Callable[..., Any]
Start = Callable[..., Any]


def test_the_loss_falls_and_the_best_network_is_there(tiny: Tiny, start: Start, run: Path):
    result = start(
        tiny("length.events=1500", "length.validate_every=300", "optimizer.rate=0.01"), card={"by": "a test"}
    )
    losses = [line["loss"] for line in history(run, "validation")]
    assert len(losses) == 5
    assert losses[-1] < 0.7 * losses[0]
    assert result.best["loss"] == min(losses)
    assert result.events >= 1500
    assert result.padding_share == 0.0
    loaded = load_model(run / "model.safetensors")
    assert loaded.card["by"] == "a test"
    assert loaded.card["metrics"]["loss"] == min(losses)
    assert loaded.card["settings"]["length"]["events"] == 1500
    assert load_model(run / "last.safetensors").card["metrics"]["loss"] == losses[-1]
    (line, *_) = history(run, "train")
    assert {"loss", "loss_jet", "rate", "gradient", "events_per_second", "padding_share"} <= set(line)


def test_the_scaling_is_that_of_the_first_chunk(tiny: Tiny, start: Start, run: Path, events: Events):
    start(tiny())
    features = events(24, 0).features_NF
    assert torch.allclose(load_model(run / "model.safetensors").model.embedding.mean_F, features.nanmean(0), atol=1e-5)


@pytest.mark.parametrize("every_step", [True, False], ids=["checkpoint every step", "checkpoint at validations"])
@pytest.mark.parametrize("stop", [0, 7, 13])
def test_a_training_goes_on_as_if_it_had_not_stopped(
    tiny: Tiny,
    start: Start,
    run: Path,
    tmp_path: Path,
    stop: int,
    every_step: bool,
):
    settings = tiny("model.dropout=0.1", "source.reuse=2", f"length.checkpoint_seconds={1e-9 if every_step else 1e9}")
    whole = start(settings, tmp_path / "whole")
    assert whole.steps > 13
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, stop)
        with pytest.raises(Ends):
            start(settings)
    torch.rand(5)
    result = start(settings)
    assert (result.steps, result.events, result.best) == (whole.steps, whole.events, whole.best)
    assert_same_weights(run, tmp_path / "whole")


def test_a_history_has_no_doubles(tiny: Tiny, start: Start, run: Path, monkeypatch: pytest.MonkeyPatch):
    settings = tiny("length.events=2000", "length.validate_every=500", "length.checkpoint_seconds=1e9")
    with monkeypatch.context() as patch:
        dying_at(patch, 110)  # after the line of step 100, long after the last checkpoint
        with pytest.raises(Ends):
            start(settings)
    assert [line["step"] for line in history(run, "train")] == [100]
    start(settings)
    for kind in ("train", "validation"):
        steps = [line["step"] for line in history(run, kind)]
        assert steps == sorted(set(steps))
    assert [line["events"] // 500 for line in history(run, "validation")] == [1, 2, 3, 4]


def test_a_finished_training_says_so_and_a_longer_one_goes_on(
    tiny: Tiny, start: Start, source: Source, capsys: pytest.CaptureFixture[str]
):
    first = start(tiny())
    capsys.readouterr()
    untouched = source()
    again = start(tiny(), sources={0: untouched})
    assert (again.steps, again.events, again.best) == (first.steps, first.events, first.best)
    assert untouched.asked == []
    assert "is finished; give a larger length.events" in capsys.readouterr().err
    assert start(tiny("length.events=240")).steps > first.steps


def test_another_batch_size_takes_up_the_next_pass(
    tiny: Tiny,
    start: Start,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    with monkeypatch.context() as patch:
        dying_at(patch, 1)
        with pytest.raises(Ends):
            start(tiny("length.checkpoint_seconds=1e-9"))
    taken_up = source()
    result = start(tiny("compute.batch_elements=60"), sources={0: taken_up})
    assert result.events >= 120
    assert taken_up.asked[0] == 1
    assert "the rest of this pass through the events is left out" in capsys.readouterr().err


@pytest.mark.parametrize("seen_late", [False, True], ids=["seen at once", "seen many steps later"])
def test_a_nan_stops_and_leaves_the_batch(
    tiny: Tiny,
    start: Start,
    source: Source,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    seen_late: bool,
):
    if seen_late:
        monkeypatch.setattr(step_module, "is_accelerator", lambda device: True)
    with pytest.raises(
        DivergenceError, match=r"became NaN or infinite at step 5; the batch is in .*bad_batch"
    ) as caught:
        start(
            tiny("seed=4", "length.validate_every=70", "length.checkpoint_seconds=1e9"),
            sources={0: source(spoiled=(1,))},
        )
    assert "\n" not in str(caught.value)
    with safe_open(run / "bad_batch.safetensors", framework="pt") as file:
        metadata = file.metadata()
        momentum, names = file.get_tensor("targets.momentum_N4"), set(file.keys())
    assert {"kind_N", "features_NF", "offsets_B", "targets.label_N"} <= names
    assert momentum.isinf().any()
    assert (metadata["step"], json.loads(metadata["positions"])) == ("5", [[1, 0, 1]])


def test_a_nan_leaves_the_last_good_checkpoint(tiny: Tiny, start: Start, source: Source, run: Path):
    with pytest.raises(FailureError, match="NaN"):
        start(tiny("length.checkpoint_seconds=1e-9"), sources={0: source(spoiled=(1,))})
    assert not any(value.isnan().any() for value in weights(run).values() if value.is_floating_point())


def test_out_of_memory_names_a_budget_to_try(tiny: Tiny, start: Start, source: Source, monkeypatch: pytest.MonkeyPatch):
    def full(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "take", full)
        with pytest.raises(
            FailureError, match=r"^out of memory with batches of 100 elements; try compute.batch_elements=50$"
        ):
            start(tiny())
    given = source()
    monkeypatch.setattr(given, "chunk", full)
    with pytest.raises(FailureError, match=r"out of memory with a chunk of events; try a smaller source.chunk_events"):
        start(tiny(), sources={0: given})


def test_other_failures_are_not_taken_for_a_lack_of_memory(tiny: Tiny, start: Start, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(TrainingStep, "take", lambda *arguments: [][1])
    with pytest.raises(IndexError):
        start(tiny())


def test_other_settings_are_refused_in_one_line(tiny: Tiny, start: Start):
    start(tiny())
    with pytest.raises(UsageError, match=r"has model.layers=1, not 2; give that to go on, or choose another folder"):
        start(tiny("model.layers=2"))


def test_a_broken_checkpoint_does_not_stop_a_training(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    whole = start(tiny("length.events=240"), tmp_path / "whole")
    start(tiny("length.events=240"))
    last = sorted((run / "checkpoints").iterdir())[-1] / "tensors.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    result = start(tiny("length.events=240"))
    assert "is broken" in capsys.readouterr().err
    assert result.best == whole.best
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
    result = start(tiny("length.events=1000", "length.validate_every=30", "length.patience=2"), validate=judge)
    assert result.stopped_early
    assert judge.figures == [0.1]
    assert judge.shown == [False] * 4
    lines = history(run, "validation")
    assert [line["jet_iqr_over_median"] for line in lines] == [0.5, 0.3, 0.4, None]
    assert result.best["jet_iqr_over_median"] == 0.3
    assert result.best["step"] == lines[1]["step"]
    assert load_model(run / "model.safetensors").card["metrics"]["jet_iqr_over_median"] == 0.3
    assert load_model(run / "last.safetensors").card["training"]["steps"] == lines[3]["step"]
    assert start(tiny("length.events=1000", "length.validate_every=30", "length.patience=2")).steps == result.steps


def test_a_validation_does_not_change_the_training(tiny: Tiny, start: Start, run: Path, tmp_path: Path):
    settings = tiny("model.dropout=0.1")
    start(settings, validate=Judge(*[0.5] * 9))
    start(settings, tmp_path / "other")
    assert_same_weights(run, tmp_path / "other")


def test_filled_batches_train_the_same_network(
    tiny: Tiny, start: Start, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from ringflow.train import trainer
    from ringflow.train.batches import Feed

    # Without what is drawn per event or element, the rows that fill up must not matter.
    settings = tiny("source.hide=0", "loss.jet=0")
    start(settings, tmp_path / "plain")
    monkeypatch.setattr(trainer, "Feed", lambda source, **options: Feed(source, **options, fill=True))
    result = start(settings)
    assert 0.0 < result.padding_share < 0.5
    plain, filled = weights(tmp_path / "plain"), weights(run)
    for name in plain:
        if name.startswith("weights/"):
            assert torch.allclose(plain[name], filled[name], rtol=1e-3, atol=1e-4), name


def test_the_clock_of_all_starts_is_added_up(tiny: Tiny, start: Start):
    first = start(tiny())
    second = start(tiny("length.events=240"))
    assert second.seconds > first.seconds > 0
    # Steps are a part of the time.
    assert second.events / second.seconds < second.events_per_second < 1e6
    assert second.peak_memory_bytes > 0


def test_targets_are_needed_to_validate(tiny: Tiny, start: Start, events: Events):
    with pytest.raises(AssertionError, match="a batch for training has targets"):
        start(tiny(), validation=replace(events(4), targets=None))


@pytest.fixture
def earlier(tiny: Tiny, tmp_path: Path) -> Path:
    torch.manual_seed(77)
    model = Model(tiny().model)
    model.embedding.mean_F.fill_(0.25)
    save_model(tmp_path / "earlier.safetensors", model)
    return tmp_path / "earlier.safetensors"


def test_the_weights_and_the_scaling_are_those_of_the_file(tiny: Tiny, start: Start, run: Path, earlier: Path):
    almost_still = ("optimizer.rate=1e-9", "length.events=30", "length.validate_every=30")
    start(tiny(*almost_still, f"start={earlier}"))
    made, before = load_model(run / "last.safetensors").model, load_model(earlier).model
    torch.testing.assert_close(made.state_dict(), before.state_dict(), atol=1e-6, rtol=0.0)


def test_without_a_file_the_weights_are_random(tiny: Tiny, start: Start, run: Path, earlier: Path):
    start(tiny("optimizer.rate=1e-9", "length.events=30"))
    made, before = load_model(run / "last.safetensors").model, load_model(earlier).model
    assert not torch.allclose(made.heads.state_dict()["hidden.0.weight"], before.heads.state_dict()["hidden.0.weight"])


def test_a_training_that_goes_on_does_not_need_the_file(tiny: Tiny, start: Start, earlier: Path):
    start(tiny("length.events=30", f"start={earlier}"))
    earlier.unlink()
    start(tiny("length.events=60", f"start={earlier}"))


def test_a_file_that_is_not_there_is_one_line(tiny: Tiny, start: Start, tmp_path: Path):
    with pytest.raises(InputFileError, match="no model file at"):
        start(tiny(f"start={tmp_path / 'nothing'}"))

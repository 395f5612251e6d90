"""The loop: steps, validations, checkpoints, until the events are shown or nothing gets better any more.

    Trainer(settings, data, folder, world).fit()

A folder that holds a checkpoint is gone on with, exactly where it was: on a CPU the weights at the end are, bit for bit, those
of a training that was never interrupted. Processes each take some of the lanes; the first one validates and writes. The best
averaged network, by `jet_iqr_over_median` or else by the loss, is `model.safetensors` in the folder, the last one
`last.safetensors`. How it goes is in `history.jsonl`, one JSON object per line, of the kinds `train` (means over about a
hundred steps) and `validation`, and in TensorBoard's files.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save
from torch import Tensor

from ringflow.base.errors import DivergenceError
from ringflow.base.log import console, interactive, say
from ringflow.base.output import finite_or_null
from ringflow.base.rundir import write_atomic, write_errors
from ringflow.base.words import time_in_words
from ringflow.elements.batch import join
from ringflow.elements.features import feature_names
from ringflow.infer.shipped import MODEL_FILE
from ringflow.models.file import load_model, save_model
from ringflow.models.model import Model
from ringflow.train.batches import BEGINNING, ChunkSource, DataPosition, Feed
from ringflow.train.checkpoint import (
    Checkpoint,
    TrainingState,
    read_checkpoint,
    refuse_other_settings,
    restore,
    snapshot,
    write_checkpoint,
)
from ringflow.train.data import TrainingData, detector_name
from ringflow.train.device import UNMEASURED, Phases, choose_device, memory_advice, peak_memory, undisturbed
from ringflow.train.runs import HISTORY_FILE, LAST_MODEL_FILE
from ringflow.train.settings import TrainSettings
from ringflow.train.step import Record, TrainingStep, rate_at
from ringflow.train.validation import ValidationLoss, figure, followed
from ringflow.train.world import ALONE, Tensors, World, catching_signals, stopped

BAD_BATCH_FILE = "bad_batch.safetensors"
TENSORBOARD_FOLDER = "tensorboard"
_STEPS_PER_LINE = 100
#: Without a terminal progress is a plain line every tenth of the training, or after so many seconds.
_SECONDS_BETWEEN_LINES = 30.0

#: Looks at a training after every validation, for example for a hyper-parameter search: it is told the events shown and the
#: figures, and returns the events up to which the training goes on until it is validated again at the latest. Not more than
#: those shown: it ends here. Everything is on disk when it is asked, so the process may be ended while it waits. It is asked
#: first of all: with `(0, {})` in a new training, with its last validation again in one that goes on or was finished already.
#: Other processes of the training wait for the answer no longer than `compute.timeout`.
Pace = Callable[[int, Mapping[str, float | None]], int]


class Trainer:
    """A training in a folder, from its start or its last checkpoint to its end.

    All processes call the same things at the same time; the first one measures, writes and asks the pace. `rules` works out the
    figures that the network is compared with.
    """

    def __init__(
        self,
        settings: TrainSettings,
        data: TrainingData,
        folder: Path,
        world: World = ALONE,
        pace: Pace | None = None,
        rules: Callable[[], Mapping[str, float | None]] = dict,
    ) -> None:
        self.settings, self.data, self.folder, self._world, self._rules = settings, data, folder, world, rules
        self.device = choose_device(settings.compute.device)
        self._described = settings.model_dump(mode="json")
        self._described["source"]["workers"] = 1  # which leave no trace in a model
        self._loss = ValidationLoss(data.validation, settings, self.device) if world.is_first else None
        self._monitor: Monitor | None = None
        self._pace, self._paced = pace, world.broadcast(pace is not None)  # what the others were given does not count
        self._goal, self._ended_by_pace = math.inf, False
        whole: list[Checkpoint | None] = []  # what the first process reads

        def read() -> tuple[TrainingState, dict[str, Any]] | None:
            whole.append(found := read_checkpoint(folder))
            return found and (found.state, found.settings)

        found = world.on_first(read, tuple[TrainingState, dict[str, Any]] | None)
        #: What the checkpoint holds that is gone on from; none in a new training.
        self.tensors: dict[str, Tensor] | None = None
        self.state = TrainingState(positions=[BEGINNING] * max(settings.source.lanes, 1))
        if found is not None:
            self.state, described = found
            before = TrainSettings.model_validate(described)  # with what was not yet there at that time
            refuse_other_settings(before, settings, folder)
            self.tensors = world.broadcast(next((one.tensors for one in whole if one), None), kind=Tensors)
            if not self.finished:
                self._adapt(before)

    def fit(self, phases: Phases = UNMEASURED) -> dict[str, Any]:
        """Train to the end; what came of it. A signal that asks for an end is answered with a checkpoint and an error."""
        settings, state, world, length = self.settings, self.state, self._world, self.settings.length
        if self.finished:
            self.say_finished()
            self._ask()
            return self.result()
        lanes = len(state.positions)
        with batch_memory_advice(settings), catching_signals() as stop, self.monitored():
            feeds = make_feeds(self.data.sources, settings, state, self.device)
            first = feeds.get(0) if world.is_first else None
            model = make_model(settings, self.device, first, new=self.tensors is None)
            step = TrainingStep(model, settings, self.device, world, phases)
            if self.tensors is not None:
                restore(self.tensors, step, self.folder)
                self.tensors = None
            self._ask()
            self.reset_clock()
            while not (self.finished or self._ended_by_pace):
                with phases("data"):
                    left = (length.events - state.events) // lanes
                    batches = [feed.next(left) for feed in feeds.values()]
                counted = batches if step.spread.place.part == 0 else []  # the parts of a copy have the same batches
                late = time.perf_counter() - self.checkpointed >= length.checkpoint_seconds
                with phases("idle"):
                    # When it is time for a checkpoint, the clock of the first process says.
                    sums = world.all_reduce(
                        [
                            sum(batch.num_events for batch in counted),
                            sum(batch.elements.num_elements for batch in counted),
                            sum(batch.num_elements for batch in counted),
                            late and world.is_first,
                            stop.signal_name is not None,
                        ]
                    )
                events, computed, real, checkpoint, stopping = map(int, sums)
                elements = lanes * settings.compute.batch_elements
                rate = rate_at(settings.optimizer, state.events + events, length.events, elements, state.resized_at)
                step.take(batches, state.step, rate)
                state.count(events, computed, real)
                due = self.is_due(state.events - events)
                if step.to_be_read or due or checkpoint or stopping:
                    with phases("idle"):
                        records = step.read()
                    self._refuse_diverged(records, feeds)
                    self.note(records, rate)
                phases.end_step(state.step, events)
                if due:
                    self.validate(step.average.model())
                if due or checkpoint or stopping:
                    by_rank = world.all_gather([feed.position for feed in feeds.values()], list[DataPosition])
                    state.positions = [position for own in by_rank[:: step.spread.place.parts] for position in own]
                    state.shape = next(iter(feeds.values())).shape
                    self.checkpoint(snapshot(step))
                if stopping and not self.finished:
                    names = [name for name in world.all_gather(stop.signal_name) if name]
                    error = stopped(names[0] if names else "a signal", state.events)
                    error.told = not world.is_first
                    raise error
                if due:
                    self._ask()
                    self.reset_clock()
        if self.stopped_early:
            say(f"stopped early: {state.since_best} validations without a better one")
        elif not self.finished:
            say(f"its pace ends the training after {state.events} events")
        return self.result()

    @property
    def stopped_early(self) -> bool:
        """Whether nothing got better for long enough."""
        return 0 < self.settings.length.patience <= self.state.since_best

    @property
    def finished(self) -> bool:
        """Whether all events are shown, or it is no use to show more."""
        return self.state.events >= self.settings.length.events or self.stopped_early

    def say_finished(self) -> None:
        """Tell people that there is nothing to do."""
        say(f"the training in {self.folder} is finished; give a larger length.events to go on, or another folder")

    def is_due(self, events_before: int) -> bool:
        """Whether a validation is due, after a step before which so many events had been shown."""
        every, events = self.settings.length.validate_every, self.state.events
        return events // every > events_before // every or events >= self._goal or self.finished

    def reset_clock(self) -> None:
        """What was done since the last step is no part of a step."""
        self._mark = self.checkpointed = time.perf_counter()

    @contextmanager
    def monitored(self) -> Iterator[None]:
        """While the training runs, its history is written and its progress shown."""
        with ExitStack() as stack:
            if self._world.is_first:
                monitor = Monitor(self.folder, self.state, self.settings.length.events, self._rules())
                self._monitor = stack.enter_context(monitor)
            self._started = time.perf_counter() - self.state.seconds
            self.reset_clock()
            yield

    def note(self, records: Sequence[Record], rate: float) -> None:
        """Count the time of steps that were done, and show them; what a device did is done when they are known."""
        now = time.perf_counter()
        self.state.step_seconds += now - self._mark
        self._mark = now
        if self._monitor:
            self._monitor.steps(records, self.state, rate)

    def validate(self, model: Model) -> None:
        """Measure the averaged network, and keep it: as the last one, and as the best if it is."""
        state = self.state
        found = self._world.on_first(lambda: self._figures(model))
        if self._monitor:
            self._monitor.validation(found, state)
        state.last = {"events": state.events, **found}
        state.since_best += 1
        names = [LAST_MODEL_FILE]
        if not state.best or figure(found) < figure(state.best):
            state.best = {"step": state.step, "events": state.events, **found}
            state.since_best = 0
            names = [MODEL_FILE, LAST_MODEL_FILE]
        training = {"steps": state.step, "events": state.events}
        card = {"settings": self._described, **self.data.card, "metrics": found, "training": training}
        for name in names if self._world.is_first else ():
            save_model(self.folder / name, model, card=card, frame=self.data.frame)
        self._mark = time.perf_counter()

    def _figures(self, model: Model) -> dict[str, float | None]:
        assert self._loss is not None, "the first process measures"
        metrics = self._loss.measure(model)
        if self.data.validate is not None:
            with undisturbed(self.device), torch.no_grad():
                metrics |= self.data.validate(model)
        return finite_or_null(metrics)  # type: ignore[no-any-return]

    def checkpoint(self, tensors: dict[str, Tensor]) -> None:
        """Write down the state and these tensors."""
        self.state.seconds = time.perf_counter() - self._started
        if self._monitor:
            self._monitor.flush()
        written = Checkpoint(self.state, self._described, tensors)
        self._world.on_first(lambda: write_checkpoint(self.folder, written))
        self.reset_clock()

    def result(self) -> dict[str, Any]:
        """What came of the training, ready for JSON; counts and times are those of all its starts together."""
        state = self.state
        return {
            "steps": state.step,
            "events": state.events,
            "seconds": state.seconds,
            # Of steps, loading included, validations and checkpoints not.
            "events_per_second": state.events / max(state.step_seconds, 1e-9),
            "padding_share": state.padding_share,
            "best": dict(state.best),
            "stopped_early": self.stopped_early,
            "ended_by_pace": self._ended_by_pace and not self.finished,
            "peak_memory_bytes": peak_memory(self.device),
            "history": self.folder / HISTORY_FILE,
            "model": self.folder / MODEL_FILE,
        }

    def _adapt(self, before: TrainSettings) -> None:
        """Go on with other lanes, or with batches of another size, than before, if that is asked for."""
        state, source, had = self.state, self.settings.source, len(self.state.positions)
        lanes, left_out = max(source.lanes, 1), "the rest of this pass through the events is left out"
        if lanes != had:
            cut = state.resize(lanes)
            say(f"source.lanes={lanes}, not {had} as before" + (f"; {left_out}" if cut else ""))
        if before.compute.batch_elements != self.settings.compute.batch_elements:
            if any(position.batch for position in state.positions):
                say(f"batches of another size than before: {left_out}")
            state.positions = [place.next_turn(source.reuse) if place.batch else place for place in state.positions]
            state.shape = None

    def _ask(self) -> None:
        """Tell the pace the last validation, and hear how far to go."""
        if not self._paced:
            return
        figures, pace = dict(self.state.last), self._pace
        events = int(figures.pop("events", 0))
        self._goal = self._world.on_first(lambda: pace(events, figures) if pace else 0)
        self._ended_by_pace = self._goal <= events

    def _refuse_diverged(self, records: Sequence[Record], feeds: Mapping[int, Feed]) -> None:
        if (bad := next((record for record in records if record.not_finite), None)) is None:
            return
        guilty = [not finite for finite in self._world.all_gather(bad.finite_here)]
        rank = guilty.index(True) if any(guilty) else 0  # a gradient can be at fault where no term is
        drawn = list(zip(feeds.values(), bad.positions, strict=True)) if self._world.rank == rank else None
        raise diverged(bad, self.folder, drawn)


def batch_memory_advice(settings: TrainSettings) -> AbstractContextManager[None]:
    """Say what to do when the memory is full."""
    budget = settings.compute.batch_elements
    return memory_advice(f"with batches of {budget} elements; try compute.batch_elements={max(budget // 2, 1)}")


def make_feeds(
    sources: Mapping[int, ChunkSource], settings: TrainSettings, state: TrainingState, device: torch.device
) -> dict[int, Feed]:
    """The batches of lanes, from where the training is."""
    return {
        lane: Feed(
            source,
            budget=settings.compute.batch_elements,
            reuse=settings.source.reuse,
            seed=settings.seed,
            device=device,
            lane=lane,
            position=state.positions[lane],
            shape=state.shape,
        )
        for lane, source in sources.items()
    }


def make_model(settings: TrainSettings, device: torch.device, first: Feed | None, *, new: bool) -> Model:
    """The network; a `new` one with the weights of its start file, or scaled to the first chunk where that is at hand.

    The scaling of a start file belongs to the detector that it has learned from: on another one it would draw in values that
    are usual there. It is fitted anew to the first chunk then, and the first layer changed along, see `Embedding.refit`.
    """
    torch.manual_seed(settings.seed)
    model = Model(settings.model).to(device)
    if new and settings.start is not None:
        loaded = load_model(Path(settings.start))
        model.load_state_dict(loaded.model.state_dict())
        before, now = loaded.card.get("detector"), detector_name(settings.detector)
        # What is seen relative to its detector has the same scale on all.
        other = before is not None and before != now and settings.model.features == "absolute"
        if first is not None and (settings.scaling == "new" or (settings.scaling == "auto" and other)):
            features = first.chunk().features_NF
            same, there = model.embedding.refit(features), ~features.isnan().all(0).to(device)
            names = feature_names(model.kinds)
            changed = [names[index] for index in torch.nonzero(there & ~same).squeeze(1).tolist()]
            told = (
                f"; {len(changed)} are not as before ({', '.join([*changed[:3], *(['...'] if len(changed) > 3 else [])])})"
                if changed
                else ""
            )
            said = f" ({now}, not {before})" if other else ""
            say(f"features are scaled anew, to these data{said}; scaling=kept leaves the scaling as it is{told}")
    elif new and first is not None:
        model.embedding.fit(first.chunk().features_NF)
    return model


def diverged(bad: Record, folder: Path, drawn: Sequence[tuple[Feed, DataPosition]] | None) -> DivergenceError:
    """The error of a loss that became NaN. The batches, if this process has drawn them, are saved to look at: tensors under the
    names of their fields, step, positions and loss in the metadata."""
    path = folder / BAD_BATCH_FILE
    if drawn is not None:
        batch = join([feed.again(position) for feed, position in drawn])
        tensors = {field.name: getattr(batch, field.name) for field in fields(batch) if field.name != "targets"}
        if batch.targets is not None:
            tensors |= {f"targets.{field.name}": getattr(batch.targets, field.name) for field in fields(batch.targets)}
        metadata = {"step": str(bad.step), "positions": json.dumps([position for _, position in drawn])}
        metadata |= {f"value.{name}": str(value) for name, value in bad.values.items()}
        write_atomic(path, save({name: value.cpu().contiguous() for name, value in tensors.items()}, metadata=metadata))
    return DivergenceError(
        f"{', '.join(bad.not_finite)} became NaN or infinite at step {bad.step}; the batch is in {path}: "
        "look at it, or start again in another folder with a smaller optimizer.rate"
    )


class Monitor:
    """Writes down how a training goes, from a state on; what an earlier start wrote after that state is taken away."""

    def __init__(
        self, folder: Path, state: TrainingState, total_events: int, rules: Mapping[str, float | None] | None = None
    ) -> None:
        self._folder, self._total, self._rules = folder, total_events, rules or {}
        path = folder / HISTORY_FILE
        cut_history(path, state.step)
        with write_errors(folder):
            self._history = path.open("a", encoding="utf-8")
            self._board = self._begin_board(folder / TENSORBOARD_FOLDER, state.step)
        self._window: list[Record] = []
        self._line_events, self._line_seconds = state.events, state.step_seconds
        self._start: tuple[int, float] | None = None
        self._tenths, self._last_line = -1, time.monotonic()
        self._bar = _bar(total_events, state.events) if interactive() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._bar:
            self._bar.stop()
        # What is written last on a full disk fails as well; the first failure is the one to tell.
        with suppress(OSError) if error else write_errors(self._folder):
            try:
                self._board.close()
            finally:
                self._history.close()

    def steps(self, records: Sequence[Record], state: TrainingState, rate: float) -> None:
        """Take note of steps that were done; a line of history every hundred of them."""
        if not records:
            return
        self._window += records
        self._show_progress(records[-1].values["total"], state)
        if len(self._window) < _STEPS_PER_LINE:
            return
        names, count = self._window[0].values, len(self._window)
        means = {name: sum(record.values[name] for record in self._window) / count for name in names}
        seconds = state.step_seconds - self._line_seconds
        values: dict[str, float | None] = {
            "loss": means.pop("total"),
            "gradient": means.pop("gradient"),
            **{f"loss_{name}": value for name, value in means.items()},
            "rate": rate,
            "events_per_second": (state.events - self._line_events) / seconds if seconds > 0 else None,
            "padding_share": state.padding_share,
        }
        self._write("train", state, values)
        self._window.clear()
        self._line_events, self._line_seconds = state.events, state.step_seconds

    def validation(self, metrics: Mapping[str, float | None], state: TrainingState) -> None:
        """Write a line of a validation."""
        self._write("validation", state, metrics)
        events = f"{state.events:,}".rjust(len(f"{self._total:,}"))
        line = f"validation  {events} events  {followed(metrics, self._rules)}"
        if self._bar:
            self._bar.console.print(line, highlight=False, soft_wrap=True)  # above the bar
        else:
            say(line)

    def flush(self) -> None:
        """Make sure that what was written outlives the process."""
        with write_errors(self._folder):
            self._board.flush()

    def _begin_board(self, folder: Path, step: int) -> Any:
        """TensorBoard's file of numbers over steps, which hides what earlier files hold after a step.

        Written in place: a writer with a thread of its own would wait for ever once a disk is full.
        """
        from tensorboardX.record_writer import RecordWriter  # which takes a second

        folder.mkdir(exist_ok=True)
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        board = RecordWriter(str(folder / name))
        board.write(_event(file_version="brain.Event:2"))
        if step:
            board.write(_event(step=step + 1, session_log={"status": "START"}))
        return board

    def _write(self, kind: str, state: TrainingState, values: Mapping[str, float | None]) -> None:
        line = {"kind": kind, "step": state.step, "events": state.events, **values}
        with write_errors(self._folder):
            self._history.write(json.dumps(line, allow_nan=False) + "\n")
            self._history.flush()
            known = [{"tag": f"{kind}/{name}", "simple_value": x} for name, x in values.items() if x is not None]
            self._board.write(_event(step=state.step, summary={"value": known}))

    def _show_progress(self, loss: float, state: TrainingState) -> None:
        text, done = f"loss {loss:.4f}", min(state.events, self._total)  # the last batch is shown whole
        if self._start is None:  # the first steps, in which things are compiled, tell nothing about speed
            self._start = (state.events, state.step_seconds)
        else:
            speed = (state.events - self._start[0]) / max(state.step_seconds - self._start[1], 1e-9)
            left = (self._total - done) / max(speed, 1e-9)
            text += f", {speed:,.0f} events/s, {time_in_words(left)} left"
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=state.events, description=text)
            return
        now, tenths = time.monotonic(), 10 * state.events // self._total
        if tenths > self._tenths >= 0 or now - self._last_line >= _SECONDS_BETWEEN_LINES:
            say(f"train: {done:,} of {self._total:,} events, {text}")
            self._last_line = now
        self._tenths = max(self._tenths, tenths)


def _event(**content: Any) -> bytes:
    from tensorboardX.proto.event_pb2 import Event

    written: bytes = Event(wall_time=time.time(), **content).SerializeToString()
    return written


def _bar(total: int, done: int) -> Any:
    """Progress as a bar, for a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("train"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=console())
    bar.add_task("", total=total, completed=done)
    bar.start()
    return bar


def cut_history(path: Path, step: int) -> None:
    """Take away lines after a step, and what is left of a line that was cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
    write_atomic(path, "".join(kept))

"""The loop: steps, validations, checkpoints, until the events are shown or nothing gets better any more.

    train(assignment, sources, team)

A folder that holds a checkpoint is gone on with, exactly where it was: on a CPU the weights at the end are, bit for bit, those
of a training that was never interrupted. Processes of a team each take some of the lanes; the first one validates and writes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from ringflow.base.errors import DivergenceError, FailureError
from ringflow.base.log import say
from ringflow.elements.batch import join
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.train.bad_batch import save_bad_batch
from ringflow.train.batches import BEGINNING, ChunkSource, Feed
from ringflow.train.device import choose_device, is_out_of_memory
from ringflow.train.keeper import Assignment, Keeper, TrainingResult
from ringflow.train.monitor import Monitor, Silence
from ringflow.train.phases import UNMEASURED, Phases
from ringflow.train.schedule import rate_factor, rewarmed, ruled_rate
from ringflow.train.signals import Wish, heeding_signals, stopped
from ringflow.train.snapshot import restore, snapshot
from ringflow.train.step import Record, TrainingStep
from ringflow.train.team import ALONE, Team

BAD_BATCH_FILE = "bad_batch.safetensors"


def train(
    assignment: Assignment, sources: Mapping[int, ChunkSource], team: Team = ALONE, phases: Phases = UNMEASURED
) -> TrainingResult:
    """Train in a folder, or go on with what is there. Whoever made the sources, by lane, closes them.

    The best averaged network, by `jet_iqr_over_median` or else by the loss, is `model.safetensors` in the folder, the last one
    `last.safetensors`. A signal that asks for an end is answered with a checkpoint and a `StoppedError`.
    """
    try:
        with heeding_signals() as wish:
            run = _Run(assignment, sources, team, phases, wish)
            if run.keeper.finished:
                run.say(
                    f"the training in {assignment.folder} is finished; give a larger length.events to go on, or another folder"
                )
                run.keeper.ask()
            else:
                run.go()
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        budget = assignment.settings.compute.batch_elements
        raise FailureError(
            f"out of memory with batches of {budget} elements; try compute.batch_elements={max(budget // 2, 1)}"
        ) from None
    return run.keeper.result()


class _Run:
    """A training, from its start or its last checkpoint to its end."""

    def __init__(
        self, assignment: Assignment, sources: Mapping[int, ChunkSource], team: Team, phases: Phases, wish: Wish
    ) -> None:
        settings, self._team, self._phases, self._wish = assignment.settings, team, phases, wish
        self._settings, self._device = settings, choose_device(settings.compute.device)
        self.keeper = Keeper(assignment, team)
        self._state = self.keeper.state
        found = self.keeper.found
        self._resize()
        torch.manual_seed(settings.seed)
        self._feeds = {lane: self._make_feed(source, lane) for lane, source in sources.items()}
        model = Model(settings.model).to(self._device)
        if found is None and settings.start is not None:
            model.load_state_dict(load_model(Path(settings.start)).model.state_dict())
        elif found is None and team.is_first:
            model.embedding.fit(self._feeds[0].chunk().features_NF)
        self._step = TrainingStep(model, settings, self._device, team, phases)
        self._places = self._step.spread.places
        if found is not None:
            restore(found.tensors, self._step, assignment.folder)
        self._seconds_before, self._started = self._state.seconds, time.perf_counter()
        self._mark = self._checkpointed = self._started

    def say(self, text: str) -> None:
        """Tell people something, once."""
        if self._team.is_first:
            say(text)

    def _resize(self) -> None:
        """Go on with another number of lanes than before, if that is asked for."""
        lanes, before = max(self._settings.source.lanes, 1), len(self._state.positions)
        if self.keeper.found is None or lanes == before:
            return
        cut = self._state.resize(lanes)
        if not self.keeper.finished:
            left_out = "; the rest of this pass through the events is left out" if cut else ""
            self.say(f"source.lanes={lanes}, not {before} as before{left_out}")

    def _make_feed(self, source: ChunkSource, lane: int) -> Feed:
        settings, state, found = self._settings, self._state, self.keeper.found
        position = BEGINNING if found is None else state.positions[lane]
        budget = settings.compute.batch_elements
        as_before = found is None or found.settings["compute"]["batch_elements"] == budget
        feed = Feed(
            source,
            budget=budget,
            reuse=settings.source.reuse,
            seed=settings.seed,
            device=self._device,
            lane=lane,
            position=position,
            shape=state.shape if as_before else None,
        )
        if not as_before and position.batch > 0:
            self.say("batches of another size than before: the rest of this pass through the events is left out")
            feed.skip_turn()
        return feed

    def go(self) -> None:
        """Train to the end."""
        with self.keeper.monitor() as monitor:
            self._ask()
            while not self.keeper.ended:
                events_before = self._state.events
                late, stop = self._take_step()
                if self._step.records.full:
                    self._look(monitor)
                self._phases.end_step(self._state.step, self._state.events - events_before)
                if due := self.keeper.is_due(events_before):
                    self._look(monitor)
                    self.keeper.validate(self._step.average.model(), monitor)
                    self._checkpoint(monitor)
                elif late or stop:
                    self._look(monitor)
                    self._checkpoint(monitor)
                if stop and not self.keeper.finished:
                    self._stop()
                if due:
                    self._ask()
        if self.keeper.stopped_early:
            self.say(f"stopped early: {self._state.since_best} validations without a better one")
        elif not self.keeper.finished:
            self.say(f"its pace ends the training after {self._state.events} events")

    def _ask(self) -> None:
        """Hear how far to go; that takes as long as it takes, and is no part of a step."""
        self.keeper.ask()
        self._mark = self._checkpointed = time.perf_counter()

    def _take_step(self) -> tuple[bool, bool]:
        """Take a step; whether it is time for a checkpoint, by the clock of the first process, and whether to stop."""
        state, settings = self._state, self._settings
        left = (settings.length.events - state.events) // max(settings.source.lanes, 1)
        with self._phases("data"):
            batches = [feed.next(left) for feed in self._feeds.values()]
        counted = batches if self._places.part == 0 else []  # the parts of a copy have the same batches
        late = time.perf_counter() - self._checkpointed >= settings.length.checkpoint_seconds
        with self._phases("idle"):
            events, computed, real, speaks, stop = self._team.add(
                [
                    sum(batch.num_events for batch in counted),
                    sum(batch.elements.num_elements for batch in counted),
                    sum(batch.num_elements for batch in counted),
                    late and self._team.is_first,
                    self._wish.signal_name is not None,
                ]
            )
        self._step.take(batches, state.step, self._rate(state.events + int(events)))
        state.step, state.events = state.step + 1, state.events + int(events)
        state.computed += int(computed)
        state.padding += int(computed - real)
        return bool(speaks), bool(stop)

    def _rate(self, events: int) -> float:
        optimizer = self._settings.optimizer
        elements = max(self._settings.source.lanes, 1) * self._settings.compute.batch_elements
        highest = ruled_rate(optimizer.rate, optimizer.rule, elements, optimizer.rule_elements)
        fraction = events / self._settings.length.events
        again = rewarmed(events, self._state.resized_at, optimizer.rewarmup * self._settings.length.events)
        return highest * rate_factor(fraction, optimizer.warmup, optimizer.final) * again

    def _look(self, monitor: Monitor | Silence) -> None:
        """Read what the last steps gave; this waits for the device, so the clock is right afterwards."""
        with self._phases("idle"):
            records = self._step.records.read()
        now = time.perf_counter()
        self._state.step_seconds += now - self._mark
        self._mark = now
        if bad := next((record for record in records if record.not_finite), None):
            self._stop_at(bad)
        monitor.steps(records, self._state, self._rate(self._state.events))

    def _stop_at(self, bad: Record) -> None:
        team = self._team
        guilty = [not finite for finite in team.gather(bad.finite_here)]
        rank = guilty.index(True) if any(guilty) else 0  # a gradient can be at fault where no term is
        path = self.keeper.folder / BAD_BATCH_FILE
        if team.rank == rank:
            again = [feed.again(place) for feed, place in zip(self._feeds.values(), bad.positions, strict=True)]
            save_bad_batch(path, join(again), bad)
        raise DivergenceError(
            f"{', '.join(bad.not_finite)} became NaN or infinite at step {bad.step}; the batch is in {path}: "
            "look at it, or start again in another folder with a smaller optimizer.rate"
        )

    def _stop(self) -> None:
        names = [name for name in self._team.gather(self._wish.signal_name) if name]
        error = stopped(names[0] if names else "a signal", self._state.events)
        error.told = not self._team.is_first
        raise error

    def _checkpoint(self, monitor: Monitor | Silence) -> None:
        state = self._state
        state.seconds = self._seconds_before + time.perf_counter() - self._started
        by_rank = self._team.gather([feed.position for feed in self._feeds.values()])
        state.positions = [position for positions in by_rank[:: self._places.parts] for position in positions]
        state.shape = next(iter(self._feeds.values())).shape
        self.keeper.checkpoint(snapshot(self._step), monitor)
        self._mark = self._checkpointed = time.perf_counter()

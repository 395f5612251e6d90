"""Training with a master and workers that do not wait for each other, over MPI.

    with joined(settings) as crew:
        train(assignment, sources, crew)

The first process is the master: it has the weights that are validated and saved, and no events. The others are workers, and
share the lanes. `sync=downpour` and `sync=easgd` differ in what they send and in who moves which weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch

from ringflow.base.errors import FailureError, StoppedError
from ringflow.base.log import say
from ringflow.models.file import load_model
from ringflow.models.model import Model
from ringflow.train.asynchronous.account import Stopwatch
from ringflow.train.asynchronous.crew import Crew, joined
from ringflow.train.asynchronous.downpour import DownpourMaster, DownpourWorker
from ringflow.train.asynchronous.easgd import Centre, ElasticWorker
from ringflow.train.asynchronous.master import Master, worker_prefix
from ringflow.train.asynchronous.messages import MASTER
from ringflow.train.asynchronous.worker import Start, Worker, make_feeds
from ringflow.train.batches import BEGINNING, ChunkSource, Feed
from ringflow.train.device import choose_device, is_out_of_memory
from ringflow.train.keeper import Assignment, Keeper, TrainingResult
from ringflow.train.phases import UNMEASURED, Phases
from ringflow.train.schedule import rate_factor, ruled_rate
from ringflow.train.settings import TrainSettings
from ringflow.train.signals import Wish, heeding_signals
from ringflow.train.snapshot import restore
from ringflow.train.step import TrainingStep
from ringflow.train.team import ALONE

__all__ = ["Crew", "joined", "train"]

#: The worker that has the first lane.
_FIRST_WORKER = MASTER + 1


def train(assignment: Assignment, sources: Mapping[int, ChunkSource], crew: Crew) -> TrainingResult:
    """Train in a folder, or go on with what is there. Whoever made the sources, by lane, closes them; the master has none.

    What is in the folder afterwards is as after any other training, and `asynchronous.json` beside it.
    """
    try:
        with heeding_signals() as wish:
            return _train(assignment, sources, crew, wish)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        budget = assignment.settings.compute.batch_elements
        raise FailureError(
            f"out of memory with batches of {budget} elements; try compute.batch_elements={max(budget // 2, 1)}"
        ) from None


def _train(assignment: Assignment, sources: Mapping[int, ChunkSource], crew: Crew, wish: Wish) -> TrainingResult:
    keepers: list[Keeper] = []  # of the master, and of nobody else
    start = crew.first(lambda: _start(assignment, keepers))
    folder, stopped = assignment.folder, None
    if start.finished:
        say(f"the training in {folder} is finished; give a larger length.events to go on, or another folder")
    elif keepers:
        stopped = _lead(assignment, keepers[0], start, crew, wish)
    else:
        _follow(assignment, sources, start, crew, wish)
    outcome = crew.tell((stopped or keepers[0].result()) if keepers else None)
    if isinstance(outcome, StoppedError):
        outcome.told = not crew.is_first
        raise outcome
    assert outcome is not None, "the master tells"
    return outcome


def _lead(assignment: Assignment, keeper: Keeper, start: Start, crew: Crew, wish: Wish) -> StoppedError | None:
    """The training as the master sees it."""
    settings = assignment.settings
    step = _make_step(settings, {}, start, crew)
    tensors = {} if keeper.found is None else keeper.found.tensors
    if start.goes_on:
        restore(tensors, step, assignment.folder)
    _share_weights(step, crew, start)
    for worker in crew.workers:
        # One that was not there before has nothing, and begins with the weights that all have now.
        prefix = worker_prefix(worker)
        own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        crew.post.send(worker, own)
    share = settings.asynchronous.elastic / len(crew.workers)
    rule = Centre(step, share) if settings.sync == "easgd" else DownpourMaster(step)
    master = Master(settings, keeper, step, rule, partial(rate_after, settings), wish)
    return master.go(crew.post, crew.workers)


def _follow(assignment: Assignment, sources: Mapping[int, ChunkSource], start: Start, crew: Crew, wish: Wish) -> None:
    """The training as a worker sees it."""
    settings, folder, phases = assignment.settings, assignment.folder, Stopwatch()
    feeds = make_feeds(sources, settings, start, choose_device(settings.compute.device))
    step = _make_step(settings, feeds, start, crew, phases)
    _share_weights(step, crew, start)
    if own := crew.post.receive(by=MASTER)[1]:
        restore(own, step, folder)
    easgd = settings.sync == "easgd"
    method = ElasticWorker(step, partial(rate_after, settings)) if easgd else DownpourWorker(step)
    Worker(settings, folder, feeds, step, method, wish).go(crew.post, start, phases)


def _make_step(
    settings: TrainSettings, feeds: Mapping[int, Feed], start: Start, crew: Crew, phases: Phases = UNMEASURED
) -> TrainingStep:
    device = choose_device(settings.compute.device)
    torch.manual_seed(settings.seed)
    model = Model(settings.model).to(device)
    if not start.goes_on and settings.start is not None:
        model.load_state_dict(load_model(Path(settings.start)).model.state_dict())
    elif not start.goes_on and crew.rank == _FIRST_WORKER:
        model.embedding.fit(feeds[0].chunk().features_NF)
    return TrainingStep(model, settings, device, ALONE, phases)


def _start(assignment: Assignment, keepers: list[Keeper]) -> Start:
    """Where the training is; the master keeps the one who knows."""
    settings = assignment.settings
    keeper = Keeper(assignment, ALONE)
    keepers.append(keeper)
    state, found = keeper.state, keeper.found
    same = found is None or found.settings["compute"]["batch_elements"] == settings.compute.batch_elements
    if found is None:
        state.positions = [BEGINNING] * settings.source.lanes
    elif not same and any(position.batch for position in state.positions):
        say("batches of another size than before: the rest of this pass through the events is left out")
    return Start(found is not None, keeper.finished, state.step, state.events, list(state.positions), state.shape, same)


def _share_weights(step: TrainingStep, crew: Crew, start: Start) -> None:
    """Everybody has the weights of one process, who knows them, and averages that begin with them."""
    by = MASTER if start.goes_on else _FIRST_WORKER
    told = crew.tell({name: value.cpu() for name, value in step.model.state_dict().items()}, by=by)
    if crew.rank != by:
        step.model.load_state_dict(told)
        with torch.no_grad():
            for name, weight in step.model.named_parameters():
                step.average.weights[name].copy_(weight)


def rate_after(settings: TrainSettings, events: int) -> float:
    """The rate of a move after which so many events have been shown to all workers."""
    optimizer = settings.optimizer
    batches = settings.asynchronous.period if settings.sync == "downpour" else 1
    elements = batches * settings.compute.batch_elements
    highest = ruled_rate(optimizer.rate, optimizer.rule, elements, optimizer.rule_elements)
    return highest * rate_factor(events / settings.length.events, optimizer.warmup, optimizer.final)

"""What rows do to weights: of the master, of the centre, of workers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ringflow.train.asynchronous import rate_after
from ringflow.train.asynchronous.downpour import DownpourMaster, DownpourWorker
from ringflow.train.asynchronous.easgd import Centre, ElasticWorker
from ringflow.train.asynchronous.messages import pieces, row_for
from ringflow.train.batches import Feed, TrainingBatch
from ringflow.train.settings import TrainSettings
from ringflow.train.step import TrainingStep

Tiny = Callable[..., TrainSettings]
MakeStep = Callable[[TrainSettings], TrainingStep]


def batches(source: Any, count: int) -> list[TrainingBatch]:
    feed = Feed(source, budget=100, reuse=1, seed=1, device=torch.device("cpu"))
    return [feed.next(1) for _ in range(count)]


def test_pieces_are_views_of_the_row_in_order():
    row, tensors = torch.arange(10.0), [torch.empty(2, 3), torch.empty(4)]
    found = [piece for piece, _ in pieces(row, tensors)]
    assert [piece.tolist() for piece in found] == [[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], [6.0, 7.0, 8.0, 9.0]]
    found[0][1, 0] = -1.0
    assert row[3] == -1.0


def test_gradients_of_a_worker_move_the_master_as_a_step_does(
    tiny: Tiny, make_step: MakeStep, source: Callable[..., Any]
):
    settings = tiny("optimizer.clip=0.5")
    alone, master, worker = (make_step(settings) for _ in range(3))
    sender, receiver = DownpourWorker(worker), DownpourMaster(master)
    row = row_for(worker.model)
    for number, batch in enumerate(batches(source(), 3)):
        alone.take([batch], number, 1e-2)
        expected = alone.records.read()[0].values
        (record,) = sender.work([batch], row, number, 0)
        assert record.values["total"] == expected["total"]
        length = receiver.take_in(row, number, 1e-2)
        assert (record.values["gradient"], length) == (pytest.approx(expected["gradient"]), expected["gradient"])
        sender.arrive(row)
    for one, of_master, of_worker in zip(*(s.model.parameters() for s in (alone, master, worker)), strict=True):
        torch.testing.assert_close(of_master, one, rtol=0, atol=1e-6)
        assert torch.equal(of_worker, of_master)
    for name, value in alone.average.weights.items():
        torch.testing.assert_close(master.average.weights[name], value, rtol=0, atol=1e-6)


def test_several_batches_make_one_gradient(tiny: Tiny, make_step: MakeStep, source: Callable[..., Any]):
    step = make_step(tiny("source.hide=0"))
    two = batches(source(), 2)
    row = row_for(step.model)
    (record,) = DownpourWorker(step).work(two, row, 7, 0)
    assert (record.step, record.positions) == (8, tuple(batch.position for batch in two))
    step.gradients(two)
    whole = torch.cat([weight.grad.flatten() for weight in step.model.parameters() if weight.grad is not None])
    torch.testing.assert_close(row, whole)


class Quadratic:
    """A network of four numbers with the loss a w^2 / 2, as the rules see one."""

    def __init__(self, begin: list[float]) -> None:
        self.model = torch.nn.Linear(2, 2, bias=False)
        self.model.weight.data = torch.tensor(begin).view(2, 2)
        self.average = SimpleNamespace(update=lambda number: None)

    @property
    def weight(self) -> np.ndarray:
        return self.model.weight.detach().numpy().ravel()


def test_elastic_averaging_is_the_recursion_of_the_paper():
    curvature, rate, share = np.array([1.0, 0.3, 2.0, 0.1]), 0.1, 0.2
    begins = [[1.0, -2.0, 3.0, 0.5], [-1.0, 1.0, 0.0, 4.0]]
    network = Quadratic([0.0, 0.0, 0.0, 0.0])
    centre = Centre(network, share)
    workers = [Quadratic(begin) for begin in begins]
    w, c = np.array(begins), np.zeros(4)
    row = torch.empty(4)
    for talk in range(12):
        number = talk % 2  # one after the other
        for _ in range(3):
            with torch.no_grad():
                weight = workers[number].model.weight
                weight -= rate * torch.tensor(curvature, dtype=torch.float32).view(2, 2) * weight
            w[number] = w[number] - rate * curvature * w[number]
        row.copy_(torch.from_numpy(workers[number].weight))
        centre.take_in(row, talk, 0.0)
        ElasticWorker(workers[number], lambda events: 0.0).arrive(row)
        w[number], c = w[number] - share * (w[number] - c), c + share * (w[number] - c)
        np.testing.assert_allclose(network.weight, c, atol=1e-6)
        np.testing.assert_allclose(workers[number].weight, w[number], atol=1e-6)
    assert np.abs(c).max() > 0.1


def test_a_worker_takes_a_step_for_every_batch(tiny: Tiny, make_step: MakeStep, source: Callable[..., Any]):
    settings = tiny()
    alone, step = make_step(settings), make_step(settings)
    rates = {}
    method = ElasticWorker(step, lambda events: rates.setdefault(events, 1e-5 * events))
    three = batches(source(), 3)
    row = row_for(step.model)
    records = method.work(three, row, 4, 1000)
    ends = 1000 + np.cumsum([batch.num_events for batch in three])
    assert list(rates) == ends.tolist()
    for number, (batch, events) in enumerate(zip(three, ends, strict=True)):
        alone.take([batch], number, 1e-5 * int(events))
        assert alone.records.read()[0].values == records[number].values
    assert torch.equal(row, torch.cat([weight.detach().flatten() for weight in alone.model.parameters()]))


def test_the_rate_follows_the_events_and_the_size_of_a_move(tiny: Tiny):
    words = ("optimizer.rate=0.01", "optimizer.warmup=0.5", "optimizer.rule=linear", "optimizer.rule_elements=100")
    settings = tiny("sync=downpour", "asynchronous.period=3", *words)
    assert rate_after(settings, 30) == pytest.approx(0.01 * 3 * 0.5)
    assert rate_after(tiny("sync=easgd", "asynchronous.period=3", *words), 30) == pytest.approx(0.01 * 0.5)

"""Which processes a trial gets from Ray, and what is told when they end. Real clusters are in tests/distributed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ringflow.base.errors import FailureError, SettingsError, UsageError
from ringflow.tune.desk import Side, lay
from ringflow.tune.executor import Begun, Ended, Order, Said
from ringflow.tune.executors import ray as ray_executor
from ringflow.tune.executors import ray_crew
from ringflow.tune.executors.ray import RayExecutor
from ringflow.tune.executors.ray_crew import Outcome


class RayError(Exception):
    """Of Ray."""


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class FakeRay(SimpleNamespace):
    """What a connection to Ray tells of its nodes; those without resources are dead."""

    def __init__(self, *nodes: dict[str, float]) -> None:
        super().__init__(exceptions=SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError), shut=0)
        self.set(*nodes)

    def set(self, *nodes: dict[str, float]) -> None:
        self.nodes = lambda: [{"Alive": bool(node), "Resources": node} for node in nodes]

    def shutdown(self) -> None:
        self.shut += 1


class FakeCrew:
    """Processes that end when the test says so."""

    hired: ClassVar[list[FakeCrew]] = []

    def __init__(self, ray: FakeRay, size: int, wants: dict[str, float]) -> None:
        self.size, self.wants, self.dismissed = size, wants, False
        self.begun: list[str] = []
        self.on_one_node: bool | None = None
        self.end: Outcome | Exception | None = None
        self.hired.append(self)

    def begin(self, ticket: Path, on_one_node: bool) -> None:
        self.begun.append(ticket.name)
        self.end, self.on_one_node = None, on_one_node

    def outcome(self) -> Outcome | None:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    def dismiss(self) -> None:
        self.dismissed = True


Make = Callable[..., RayExecutor]


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay({"CPU": 2.0}, {}, {"CPU": 2.5})


@pytest.fixture
def make(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(ray_executor, "Crew", FakeCrew)
    monkeypatch.setattr(ray_executor, "_SECONDS_BETWEEN_COUNTS", 0.0)
    monkeypatch.setattr(FakeCrew, "hired", [])

    executors: list[RayExecutor] = []

    def made(workers: int | None = None, on_gpus: bool = False, ours: bool = False) -> RayExecutor:
        monkeypatch.setattr(ray_executor, "open_ray", lambda address, workers: (ray, ours))
        executors.append(RayExecutor(None, workers, on_gpus))
        return executors[-1]

    yield made
    for executor in reversed(executors):
        executor.close()


@pytest.fixture
def order(tmp_path: Path) -> Callable[..., Order]:
    def laid(trial: int, workers: int = 1) -> Order:
        made = Order(trial, tmp_path / "desk" / f"{trial:06d}-1", tmp_path / "run", {}, 10, workers)
        lay(made)
        return made

    return laid


def test_room_is_what_the_nodes_have_and_no_trial_holds(make: Make, ray: FakeRay, order: Callable[..., Order]) -> None:
    executor = make()
    assert executor.room(4)
    executor.start(order(0, 3))
    assert (executor.room(1), executor.room(2)) == (True, False)
    ray.set({"CPU": 2.0})
    assert not executor.room(1), "a node was lost"
    ray.set({"CPU": 8.0})
    limited = make(workers=3)
    limited.start(order(1))
    assert (limited.room(2), limited.room(3)) == (True, False)


def test_each_process_has_a_gpu_where_there_are_some(make: Make, ray: FakeRay, order: Callable[..., Order]) -> None:
    ray.set({"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0})
    executor = make(on_gpus=True)
    executor.start(order(0, 2))
    assert FakeCrew.hired[0].wants == {"CPU": 1.0, "GPU": 1.0}
    with pytest.raises(
        FailureError, match="a trial of 3 processes does not fit: 2 GPUs of the Ray cluster can be used"
    ):
        executor.room(3)
    assert make(on_gpus=False).room(16)
    ray.set({"CPU": 2.0})
    assert make(on_gpus=True).room(2)


def test_nonsense_is_refused(make: Make) -> None:
    with pytest.raises(UsageError, match="--workers 0 leaves nothing"):
        make(workers=0)


def test_a_trial_that_never_fits_is_an_error_at_once(make: Make) -> None:
    with pytest.raises(FailureError, match=r"5 processes does not fit: 4 cores .* give trials at most 4 processes"):
        make().room(5)


def test_what_a_trial_says_comes_at_once_and_its_end_when_all_are_done(make: Make, order: Callable[..., Order]) -> None:
    executor, laid = make(), order(7, 2)
    executor.start(laid)
    side = Side(laid.ticket)
    assert executor.poll(0.0) == []
    side.begin()
    assert executor.poll(9.0) == [Begun(7)]
    (laid.ticket / "answer-0.json").write_text('{"until": 20}')
    assert side.report(10, {"loss": 0.5}, lambda: None, lambda: False) == 20
    assert executor.poll(9.0) == [Said(7, 10, {"loss": 0.5})]
    side.end()
    assert executor.poll(0.0) == [], "its second process works"
    FakeCrew.hired[0].end = Outcome()
    assert executor.poll(9.0) == [Ended(7)]
    assert executor.room(4)


def test_crews_are_used_again_and_make_place_for_others(make: Make, order: Callable[..., Order]) -> None:
    executor = make()

    def play(trial: int, workers: int) -> None:
        laid = order(trial, workers)
        executor.start(laid)
        Side(laid.ticket).end()
        next(crew for crew in FakeCrew.hired if laid.ticket.name in crew.begun).end = Outcome()
        assert executor.poll(9.0)[-1] == Ended(trial)

    play(0, 1)
    play(1, 1)
    play(2, 2)
    one, two = FakeCrew.hired
    assert (one.begun, two.begun, one.dismissed) == (["000000-1", "000001-1"], ["000002-1"], False)
    play(3, 3)
    assert (one.dismissed, two.dismissed) == (True, True), "three of four slots do not fit beside them"
    assert [crew.size for crew in FakeCrew.hired] == [1, 2, 3]


def test_crews_without_work_go_home(make: Make, order: Callable[..., Order], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_executor, "_SECONDS_TO_REST", -1.0)
    executor, laid = make(), order(0)
    executor.start(laid)
    Side(laid.ticket).end()
    FakeCrew.hired[0].end = Outcome()
    assert executor.poll(9.0) == [Ended(0)]
    assert FakeCrew.hired[0].dismissed


LOST = Outcome("lost", "process 1 was ended")


@pytest.mark.parametrize(
    ("said", "outcome", "expected"),
    [
        (None, LOST, Ended(0, "lost", "process 1 was ended")),
        (("failed", "another process ended"), LOST, Ended(0, "lost", "process 1 was ended")),
        (("diverged", "NaN"), LOST, Ended(0, "diverged", "NaN")),
        (("refused", "no data"), Outcome(), Ended(0, "refused", "no data")),
        (None, Outcome("failed", "a mistake"), Ended(0, "failed", "a mistake")),
    ],
)
def test_trouble_ends_all_processes_of_a_trial(
    said: Any, outcome: Outcome, expected: Ended, make: Make, order: Callable[..., Order]
) -> None:
    executor, laid = make(), order(0, 2)
    executor.start(laid)
    if said is not None:
        Side(laid.ticket).end(*said)
    FakeCrew.hired[0].end = outcome
    assert executor.poll(9.0) == [expected]
    assert FakeCrew.hired[0].dismissed
    executor.start(order(1, 2))
    assert len(FakeCrew.hired) == 2


@pytest.mark.parametrize(("end", "expected"), [(None, None), (Outcome(), "failed")])
def test_processes_that_do_not_follow_are_ended(
    end: Outcome | None,
    expected: str | None,
    make: Make,
    order: Callable[..., Order],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, laid = make(), order(0, 2)
    executor.start(laid)
    if end is None:
        Side(laid.ticket).end()  # the first says that it is over, the other one goes on
    FakeCrew.hired[0].end = end
    assert executor.poll(0.0) == []
    monkeypatch.setattr(ray_executor, "_SECONDS_TO_FOLLOW", -1.0)
    [ended] = executor.poll(9.0)
    assert (ended.trouble, FakeCrew.hired[0].dismissed) == (expected, True)


def test_a_lost_cluster_is_one_line(make: Make, order: Callable[..., Order]) -> None:
    executor = make()
    executor.start(order(0))
    FakeCrew.hired[0].end = RayError("many\n lines")
    with pytest.raises(
        FailureError, match=r"the Ray cluster was lost \(many lines\); start it again and resume the study"
    ):
        executor.poll(0.0)
    executor.close()


@pytest.mark.parametrize("ours", [True, False])
def test_the_end_asks_for_checkpoints_and_leaves_what_is_not_ours(
    ours: bool, make: Make, ray: FakeRay, order: Callable[..., Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, laid, waiting = make(ours=ours), order(0), order(1)
    executor.start(laid)
    executor.start(waiting)  # has no processes yet, and nothing to save
    Side(laid.ticket).begin()
    executor.poll(9.0)
    crew = FakeCrew.hired[0]

    def stop_at_the_file() -> Outcome | None:
        if not (laid.ticket / "stop").exists():
            return None
        Side(laid.ticket).end("interrupted", "saved")
        return Outcome()

    monkeypatch.setattr(crew, "outcome", stop_at_the_file)
    executor.close()
    executor.close()
    assert [one.dismissed for one in FakeCrew.hired] == [True, True]
    assert ray.shut == int(ours)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            RayError("The actor died\nexit type: SYSTEM_ERROR; perhaps by the OOM killer due to high memory usage"),
            Outcome("lost", "process 1 was ended (Ray says SYSTEM_ERROR)"),
        ),
        (
            RayError("killed due to the node running low on memory"),
            Outcome("lost", "process 1 was ended (out of memory)"),
        ),
        (RayTaskError(SettingsError("no such field")), Outcome("refused", "no such field")),
        (RayTaskError(ZeroDivisionError("ours")), Outcome("failed", "process 1 failed (ZeroDivisionError: ours)")),
    ],
)
def test_what_ray_says_is_one_line(error: Exception, expected: Outcome, ray: FakeRay) -> None:
    assert ray_crew._failure(ray, 1, error) == expected


def test_what_ray_prints_meanwhile_stays_out_of_the_result(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    executor = make()
    sys.stdout.write("(raylet) A worker died")
    executor.close()
    sys.stdout.write("{}")
    assert capsys.readouterr().out == "{}"


def test_nodes_without_ringflow_end_the_study(ray: FakeRay) -> None:
    with pytest.raises(FailureError, match="the workers' Python has no ringflow; install it on every node"):
        ray_crew._failure(ray, 0, RayError("ModuleNotFoundError: No module named 'ringflow'"))

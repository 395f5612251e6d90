"""Studies: what is decided, what is written down, and that a killed one goes on as if nothing had happened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import ringflow.tune.study as run_module
from fixtures.made_up_trials import EVENTS, MadeUpExecutor, loss, make_study
from ringflow.base.errors import FailureError, UsageError
from ringflow.train.settings import TrainSettings
from ringflow.tune.folder import StudyFolder
from ringflow.tune.options import ExecutorOptions, Plan
from ringflow.tune.record import Journal, JournalRow, StudyRecord, read_rows
from ringflow.tune.replay import recorded_curves
from ringflow.tune.replay.campaign import replay_study
from ringflow.tune.report import write_report
from ringflow.tune.schedulers import SCHEDULERS, Decision
from ringflow.tune.study import Study, drive, trial_settings
from ringflow.tune.worker import Order, Trouble


def drive_to_end(folder: StudyFolder, executor: MadeUpExecutor | None = None) -> StudyRecord:
    study = Study(folder)
    drive(study, executor or MadeUpExecutor())
    return study.record


class KilledError(Exception):
    """Stands for a kill -9."""


@pytest.mark.parametrize("scheduler", ["none", "halving", "hyperband", "asha", "asha-promote", "rasda"])
def test_every_scheduler_decides_about_all_trials(tmp_path: Path, scheduler: str) -> None:
    folder = make_study(tmp_path, scheduler=scheduler, trials=12, most_workers=2)
    record = drive_to_end(folder)
    assert len(record.trials) == 12
    assert record.closed
    assert {trial.state for trial in record.trials} <= {"complete", "stopped"}
    best = record.best
    assert best is not None
    assert best.state == "complete"
    assert best.value == min(trial.value for trial in record.trials if trial.state == "complete")
    shown = sum(trial.resource for trial in record.trials)
    assert (shown == 12 * EVENTS) == (scheduler == "none")


def test_first_trial_has_the_settings_as_they_are_if_they_lie_in_the_space(tmp_path: Path) -> None:
    first = drive_to_end(make_study(tmp_path, "model.layers=4")).trials[0]
    assert first.point == {"optimizer.rate": 0.002, "model.layers": 4}
    other = make_study(tmp_path, "model.layers=4", name="other", default_first=False)
    assert drive_to_end(other).trials[0].point != first.point
    outside = make_study(tmp_path, "model.layers=9", name="outside")
    assert all(trial.point["model.layers"] != 9 for trial in drive_to_end(outside).trials)


@pytest.mark.parametrize("search", ["random", "evolution", "tpe", "gp"])
def test_study_is_the_same_however_often_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, search: str
) -> None:
    """The driver dies after every row that it writes, and a new one goes on each time."""
    whole = make_study(tmp_path, name="whole", search=search, scheduler="asha-promote", trials=9)
    expected = drive_to_end(whole, MadeUpExecutor(places=1))
    folder = make_study(tmp_path, name="killed", search=search, scheduler="asha-promote", trials=9)
    starts = 0
    while starts < 200:
        starts += 1
        try:
            with monkeypatch.context() as patched:
                patched.setattr(Journal, "append", mortal(rows=2))
                study = Study(folder)
                drive(study, MadeUpExecutor(places=1))
                break
        except KilledError:
            continue
    assert 10 < starts < 200
    assert [(trial.point, trial.value, trial.state) for trial in study.record.trials] == [
        (trial.point, trial.value, trial.state) for trial in expected.trials
    ]
    told = Counter((row.trial, row.data["resource"]) for row in read_rows(folder.journal) if row.kind == "reported")
    assert set(told.values()) == {1}, "a report was counted twice"


def mortal(rows: int) -> Callable[..., JournalRow]:
    """A journal that lives for so many rows."""
    left, append = [rows], Journal.append

    def appended(self: Journal, kind: str, trial: int = -1, **data: object) -> JournalRow:
        if left[0] == 0:
            raise KilledError
        left[0] -= kind != "ended"  # which every start writes for what the one before left running
        return append(self, kind, trial, **data)

    return appended


def once(trial: int, trouble: Trouble, times: int = 1) -> Callable[[Order], tuple[Trouble, str] | None]:
    """A mishap of the first starts of a trial."""
    left = [times]

    def mishap(order: Order) -> tuple[Trouble, str] | None:
        if order.trial != trial or not left[0]:
            return None
        left[0] -= 1
        return trouble, "something happened"

    return mishap


@pytest.mark.parametrize(
    ("trouble", "times", "starts", "failures", "state"),
    [
        ("lost", 2, 3, 2, "complete"),
        ("failed", 2, 3, 2, "complete"),
        ("interrupted", 9, 10, 0, "complete"),
        ("failed", 3, 3, 3, "failed"),  # too often
        ("refused", 9, 1, 1, "failed"),  # it would be refused again
    ],
)
def test_a_trial_that_was_lost_is_started_again(
    tmp_path: Path, trouble: Trouble, times: int, starts: int, failures: int, state: str
) -> None:
    executor = MadeUpExecutor(mishap=once(2, trouble, times))
    record = drive_to_end(make_study(tmp_path, retries=2, scheduler="none"), executor)
    trial = record.trials[2]
    assert (trial.state, trial.failures) == (state, failures)
    assert len([order for order in executor.started if order.trial == 2]) == starts
    assert trial.reason == ("something happened" if failures else "")
    assert [other.state for other in record.trials if other is not trial] == ["complete"] * 7


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("finished", [True, False])
def test_trials_that_failed_are_tried_again(tmp_path: Path, scheduler: str, finished: bool) -> None:
    """With the same settings, under a new number, in any study; they are none of its trials."""

    def mishap(order: Order) -> tuple[Trouble, str] | None:
        return ("refused", "no memory") if order.trial in (2, 5) else None

    folder = make_study(tmp_path, scheduler=scheduler, trials=20, most_workers=2, processes=2)
    if finished:
        assert len(drive_to_end(folder, MadeUpExecutor(mishap=mishap)).in_state("failed")) == 2
    else:
        with pytest.raises(FailureError, match="then `ringflow tune resume"):
            drive_to_end(folder, MadeUpExecutor(mishap=lambda order: mishap(order) or once(9, "full")(order)))
    study = Study(folder)
    assert study.retry() == 2
    assert Study(folder).retry() == 0, "they are tried again already"
    study = Study(folder)
    drive(study, MadeUpExecutor())
    trials = study.record.trials
    again = [trial for trial in trials if trial.retry_of is not None]
    assert [trial.retry_of for trial in again] == [2, 5]
    assert [trial.point for trial in again] == [trials[2].point, trials[5].point]
    assert {trial.state for trial in again} <= {"complete", "stopped"}
    assert (len(trials), study.finished) == (22, True)
    assert [trial.number for trial in study.record.in_state("failed")] == [2, 5]
    assert Study(folder).record.trials == trials


def test_a_diverged_trial_stops_and_counts_as_the_worst(tmp_path: Path) -> None:
    folder = make_study(tmp_path, scheduler="asha")
    record = drive_to_end(folder, MadeUpExecutor(mishap=once(3, "diverged", 9)))
    trial = record.trials[3]
    assert trial.state == "stopped"
    assert trial.value is not None
    assert math.isnan(trial.value)
    assert trial.resource == 1000
    assert record.best is not trial
    assert math.isnan(Study(folder).record.trials[3].reports[0].value)  # NaN survives the file


def test_a_full_disk_ends_the_study_and_nothing_is_lost(tmp_path: Path) -> None:
    folder = make_study(tmp_path)
    with pytest.raises(FailureError, match=r"something happened, then `ringflow tune resume .*study`"):
        drive_to_end(folder, MadeUpExecutor(mishap=once(3, "full")))
    record = drive_to_end(folder)
    assert len(record.trials) == 8
    assert all(trial.failures == 0 for trial in record.trials)


@pytest.mark.parametrize(
    ("settings", "mishap", "error", "said"),
    [
        ({}, ("refused", "no such data"), FailureError, "the first 3 trials failed, the last with: no such data"),
        ({"workers_per_trial": 4, "most_workers": 4}, None, UsageError, "4 processes never fit"),
        ({"objectives": ["los"]}, None, UsageError, r"no figure 'los'.*loss"),
    ],
)
def test_a_study_that_cannot_go_on(
    tmp_path: Path, settings: dict[str, object], mishap: tuple[Trouble, str] | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        drive_to_end(make_study(tmp_path, **settings), MadeUpExecutor(mishap=lambda order: mishap))


def test_trials_grow_with_rasda_and_their_rate_with_them(tmp_path: Path) -> None:
    folder = make_study(tmp_path, "compute.batch_elements=4096", scheduler="rasda", trials=12, most_workers=4)
    executor = MadeUpExecutor(places=4)
    record = drive_to_end(folder, executor)
    grown = [order for order in executor.started if order.workers > 1]
    assert {order.workers for order in grown} == {4}
    assert all(order.settings["source"]["lanes"] == order.workers for order in executor.started)
    assert {order.settings["optimizer"]["rule"] for order in executor.started} == {"sqrt"}
    assert {order.settings["optimizer"]["rule_elements"] for order in executor.started} == {4096}
    assert any(said.verdict == "resize" for trial in record.trials for said in trial.reports)


def test_a_rule_of_the_settings_is_kept(tmp_path: Path) -> None:
    folder = make_study(tmp_path, "optimizer.rule=linear", scheduler="rasda", most_workers=4)
    settings = trial_settings(folder, drive_to_end(folder, MadeUpExecutor(places=4)).trials[0])
    assert settings.optimizer.rule == "linear"
    assert settings.optimizer.rule_elements == 16_384


def test_several_objectives_are_searched_along_the_front(tmp_path: Path) -> None:
    folder = make_study(tmp_path, objectives=["loss", "cpu_ms"], search="evolution", scheduler="none", trials=30)
    executor = MadeUpExecutor(
        figures=lambda settings, resource: {"loss": loss(settings, resource), "cpu_ms": settings["model"]["layers"]}
    )
    record = drive_to_end(folder, executor)
    assert executor.started[0].extras == ("cpu_ms",)
    layers = {trial.point["model.layers"] for trial in record.trials[15:]}
    assert {1, 4} <= layers, "neither the fastest nor the best networks were looked for"


@pytest.mark.parametrize(("seconds", "workers"), [(1.0, 4), (200.0, 1)])
def test_a_trial_grows_onto_idle_processes_if_a_start_takes_less_than_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, workers: int
) -> None:
    now = 1e9
    monkeypatch.setattr("time.time", lambda: now)
    plan = Plan(trials=1, scheduler="rasda-idle", most_workers=4).settings(TrainSettings(), ExecutorOptions(workers=8))
    assert (plan.most_workers, plan.processes) == (4, 8)
    folder = make_study(tmp_path, **{**plan.model_dump(), "least": 1000})
    study = Study(folder)
    study.add()
    study.begin(0)
    now += seconds + 100.0  # a thousand events at ten per second
    assert study.report(0, 1000, {"loss": 1.0}) == Decision("continue", 2000, 1)  # nobody knows what a start costs
    now += 100.0
    # The 2,000 events to the next rung take 200 s, or 50 s on four processes.
    assert study.report(0, 2000, {"loss": 1.0}).workers == workers
    assert Study(folder).record.trials[0].workers == workers  # told again, it decides the same


def test_idle_processes_of_a_cluster_must_be_told() -> None:
    with pytest.raises(UsageError, match=r"give --workers$"):
        Plan(scheduler="rasda-idle", most_workers=4).settings(TrainSettings(), ExecutorOptions(executor="ray"))


@pytest.mark.parametrize(("trials", "in_effect"), [(16, "halving"), (17, "hyperband")])
def test_hyperband_of_few_trials_is_called_successive_halving(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    trials: int,
    in_effect: str,
) -> None:
    monkeypatch.setattr(run_module, "make_executor", lambda folder, place: MadeUpExecutor())
    folder = make_study(tmp_path, scheduler="hyperband", trials=trials)
    result = run_module.run(folder, ExecutorOptions())
    assert (result["scheduler"], result["scheduler_in_effect"]) == ("hyperband", in_effect)
    sentence = "Hyperband with 16 trials is successive halving; from 17 on it has a second bracket"
    page = write_report(folder.path).read_text(encoding="utf-8")
    assert (sentence in capsys.readouterr().err) == (sentence in page) == (in_effect == "halving")
    replayed = replay_study(recorded_curves(folder.path), devices=[trials], schedulers=["hyperband"], orders=1)
    assert (f"{sentence}." in replayed["assumptions"]) == (in_effect == "halving")

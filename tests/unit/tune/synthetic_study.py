"""Folders of studies that nobody trained: real schedulers and a real log, with learning curves from a formula.

python tests/unit/tune/synthetic_study.py FOLDER 10000       # to look at its report
"""

from __future__ import annotations

import heapq
import json
import math
import sqlite3
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ringflow.base.config import write
from ringflow.train.settings import TrainSettings
from ringflow.tune.contract import Decision, Point, Report
from ringflow.tune.folder import ORIGIN_FILE, SPACE_FILE, STUDY_FILE, StudyFolder
from ringflow.tune.log import StudyLog
from ringflow.tune.schedulers import make_scheduler
from ringflow.tune.settings import StudySettings

START = 1_760_000_000.0
SPACE = """
["optimizer.rate"]
type = "float"
low = 1e-4
high = 1e-2
log = true

["model.backbone"]
type = "choice"
values = ["attention", "graph", "mlp"]

["model.width"]
type = "int"
low = 32
high = 256
step = 32

["model.layers"]
type = "int"
low = 1
high = 8

["model.graph.bin_size"]
type = "int"
low = 32
high = 256
log = true
when = { "model.backbone" = "graph" }

["model.dropout"]
type = "float"
low = 0.0
high = 0.3

["optimizer.weight_decay"]
type = "float"
low = 1e-4
high = 0.1
log = true
"""


def loss_of(point: Point, share: float, noise: float) -> float:
    """Of a network with these settings after this share of the training; NaN where the rate is too high."""
    value: dict[str, Any] = dict(point)
    rate = math.log10(value["optimizer.rate"] / 1.5e-3)
    if rate > 0.7 and value["model.layers"] >= 7:
        return math.nan
    floor = 2.4 + 0.9 * rate**2 + 0.35 * abs(math.log2(value["model.width"] / 160)) + 0.8 * value["model.dropout"]
    floor += {"attention": 0.0, "graph": 0.15, "mlp": 0.8}[value["model.backbone"]]
    floor += 0.25 * abs(math.log2(value.get("model.graph.bin_size", 128) / 128))
    return floor + 0.5 * share**-0.45 + noise


def figures_of(point: Point, share: float, rng: np.random.Generator) -> dict[str, float | None]:
    """What a validation would say."""
    value: dict[str, Any] = dict(point)
    loss = loss_of(point, share, 0.03 * rng.standard_normal())
    cost = 0.4 + (value["model.width"] / 64) ** 1.4 * value["model.layers"] * 0.35
    if math.isnan(loss):
        return {"loss": None}
    return {"loss": loss, "jet_iqr_over_median": 0.05 + 0.02 * loss, "cpu_ms": cost}


class _Clock:
    """Writes the rows of a simulated study, one process of a machine after the other being free."""

    def __init__(self, folder: StudyFolder, processes: int, failures: float, seed: int) -> None:
        self.folder, self.free, self.failures = folder, processes, failures
        self.rng = np.random.default_rng(seed)
        settings = folder.settings
        self.scheduler = make_scheduler(
            settings.scheduler,
            folder.ladder,
            trials=settings.trials,
            initial_workers=settings.workers_per_trial,
            most_workers=settings.most_workers,
        )
        self.rows: list[tuple[float, str, int, str]] = []
        self.now, self.order = START, 0
        self.points: list[Point] = []
        self.reached: dict[int, int] = {}
        self.lives: dict[int, Decision] = {}
        self.queue: list[int] = []
        self.due: list[tuple[float, int, int]] = []

    def say(self, kind: str, trial: int = -1, **data: Any) -> None:
        self.rows.append((self.now, kind, trial, json.dumps(data)))

    def begin(self) -> None:
        """Start what fits."""
        while True:
            if not self.queue:
                if (
                    len(self.points) == self.folder.settings.trials
                    or self.free < self.folder.settings.workers_per_trial
                ):
                    return
                self.add()
            trial = self.queue[0]
            workers = self.lives[trial].workers
            if workers > self.free:
                return
            self.queue.pop(0)
            self.free -= workers
            self.now += 1e-3
            self.say("begun", trial, workers=workers)
            self.go_on(trial)

    def add(self) -> None:
        trial = len(self.points)
        space = self.folder.space
        point = space.sample(self.rng)
        if trial == 0:  # what the settings say
            point = {"optimizer.rate": 0.002, "model.backbone": "attention", "model.width": 64, "model.layers": 3}
            point |= {"model.dropout": 0.0, "optimizer.weight_decay": 0.01}
        self.points.append(point)
        self.lives[trial] = decision = self.scheduler.add(trial)
        self.say("added", trial, point=dict(self.points[trial]), **_words(decision))
        self.queue.append(trial)
        if len(self.points) == self.folder.settings.trials:
            self.say("closed")
            self.scheduler.close()

    def go_on(self, trial: int) -> None:
        decision = self.lives[trial]
        events = decision.until - self.reached.get(trial, 0)
        cost = figures_of(self.points[trial], 1.0, self.rng).get("cpu_ms") or 1.0
        seconds = 2.0 + events * (0.5 + 0.2 * cost) / 400 / decision.workers**0.9
        self.order += 1
        heapq.heappush(self.due, (self.now + seconds * self.rng.uniform(0.9, 1.1), self.order, trial))

    def report(self, trial: int) -> None:
        decision = self.lives[trial]
        if self.rng.random() < self.failures:
            self.free += decision.workers
            if self.rng.random() < 0.5:
                self.say("failed", trial, reason="the processes died: out of memory")
                self.queue.append(trial)
            else:
                self.say("gone", trial, reason="CUDA out of memory while the backward pass ran, <b>80 GiB</b> wanted")
                self.scheduler.gone(trial)
            return
        share = decision.until / self.folder.training.length.events
        figures = figures_of(self.points[trial], share, self.rng)
        told = {name: figure for name, figure in figures.items() if figure is not None}
        value = figures["loss"]
        self.reached[trial] = decision.until
        answer = self.scheduler.report(Report(trial, decision.until, math.nan if value is None else value, told))
        words = {**_words(answer), "value": value, "figures": told}
        self.say("reported", trial, resource=decision.until, **words)
        self.lives[trial] = answer
        if answer.verdict == "continue":
            self.go_on(trial)
            return
        self.free += decision.workers
        if answer.verdict == "resize":
            self.queue.append(trial)

    def settle(self) -> None:
        for trial, decision in self.scheduler.promoted():
            self.say("decided", trial, **_words(decision))
            if decision.verdict != "stop":
                self.lives[trial] = decision
                self.queue.append(trial)

    def run(self, until: float) -> None:
        """To the end, or to this share of the trials' reports."""
        self.begin()
        while self.due and len(self.reached) < until * self.folder.settings.trials:
            self.now, _, trial = heapq.heappop(self.due)
            self.report(trial)
            self.settle()
            self.begin()


def _words(decision: Decision) -> dict[str, object]:
    return {"verdict": decision.verdict, "until": decision.until, "workers": decision.workers}


def make_study(
    path: Path,
    trials: int = 24,
    *,
    processes: int = 4,
    failures: float = 0.0,
    until: float = math.inf,
    seed: int = 1,
    **settings: object,
) -> Path:
    """A study of this many trials on so many processes, to its end or until a share of the trials reported."""
    path.mkdir(parents=True)
    words = {"trials": trials, "search": "random", "least": 2_000, "seed": seed, **settings}
    write(StudySettings.model_validate({"most_workers": 64, **words}), path / STUDY_FILE)
    write(TrainSettings.resolve("clic_tiny", ["length.events=128000"]), path / "settings.toml")
    (path / SPACE_FILE).write_text(SPACE, encoding="utf-8")
    (path / ORIGIN_FILE).write_text(json.dumps({"version": "0.1.0", "data": {"sim:ttbar": "3f2a"}}), encoding="utf-8")
    folder = StudyFolder(path)
    clock = _Clock(folder, processes, failures, seed)
    clock.run(until)
    StudyLog(folder.log).__exit__(None, None, None)
    with sqlite3.connect(folder.log) as file:
        file.executemany("INSERT INTO log (time, kind, trial, data) VALUES (?, ?, ?, ?)", clock.rows)
    file.close()
    return path


if __name__ == "__main__":
    make_study(Path(sys.argv[1]), int(sys.argv[2]), processes=int(sys.argv[2]) // 100 + 4, failures=0.01)

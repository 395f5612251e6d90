"""A study as Optuna keeps it (RDB storage, SQLite), so that its dashboard and its plots can be used.

Optuna makes the file. Trials are written into its tables directly, all that changed in one transaction: by Optuna's own calls a
trial took 280 ms on two busy cores, with a transaction and a lock for every value; so it takes less than one. The tables are
those of schema 12, which Optuna has had since version 3.2; a file of another schema is refused.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from ringflow.base.errors import FailureError
from ringflow.base.toml import toml_value
from ringflow.launch.frameworks import framework
from ringflow.tune.folder import OPTUNA_FILE, StudyFolder
from ringflow.tune.objective import values_of
from ringflow.tune.parameter import Parameter, Range
from ringflow.tune.record import TrialRecord

SCHEMA = 12
_SECONDS_TO_WAIT = 5.0
#: How far the file is: number of the last row of the log that is in it, and time of the first.
_MARK = "ringflow:row"
#: Where Optuna looks for the names of the objectives.
_NAMES = "study:metric_names"
_TRIAL_TABLES = ("trial_params", "trial_values", "trial_intermediate_values", "trial_user_attributes")
_STATES = {"stopped": "PRUNED", "complete": "COMPLETE", "failed": "FAIL"}


class OptunaFile:
    """The file of a study. Everything may raise `sqlite3.Error`; whoever uses it decides what that means."""

    def __init__(self, folder: StudyFolder) -> None:
        self.path = folder.path / OPTUNA_FILE
        self._folder, self._objectives = folder, folder.settings.objectives
        self._optuna = framework("optuna", "tune")
        if not self.path.exists():
            self._make()
        self._file = sqlite3.connect(self.path, timeout=_SECONDS_TO_WAIT, isolation_level=None)
        # What is lost in a power cut is made again from the log.
        self._file.execute("PRAGMA synchronous = OFF")
        self._require_schema()
        self._study: int = self._file.execute("SELECT min(study_id) FROM studies").fetchone()[0]
        to_json = self._optuna.distributions.distribution_to_json
        self._parameters = {p.name: p for p in folder.space.parameters}
        self._distributions = {name: to_json(self._distribution(p)) for name, p in self._parameters.items()}

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @property
    def mark(self) -> tuple[int, float]:
        """Number of the last row of the log that is in the file, and time of the first; 0 and 0.0 if none is."""
        found = self._file.execute("SELECT value_json FROM study_user_attributes WHERE key = ?", (_MARK,)).fetchone()
        number, first = json.loads(found[0]) if found else (0, 0.0)
        return number, first

    def write(self, trials: Iterable[TrialRecord], mark: tuple[int, float], *, anew: bool = False) -> None:
        """Put trials as they are now in the place of what was known of them; `anew` forgets all that is in the file."""
        self._file.execute("BEGIN IMMEDIATE")
        try:
            if anew:
                for table in (*_TRIAL_TABLES, "trial_system_attributes", "trial_heartbeats", "trials"):
                    self._file.execute(f"DELETE FROM {table}")
            for trial in trials:
                self._write(trial)
            self._attribute("study_user_attributes", "study_id", self._study, _MARK, mark)
            self._attribute("study_system_attributes", "study_id", self._study, _NAMES, self._objectives)
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    def _write(self, trial: TrialRecord) -> None:
        key = trial.number + 1
        for table in _TRIAL_TABLES:
            self._file.execute(f"DELETE FROM {table} WHERE trial_id = ?", (key,))
        state, values = outcome(trial, self._objectives)
        self._file.execute(
            "INSERT OR REPLACE INTO trials (trial_id, number, study_id, state, datetime_start, datetime_complete) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (key, trial.number, self._study, state, _start(trial, state), _moment(trial.ended)),
        )
        self._file.executemany(
            "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) VALUES (?, ?, ?, ?)",
            [(key, name, self._number(name, value), self._distributions[name]) for name, value in trial.point.items()],
        )
        self._file.executemany(
            "INSERT INTO trial_values (trial_id, objective, value, value_type) VALUES (?, ?, ?, 'FINITE')",
            [(key, objective, value) for objective, value in enumerate(values)],
        )
        self._file.executemany(
            "INSERT OR REPLACE INTO trial_intermediate_values "
            "(trial_id, step, intermediate_value, intermediate_value_type) VALUES (?, ?, ?, ?)",
            [(key, step, *_typed(value)) for step, value in self._rungs(trial)],
        )
        for name, word in self._attributes(trial).items():
            self._attribute("trial_user_attributes", "trial_id", key, name, word)

    def _rungs(self, trial: TrialRecord) -> Iterator[tuple[int, float]]:
        """Values on the way; Optuna has none where there are several objectives."""
        if len(self._objectives) == 1:
            for said in trial.reports:
                yield said.resource, said.value

    def _attributes(self, trial: TrialRecord) -> dict[str, object]:
        words: dict[str, object] = {
            "run": str(self._folder.run(trial.number)),
            "state": trial.state,
            "resource": trial.resource,
            "workers": ", ".join(str(part.workers) for part in trial.segments),
            **trial.figures,
        }
        if trial.failures or trial.reason:
            words |= {"failures": trial.failures, "reason": trial.reason}
        if len(self._objectives) > 1:
            words["reports"] = [{"resource": said.resource, **said.figures} for said in trial.reports]
        return words

    def _attribute(self, table: str, column: str, owner: int, name: str, word: object) -> None:
        self._file.execute(
            f"INSERT OR REPLACE INTO {table} ({column}, key, value_json) VALUES (?, ?, ?)",
            (owner, name, json.dumps(_finite(word), allow_nan=False)),
        )

    def _number(self, name: str, value: object) -> float:
        """A value as Optuna's tables have it: a choice is the number of its option."""
        parameter = self._parameters[name]
        if isinstance(parameter, Range):
            assert isinstance(value, int | float)
            return float(value)
        options = list(map(toml_value, parameter.options))
        return float(options.index(toml_value(value)))

    def _distribution(self, parameter: Parameter) -> Any:
        make = self._optuna.distributions
        if not isinstance(parameter, Range):
            plain = [
                value if isinstance(value, bool | int | float | str) else toml_value(value)
                for value in parameter.options
            ]
            return make.CategoricalDistribution(plain)
        kind = make.IntDistribution if parameter.whole else make.FloatDistribution
        high = parameter.high
        if parameter.log or parameter.step is None:
            return kind(parameter.low, high, log=parameter.log)
        steps = (parameter.count or 1) - 1
        return kind(parameter.low, parameter.low + steps * parameter.step, step=parameter.step)

    def _make(self) -> None:
        """An empty file, under another name until it is whole."""
        half = self.path.with_name(f".{self.path.name}.part")
        half.unlink(missing_ok=True)
        with _quiet(self._optuna):
            storage = self._optuna.storages.RDBStorage(f"sqlite:///{half.absolute()}")
            name, directions = self._folder.path.resolve().name, ["minimize"] * len(self._objectives)
            self._optuna.create_study(storage=storage, study_name=name, directions=directions)
            storage.remove_session()
            storage.engine.dispose()
        half.replace(self.path)

    def _require_schema(self) -> None:
        found = self._file.execute("SELECT schema_version FROM version_info").fetchone()
        if found is None or found[0] != SCHEMA:
            version = found[0] if found else "unknown"
            raise FailureError(f"its schema is {version}, and ringflow writes schema {SCHEMA} of Optuna")


def outcome(trial: TrialRecord, objectives: Sequence[str]) -> tuple[str, list[float]]:
    """The state that Optuna has for a trial, and the values that it wants with it."""
    if trial.state not in _STATES:
        return ("RUNNING" if trial.segments or trial.reports else "WAITING"), []
    state = _STATES[trial.state]
    values = _values(trial, objectives)
    if state == "COMPLETE" and not values:
        return "FAIL", []  # it diverged in its last part, and Optuna wants a number
    if state == "PRUNED" and len(objectives) > 1:
        return state, []
    return state, values if state != "FAIL" else []


def _values(trial: TrialRecord, objectives: Sequence[str]) -> list[float]:
    """One per objective, or none if one is missing or not finite."""
    if trial.value is None or not math.isfinite(trial.value):
        return []
    others = values_of(trial.figures, objectives[1:]) if len(objectives) > 1 else []
    values = [trial.value, *others]
    return values if all(map(math.isfinite, values)) else []


def _start(trial: TrialRecord, state: str) -> str | None:
    if state == "WAITING":
        return None
    return _moment(trial.segments[0].start if trial.segments else trial.created)


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds).isoformat(" ", "microseconds")


def _typed(value: float) -> tuple[float | None, str]:
    if math.isnan(value):
        return None, "NAN"
    if math.isinf(value):
        return None, "INF_POS" if value > 0 else "INF_NEG"
    return value, "FINITE"


def _finite(word: object) -> object:
    if isinstance(word, Mapping):
        return {name: _finite(part) for name, part in word.items()}
    if isinstance(word, list | tuple):
        return [_finite(part) for part in word]
    return None if isinstance(word, float) and not math.isfinite(word) else word


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without what Optuna tells of itself."""
    loudness = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(loudness)

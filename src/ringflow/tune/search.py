"""What to try next: Optuna's samplers by ask and tell, and a grid.

    search = Search("tpe", read_space(Path("space.toml")), TrainSettings.resolve("clic_small"), seed=1)
    point = search.ask(7, known)

What is answered follows from the seed, the number of the trial and what is known of others, so an interrupted study goes on as
if nothing had happened. No point is tried twice, none that the settings refuse. The study that a sampler sees lives in memory
and follows what is known; it is made anew only where the past has changed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from ringflow.base.config import Settings
from ringflow.base.errors import SettingsError, UsageError
from ringflow.launch.frameworks import framework
from ringflow.tune.schedulers import Point
from ringflow.tune.space import Space

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

#: Who chooses. Optuna has no random forest: TPE, which takes many trials and choices as well, stands in for it.
SEARCHES = ("grid", "random", "evolution", "tpe", "gp", "forest", "cmaes", "qmc")
#: Trials that begin a search that learns, at least and per parameter: the best tenth of fewer is one point, and says nothing.
_BEGINNERS, _BEGINNERS_PER_PARAMETER = 8, 2
#: Trials of a generation: studies are short, and Optuna's 50 would mostly be random.
_POPULATION = 10
#: What makes a trial that nobody asked it for, as of an earlier study, one of Optuna's first generation.
_FIRST_GENERATION = {"NSGAIISampler:generation": 0}
#: Trials that a Gaussian process learns from; its cost grows with the cube of their number.
_MOST_OF_GP = 250
#: Suggestions that are refused or were tried, until one is drawn at random; and draws until nothing is said to be allowed.
_ATTEMPTS, _DRAWS = 20, 1000
#: A space up to this size is gone through when a few draws find nothing new.
_SMALL, _FEW_DRAWS = 5000, 50
#: Beyond, a value says nothing but that the training failed.
_DIVERGED = 1e100


@dataclass(frozen=True)
class Finished:
    """A trial as a search sees it: its settings, and the last value it had."""

    trial: int
    point: Point
    #: None before there is one.
    value: float | None
    resource: int = 0
    #: Whether it lived to the end; the last value of one that did not is information, too.
    complete: bool = False
    #: Resource and value of its reports before the last one.
    earlier: tuple[tuple[int, float], ...] = ()
    #: The last values of all objectives, where there are several.
    values: tuple[float, ...] = ()
    #: Whether it is being trained now.
    running: bool = False
    #: What a sampler noted with it when it was asked, see `Search.notes`.
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> tuple[object, ...]:
        """What must stay the same for a study in memory to be true."""
        return (self.running or self.value is None, str(self.value), self.resource, self.complete, str(self.values))


class Search:
    """Chooses settings in a space; `settings` are those that it varies, complete. `grid` takes so many values of a range."""

    def __init__(
        self, name: str, space: Space, settings: Settings, *, seed: int = 1, objectives: int = 1, grid_steps: int = 3
    ) -> None:
        if name not in SEARCHES:
            raise UsageError(f"no search is called {name!r}; choose from {', '.join(SEARCHES)}")
        if seed < 0:
            raise UsageError(f"the seed of a search cannot be {seed}; give 0 or more")
        if grid_steps < 1:
            raise UsageError(f"a grid of {grid_steps} values per range is empty; give at least 1")
        if name == "cmaes" and objectives > 1:
            raise UsageError("--search cmaes makes one objective small; use tpe, gp or evolution for several")
        self._name = "tpe" if name == "forest" else name
        self._space, self._settings, self._seed = space, settings, seed
        self._objectives, self._grid_steps = objectives, grid_steps
        self._optuna = framework("optuna", "tune")
        if name == "cmaes":
            framework("cmaes", "tune")
        self._distributions = {parameter.name: parameter.distribution for parameter in space.parameters}
        self._told: dict[int, tuple[object, ...]] = {}
        self._forget()
        #: What the sampler noted with the last answer, and wants to find with the trial when it is asked again.
        self.notes: dict[str, Any] = {}

    def ask(self, trial: int, known: Sequence[Finished]) -> Point | None:
        """Settings of a new trial, given all trials so far, running ones too; None when there is nothing left to try."""
        if self._name == "grid":
            return self._next_of_grid(known)
        rng = np.random.default_rng([self._seed, trial])
        study = self._follow([each for each in known if self._space.holds(each.point)])
        study.sampler = self._sampler(int(rng.integers(2**31)))
        found: Point | None = None
        # A sequence that is not remembered begins anew, with points that were tried; a Gaussian process takes its time.
        attempts = {"qmc": _ATTEMPTS + len(known), "gp": 3}.get(self._name, _ATTEMPTS)
        for _ in range(attempts):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what is experimental, and of parameters with conditions
                asked = study.ask()
                point = self._space.build(lambda parameter, asked=asked: parameter.suggest(asked))  # type: ignore[misc]
            self.notes = dict(self._trials()[asked.number].system_attrs)
            study.tell(asked, state=self._optuna.trial.TrialState.FAIL)  # known trials are told as they are
            if self._fresh(point, known):
                found = point
                break
        return self._draw(known, rng) if found is None else found

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        beginners = max(_BEGINNERS, _BEGINNERS_PER_PARAMETER * len(self._space))
        quiet = {"warn_independent_sampling": False}
        made: dict[str, Callable[[], Any]] = {
            "random": lambda: samplers.RandomSampler(seed=seed),
            # One parameter at a time: fitted together they need more trials than studies of trainings have.
            "tpe": lambda: samplers.TPESampler(seed=seed, n_startup_trials=beginners, constant_liar=True),
            "gp": lambda: samplers.GPSampler(seed=seed, n_startup_trials=beginners, **quiet),
            "evolution": lambda: samplers.NSGAIISampler(seed=seed, population_size=_POPULATION),
            "cmaes": lambda: samplers.CmaEsSampler(seed=seed, **quiet),
            "qmc": lambda: samplers.QMCSampler(seed=self._seed, scramble=True, **quiet),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made[self._name]()

    def _forget(self) -> None:
        level = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        try:
            self._storage = self._optuna.storages.InMemoryStorage()
            self._study = self._optuna.create_study(
                storage=self._storage, study_name="search", directions=["minimize"] * self._objectives
            )
        finally:
            self._optuna.logging.set_verbosity(level)
        self._told, self._ids = {}, dict[int, int]()

    def _trials(self) -> list[FrozenTrial]:
        found: list[FrozenTrial] = self._storage.get_all_trials(0, deepcopy=False)
        return found

    def _follow(self, known: Sequence[Finished]) -> Any:
        """The study in memory, as trials are now. One that ran may have ended; anything else makes it anew."""
        own = sorted((each for each in known if each.trial >= 0), key=lambda each: each.trial)
        if self._name == "gp" and len(own) > _MOST_OF_GP:
            best = sorted(own, key=lambda each: _or_infinite(each.value))[: _MOST_OF_GP // 2]
            own = sorted({each.trial: each for each in (*best, *own[-_MOST_OF_GP // 2 :])}.values(), key=_number)
        earlier = aligned(sorted((each for each in known if each.trial < 0), key=_number), own)
        now = {each.trial: each.told for each in own}
        changed = (each for each, told in self._told.items() if now.get(each) != told)
        # Generations note in the study who their parents are, as far as trials had come when somebody asked.
        if earlier or self._name == "evolution" or any(each not in now or not self._told[each][0] for each in changed):
            self._forget()
        worst = max((each.value or 0.0 for each in own if _finite(each)), default=None)
        for each in (*earlier, *own):
            if self._told.get(each.trial) != each.told:
                self._tell(each, worst)
                self._told[each.trial] = each.told
        return self._study

    def _tell(self, trial: Finished, worst: float | None) -> None:
        """Put a trial into the study, or end it there."""
        states = self._optuna.trial.TrialState
        values: list[float] | None = [*trial.values] or [trial.value or 0.0]
        way = {}
        if trial.running or trial.value is None:
            state, values = states.RUNNING, None
        elif not (all(map(_is_number, trial.values)) if trial.values else _finite(trial)):
            state, values = states.FAIL, None
            if self._objectives == 1 and self._name == "tpe":  # it was the worst of those who came there
                state, way = states.PRUNED, {trial.resource: math.nan}
            elif self._objectives == 1 and worst is not None:
                state, values = states.COMPLETE, [worst]
        elif self._name == "tpe" and self._objectives == 1 and not trial.complete:
            # Optuna's own way: who came further is better, and among those who came as far the lower value.
            state, values, way = states.PRUNED, None, {**dict(trial.earlier), trial.resource: trial.value}
        else:
            state = states.COMPLETE  # other samplers learn from nothing else
        if trial.trial in self._ids:
            for step, value in way.items():
                self._storage.set_trial_intermediate_value(self._ids[trial.trial], step, value)
            self._storage.set_trial_state_values(self._ids[trial.trial], state, values)
            return
        plain = {p.name: p.plain(trial.point[p.name]) for p in self._space.parameters if p.name in trial.point}
        template = self._optuna.trial.create_trial(
            state=state,
            values=values,
            params=plain,
            distributions={name: self._distributions[name] for name in plain},
            system_attrs=dict(trial.notes) or (_FIRST_GENERATION if self._name == "evolution" else {}),
            intermediate_values=way,
        )
        self._ids[trial.trial] = self._storage.create_new_trial(0, template)

    def _fresh(self, point: Point, known: Sequence[Finished]) -> bool:
        """Whether a point is allowed, and neither was tried nor is being tried."""
        return not any(trial.point == point for trial in known) and self._allows(point)

    def _allows(self, point: Point) -> bool:
        return self._space.feasible(point, self._settings) is None

    def _draw(self, known: Sequence[Finished], rng: np.random.Generator) -> Point | None:
        """A fresh random point; None if all points were tried."""
        self.notes = {}
        small = self._space.size <= _SMALL
        point: Point = {}
        tried = False
        for _ in range(_FEW_DRAWS if small else _DRAWS):
            point = self._space.sample(rng)
            if self._fresh(point, known):
                return point
            tried = tried or self._allows(point)
        if small:
            allowed = [every for every in self._space.grid(None) if self._allows(every)]
            left = [every for every in allowed if self._fresh(every, known)]
            if left:
                return left[rng.integers(len(left))]
            tried = bool(allowed)
        if tried:
            return None
        raise SettingsError(f"no point of the space is allowed, see {self._space.feasible(point, self._settings)}")

    def _next_of_grid(self, known: Sequence[Finished]) -> Point | None:
        allowed = False
        for point in self._space.grid(self._grid_steps):
            if self._fresh(point, known):
                return point
            allowed = allowed or self._allows(point)
        if not allowed:
            steps = self._grid_steps
            raise SettingsError(f"no point of the grid of {steps} values per range is allowed; change the ranges")
        return None


def aligned(earlier: Sequence[Finished], own: Sequence[Finished] = ()) -> list[Finished]:
    """Trials of an earlier study with values on the scale of this one, by best and median; without this one, 0 and 1.

    The data and the length of its trials may have been others; what it tells is which settings were better than which.
    """
    best, width = _scale(earlier)
    to, to_width = _scale(own) if sum(map(_finite, own)) > 1 else (0.0, 1.0)

    def moved(value: float) -> float:
        return to + to_width * (value - best) / width

    return [
        replace(
            each,
            value=None if each.value is None else moved(each.value),
            earlier=tuple((resource, moved(value)) for resource, value in each.earlier),
        )
        for each in earlier
    ]


def _scale(trials: Sequence[Finished]) -> tuple[float, float]:
    """The best value, and how far the median is from it; of trials that lived to the end if some did."""
    told = [each for each in trials if _finite(each)]
    values = [each.value or 0.0 for each in told if each.complete] or [each.value or 0.0 for each in told] or [0.0]
    return min(values), (median(values) - min(values)) or 1.0


def _number(trial: Finished) -> int:
    return trial.trial


def _is_number(value: float) -> bool:
    return math.isfinite(value) and abs(value) < _DIVERGED


def _finite(trial: Finished) -> bool:
    return trial.value is not None and _is_number(trial.value)


def _or_infinite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.inf

"""What to try next: Optuna's samplers by ask and tell, and a grid.

    search = Search("tpe", read_space(Path("space.toml")), TrainSettings.resolve("clic_small"), seed=1)
    point = search.ask(7, trials)

What is answered follows from the seed, the number of the trial and what is known of others, so an interrupted study goes on as
if nothing had happened. No point is tried twice, none that the settings refuse. A sampler sees a study in memory that is made
for the question, of so many trials at most that asking takes as long in a large study as in a small one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from statistics import median
from typing import Any, get_args

import numpy as np

from ringflow.base.config import Settings
from ringflow.base.errors import SettingsError, UsageError
from ringflow.launch.frameworks import framework
from ringflow.tune import SearchName
from ringflow.tune.record import TrialRecord, load_optuna
from ringflow.tune.schedulers import Point
from ringflow.tune.space import Space

#: Who chooses. Optuna has no random forest: TPE, which takes many trials and choices as well, stands in for it.
SEARCHES: tuple[str, ...] = get_args(SearchName)
#: Trials that begin a search that learns, at least and per parameter: the best tenth of fewer is one point, and says nothing.
_BEGINNERS, _BEGINNERS_PER_PARAMETER = 8, 2
#: Trials of a generation: studies are short, and Optuna's 50 would mostly be random.
_POPULATION = 10
#: What makes a trial that nobody asked it for, as of an earlier study, one of Optuna's first generation.
_FIRST_GENERATION = {"NSGAIISampler:generation": 0}
#: Trials that those learn from who need no whole generations, half of them the best, half the newest: a Gaussian process
#: costs the cube of their number, and TPE calls not more than 25 of any number good, and gives old ones little weight.
_MOST_TO_LEARN_FROM = {"random": 2, "gp": 250, "tpe": 250}
#: Suggestions that are refused or were tried, until one is drawn at random; a Gaussian process takes its time.
_ATTEMPTS, _ATTEMPTS_OF_GP = 20, 3
#: Draws until nothing is said to be allowed. A space up to a size is gone through after a few.
_DRAWS, _SMALL, _FEW_DRAWS = 1000, 5000, 50
#: Beyond, a value says nothing but that the training failed.
_DIVERGED = 1e100


class Search:
    """Chooses settings in a space; `settings` are those that it varies, complete. `grid` takes so many values of a range."""

    def __init__(
        self,
        name: str,
        space: Space,
        settings: Settings,
        *,
        seed: int = 1,
        objectives: Sequence[str] = ("loss",),
        grid_steps: int = 3,
    ) -> None:
        if name not in SEARCHES:
            raise UsageError(f"no search is called {name!r}; choose from {', '.join(SEARCHES)}")
        if name == "cmaes" and len(objectives) > 1:
            raise UsageError("--search cmaes makes one objective small; use tpe, gp or evolution for several")
        self._name = "tpe" if name == "forest" else name
        self._space, self._settings, self._seed = space, settings, seed
        self._objectives, self._grid_steps = tuple(objectives), grid_steps
        self._optuna = load_optuna()
        if name == "cmaes":
            framework("cmaes", "tune")
        #: What the sampler noted with the last answer, and wants to find with the trial when it is asked again.
        self.notes: dict[str, Any] = {}

    def ask(self, number: int, known: Sequence[TrialRecord]) -> Point | None:
        """Settings of a new trial, given all trials so far, running ones too; None when there is nothing left to try."""
        if self._name == "grid":
            steps = self._grid_steps
            nothing = f"no point of the grid of {steps} values per range is allowed; change the ranges"
            return self._first_fresh(self._space.grid(steps), known, nothing)
        rng = np.random.default_rng([self._seed, number])
        study = self._study_of(known)
        study.sampler = self._sampler(int(rng.integers(2**31)))
        for attempt in range(_ATTEMPTS_OF_GP if self._name == "gp" else _ATTEMPTS):
            point = self._suggest(study)
            if self._is_fresh(point, known):
                return point
            if self._name == "qmc" and attempt == 0:  # the sequence goes on where it was
                for key in study._storage.get_study_system_attrs(0):
                    study._storage.set_study_system_attr(0, key, number - 2)
        small = self._space.size <= _SMALL
        study.sampler = self._optuna.samplers.RandomSampler(seed=int(rng.integers(2**31)))
        drawn = [self._suggest(study)]
        while not self._is_fresh(drawn[-1], known) and len(drawn) < (_FEW_DRAWS if small else _DRAWS):
            drawn.append(self._suggest(study))
        self.notes = {}
        if small and not self._is_fresh(drawn[-1], known):
            drawn = list(self._space.grid(None))
            rng.shuffle(drawn)
        return self._first_fresh(reversed(drawn), known, "no point of the space is allowed")

    def _first_fresh(self, points: Iterable[Point], known: Sequence[TrialRecord], nothing: str) -> Point | None:
        """The first point that is allowed and was not tried; None if all that are allowed were, an error if none is."""
        point, tried = None, False
        for point in points:
            if self._allows(point):
                if not any(trial.point == point for trial in known):
                    return point
                tried = True
        if tried or point is None:
            return None
        raise SettingsError(f"{nothing}: {self._space.feasible(point, self._settings)}")

    def _is_fresh(self, point: Point, known: Sequence[TrialRecord]) -> bool:
        return not any(trial.point == point for trial in known) and self._allows(point)

    def _allows(self, point: Point) -> bool:
        return self._space.feasible(point, self._settings) is None

    def _suggest(self, study: Any) -> Point:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what is experimental, and of parameters with conditions
            asked = study.ask(self._space.distributions)
        point = self._space.build(lambda parameter: parameter.value_of(asked.params[parameter.name]))
        self.notes = dict(study.get_trials(deepcopy=False)[asked.number].system_attrs)
        study.tell(asked, state=self._optuna.trial.TrialState.FAIL)  # known trials are told as they are
        return point

    def _sampler(self, seed: int) -> Any:
        samplers = self._optuna.samplers
        beginners = max(_BEGINNERS, _BEGINNERS_PER_PARAMETER * len(self._space.parameters))
        quiet = {"warn_independent_sampling": False}
        made: dict[str, Callable[[], Any]] = {
            "random": lambda: samplers.RandomSampler(seed=seed),
            # One parameter at a time: fitted together they need more trials than studies of trainings have.
            "tpe": lambda: samplers.TPESampler(seed=seed, n_startup_trials=beginners, multivariate=False),
            "gp": lambda: samplers.GPSampler(seed=seed, n_startup_trials=beginners, **quiet),
            "evolution": lambda: samplers.NSGAIISampler(seed=seed, population_size=_POPULATION),
            "cmaes": lambda: samplers.CmaEsSampler(seed=seed, **quiet),
            "qmc": lambda: samplers.QMCSampler(seed=self._seed, scramble=True, **quiet),
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made[self._name]()

    def _study_of(self, known: Sequence[TrialRecord]) -> Any:
        """A study in memory, as trials are now."""
        own = sorted((trial for trial in known if trial.number >= 0), key=attrgetter("number"))
        earlier = sorted((trial for trial in known if trial.number < 0), key=attrgetter("number"))
        if len(self._objectives) == 1:
            earlier = aligned(earlier, own)
        most = _MOST_TO_LEARN_FROM.get(self._name, len(own))
        if len(own) > most:
            best = sorted(own, key=lambda trial: (-trial.resource, trial.value if is_finite(trial) else math.inf))
            chosen = {trial.number: trial for trial in (*best[: most // 2], *own[-most // 2 :])}
            own = [chosen[number] for number in sorted(chosen)]
        worst = max((trial.value or 0.0 for trial in own if is_finite(trial)), default=None)
        storage = self._optuna.storages.InMemoryStorage()
        study = self._optuna.create_study(storage=storage, directions=["minimize"] * len(self._objectives))
        for trial in (*earlier, *own):
            storage.create_new_trial(0, self._shown(trial, worst))
        return study

    def _shown(self, trial: TrialRecord, worst: float | None) -> Any:
        """A trial as the sampler is to see it."""
        states = self._optuna.trial.TrialState
        values: list[float] | None = trial.values(self._objectives)
        one_by_tpe = self._name == "tpe" and len(self._objectives) == 1
        way = {}
        if trial.state in ("running", "waiting") or (trial.value is None and not trial.over):
            state, values = states.RUNNING, None
        elif one_by_tpe and (trial.state != "complete" or not is_finite(trial)):
            # Optuna's own way: who came further is better, and among those who came as far the lower value.
            state, values = states.PRUNED, None
            way = {said.resource: said.value for said in trial.reports}
        elif all(map(_is_number, values or ())):
            state = states.COMPLETE  # other samplers learn from nothing else
        elif len(self._objectives) == 1 and worst is not None:
            state, values = states.COMPLETE, [worst]
        else:
            state, values = states.FAIL, None
        return self._optuna.trial.create_trial(
            state=state,
            values=values,
            system_attrs=dict(trial.notes) or (_FIRST_GENERATION if self._name == "evolution" else {}),
            intermediate_values=way,
            **self._space.as_optuna(trial.point),
        )


def aligned(earlier: Sequence[TrialRecord], own: Sequence[TrialRecord] = ()) -> list[TrialRecord]:
    """Trials of an earlier study with values on the scale of this one, by best and median; without this one, 0 and 1.

    The data and the length of its trials may have been others; what it tells is which settings were better than which.
    """
    best, width = _scale(earlier)
    to, to_width = _scale(own) if sum(map(is_finite, own)) > 1 else (0.0, 1.0)
    return [
        replace(
            trial,
            reports=[said._replace(value=to + to_width * (said.value - best) / width) for said in trial.reports],
        )
        for trial in earlier
    ]


def _scale(trials: Sequence[TrialRecord]) -> tuple[float, float]:
    """The best value, and how far the median is from it; of trials that lived to the end if some did."""
    told = [(trial.value or 0.0, trial.state) for trial in trials if is_finite(trial)]
    values = [value for value, state in told if state == "complete"] or [value for value, _ in told] or [0.0]
    return min(values), (median(values) - min(values)) or 1.0


def _is_number(value: float) -> bool:
    return math.isfinite(value) and abs(value) < _DIVERGED


def is_finite(trial: TrialRecord) -> bool:
    """Whether its last value says something."""
    return trial.value is not None and _is_number(trial.value)

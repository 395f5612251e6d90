"""What to try next: grid, random, evolution, TPE, Gaussian process, random forest; see `schedulers.Search` for the contract.

    search = make_search("tpe", read_space(Path("space.toml")), TrainSettings.resolve("clic_small"), seed=1)
    point = search.ask(7, known)

A search remembers nothing. What it answers follows from its seed, the number of the trial and what is known of others, so an
interrupted study goes on as if nothing had happened. No point is tried twice, none that the settings refuse.
"""

from __future__ import annotations

from collections.abc import Callable

from ringflow.base.config import Settings
from ringflow.base.errors import UsageError
from ringflow.tune.schedulers import Search
from ringflow.tune.space import Space

SEARCHES = ("grid", "random", "evolution", "tpe", "gp", "forest")


def make_search(name: str, space: Space, settings: Settings, *, seed: int = 1, grid_steps: int = 3) -> Search:
    """The search of this name over a space; the settings are those that the space varies, complete, and not otherwise changed.

    `grid` takes so many values of every range. `tpe` needs Optuna, `gp` and `forest` need scikit-learn.
    """
    if name not in SEARCHES:
        raise UsageError(f"no search is called {name!r}; choose from {', '.join(SEARCHES)}")
    if seed < 0:
        raise UsageError(f"the seed of a search cannot be {seed}; give 0 or more")
    from ringflow.tune.search.domain import Domain

    return _maker(name, grid_steps)(Domain(space, settings, seed))


def _maker(name: str, grid_steps: int) -> Callable[..., Search]:
    """Imports late: a search loads only what it needs."""
    match name:
        case "grid":
            from ringflow.tune.search.grid import GridSearch

            return lambda domain: GridSearch(domain, grid_steps)
        case "random":
            from ringflow.tune.search.random import RandomSearch

            return RandomSearch
        case "evolution":
            from ringflow.tune.search.evolution import EvolutionSearch

            return EvolutionSearch
        case "tpe":
            from ringflow.tune.search.tpe import TpeSearch

            return TpeSearch
    from ringflow.tune.search.surrogate import SurrogateSearch

    if name == "gp":
        from ringflow.tune.search.gp import GaussianProcess

        return lambda domain: SurrogateSearch(domain, GaussianProcess())
    from ringflow.tune.search.forest import RandomForest

    return lambda domain: SurrogateSearch(domain, RandomForest())

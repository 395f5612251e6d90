"""The points of a space that the settings of a study allow, and how they are drawn. What was tried is not drawn again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ringflow.base.config import Settings
from ringflow.base.errors import SettingsError
from ringflow.tune.schedulers import Finished, Point
from ringflow.tune.space import Space, Vector

#: Draws after which a space is said to hold nothing that the settings allow.
MOST_DRAWS = 1000
#: A space up to this size is gone through when a few draws find nothing new.
SMALL, FEW_DRAWS = 5000, 50


class Domain:
    """A space, the settings it varies, and a seed."""

    def __init__(self, space: Space, settings: Settings, seed: int) -> None:
        self.space, self.settings, self.seed = space, settings, seed
        # Parameters of which a small step would lead nowhere.
        self._few = np.array([parameter.even and (parameter.count or 0) <= 4 for parameter in space.parameters])

    def rng(self, trial: int) -> np.random.Generator:
        """Random numbers of a trial."""
        return np.random.default_rng([self.seed, trial])

    def allows(self, point: Point) -> bool:
        """Whether the settings take a point."""
        return self.space.feasible(point, self.settings) is None

    def fresh(self, point: Point, known: Sequence[Finished]) -> bool:
        """Whether a point is allowed, and neither was tried nor is being tried."""
        return not tried(point, known) and self.allows(point)

    def draw(
        self, known: Sequence[Finished], rng: np.random.Generator, propose: Callable[[], Point] | None = None
    ) -> Point | None:
        """The first fresh point of those proposed, which are random ones unless told; None if all points were tried."""
        small = self.space.size <= SMALL
        point: Point = {}
        allowed: list[Point] = []
        for _ in range(FEW_DRAWS if small else MOST_DRAWS):
            point = propose() if propose else self.space.sample(rng)
            if self.fresh(point, known):
                return point
            if tried(point, known):
                allowed.append(point)
        if small:
            allowed = [every for every in self.space.grid(None) if self.allows(every)]
            left = [every for every in allowed if not tried(every, known)]
            if left:
                return left[rng.integers(len(left))]
        elif propose:
            return self.draw(known, rng)
        if allowed:
            return None
        raise SettingsError(f"no point of the space is allowed, see {self.space.feasible(point, self.settings)}")

    def spread(self, known: Sequence[Finished], rng: np.random.Generator, candidates: int = 24) -> Point | None:
        """Of some fresh random points the one that is farthest from all that were tried: how a search begins."""
        others = [self.space.encode(trial.point) for trial in known if self.space.holds(trial.point)]
        points = [point for _ in range(candidates if others else 1) if (point := self.draw(known, rng)) is not None]
        if not points or not others:
            return points[0] if points else None
        distances = [distances_to(np.array(others), self.space.encode(point)).min() for point in points]
        return points[int(np.argmax(distances))]

    def mutate(self, parent: Vector, rng: np.random.Generator, width: float, rate: float) -> Vector:
        """Positions near those of a parent: each changes with this rate, one at least, by about this width or to anywhere."""
        size = len(self.space)
        chosen = rng.random(size) < rate
        active = np.flatnonzero(~np.isnan(parent))
        chosen[rng.choice(active)] = True
        anywhere = rng.random(size)
        near = _reflected(parent + width * rng.standard_normal(size))
        child = np.where(chosen, np.where(self._few | (rng.random(size) < 0.1), anywhere, near), parent)
        return np.where(np.isnan(child), anywhere, child)


def tried(point: Point, known: Sequence[Finished]) -> bool:
    """Whether a trial has or had these settings."""
    return any(trial.point == point for trial in known)


def distances_to(vectors: Vector, vector: Vector) -> Vector:
    """Distances between rows and one vector; a parameter that only one of two has makes them differ by its whole range."""
    missing = np.isnan(vectors), np.isnan(vector)
    apart = np.where(missing[0] & missing[1], 0.0, np.where(missing[0] | missing[1], 1.0, vectors - vector))
    distances: Vector = np.sqrt((apart**2).sum(axis=1))
    return distances


def _reflected(vector: Vector) -> Vector:
    """Positions back between 0 and 1, mirrored at the ends."""
    return 1.0 - np.abs(1.0 - np.mod(vector, 2.0))

"""A Gaussian process as model of scores: the best one for few trials; its cost grows with the cube of their number."""

from __future__ import annotations

import warnings

import numpy as np

from ringflow.launch.frameworks import framework
from ringflow.tune.space import Vector


class GaussianProcess:
    """Smooth (Matérn 5/2), with a length of its own for every column and with noise, all fitted."""

    #: Beyond, fitting takes seconds.
    most = 250
    curiosity = 0.0
    candidates = (128, 128)

    def __init__(self) -> None:
        self._process = framework("sklearn.gaussian_process", "tune")
        self._exceptions = framework("sklearn.exceptions", "tune")

    def fit(self, features: Vector, scores: Vector, seed: int) -> None:
        """Find the lengths and the noise under which the scores are likely."""
        kernels = self._process.kernels
        smooth = kernels.Matern([0.5] * features.shape[1], (0.05, 20.0), nu=2.5)
        kernel = kernels.ConstantKernel(1.0, (0.05, 20.0)) * smooth + kernels.WhiteKernel(0.1, (1e-4, 1.0))
        self._fitted = self._process.GaussianProcessRegressor(kernel, random_state=seed)
        with warnings.catch_warnings():
            # A length at its bound says that a setting does not matter.
            warnings.simplefilter("ignore", self._exceptions.ConvergenceWarning)
            self._fitted.fit(features, scores)

    def predict(self, features: Vector) -> tuple[Vector, Vector]:
        """Expected scores and their standard deviations."""
        mean, deviation = self._fitted.predict(features, return_std=True)
        # Another try of the same settings would differ by the noise, too, but that is no improvement.
        return mean, np.sqrt(np.maximum(deviation**2 - self._fitted.kernel_.k2.noise_level, 0.0))

"""Train and reconstruct in a Spark program.

    import ringflow.spark

    model = ringflow.spark.ParticleFlowEstimator(preset="clic_tiny", workers=4, store="/shared/spark").fit(events)
    candidates = model.transform(events)
    results = ringflow.spark.run(train_fn, args=(1e-3,), workers=4)

Spark itself is loaded when one of these is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringflow.spark.estimator import ParticleFlowEstimator
    from ringflow.spark.model import ParticleFlowModel
    from ringflow.spark.together import run

__all__ = ["ParticleFlowEstimator", "ParticleFlowModel", "run"]

_HOMES = {"ParticleFlowEstimator": "estimator", "ParticleFlowModel": "model", "run": "together"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ringflow.launch.frameworks import framework

    framework("pyspark", "spark")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

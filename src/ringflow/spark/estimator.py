"""Training as a Spark ML Estimator: fit a frame of events, get a model that transforms frames.

    estimator = ParticleFlowEstimator(preset="clic_tiny", workers=4, store="/shared/spark", overrides=["length.events=20000"])
    model = estimator.fit(read_events(spark, "data/ttbar", collections=TO_LEARN))
    model.transform(read_events(spark, "data/other")).select("event_number", "candidate_px")

The executors write the frame into the store as a dataset, and processes on them train together, as `ringflow launch spark`
does. The run folder is the same as that of `ringflow train`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyspark.ml import Estimator
from pyspark.ml.param import Param, Params
from pyspark.ml.param import TypeConverters as To
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable

from ringflow.base.config import override
from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.spark.model import ParticleFlowModel
from ringflow.train.settings import TrainSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_STORE = "ringflow-store"


def _parameter(name: str, meaning: str, kind: Callable[[Any], Any]) -> Any:
    return Param(Params._dummy(), name, meaning, kind)  # Spark gives it its owner later


class ParticleFlowEstimator(
    Estimator[ParticleFlowModel], DefaultParamsReadable["ParticleFlowEstimator"], DefaultParamsWritable
):
    """Trains a network on a frame of events with truth; the parameters are those below."""

    preset = _parameter(
        "preset", "name of a preset or settings file to start from; the defaults unless given", To.toString
    )
    overrides = _parameter("overrides", "settings as section.field=value", To.toListString)
    workers = _parameter("workers", "processes that train together", To.toInt)
    store = _parameter("store", "folder, seen by all machines, for the events and the runs", To.toString)
    out = _parameter("out", "folder of the run, a new one in the store for every fit unless given", To.toString)
    validation = _parameter("validation", "share of the events that is validated with, not trained on", To.toFloat)
    verbose = _parameter("verbose", "whether the training says how it goes, on stderr", To.toBoolean)

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._setDefault(overrides=[], workers=2, store=DEFAULT_STORE, validation=0.1, verbose=True)
        self.setParams(**given)

    def setParams(self, **given: Any) -> Self:  # noqa: N802, the name that Spark ML gives it
        """Change some parameters; those that are not named stay as they are, and None unsets one."""
        for name, value in given.items():
            if not self.hasParam(name):
                known = ", ".join(param.name for param in self.params)
                raise UsageError(f"no parameter {name!r} of a {type(self).__name__}; there are {known}")
            if value is None:
                self.clear(self.getParam(name))
            else:
                self._set(**{name: str(value) if isinstance(value, Path) else value})
        return self

    def _fit(self, dataset: DataFrame) -> ParticleFlowModel:
        from ringflow.launch.spark import run_function
        from ringflow.spark.events import stored_events
        from ringflow.train.data import detector_name

        overrides = self.getOrDefault(self.overrides)
        if named := next((text for text in overrides if text.partition("=")[0].strip() == "data"), None):
            raise UsageError(f"{named!r} in the overrides: the events are those of the frame; leave it out")
        preset = self.getOrDefault(self.preset) if self.isSet(self.preset) else None
        settings = TrainSettings.resolve(preset, [*overrides, override("data", "events of the frame")])
        workers, store = self.getOrDefault(self.workers), Path(self.getOrDefault(self.store)).absolute()
        if workers < 1:
            raise UsageError(f"workers={workers} is no number of processes; give at least 1")
        if "," in str(store):
            raise UsageError(f"store={store} has a comma, which separates datasets; choose another folder")
        events = stored_events(
            dataset,
            store,
            detector=detector_name(settings.detector),
            calorimeter=settings.model.calorimeter,
            validation=self.getOrDefault(self.validation),
        )
        out = store / "runs" / f"{self.uid}-{uuid.uuid4().hex[:6]}"
        if self.isSet(self.out):
            out = Path(self.getOrDefault(self.out)).absolute()
        verbose = self.getOrDefault(self.verbose)
        if verbose:
            say(f"training on {events} in {out}")
        asked = settings.model_copy(update={"data": str(events)}), out
        result, *_ = run_function(_train, asked, workers=workers, quiet=not verbose)
        return self._copyValues(ParticleFlowModel.of_run(result))


def _train(settings: TrainSettings, out: Path) -> dict[str, Any]:
    """What every process does."""
    from ringflow.train.run import train

    return train(settings, out)

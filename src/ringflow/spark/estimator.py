"""Training as a Spark ML Estimator: fit a frame of events, get a model that transforms frames.

    estimator = ParticleFlowEstimator(preset="clic_tiny", workers=4, store="/shared/spark", overrides=["length.events=20000"])
    model = estimator.fit(read_events(spark, "data/ttbar", collections=TO_LEARN))
    model.transform(read_events(spark, "data/other")).select("event_number", "candidate_px")

The executors write the frame into the store as a dataset, and processes on them train together, as `ringflow launch spark`
does. The run folder is the same as that of `ringflow train`.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from pyspark.ml import Estimator
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable

from ringflow.base.config import override
from ringflow.base.errors import UsageError
from ringflow.base.log import say
from ringflow.spark.model import ParticleFlowModel
from ringflow.train.settings import TrainSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DEFAULT_STORE = "ringflow-store"


class Parameters(TypedDict, total=False):
    """What an estimator can be given."""

    preset: str | Path | None
    overrides: Sequence[str]
    workers: int
    store: str | Path
    out: str | Path | None
    validation: float
    verbose: bool


class ParticleFlowEstimator(
    Estimator[ParticleFlowModel], DefaultParamsReadable["ParticleFlowEstimator"], DefaultParamsWritable
):
    """Trains a network on a frame of events with truth; the parameters are those below."""

    preset: Param[str] = Param(
        Params._dummy(),
        "preset",
        "name of a preset or settings file to start from; the defaults unless given",
        TypeConverters.toString,
    )
    overrides: Param[list[str]] = Param(
        Params._dummy(), "overrides", "settings as section.field=value", TypeConverters.toListString
    )
    workers: Param[int] = Param(Params._dummy(), "workers", "processes that train together", TypeConverters.toInt)
    store: Param[str] = Param(
        Params._dummy(), "store", "folder, seen by all machines, for the events and the runs", TypeConverters.toString
    )
    out: Param[str] = Param(
        Params._dummy(),
        "out",
        "folder of the run, which is gone on with if it is there; a new one in the store for every fit unless given",
        TypeConverters.toString,
    )
    validation: Param[float] = Param(
        Params._dummy(),
        "validation",
        "share of the events that is validated with, not trained on",
        TypeConverters.toFloat,
    )
    verbose: Param[bool] = Param(
        Params._dummy(), "verbose", "whether the training says how it goes, on stderr", TypeConverters.toBoolean
    )

    def __init__(self, **given: Unpack[Parameters]) -> None:
        super().__init__()
        self._setDefault(overrides=[], workers=2, store=DEFAULT_STORE, validation=0.1, verbose=True)
        self.setParams(**given)

    def setParams(self, **given: Unpack[Parameters]) -> Self:  # noqa: N802, the name that Spark ML gives it
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

        settings = self._settings()
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
        out = self._folder(store)
        quiet = not self.getOrDefault(self.verbose)
        if not quiet:
            say(f"training on {events} in {out}")
        told = settings.model_copy(update={"data": str(events)}), out
        result, *_ = run_function(train, told, workers=workers, quiet=quiet)
        return self._copyValues(ParticleFlowModel.of_run(result))

    def _settings(self) -> TrainSettings:
        """What is asked for, without the data, which come in the frame."""
        overrides = self.getOrDefault(self.overrides)
        if named := next((text for text in overrides if text.partition("=")[0].strip() == "data"), None):
            raise UsageError(f"{named!r} in the overrides: the events are those of the frame; leave it out")
        preset = self.getOrDefault(self.preset) if self.isSet(self.preset) else None
        return TrainSettings.resolve(preset, [*overrides, override("data", "events of the frame")])

    def _folder(self, store: Path) -> Path:
        if self.isSet(self.out):
            return Path(self.getOrDefault(self.out)).absolute()
        return store / "runs" / f"{self.uid}-{uuid.uuid4().hex[:6]}"


def train(settings: TrainSettings, out: Path) -> dict[str, Any]:
    """What every process does."""
    from ringflow.train import run as recipe

    return recipe.train(settings, out)

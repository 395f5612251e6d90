"""A trained network as a Spark ML Transformer: frames of events in, the same with candidates out.

    model = ParticleFlowModel.of_file("runs/first/model.safetensors")
    model.transform(read_events(spark, "data/ttbar"))
    model.write().overwrite().save("models/first")
    ParticleFlowModel.load("models/first")

It holds the weights themselves, so that it can be saved to, and loaded from, wherever Spark writes. Saved pipelines name this
module and that of the estimator: both stay where they are.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pyspark.ml import Model
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.util import DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader, MLWritable, MLWriter

from ringflow.base.errors import InputFileError
from ringflow.infer.remote import CarriedModel, carry
from ringflow.infer.shipped import model_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WEIGHTS, _WEIGHTS_SCHEMA = "weights", "file string, content binary"


class ParticleFlowModel(Model, MLReadable["ParticleFlowModel"], MLWritable):
    """The weights of a network, and what is known of their training."""

    engine: Param[str] = Param(
        Params._dummy(), "engine", "what computes the network: torch or onnx", TypeConverters.toString
    )

    def __init__(self, file: str = "", weights: bytes = b"", about: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.file, self.weights, self.about = file, weights, dict(about or {})

    @classmethod
    def of_file(cls, path: Path | str) -> ParticleFlowModel:
        """The model of a file or of a run."""
        file = model_file(Path(path))
        return cls(file.name, file.read_bytes(), {"path": str(file)})

    @classmethod
    def of_run(cls, result: Mapping[str, Any]) -> ParticleFlowModel:
        """The best model of a training, from what the training returned."""
        file = Path(result["model"])
        lines = Path(result["history"]).read_text(encoding="utf-8").splitlines()
        plain = json.loads(json.dumps(dict(result), default=str))
        about = {"path": str(file), "history": list(map(json.loads, lines)), "result": plain}
        return cls(file.name, file.read_bytes(), about)

    @property
    def path(self) -> str | None:
        """File of the weights when they were trained; the model does not need it any more."""
        return self.about.get("path")

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of `history.jsonl`: losses of the training and figures of the validations."""
        return list(self.about.get("history", []))

    @property
    def result(self) -> dict[str, Any]:
        """Steps, events, seconds and the best validation of the training."""
        return dict(self.about.get("result", {}))

    def setParams(self, *, engine: str) -> Self:  # noqa: N802, the name that Spark ML gives it
        """Choose what computes the network."""
        self._set(engine=engine)
        return self

    def carried(self) -> CarriedModel:
        """The model as it travels to workers."""
        engine = self.getOrDefault(self.engine) if self.isDefined(self.engine) else None
        with tempfile.TemporaryDirectory(prefix="ringflow-model-") as folder:
            path = Path(folder) / self.file
            path.write_bytes(self.weights)
            return carry(path, engine)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        from ringflow.infer.spark import reconstruct_frame

        return reconstruct_frame(dataset, self.carried(), beside=True)

    def write(self) -> MLWriter:
        """What saves it."""
        return _Writer(self)

    @classmethod
    def read(cls) -> MLReader[ParticleFlowModel]:
        """What loads it."""
        return _Reader()


class _Writer(MLWriter):
    def __init__(self, model: ParticleFlowModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:  # noqa: N802, the name that Spark ML gives it
        model, session = self._model, self.sparkSession
        DefaultParamsWriter.saveMetadata(model, path, session, extraMetadata={"file": model.file, "about": model.about})
        row = (model.file, bytearray(model.weights))
        session.createDataFrame([row], _WEIGHTS_SCHEMA).coalesce(1).write.parquet(f"{path}/{_WEIGHTS}")


class _Reader(MLReader[ParticleFlowModel]):
    def load(self, path: str) -> ParticleFlowModel:
        try:
            metadata = DefaultParamsReader.loadMetadata(path, self.sparkSession)
            row = self.sparkSession.read.parquet(f"{path}/{_WEIGHTS}").first()
        except Exception:  # Java has many for a file that is not there or is no such thing
            row = None
        if row is None:
            raise InputFileError(f"no ParticleFlowModel at {path}; give the folder that it was saved to") from None
        model = ParticleFlowModel(row["file"], bytes(row["content"]), metadata["about"])
        model._resetUid(metadata["uid"])
        DefaultParamsReader.getAndSetParams(model, metadata)
        return model

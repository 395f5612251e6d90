"""Spark ML's multilayer perceptron on single elements: the baseline that knows no neighbours.

    fitted = fit_perceptron(spark, Dataset("data/ttbar"), hidden=(64,), iterations=100)
    candidates = fitted.perceptron.reconstruct(block)

The features of an element, those that networks get, are the input, and its class is the output: none for an element that
carries no particle. Spark trains the weights, by L-BFGS. A candidate has the class that is found and the momentum that was
measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from ringflow.data.chunks import training_columns
from ringflow.data.read import Dataset
from ringflow.elements.batch import TRACK, ElementBatch, from_block
from ringflow.elements.features import feature_names
from ringflow.event.block import Collection, EventBlock
from ringflow.event.particles import CHARGED_HADRON, ELECTRON, MUON, PARTICLE_CLASSES
from ringflow.infer.remote import ShardSource, ShardTask, shard_tasks
from ringflow.infer.runtime import collection
from ringflow.infer.session import candidate_rows
from ringflow.infer.spark import mapped
from ringflow.models.model import DecodedElements

if TYPE_CHECKING:
    from pyspark.ml import PipelineModel
    from pyspark.sql import DataFrame, SparkSession

Floats = npt.NDArray[np.float64]

CALORIMETER = "cluster"
KINDS = ("track", CALORIMETER)
INPUTS = ("is_track", *feature_names(KINDS))
CLASSES = len(PARTICLE_CLASSES)
_ELEMENT = "label double, features array<float>"
_CHARGED = (CHARGED_HADRON, ELECTRON, MUON)


@dataclass
class Perceptron:
    """The numbers of a fitted perceptron: it reconstructs without Spark. Sigmoids inside, softmax at the end."""

    mean: Floats
    scale: Floats
    layers: tuple[tuple[Floats, Floats], ...]  # weights [in, out] and offsets
    threshold: float = 0.5  # that of every session; the class decides here
    card: dict[str, Any] = field(default_factory=dict)
    has_errors: bool = False

    @property
    def kinds(self) -> tuple[str, str]:
        """Collections it needs."""
        return KINDS

    @property
    def detector(self) -> str | None:
        """Detector it was trained for."""
        return self.card.get("detector")

    def probability(self, inputs: npt.NDArray[np.float32]) -> Floats:
        """Probability [element, class] of every class."""
        values = (inputs - self.mean) * self.scale
        for weights, offsets in self.layers[:-1]:
            values = 0.5 * (1.0 + np.tanh(0.5 * (values @ weights + offsets)))
        weights, offsets = self.layers[-1]
        values = values @ weights + offsets
        exponentials = np.exp(values - values.max(axis=1, keepdims=True))
        shares: Floats = exponentials / exponentials.sum(axis=1, keepdims=True)
        return shares

    def reconstruct(self, block: EventBlock) -> Collection:
        """The candidates of a block, in the order of their elements; a charged one is on a track."""
        batch = from_block(block, CALORIMETER)
        on_track = (batch.kind_N == TRACK).numpy()
        probability = self.probability(element_inputs(batch))
        probability[np.ix_(~on_track, np.array(_CHARGED))] = 0.0
        label = probability.argmax(axis=1)
        row = np.flatnonzero(label)
        pt, eta, phi, energy = batch.reference_N4.numpy()[row].astype(np.float64).T
        momentum = pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta), np.maximum(energy, pt * np.cosh(eta))
        charge = np.where(np.isin(label[row], _CHARGED), batch.charge_N.numpy()[row], 0)
        found = DecodedElements(*map(torch.from_numpy, (row, label[row], charge, np.stack(momentum, axis=1))))
        event = batch.event_N[found.row]
        counts = np.bincount(event.numpy(), minlength=len(block)).astype(np.int64)
        return collection(counts, [candidate_rows(found, batch, event).numpy()])


def element_inputs(batch: ElementBatch) -> npt.NDArray[np.float32]:
    """What the perceptron gets of every element; zero for a feature that it does not have."""
    features = torch.nan_to_num(batch.features_NF, nan=0.0, posinf=0.0, neginf=0.0)
    return torch.cat([(batch.kind_N == TRACK)[:, None].float(), features], dim=1).numpy()


@dataclass(frozen=True)
class FittedPerceptron:
    """What Spark made: the numbers, the model that Spark can save, and how it went."""

    perceptron: Perceptron
    model: PipelineModel
    elements: int
    losses: list[float]


def fit_perceptron(
    spark: SparkSession,
    dataset: Dataset,
    *,
    hidden: Sequence[int] = (64,),
    iterations: int = 100,
    events: int | None = None,
    seed: int = 1,
) -> FittedPerceptron:
    """Train on the elements of the training split, of the first `events` events of it if given."""
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import MultilayerPerceptronClassifier
    from pyspark.ml.feature import StandardScaler
    from pyspark.ml.functions import array_to_vector

    elements = element_frame(spark, dataset, "train", events)
    data = elements.select("label", array_to_vector(elements["features"]).alias("features")).persist()
    scaler = StandardScaler(inputCol="features", outputCol="scaled", withMean=True, withStd=True)
    network = MultilayerPerceptronClassifier(
        featuresCol="scaled", layers=[len(INPUTS), *hidden, CLASSES], maxIter=iterations, seed=seed, solver="l-bfgs"
    )
    try:
        count = data.count()
        model: Any = Pipeline(stages=[scaler, network]).fit(data)
    finally:
        data.unpersist()
    losses = [float(value) for value in model.stages[1].summary().objectiveHistory]
    perceptron = numbers_of(model, {"detector": dataset.manifest.detector, "layers": network.getLayers()})
    return FittedPerceptron(perceptron, model, count, losses)


def numbers_of(model: Any, card: dict[str, Any]) -> Perceptron:
    """The weights out of Spark's model, where they lie in one row: those of every input together, then the offsets."""
    scaler, network = model.stages
    deviation = scaler.std.toArray()
    scale = np.divide(1.0, deviation, out=np.zeros_like(deviation), where=deviation > 0)
    weights, sizes = network.weights.toArray(), network.getLayers()
    layers, start = [], 0
    for size_in, size_out in pairwise(sizes):
        middle, end = start + size_in * size_out, start + (size_in + 1) * size_out
        layers.append((weights[start:middle].reshape(size_in, size_out), weights[middle:end]))
        start = end
    return Perceptron(scaler.mean.toArray(), scale, tuple(layers), card=card)


def element_frame(spark: SparkSession, dataset: Dataset, split: str, events: int | None = None) -> DataFrame:
    """One row per element: its class and its features. The executors read the shards, so they must see the dataset."""
    columns = training_columns(dataset, CALORIMETER)
    tasks = list(shard_tasks(dataset, split, len(dataset) if events is None else events))
    read = partial(_elements, source=ShardSource.of(dataset, split), tasks=tasks, columns=columns)
    return mapped(spark.range(0, len(tasks), 1, len(tasks)), read, _ELEMENT)


def _elements(
    batches: Iterator[pa.RecordBatch], source: ShardSource, tasks: Sequence[ShardTask], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """What an executor does with the number of a task."""
    torch.set_num_threads(1)
    for batch in batches:
        for number in batch.column("id").to_pylist():
            for block in source.task_blocks(tasks[number], columns):
                yield _element_batch(block)


def _element_batch(block: EventBlock) -> pa.RecordBatch:
    batch = from_block(block, CALORIMETER, with_targets=True)
    assert batch.targets is not None
    inputs = element_inputs(batch)
    ends = pa.array(np.arange(len(inputs) + 1, dtype=np.int32) * inputs.shape[1])
    features = pa.ListArray.from_arrays(ends, pa.array(inputs.reshape(-1)))
    return pa.RecordBatch.from_arrays(
        [pa.array(batch.targets.label_N.double().numpy()), features], ["label", "features"]
    )

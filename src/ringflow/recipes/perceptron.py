"""The perceptron beside the rules: train it, write its candidates, evaluate both on events it has not seen.

candidates.parquet   what it makes of the test split, for `ringflow evaluate --candidates`
model/               Spark's model, for `pyspark.ml.PipelineModel.load`
result.json          what was done, and the figures
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ringflow.base.errors import DatasetError, FailureError, RingflowError, UsageError
from ringflow.base.log import say, table
from ringflow.base.provenance import collect
from ringflow.base.rundir import prepared, write_atomic
from ringflow.baseline.rules import load_constants
from ringflow.data.candidates import write_candidates
from ringflow.data.chunks import training_columns
from ringflow.data.read import Dataset
from ringflow.infer.reconstruct import made_of
from ringflow.infer.reconstructions import available
from ringflow.launch.frameworks import one_line
from ringflow.launch.spark import await_workers, open_spark
from ringflow.recipes.evaluate import evaluate
from ringflow.recipes.evaluate import show as show_evaluation

NAME = "perceptron"
CANDIDATES_FILE, MODEL_FOLDER, RESULT_FILE = "candidates.parquet", "model", "result.json"
_SPLIT = "test"
#: One of our own errors in what Spark tells of a task.
_OURS = re.compile(r"ringflow\.base\.errors\.\w+: (.+)")


def perceptron_baseline(
    path: Path,
    out: Path,
    *,
    hidden: Sequence[int] = (64,),
    iterations: int = 100,
    events: int | None = None,
    seed: int = 1,
    master: str | None = None,
    workers: int | None = None,
    constants: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Train on the training split of a dataset and evaluate on its test split; the result, ready for JSON."""
    begun = time.perf_counter()
    dataset = Dataset(path)
    _require(dataset)
    if constants is not None:
        load_constants(constants)  # which is told before Spark starts
    if (out / RESULT_FILE).exists() and not overwrite:
        raise UsageError(f"{out} has a perceptron already; give another folder, or --overwrite to replace it")
    with prepared(out, marks=(RESULT_FILE, MODEL_FOLDER), overwrite=overwrite):
        with _fitted(master, workers) as session:
            from ringflow.spark.perceptron import fit_perceptron

            started = time.perf_counter()
            slots = session.sparkContext.defaultParallelism
            say(f"spark is ready, with {slots} slots, after {started - begun:.1f} s; fitting")
            fitted = fit_perceptron(session, dataset, hidden=hidden, iterations=iterations, events=events, seed=seed)
            seconds = time.perf_counter() - started
            say(f"{fitted.elements} elements, {len(fitted.losses) - 1} iterations, loss {fitted.losses[-1]:.4f}")
            fitted.model.write().overwrite().save(str((out / MODEL_FOLDER).absolute()))
        settings = {"hidden": list(hidden), "iterations": iterations, "events": events, "seed": seed}
        candidates, network = out / CANDIDATES_FILE, fitted.perceptron
        blocks = made_of(network.reconstruct, dataset.events(_SPLIT, list(network.kinds)))
        write_candidates(candidates, dataset, blocks, reconstruction=NAME, provenance=collect(settings, {NAME: seed}))
        shown = [name for name in ("baseline",) if name in available(dataset, constants=constants)]
        compared: dict[str, Any] = {"candidates": [candidates], "reconstructions": [*shown, NAME]}
        results = evaluate([path], **compared, constants=constants, split=_SPLIT, events=events)
        result = {
            "path": str(out),
            "candidates": str(candidates),
            "elements": fitted.elements,
            "layers": fitted.perceptron.card["layers"],
            "iterations": len(fitted.losses) - 1,
            "loss": fitted.losses[-1],
            "fit_seconds": round(seconds, 3),
            "seconds": round(time.perf_counter() - begun, 3),
            "evaluation": results,
        }
        write_atomic(out / RESULT_FILE, json.dumps(result, indent=1) + "\n")
    return result


def show(result: Mapping[str, Any]) -> None:
    """The figures of all reconstructions, as `ringflow evaluate` shows them, and how well every class is found."""
    show_evaluation(result["evaluation"], as_json=False)
    for sample in result["evaluation"]["samples"].values():
        found = {name: figures["classes"] for name, figures in sample["reconstructions"].items()}
        classes = list(dict.fromkeys(kind for kinds in found.values() for kind in kinds))
        rows = [[name, *(_f1(kinds.get(kind)) for kind in classes)] for name, kinds in found.items()]
        table("F1 by class", ["reconstruction", *classes], rows)


def _f1(figures: Mapping[str, Any] | None) -> str:
    value = figures["f1"]["value"] if figures else None
    return "-" if value is None else f"{value:.4f}"


def _require(dataset: Dataset) -> None:
    """Refuse what cannot be learned from, before Spark is started."""
    training_columns(dataset, "cluster")
    for split in ("train", _SPLIT):
        if not dataset.manifest.splits[split]:
            raise DatasetError(
                f"{dataset.path} has no events in split {split!r}; make more than its {len(dataset)} events"
            )


@contextmanager
def _fitted(master: str | None, workers: int | None) -> Iterator[Any]:
    """A session, and one line for what goes wrong in it."""
    session, ours = open_spark(master, workers)
    try:
        await_workers(session.sparkContext)
        if ours:
            session.sparkContext.setLogLevel("OFF")
        yield session
    except RingflowError:
        raise
    except Exception as error:  # of Python, or of Java through a bridge that has errors of its own
        found = _OURS.search(str(error))
        text = found.group(1) if found else f"Spark failed ({one_line(str(error))}); fewer --events need less memory"
        raise FailureError(text) from None
    finally:
        if ours:
            session.stop()

"""Spark on a master and two workers: processes on its executors train the network that one process trains."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.process_tree import descendants
from fixtures.tiny_training import TINY, assert_same_training, checkpoints, make_dataset, train_alone, wait_for
from ringflow.base.errors import DatasetError, FailureError, InputFileError, UsageError
from ringflow.data.candidates import CandidateFile
from ringflow.data.read import Dataset
from ringflow.train.run import train
from ringflow.train.settings import TrainSettings

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
    # The bridge to Java leaves its sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


def ringflow(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, list[str]]:
    """Code, stdout and what a command in two processes says at its end."""
    from ringflow.launch.spark import run

    capsys.readouterr()
    code = run([str(word) for word in words], 2)
    said = capsys.readouterr()
    return code, said.out, ends(said.err)


def ends(said: str) -> list[str]:
    """The lines that are not progress; nothing that looks like a traceback is among all of them."""
    assert "Traceback" not in said, said
    assert "Exception" not in said, said
    return [line for line in said.splitlines() if line.startswith(("ringflow:", "made:", "next:"))]


@pytest.mark.heavy
def test_two_processes_are_as_one(
    events: Path, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    alone = train_alone(events, tmp_path / "alone")
    monkeypatch.chdir(tmp_path)  # where the processes work as well
    words = ["train", f"data={events}", *TINY, "--out", "run", "--json"]
    code, out, said = ringflow(capsys, *words)
    assert (code, json.loads(out)["processes"]) == (0, 2)
    assert said == [
        "made: run/model.safetensors",
        f"next: ringflow evaluate {events} --split test --model run/model.safetensors",
    ]
    assert_same_training(tmp_path / "run", alone)


@pytest.mark.heavy
def test_a_killed_process_ends_the_launch_and_the_command_goes_on(
    events: Path, session: Any, spark_daemons: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from ringflow.launch.spark import run

    run_folder = tmp_path / "run"
    words = ["train", f"data={events}", *TINY, "length.checkpoint_seconds=0.2", "--out", str(run_folder)]

    def workers() -> list[int]:
        everybody = [found for daemon in spark_daemons.workers for found in descendants(daemon.pid).items()]
        return [pid for pid, line in everybody if "ringflow.launch.spark" in line]

    with ThreadPoolExecutor(1) as pool:
        try:
            launched = pool.submit(run, [*words, "length.events=100000000"], 2)
            wait_for("a checkpoint", lambda: launched.done() or checkpoints(run_folder))
            assert len(workers()) == 2
            os.kill(workers()[0], signal.SIGKILL)
            with pytest.raises(FailureError, match=r"process [01] was ended by SIGKILL, and the others with it; start"):
                launched.result(timeout=110)  # less than that of the training
        finally:
            for pid in workers():
                os.kill(pid, signal.SIGKILL)
    said = ends(capsys.readouterr().err)
    assert all(line.startswith("ringflow: error: another process of this training ended") for line in said), said
    before = json.loads((checkpoints(run_folder)[-1] / "state.json").read_text())["state"]
    # The folder is that of any training: one process goes on with it as two would.
    settings = [*words[1:-2], f"length.events={before['events'] + 40}"]
    result = train(TrainSettings.resolve(None, settings), run_folder)
    assert result["steps"] > before["step"]
    assert before["events"] + 40 <= result["events"] < before["events"] + 100


def test_an_estimator_fits_and_its_model_transforms(events: Path, session: Any, tmp_path: Path):
    import ringflow.spark
    from ringflow.infer.spark import TO_LEARN, read_events

    given = {"overrides": list(TINY), "store": tmp_path / "store", "validation": 0.2, "verbose": False}
    model = ringflow.spark.ParticleFlowEstimator(workers=1, **given).fit(
        read_events(session, events, collections=TO_LEARN)
    )
    assert [line["kind"] for line in model.history] == ["validation", "validation"]
    made = model.transform(read_events(session, events)).toArrow()
    assert made["event_number"].to_pylist() == list(range(60))
    assert "candidate_label" in made.column_names


@pytest.mark.heavy
def test_an_estimator_in_two_processes_and_a_pipeline_that_persists(events: Path, session: Any, tmp_path: Path):
    from pyspark.ml import Pipeline, PipelineModel

    import ringflow.spark
    from ringflow.infer.spark import TO_LEARN, read_events, reconstruct_frame

    given = {"overrides": list(TINY), "store": tmp_path / "store", "validation": 0.2, "verbose": False}
    estimator = ringflow.spark.ParticleFlowEstimator(workers=2, **given)
    estimator.write().overwrite().save(str(tmp_path / "estimator"))
    estimator = ringflow.spark.ParticleFlowEstimator.load(str(tmp_path / "estimator"))
    frame = read_events(session, events, collections=TO_LEARN)
    fitted = Pipeline(stages=[estimator]).fit(frame)
    [model] = fitted.stages
    assert model.path is not None
    assert Path(model.path).read_bytes() == model.weights
    assert [line["kind"] for line in model.history] == ["validation", "validation"]
    assert model.result["processes"] == 2
    [stored] = (tmp_path / "store" / "events").iterdir()
    assert Dataset(stored).manifest.splits == {"train": 48, "valid": 12, "test": 0}

    plain = read_events(session, events)
    made = model.transform(plain)
    assert made.columns[: len(plain.columns)] == plain.columns
    rows = made.toArrow()
    assert rows["event_number"].to_pylist() == list(range(60))
    expected = reconstruct_frame(plain, model.path).toArrow()
    assert rows.select(expected.column_names).equals(expected)
    with pytest.raises(UsageError, match="the events have a column 'candidate_label' already"):
        model.transform(made)

    fitted.write().overwrite().save(str(tmp_path / "saved"))
    [again] = PipelineModel.load(str(tmp_path / "saved")).stages
    assert (again.weights, again.history, again.uid, again.path) == (
        model.weights,
        model.history,
        model.uid,
        model.path,
    )
    with pytest.raises(InputFileError, match="no ParticleFlowModel at nowhere; give the folder"):
        ringflow.spark.ParticleFlowModel.load("nowhere")
    with pytest.raises(DatasetError, match=r"the events have no target_label, target_charge, .* and a training needs"):
        estimator.fit(plain)
    broken = frame.selectExpr("*", "transform(target_track, x -> 77) as t").drop("target_track")
    with pytest.raises(DatasetError, match=r"a target of event 0 is on track 77 and cluster -?\d+, which are not"):
        estimator.fit(broken.withColumnRenamed("t", "target_track"))
    assert [folder for folder in (tmp_path / "store" / "events").iterdir() if folder != stored] == []


def test_a_function_runs_in_processes_that_know_of_each_other(session: Any):
    import ringflow.spark

    def added(offset: float, *, big: int) -> tuple[str, float, bytes]:
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([float(dist.get_rank()) + offset])
        dist.all_reduce(total)
        dist.destroy_process_group()
        return os.environ["RANK"], total.item(), bytes(big)

    big = 9 << 20  # more than torch's store takes at a time
    assert ringflow.spark.run(added, (10.0,), {"big": big}, workers=2) == [(r, 21.0, bytes(big)) for r in "01"]


@pytest.mark.heavy
def test_the_perceptron_computes_what_spark_computes(events: Path, session: Any, tmp_path: Path):
    from pyspark.ml import PipelineModel
    from pyspark.ml.functions import array_to_vector, vector_to_array

    from ringflow.recipes.perceptron import perceptron_baseline
    from ringflow.spark.perceptron import element_frame, numbers_of

    result = perceptron_baseline(events, tmp_path / "out", hidden=(5, 4), iterations=3)
    model = PipelineModel.load(str(tmp_path / "out" / "model"))
    frame = element_frame(session, Dataset(events), "train")
    vectors = frame.select("*", array_to_vector(frame["features"]).alias("v")).drop("features")
    found = model.transform(vectors.withColumnRenamed("v", "features"))
    theirs = found.select(vector_to_array("probability").alias("p")).toArrow()["p"].to_pylist()
    inputs = np.array(frame.toArrow()["features"].to_pylist(), dtype=np.float32)
    ours = numbers_of(model, {}).probability(inputs)
    np.testing.assert_allclose(ours, np.array(theirs), atol=1e-9)
    assert result["elements"] == len(inputs)
    assert result["layers"][1:3] == [5, 4]
    [figures] = result["evaluation"]["samples"].values()
    assert figures["events"] == 6
    assert "particle_f1" in figures["reconstructions"]["perceptron"]
    file = CandidateFile(tmp_path / "out" / "candidates.parquet")
    assert (len(file), file.reconstruction) == (6, "perceptron")


@pytest.mark.heavy
def test_more_workers_than_slots_is_one_line(session: Any, monkeypatch: pytest.MonkeyPatch):
    from ringflow.launch import spark

    monkeypatch.setattr(spark, "_SECONDS_FOR_MORE", 0.5)
    with pytest.raises(FailureError, match=r"5 workers do not fit: spark://.* has 2 free slots; use --workers 2, or"):
        spark.run(["train"], 5)
    with pytest.raises(UsageError, match="this process has a session at spark://"):
        spark.run(["train"], 2, "local[2]")

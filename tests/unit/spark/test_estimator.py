"""The public face: what is there without Spark, the parameters of an estimator, and the help of the command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ringflow.base.errors import UsageError

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def test_the_package_is_light_and_its_names_are_there() -> None:
    code = (
        "import sys, ringflow.spark, ringflow.cli.training; heavy = [m for m in ('pyspark', 'torch', 'numpy') if m in "
        "sys.modules]; assert not heavy, heavy; from ringflow.spark import ParticleFlowModel, run; "
        "assert ringflow.spark.ParticleFlowEstimator().getOrDefault('workers') == 2"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    import ringflow.spark

    assert set(ringflow.spark.__all__) == {"ParticleFlowEstimator", "ParticleFlowModel", "run"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ringflow.spark.nothing  # type: ignore[attr-defined]


def test_parameters_are_set_copied_and_unset(tmp_path: Path) -> None:
    from ringflow.spark import ParticleFlowEstimator

    estimator = ParticleFlowEstimator(preset="clic_tiny", workers=4, overrides=("length.events=10",), out=tmp_path)
    assert estimator.getOrDefault("overrides") == ["length.events=10"]
    assert estimator.getOrDefault("out") == str(tmp_path)
    other = estimator.copy({estimator.workers: 2}).setParams(validation=0.3, out=None)
    assert (other.getOrDefault("workers"), other.getOrDefault("validation")) == (2, 0.3)
    assert (estimator.getOrDefault("workers"), estimator.getOrDefault("validation")) == (4, 0.1)
    assert not other.isDefined("out")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 3}, "no parameter 'epochs' of a ParticleFlowEstimator; there are out, overrides, preset"),
        ({"overrides": ["data=data/ttbar"]}, "'data=data/ttbar' in the overrides: the events are those of the frame"),
        ({"overrides": ["length.evens=1"]}, "unknown setting 'length.evens'; did you mean 'length.events'"),
        ({"workers": 0}, "workers=0 is no number of processes"),
        ({"store": "a,b"}, "has a comma, which separates datasets"),
    ],
)
def test_what_an_estimator_is_given_wrongly_is_one_line(given: dict[str, Any], said: str) -> None:
    from ringflow.spark import ParticleFlowEstimator

    with pytest.raises(UsageError, match=said):
        ParticleFlowEstimator(**given).fit(None)


def test_a_run_wants_a_function_and_processes() -> None:
    from ringflow.spark import run

    with pytest.raises(UsageError, match="train_fn='no' cannot be called"):
        run("no")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="workers=0 is no number of processes"):
        run(print, workers=0)


def test_a_model_of_a_file_knows_it(small_model: Any, tmp_path: Path) -> None:
    from ringflow.models.file import save_model
    from ringflow.spark import ParticleFlowModel

    loaded = small_model()
    save_model(tmp_path / "model.safetensors", loaded.model, card=loaded.card)
    model = ParticleFlowModel.of_file(tmp_path)
    assert model.path == str(tmp_path / "model.safetensors")
    assert (model.history, model.result) == ([], {})
    carried = model.carried()
    assert (carried.engine, carried.content) == ("torch", (tmp_path / "model.safetensors").read_bytes())
    assert carried.open().detector == "fake"
    with pytest.raises(UsageError, match="no engine named 'abacus'"):
        model.copy().setParams(engine="abacus").carried()
    assert model.carried() == carried

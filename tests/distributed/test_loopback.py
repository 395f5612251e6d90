"""What a command starts listens on loopback alone, unless it is told to go elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from fixtures.process_tree import Listening, descendants, listening
from fixtures.tiny_training import SECONDS, TINY, make_dataset, ringflow, running, wait_for
from ringflow.base.errors import FailureError
from ringflow.launch.mpi import mpiexec

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="there is no /proc that tells who listens")


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("events"))


def found(process: subprocess.Popen[str]) -> set[Listening]:
    return set(listening([process.pid, *descendants(process.pid)]))


def launched(events: Path, run: Path, *launcher: str, **variables: str) -> dict[Listening, str]:
    """Where the processes of a launch listen until it ends, and who does."""
    seen: dict[Listening, str] = {}
    words = ["--workers", 2, "--", "train", f"data={events}", *TINY, "--out", run]
    with running("launch", *launcher, *words, **variables) as process:
        until = time.monotonic() + 2 * SECONDS
        while process.poll() is None:
            assert time.monotonic() < until, "it does not end"
            tree = {process.pid: "launch", **descendants(process.pid)}
            seen |= {one: tree[one.held_by[0]] for one in listening(tree)}
            time.sleep(0.2)
        assert process.returncode == 0, process.communicate()[1]
    workers = ("-m ringflow.cli train", "RayTrainWorker", "-m ringflow.launch.spark")
    assert any(name in line for line in seen.values() for name in workers), seen
    return seen


def elsewhere(seen: dict[Listening, str]) -> dict[Listening, str]:
    return {one: line for one, line in seen.items() if not one.on_loopback}


@pytest.mark.heavy
def test_launch_local(events: Path, tmp_path: Path) -> None:
    assert elsewhere(launched(events, tmp_path / "run", "local")) == {}


@pytest.mark.heavy
def test_launch_mpi(events: Path, tmp_path: Path) -> None:
    try:
        mpiexec()
    except FailureError as error:
        pytest.skip(str(error))
    # Hydra, the mpiexec of MPICH, waits for its own proxies on all addresses, and has no option against it.
    others = elsewhere(launched(events, tmp_path / "run", "mpi"))
    assert [line for line in others.values() if "mpiexec" not in line] == []
    assert len({one.port for one in others}) <= 1


@pytest.mark.heavy
@pytest.mark.xdist_group("ray")
def test_launch_ray(events: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    with tempfile.TemporaryDirectory(prefix="rf", dir="/tmp") as folder:
        variables = {"RAY_TMPDIR": folder, "HOME": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        assert elsewhere(launched(events, tmp_path / "run", "ray", **variables)) == {}


@pytest.mark.xdist_group("ray")
def test_a_cluster_on_loopback_is_found(ray_nodes: Any) -> None:
    plain = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}  # as on any cluster
    words = ["launch", "ray", "--workers", 3, "--address", ray_nodes.address, "--", "train", "--out", "run"]
    done = ringflow(*words, code=1, **plain)
    assert "3 workers do not fit: the Ray cluster has 2 cores" in done.stderr


@pytest.mark.heavy
@pytest.mark.xdist_group("spark")
def test_launch_spark(events: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="pyspark is not installed")
    if not shutil.which("java"):
        pytest.skip("there is no Java to run Spark")
    assert elsewhere(launched(events, tmp_path / "run", "spark")) == {}


@pytest.mark.parametrize("command", ["serve", "display"])
def test_servers(command: str, dataset: Path, weights: Path) -> None:
    words = {
        "serve": ["--model", weights, "--engine", "torch", "--device", "cpu", "--port", 0],
        "display": [dataset, "--model", weights, "--no-open"],
    }[command]
    with running(command, *words) as process:
        seen = wait_for("a server", lambda: found(process), process)
    assert [one for one in seen if not one.on_loopback] == []

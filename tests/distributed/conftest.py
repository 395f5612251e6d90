"""Real clusters on loopback, a small dataset with events of nothing, and a small network."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

EVENTS = 120
SECONDS_TO_START = 180.0
#: Five Javas that live for seconds: no time is spent on making them fast.
JAVA_ENVIRONMENT = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # A node that is slow to start on two busy cores is not dead: Ray ends it, and with it the process that uses it.
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_health_check_timeout_ms": "30000",
    "RAY_NUM_REDIS_GET_RETRIES": "120",
    "RAY_gcs_server_request_timeout_seconds": "180",
}


def poll(what: str, ready: Callable[[], Any]) -> Any:
    """Wait until something is there."""
    until = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < until:
        if found := ready():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{what} did not come within {SECONDS_TO_START:.0f} s")


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events in twelve shards; those that 7 divides have nothing in them."""
    from fixtures.fake_events import fake_block, fake_event
    from ringflow.data.outside import write_dataset
    from ringflow.data.read import to_awkward
    from ringflow.event.block import Collection, EventBlock, concatenate

    def nothing(number: int) -> EventBlock:
        event = fake_event(number)
        empty = {
            name: Collection(0 * part.counts, {column: values[:0] for column, values in part.columns.items()})
            for name, part in event.collections.items()
        }
        return EventBlock(event.event_number, empty)

    events = concatenate([nothing(n) if n % 7 == 0 else fake_block(n, 1) for n in range(EVENTS)])
    arrays = to_awkward(events)
    folder: Path = tmp_path_factory.mktemp("events") / "dataset"
    write_dataset(
        folder,
        detector="fake",
        tracks=arrays.track[[name for name in arrays.track.fields if name != "particle"]],
        clusters=arrays.cluster,
        event_number=arrays.event_number,
        events_per_shard=10,
    )
    return folder


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with random outputs, in a file, with uncertainties beside it."""
    import torch

    from fixtures.networks import random_network
    from ringflow.models.file import save_model
    from ringflow.models.uncertainty import UncertaintyHead, file_beside, save_uncertainty

    path: Path = tmp_path_factory.mktemp("model") / "model.safetensors"
    model = random_network()
    with torch.random.fork_rng():
        torch.manual_seed(5)
        head = UncertaintyHead(2 * model.settings.width, 4)
    save_model(path, model, card={"detector": "fake"})
    save_uncertainty(file_beside(path), head, path, {})
    return path


@dataclass(frozen=True)
class SparkDaemons:
    """A master and two workers with one core each."""

    master: str
    workers: tuple[subprocess.Popen[bytes], ...]


@pytest.fixture(scope="session")
def spark_daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDaemons]:
    pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
    if not shutil.which("java"):
        pytest.skip("there is no Java to run Spark")
    folder = tmp_path_factory.mktemp("spark")
    script = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, **JAVA_ENVIRONMENT, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, kind: str, *words: str) -> Path:
        log = folder / f"{name}.log"
        command = [str(script), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--webui-port", "0", *words]
        with log.open("wb") as file:
            started.append(subprocess.Popen(command, env=environment, stdout=file, stderr=file))
        return log

    def said(log: Path, words: str) -> str | None:
        return next((line for line in log.read_text(errors="replace").splitlines() if words in line), None)

    try:
        log = start("master", "master.Master", "--port", "0")
        line = poll("the Spark master", lambda: said(log, "Starting Spark master at"))
        master = line.split()[-1]
        words = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder), master)
        logs = [start(f"worker{n}", "worker.Worker", *words) for n in range(2)]
        for log in logs:
            poll("a Spark worker", lambda log=log: said(log, "Successfully registered with master"))
        yield SparkDaemons(master, tuple(started[1:]))
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def session(spark_daemons: SparkDaemons) -> Iterator[Any]:
    """One session for all tests of a file: an application takes all cores of the master."""
    from ringflow.launch.spark import open_spark

    with pytest.MonkeyPatch.context() as patch:
        for name, value in JAVA_ENVIRONMENT.items():
            patch.setenv(name, value)
        # On two busy cores one executor can be there long before the other.
        patch.setattr("ringflow.launch.spark._SECONDS_FOR_MORE", SECONDS_TO_START)
        session, opened = open_spark(spark_daemons.master)
        assert opened
        yield session
        session.stop()


@pytest.fixture(scope="session")
def ray_folder() -> Iterator[str]:
    """Sockets lie in it, and their names may not be longer than a hundred letters."""
    with tempfile.TemporaryDirectory(prefix="rf", dir="/tmp") as folder:
        yield folder


@contextmanager
def ray_here(folder: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # Ray notes the address of a cluster in its folder below RAY_TMPDIR, which the first node makes.
        for name, value in {**RAY_ENVIRONMENT, "HOME": folder, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        # Ray puts the address of the machine in the place of loopback, but where it thinks that there is no network.
        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        yield


@pytest.fixture(scope="session")
def ray_cluster(ray_folder: str) -> Iterator[Any]:
    """Two nodes of one core each on this machine, started once for all files."""
    pytest.importorskip("ray", reason="ray is not installed")
    with ray_here(ray_folder):
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
        cluster = Cluster()
        try:
            for _ in range(2):
                cluster.add_node(**node, node_ip_address="127.0.0.1")
            cluster.wait_for_nodes(SECONDS_TO_START)
        except BaseException:
            cluster.shutdown()
            raise
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def ray_nodes(ray_cluster: Any, ray_folder: str) -> Iterator[Any]:
    """Ray with two nodes, in an environment that finds them and no other."""
    with ray_here(ray_folder):
        yield ray_cluster
        import ray

        ray.shutdown()

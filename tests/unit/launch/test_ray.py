"""What Ray is asked for, and how words come back from its workers. A real cluster is in tests/distributed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ringflow.base.errors import FailureError, UsageError
from ringflow.launch import ray as launcher
from ringflow.launch.environment import listening
from ringflow.launch.ray import _share


def cluster(*nodes: dict[str, float], free: dict[str, float] | None = None) -> Any:
    """What a connection to Ray tells of its nodes; those without resources are dead."""
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    alive = [{"Alive": bool(node), "Resources": node} for node in nodes]
    return SimpleNamespace(nodes=lambda: alive, available_resources=lambda: total if free is None else free)


def test_a_worker_gets_a_core_or_a_gpu() -> None:
    on_cores, on_gpus = cluster({"CPU": 1.0}, {}, {"CPU": 3.5}), cluster({"CPU": 8.0, "GPU": 4.0})
    assert _share(on_cores, ["train"], 4) == {"CPU": 1.0}
    assert _share(on_gpus, ["train"], 4) == {"CPU": 1.0, "GPU": 1.0}
    assert _share(on_gpus, ["train", "compute.device=cpu"], 8) == {"CPU": 1.0}


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        (
            [{"CPU": 1.0}, {"CPU": 3.5}],
            5,
            "5 workers do not fit: the Ray cluster has 4 cores; use --workers 4 or add nodes",
        ),
        ([{"CPU": 0.0}], 1, "the Ray cluster has 0 cores; use --workers 1 or add nodes"),
        (
            [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 64.0}],
            3,
            "the Ray cluster has 2 GPUs; use --workers 2, train with compute.device=cpu, or add nodes",
        ),
        ([{"CPU": 1.0, "GPU": 4.0}], 2, "the Ray cluster has 1 GPUs"),
    ],
)
def test_more_workers_than_slots_are_refused(nodes: list[dict[str, float]], workers: int, expected: str) -> None:
    with pytest.raises(FailureError) as refused:
        _share(cluster(*nodes), ["train"], workers)
    assert expected in str(refused.value)


def test_slots_that_others_have_are_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    _share(cluster({"CPU": 4.0}, free={"CPU": 1.0}), ["train"], 2)
    assert capsys.readouterr().err == "waiting: 1 of the 2 slots are free\n"


@pytest.fixture
def head() -> Iterator[Callable[..., int]]:
    """What looks like the head of a cluster at an address, and the port where it is."""
    opened: list[socket.socket] = []
    greeting = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

    def answer(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(greeting)

    def start(address: str, port: int = 0) -> int:
        server = socket.create_server((address, port))
        opened.append(server)
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        return int(server.getsockname()[1])

    yield start
    for server in opened:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


def test_a_head_is_where_it_was_said_to_be(
    head: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    services = pytest.importorskip("ray._private.services", reason="ray is not installed")
    outward = "127.0.0.2"  # stands for the address by which other machines reach this one
    monkeypatch.setattr(services, "get_node_ip_address", lambda: outward)
    port = head("127.0.0.1")
    assert launcher._head(f"127.0.0.1:{port}") == ("127.0.0.1", port)
    assert launcher._head(f"localhost:{port}") == ("localhost", port)
    head(outward, port)
    assert launcher._head(f"127.0.0.1:{port}") == (outward, port)
    assert launcher._head(f"{outward}:{port}") == (outward, port)
    monkeypatch.setenv("RAY_ADDRESS", f"{outward}:{port}")
    assert launcher._head("auto") == (outward, port)
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(FailureError, match="no Ray cluster runs on this machine; start it with `ray start --head`"):
        launcher._head("auto")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, str]]]:
    """What a worker that meets nobody makes of a command."""
    monkeypatch.setattr(launcher, "_meet", lambda on_gpus: None)
    monkeypatch.chdir(tmp_path)

    def go(*words: str, folder: Path = tmp_path, restarts: int = 0) -> tuple[int, str]:
        config = {"words": words, "folder": str(folder), "restarts": restarts, "on_gpus": False}
        with listening("127.0.0.1") as place:
            return launcher.work({**config, "says_at": place})

    return go


def test_what_a_worker_says_comes_back_and_a_failure_is_started_again(
    work: Callable[..., tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def told() -> str:
        return capsys.readouterr().err

    assert work("config", "train", "--json")[1].startswith("{")
    for restarts in (0, 3):  # a wrong word is not tried again
        assert work("train", "no=thing", "--out", "run", restarts=restarts) == (2, "")
        assert "ringflow: error: unknown setting 'no'" in told()
    assert work("train", folder=tmp_path / "gone") == (1, "")
    assert f"cannot see {tmp_path / 'gone'}; start from a folder on a file system that all nodes share\n" in told()

    def fail(words: list[str]) -> int:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr("ringflow.cli.main", fail)
    assert work("train") == (1, "")
    assert told().endswith("ZeroDivisionError: a mistake of ours\n")
    with pytest.raises(launcher.FailedHereError):
        work("train", restarts=1)


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", "host:"])
@pytest.mark.usefixtures("no_cluster")
def test_no_address(address: str):
    with pytest.raises(UsageError, match=f"{address} is no address of a Ray cluster; give auto or HOST:PORT"):
        launcher.open_ray(address)


@pytest.mark.usefixtures("no_cluster")
def test_nobody_answers(closed_port: int, monkeypatch: pytest.MonkeyPatch):
    for _ in range(2):
        with pytest.raises(FailureError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{closed_port}"):
            launcher.open_ray(f"127.0.0.1:{closed_port}")
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port}")
    with pytest.raises(FailureError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{closed_port}"):
        launcher.open_ray("auto")


@pytest.mark.usefixtures("no_cluster")
def test_somebody_else_answers():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        hanging_up = threading.Thread(target=lambda: server.accept()[0].close())
        hanging_up.start()
        with pytest.raises(FailureError, match=f"what answers at 127.0.0.1:{port} is no Ray cluster"):
            launcher.open_ray(f"127.0.0.1:{port}")
        hanging_up.join()

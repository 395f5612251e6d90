"""What the command says when it cannot serve: one line, before long work is done."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ringflow.infer.serve.server import address, bind
from ringflow.models.file import save_model
from ringflow.recipes import serve as recipe


@pytest.fixture
def weights(tmp_path: Path, small_model: Callable[..., Any]) -> Path:
    path = tmp_path / "model.safetensors"
    save_model(path, small_model().model, card=small_model().card)
    return path


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def never_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("it must not come to that")

    monkeypatch.setattr("ringflow.infer.serve.server.ModelServer.run", refuse)
    monkeypatch.setattr(recipe, "open_served", refuse)


@pytest.mark.usefixtures("never_serves")
def test_a_port_that_is_in_use(command: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = command("serve", "--port", port)
    assert (done.code, done.stdout) == (1, "")
    assert f"cannot listen on port {port} of 127.0.0.1: it is in use; choose another --port" in done.stderr


@pytest.mark.usefixtures("never_serves")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--model", "nowhere.onnx"], 1, "no model at nowhere.onnx; give a model file"),
        (["--host", "no such host"], 1, "no such host; choose another --host"),
        (["--host", "192.0.2.1"], 1, "this machine has no such address; choose another --host"),
        (["--name", "a/b"], 2, "'a/b' is no name for a model"),
        (["--port", "70000"], 2, "--port"),
        (["--queue", "0"], 2, "--queue"),
        (["--timeout-s", "0"], 2, "--timeout-s"),
        (["--engine", "abacus"], 2, "--engine"),
    ],
)
def test_wrong_words(command: Callable[..., Any], words: list[str], code: int, message: str) -> None:
    done = command("serve", *words)
    assert (done.code, done.stdout) == (code, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("never_serves")
@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"two lines of\na-token-that-is-long", b"\xff" * 20, None])
def test_a_file_that_holds_no_token(command: Callable[..., Any], tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "token"
    file.mkdir() if content is None else file.write_bytes(content)
    done = command("serve", "--token-file", file, "--port", 0)
    assert done.code in (1, 2)
    assert len(done.stderr.splitlines()) == 1
    assert str(file) in done.stderr
    assert "two" not in done.stderr


@pytest.mark.usefixtures("never_serves")
def test_a_token_of_nothing_is_none(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFLOW_SERVE_TOKEN", "")
    done = command("serve", "--port", 0)
    assert (done.code, "RINGFLOW_SERVE_TOKEN holds no token" in done.stderr) == (2, True)
    done = command("serve", "--token", "on-the-command-line", "--port", 0)  # where others would see it
    assert done.code == 2


def test_a_file_that_is_no_model(command: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("model.onnx", "model.safetensors"):
        (tmp_path / name).write_text("not a model")
        done = command("serve", "--model", tmp_path / name, "--port", 0)
        assert done.code == 1
        assert name in done.stderr.splitlines()[-1]


def test_the_engine_is_chosen(weights: Path, small_onnx: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert recipe._engine(small_onnx(), cpu) == "onnx"
    assert recipe._engine(weights, cpu) == "onnx"
    assert recipe._engine(weights, torch.device("meta")) == "torch"  # an accelerator, as good as any
    monkeypatch.setattr(recipe, "find_spec", lambda name: None)
    assert recipe._engine(weights, cpu) == "torch"
    by_torch = recipe.open_served(weights, "a", None, "auto", 1)
    by_onnx = recipe.open_served(small_onnx(), "b", None, "auto", 1)
    assert (by_torch.engine, by_onnx.engine) == ("torch", "onnx")
    assert all(by_torch.metadata()[part] == by_onnx.metadata()[part] for part in ("inputs", "outputs", "parameters"))


def test_addresses() -> None:
    with bind("127.0.0.1", 0) as taken:
        assert address(taken) == f"http://127.0.0.1:{taken.getsockname()[1]}"
    with bind("::1", 0) as taken:
        assert address(taken) == f"http://[::1]:{taken.getsockname()[1]}"

"""Programs that stand in for those of a cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a program of these lines on the path, on which there is little else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "few").mkdir()
    for name in ("bash", "cat", "env", "head", "sleep", "touch"):
        (folder / "few" / name).symlink_to(Path("/usr/bin") / name)
    monkeypatch.setenv("PATH", f"{folder}:{folder / 'few'}")

    def make(name: str, lines: str) -> None:
        (folder / name).write_text(f"#!/bin/bash\n{lines}\n")
        (folder / name).chmod(0o755)

    return make


@pytest.fixture
def closed_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])

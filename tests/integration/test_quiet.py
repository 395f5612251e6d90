"""No command looks up a name of another machine, connects to one, or leaves anything in the home of its user."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fixtures import FOLDER
from fixtures.fake_events import write_fake_dataset
from fixtures.tiny_training import TINY

#: Takes the place of what libraries, in Python or not, call to leave the machine; writes down what they want, and refuses it.
RECORDER = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void note(const char *what) {
    int file = open(getenv("RINGFLOW_RECORD"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    dprintf(file, "%s\n", what);
    close(file);
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    int (*theirs)(const char *, const char *, const struct addrinfo *, struct addrinfo **) = dlsym(RTLD_NEXT, "getaddrinfo");
    unsigned char address[16];
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    if (name && strcmp(name, "localhost") && strcmp(name, own) && inet_pton(AF_INET, name, address) != 1 &&
        inet_pton(AF_INET6, name, address) != 1) {
        note(name);
        return EAI_NONAME;
    }
    return theirs(name, service, hints, found);
}

struct hostent *gethostbyname(const char *name) {
    note(name);
    h_errno = HOST_NOT_FOUND;
    return NULL;
}

int connect(int file, const struct sockaddr *to, socklen_t length) {
    int (*theirs)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    const struct in_addr *four = &((const struct sockaddr_in *)to)->sin_addr;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)to)->sin6_addr;
    char text[INET6_ADDRSTRLEN] = "";
    if (to->sa_family == AF_INET && ntohl(four->s_addr) >> 24 != 127) inet_ntop(AF_INET, four, text, sizeof text);
    int loopback = IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
    if (to->sa_family == AF_INET6 && !loopback) inet_ntop(AF_INET6, six, text, sizeof text);
    if (!*text) return theirs(file, to, length);
    note(text);
    errno = ENETUNREACH;
    return -1;
}
"""
#: What libraries draw with keep the fonts that they found.
FONTS = ".cache/matplotlib/fontlist-"


class Recorded(NamedTuple):
    """Names and addresses that a program wanted, and the files it left in its home."""

    wanted: list[str]
    left: list[str]


Run = Callable[..., Recorded]


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no C compiler to make the recorder with")
    library: Path = tmp_path_factory.mktemp("recorder") / "recorder.so"
    words = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(words, input=RECORDER, text=True, check=True)
    return library


@pytest.fixture
def run(recorder: Path, tmp_path: Path) -> Run:
    home, record = tmp_path / "home", tmp_path / "record"
    home.mkdir()
    own = {"HOME": str(home), "LD_PRELOAD": str(recorder), "RINGFLOW_RECORD": str(record), "NO_COLOR": "1"}
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("ORT_", "XDG_", "MPLCONFIG"))}

    def go(*words: str) -> Recorded:
        done = subprocess.run(
            [sys.executable, *words], env={**ours, **own}, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        # A gate that fails, as those of a network that is hardly trained do, is no error here.
        assert done.returncode in (0, 1), done.stderr
        assert not re.search("ringflow: error|Traceback", done.stderr), done.stderr
        left = [path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()]
        return Recorded(record.read_text().split() if record.exists() else [], left)

    return go


def test_the_recorder_hears_of_everything(run: Run) -> None:
    tried = [
        ("name", "outside.invalid"),
        ("address", "192.0.2.1"),
        ("address", "2001:db8::1"),
        ("address", "localhost"),
    ]
    lines = [
        "import pathlib, socket, sys",
        "pathlib.Path.home().joinpath('file').touch()",
        f"for what, where in {tried}:",
        "    try: socket.create_connection((where, 9), 1.0)",
        "    except OSError: pass",
    ]
    assert run("-c", "\n".join(lines)) == Recorded([where for _, where in tried[:3]], ["file"])


def assert_quiet(run: Run, commands: Sequence[Sequence[Any]]) -> None:
    made = run(str(FOLDER / "several_commands.py"), json.dumps([list(map(str, words)) for words in commands]))
    assert made.wanted == []
    assert [name for name in made.left if not name.startswith(FONTS)] == []


def test_common_commands_ask_nobody(run: Run, small_onnx: Callable[..., Path], tmp_path: Path) -> None:
    data, model, run_folder = write_fake_dataset(tmp_path / "data", events=40), small_onnx(), tmp_path / "run"
    few = ("length.events=8", "length.validate_every=8", "length.validation_events=2", "source.lanes=1")
    assert_quiet(
        run,
        [
            *(["simulate", "qq", "--events", 2, "--no-hits", "--out", "made"], ["check", "made"]),
            ["train", f"data={data}", *TINY, *few, "--out", run_folder],
            ["reconstruct", data, "--model", run_folder, "--events", 4, "--out", "torch.parquet"],
            ["reconstruct", data, "--model", model, "--events", 4, "--out", "onnx.parquet"],
            *(["trace", "torch.parquet"], ["doctor"]),
        ],
    )


@pytest.mark.heavy
def test_no_command_asks_anybody(run: Run, tmp_path: Path) -> None:
    settings = [*(word for word in TINY if not word.startswith(("detector", "length"))), "length.events=8"]
    settings += ["length.validation_events=2", "source.lanes=1", "compute.batch_elements=400"]
    assert_quiet(
        run,
        [
            ["simulate", "ttbar", "--events", 70, "--out", "data"],
            ["validate", "--events", 10],
            ["train", "data=data", *settings, "--out", "run"],
            ["reconstruct", "data", "--model", "run", "--out", "torch.parquet"],
            ["export", "run/model.safetensors", "--out", "model.onnx", "--triton", "models", "--events", 2],
            ["reconstruct", "data", "--model", "model.onnx", "--out", "onnx.parquet"],
            ["evaluate", "data", "--candidates", "torch.parquet", "--out", "report"],
            ["explain", "data", "--model", "run", "--event", 1],
            ["uncertainty", "shipped", "data", "--out", "errors.safetensors"],
            ["tune", "data=data", *settings, "--trials", 2, "--search", "random", "--out", "study"],
            ["display", "data", "--static", "page", "--events", 2],
            ["trace", "torch.parquet"],
            ["doctor"],
            [
                "launch",
                "local",
                "--workers",
                2,
                "--",
                "train",
                "data=data",
                *settings,
                "source.lanes=2",
                "--out",
                "two",
            ],
        ],
    )

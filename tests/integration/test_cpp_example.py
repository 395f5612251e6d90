"""The C++ example is built, and gives the particles that the Python runtime gives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from write_flat import write_event, write_header

from fixtures.foreign_onnx import foreign_file
from ringflow.data.read import Dataset
from ringflow.event.block import EventBlock
from ringflow.infer.runtime import EventRuntime

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "cpp"
HEADER = "onnxruntime_c_api.h"
#: Where the header may lie already; the last is where it is fetched to, once per checkout.
FETCHED = ROOT / "build" / "onnxruntime-headers"
KNOWN = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", str(FETCHED))
SECONDS_TO_FETCH = 90

Run = Callable[..., subprocess.CompletedProcess[str]]


def header_folder() -> Path:
    """A folder with the header, fetched if need be; the test is skipped, with the reason, where none can be had."""
    named = os.environ.get("ONNXRUNTIME_INCLUDE")
    for folder in map(Path, [named] if named else KNOWN):
        if (folder / HEADER).is_file():
            return folder
    if named:
        pytest.fail(f"ONNXRUNTIME_INCLUDE={named} has no {HEADER}")
    try:
        words = ["sh", str(EXAMPLE / "get_headers.sh"), str(FETCHED)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS_TO_FETCH)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{HEADER} could not be fetched in {SECONDS_TO_FETCH} s")
    if done.returncode:
        pytest.skip(f"{HEADER} could not be fetched: {done.stderr.strip()}")
    return FETCHED


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The built program, as a call."""
    if lacking := [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]:
        pytest.skip(f"{' and '.join(lacking)} not installed")
    folder = tmp_path_factory.mktemp("cpp")
    places = [f"-DONNXRUNTIME_INCLUDE={header_folder()}", f"-DPython3_EXECUTABLE={sys.executable}"]
    for words in (
        ["cmake", "-S", str(EXAMPLE), "-B", str(folder), *places, "-DCMAKE_CXX_FLAGS=-O1 -Werror"],
        ["cmake", "--build", str(folder)],
    ):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [str(folder / "reconstruct_flat"), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture(scope="module")
def model(small_onnx: Callable[..., Path]) -> Path:
    return small_onnx()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ringflow.cli import main

    folder = tmp_path_factory.mktemp("data") / "ttbar"
    assert main(["simulate", "ttbar", "--events", "150", "--no-hits", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def flat(dataset: Path, model: Path) -> Path:
    """The simulated events as a user writes them."""
    path = dataset.with_name("events.flat")
    words = [sys.executable, EXAMPLE / "write_flat.py", dataset, model, path, "--events", "140"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return path


def expected(runtime: EventRuntime, events: list[tuple[int, dict[str, np.ndarray]]]) -> list[str]:
    """What the program should print: nine digits tell every float32."""
    lines = ["# event class charge px py pz energy track cluster"]
    for number, tables in events:
        answer = runtime.run(tables)
        for label, charge, momentum, track, cluster in zip(
            *(answer[f"candidate_{name}"] for name in ("label", "charge", "momentum", "track", "cluster")), strict=True
        ):
            name = runtime.description.class_names[label]
            digits = " ".join(f"{value:.9g}" for value in momentum)
            lines.append(f"{number} {name} {charge} {digits} {track} {cluster}")
    return lines


def numbered(block: EventBlock, runtime: EventRuntime) -> list[tuple[int, dict[str, np.ndarray]]]:
    return list(zip(map(int, block.event_number), runtime.events(block), strict=True))


def test_the_particles_are_those_of_the_python_runtime(program: Run, model: Path, dataset: Path, flat: Path) -> None:
    runtime = EventRuntime(model)
    events = [event for block in Dataset(dataset).events() for event in numbered(block, runtime)][:140]
    wanted = expected(runtime, events)
    assert len(wanted) > 1000
    done = program(model, flat)
    assert done.stderr == f"{len(wanted) - 1} particles in 140 events\n"
    assert done.stdout.splitlines() == wanted
    out = flat.with_suffix(".txt")
    assert program(model, flat, "--threads", 3, "-o", out).returncode == 0
    assert out.read_text() == done.stdout  # one round of three threads, three rounds of one


def test_events_that_lack_something(program: Run, model: Path, dataset: Path, tmp_path: Path) -> None:
    runtime = EventRuntime(model)
    full = numbered(next(Dataset(dataset).events()).take(0, 1), runtime)[0][1]
    optional = full["cluster"].copy()
    optional[:, [not column.required for column in runtime.description.inputs["cluster"]]] = np.nan
    events = [
        (-7, {"track": full["track"], "cluster": full["cluster"][:0]}),
        (1 << 40, {"track": full["track"][:0], "cluster": full["cluster"][:0]}),
        (3, {"track": full["track"][:0], "cluster": full["cluster"]}),
        (4, {"track": full["track"], "cluster": optional}),
    ]
    wanted = expected(runtime, events)
    assert {line.split()[0] for line in wanted} >= {"-7", "3", "4"}
    for kept in (events, []):
        with (tmp_path / "events.flat").open("wb") as file:
            write_header(file, len(kept), runtime.description.inputs)
            for number, tables in kept:
                write_event(file, number, tables)
        done = program(model, tmp_path / "events.flat")
        assert done.stdout.splitlines() == (wanted if kept else wanted[:1])

    full["track"][1, 0] = np.nan
    with (tmp_path / "events.flat").open("wb") as file:
        write_header(file, 1, runtime.description.inputs)
        write_event(file, 12, full)
    done = program(model, tmp_path / "events.flat", "--threads", 2)
    assert done.returncode == 1
    assert "event 12: track 1 has pt nan; it must be a finite number" in done.stderr


def test_one_line_for_what_is_wrong(program: Run, model: Path, flat: Path, tmp_path: Path) -> None:
    line, rest = flat.read_bytes().split(b"\n", 1)
    huge = b"\0" * 8 + b"\xff" * 8  # an event of four thousand million tracks
    files = {
        b"": "is not a flat file of events",
        b"once upon a time\n": "is not a flat file of events",
        line + b"\n" + rest[:5000]: "ends in event 1 of 140",
        line + b"\n" + rest[:-1]: "ends in event 140 of 140",
        line + b"\n" + huge: "ends in event 1 of 140",
        line + b"\n" + rest + b"x": "goes on after its 140 events",
        line.replace(b" 140 ", b" -1 ") + b"\n": "has '-1' events",
        line.replace(b"flat 1 ", b"flat 2 ") + b"\n": "is of version 2, this program reads 1",
        line.replace(b"=pt,", b"=") + b"\n": "has 22 columns of track, the model takes 23",
        line.replace(b"pt,eta", b"eta,pt") + b"\n": "has the track column eta where the model takes pt",
        line.replace(b"cluster=", b"hit=") + b"\n": "has 'hit' where the model takes cluster",
    }
    for content, message in files.items():
        (tmp_path / "bad.flat").write_bytes(content)
        done = program(model, tmp_path / "bad.flat")
        assert (done.returncode, message in done.stderr, done.stderr.count("\n")) == (1, True, 1), (message, done)
    foreign = foreign_file(tmp_path / "foreign.onnx", {})
    for path, message in (
        (foreign, "not written by `ringflow export`"),
        (flat, "cannot be used"),
        (tmp_path, "cannot"),
    ):
        done = program(path, flat)
        assert (done.returncode, message in done.stderr, done.stderr.count("\n")) == (1, True, 1), (message, done)
    for words in ((), (model,), (model, flat, "--threads", "0"), (model, flat, "-o"), (model, flat, "--fast")):
        assert program(*words).returncode == 2
    assert "cannot write" in program(model, flat, "-o", tmp_path / "none" / "out.txt").stderr

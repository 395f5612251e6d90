"""Every command and every Python snippet of the README and of the how-tos runs, page by page, in the order of the page.

They run as a person would run them, without `--json` unless the page has it, in an empty folder. What a page takes for granted
(`data/ttbar`, `runs/first`, ...) is put there, small; numbers of events are made small; servers are stopped when they have
answered. A command that names a cluster elsewhere is only taken apart: its options exist and fit together.

In the default run so are commands and snippets that start processes, searches or clusters, what needs their results, and a
second training, export, page of the same page: other tests have these. A report and an exported network, which take long, are
made once, by the words of the README. Marked `heavy`, all pages are followed to the last word.
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from filelock import FileLock

from ringflow.base.errors import DatasetError
from ringflow.cli import app, main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
#: Programs that a page may name and that are not ours to run here.
OTHERS = ("cd", "curl", "git", "make", "optuna-dashboard", "python", "ray", "source", "srun", "tensorboard", "export")
#: What starts processes that take seconds each, and what takes seconds itself and is done once per page.
STARTS = re.compile(r"^ringflow (launch|tune (?!panda-space)|perceptron|bench)|\b(ray|spark)\b")
ONCE = ("display", "evaluate", "explain", "export", "prune", "reproduce", "serve", "train", "uncertainty", "validate")
#: Pages on which these are done in the default run: those that are about them, and the first.
THEIRS = {"evaluate": ("README",), "explain": ("explain",), "export": ("README",), "validate": (), "reproduce": ()}
NETWORK = re.compile(r"^runs/|\.(onnx|safetensors)$")
#: A cluster that is not there.
ELSEWHERE = ("--address", "--master", "--hosts", "--executor slurm")
EVENTS = 72
TRAINING = {
    "length.events": 48,
    "length.validate_every": 24,
    "length.validation_events": 4,
    "model.width": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.hidden": 16,
}
SERVERS = ("serve", "display")
SECONDS_TO_ANSWER = 90.0


class Step(NamedTuple):
    """A command or a snippet of a page."""

    kind: str  # ringflow, error, shell, pip, other or python
    text: str


def steps_of(page: str) -> list[Step]:
    """What a page says to run, in its order."""
    found: list[Step] = []
    for language, block in BLOCK.findall(page):
        if language == "python":
            found.append(Step("python", block))
        elif language in ("", "sh", "bash", "console"):
            found += _commands(block)
    return found


def _commands(block: str) -> list[Step]:
    found: list[Step] = []
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        text = line.removeprefix("$ ").removeprefix(".venv/bin/")
        word = text.split(" ")[0]
        if word == "cat" and "<<" in text:
            end = text.split("<<")[1].strip("'\" ")
            found.append(Step("shell", "\n".join([text, *iter(lines.__next__, end), end])))
        elif word == "echo" or text.startswith("python -c"):
            found.append(Step("shell", text))
        elif word in ("ringflow", "pip"):
            found.append(Step(word, text))
        elif text.startswith("ringflow: error:"):  # what the command before it says
            found[-1] = Step("error", found[-1].text)
        elif word in OTHERS:
            found.append(Step("other", text))
    return found


def words_of(text: str) -> tuple[list[str], Path | None]:
    """The words of a command after `ringflow`, and the file that its output goes to."""
    words = shlex.split(text, comments=True)[1:]
    words = words[: words.index("|")] if "|" in words else words
    if ">" in words:
        place = words.index(">")
        return words[:place], Path(words[place + 1])
    return words, None


def elsewhere(words: list[str]) -> bool:
    return any(name in " ".join(words) for name in ELSEWHERE)


#: Options that make a command small, beside those that the page gives.
SMALLER: dict[str, dict[str, str]] = {
    "simulate": {"--events": str(EVENTS)},
    "explain": {"--events": "2"},
    "validate": {"--events": str(EVENTS)},
    "tune": {"--trials": "3"},
    "perceptron": {"--iterations": "3"},
    "bench scaling": {"--engines": "local", "--ring": "2", "--seconds": "0.1", "--rounds": "1", "--elements": "50"},
}
#: Options and settings whose values are made small.
NUMBERS = {
    "--events": EVENTS,
    "production.events": EVENTS,
    "--trials": 3,
    "--max-points": 2,
    "--num-points": 2,
    "--seconds": 1,
    "--requests": 20,
    "length.events": TRAINING["length.events"],
    "compute.batch_elements": 512,
}
#: Values that would need another machine, or would be seen from one.
HERE = {"--host": "127.0.0.1", "--device": "cpu"}
#: What begins a training, and what does not.
TRAINS = ("train", "tune", "prune", "panda-evaluate")
SUBCOMMANDS = ("report", "best", "resume", "replay", "panda-space", "panda-steer")


def made_small(words: list[str]) -> list[str]:
    """The same command with less to do, on this machine."""
    if words[0] == "launch":
        place = words.index("--")
        there = ["--dry-run"] if words[1] == "slurm" and "--dry-run" not in words else []
        return [*words[:2], *there, *words[2 : place + 1], *made_small(words[place + 1 :])]
    small = [_small_word(before, word) for before, word in zip(["", *words], words, strict=False)]
    named = {word.split("=")[0] for word in words}
    if not named & {"--event", "--settings", "--hepmc", "panda-evaluate", *SUBCOMMANDS}:
        more = SMALLER.get(" ".join(words[:2]), SMALLER.get(words[0], {}))
        small += [word for option, value in more.items() if option not in named for word in (option, value)]
    if words[:2] == ["bench", "scaling"]:
        small += [f"{name}={value}" for name, value in TRAINING.items() if "model" in name]
        small += ["compute.batch_elements=512"] if "compute.batch_elements" not in named else []
    begins = [word for word in words[1:3] if not word.startswith("-")]  # without a preset a training goes on
    if words[0] in TRAINS and begins and not named & set(SUBCOMMANDS):
        kept = words[0] == "prune" or "start" in named  # the network is given
        small += [
            f"{name}={value}"
            for name, value in TRAINING.items()
            if name not in named and not (kept and "model" in name)
        ]
    return small


def _small_word(before: str, word: str) -> str:
    if before in HERE:
        return HERE[before]
    if before in NUMBERS and word.isdecimal():
        return str(min(int(word), NUMBERS[before]))
    name, _, value = word.partition("=")
    if name in NUMBERS and value.isdecimal():
        # A training that is told to go on for longer still does.
        return f"{name}={min(int(value), NUMBERS[name] * (2 if int(value) > 20_000 else 1))}"
    return word


class Workspace:
    """A folder for a page; what a page takes for granted is made once for all pages and workers, and put there when named."""

    def __init__(self, kept: Path, folder: Path, page: str = "") -> None:
        self._kept, self._folder = kept, folder
        self._prepared = {**PREPARED, **PREPARED_FOR.get(page, {})}

    def provide(self, text: str, made: set[str]) -> None:
        """Put there what a step names and does not make itself."""
        for name, make in self._prepared.items():
            named = re.search(rf"(?<![\w/-]){re.escape(name)}(?![\w-])", text)
            if named and name not in made and not (self._folder / name).exists():
                if make is not PREPARED.get(name):  # of this page alone
                    self._make(self._folder, name, make)
                    continue
                with FileLock(self._kept / "lock", is_singleton=True):
                    if not (self._kept / name).exists():
                        self._make(self._kept, name, make)
                if self._folder == self._kept:
                    continue
                (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
                copy = shutil.copytree if (self._kept / name).is_dir() else shutil.copy
                copy(self._kept / name, self._folder / name)

    def makes_as_prepared(self, words: list[str]) -> bool:
        """Whether a command of a page is, word for word, what makes something that pages take for granted."""
        return " ".join(words) in [make for name, make in self._prepared.items() if not (self._folder / name).exists()]

    def _make(self, folder: Path, name: str, make: Callable[[Path], None] | str) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if callable(make):
            make(folder / name)
            return
        Workspace(self._kept, folder).provide(make, {name})
        here = Path.cwd()
        os.chdir(folder)
        try:
            assert main(made_small(shlex.split(make))) == 0, make
        finally:
            os.chdir(here)


def _network(path: Path) -> None:
    from fixtures.networks import random_network
    from ringflow.models.file import save_model

    save_model(path, random_network(), card={"detector": "clic"})


def _events_root(path: Path) -> None:
    from fixtures.edm4hep_files import Content, write_frame

    write_frame(path, Content())


def _hepmc(path: Path) -> None:
    """Events of Pythia, as another generator would write them."""
    import pyhepmc
    from pythia8mc import Pythia

    pythia = Pythia("", False)
    for line in ("Print:quiet = on", "Beams:idA = 11", "Beams:idB = -11", "Beams:eCM = 91.2", "Random:setSeed = on",
                 "WeakSingleBoson:ffbar2gmZ = on", "PDF:lepton = off"):  # fmt: skip
        pythia.readString(line)
    pythia.init()
    with pyhepmc.open(path, "w", format="hepmc2" if path.suffix == ".hepmc2" else None) as file:
        for number in range(3):
            assert pythia.next()
            event = pyhepmc.GenEvent(pyhepmc.Units.GEV, pyhepmc.Units.MM)
            event.event_number = number
            beams = [pyhepmc.GenParticle((0, 0, s * 45.6, 45.6), s * -11, 4) for s in (1, -1)]
            vertex = pyhepmc.GenVertex()
            for beam in beams:
                vertex.add_particle_in(beam)
            for entry in pythia.event:
                if entry.isFinal():
                    four = (entry.px(), entry.py(), entry.pz(), entry.e())
                    vertex.add_particle_out(pyhepmc.GenParticle(four, entry.id(), 1))
            event.add_vertex(vertex)
            file.write(event)


#: What pages take for granted: a command, or a function that writes the file.
PREPARED: dict[str, Callable[[Path], None] | str] = {
    "data/ttbar": f"simulate ttbar --events {EVENTS} --out data/ttbar production.events_per_shard=20",
    "data/zh": f"simulate zh --events {EVENTS} --out data/zh",
    "data/qq": f"simulate qq --events {EVENTS} --out data/qq",
    "data/other": f"simulate ttbar --events {EVENTS} --seed 2 --out data/other",
    "begun.safetensors": _network,
    "runs/first": "train clic_tiny start=begun.safetensors optimizer.rate=1e-6 data=data/ttbar --out runs/first",
    "model.onnx": "export runs/first --out model.onnx",
    "mine.parquet": "reconstruct data/ttbar --model runs/first --out mine.parquet",
    "particles.parquet": "reconstruct data/ttbar --model runs/first --out particles.parquet",
    "particles.root": "reconstruct data/ttbar --model runs/first --out particles.root",
    "report": "evaluate data/ttbar --out report",
    "events.root": _events_root,
    "events.hepmc3.zst": _hepmc,
    "old.hepmc2": _hepmc,
}
#: Uncertainties are fitted on a thousand candidates and more that have a particle each: a network that knows them.
PREPARED_FOR: dict[str, dict[str, Callable[[Path], None] | str]] = {
    "uncertainties": {
        "runs/first": "train clic_tiny start=shipped optimizer.rate=1e-6 data=data/ttbar --out runs/first"
    }
}


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "prepared"
    folder.mkdir(exist_ok=True)
    return folder


class Server:
    """A command that serves until it is interrupted."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._words, self._log = words, folder / f"{words[0]}.log"
        with self._log.open("wb") as log:
            start = [sys.executable, "-m", "ringflow.cli", *words]
            self._process = subprocess.Popen(start, cwd=folder, stdout=log, stderr=log)
        self._url = self._wait()

    def _wait(self) -> str:
        until = time.monotonic() + SECONDS_TO_ANSWER
        while time.monotonic() < until and self._process.poll() is None:
            if found := re.search(r"http://[\d.:]+\S*", self._log.read_text()):
                return found[0].rstrip(";,")
            time.sleep(0.1)
        self._process.kill()
        raise AssertionError(f"{self._words} does not serve: {self._log.read_text()}")

    def stop(self) -> None:
        """Ctrl-C, after an answer."""
        try:
            path = "/v2/health/ready" if self._words[0] == "serve" else ""
            with urllib.request.urlopen(self._url.rstrip("/") + path, timeout=SECONDS_TO_ANSWER) as answer:
                assert answer.status == 200
        finally:
            self._process.send_signal(signal.SIGINT)
            code = self._process.wait(60)
        assert code in (0, 130), self._log.read_text()
        assert "Traceback" not in self._log.read_text()


class Reader:
    """Somebody who follows a page."""

    def __init__(self, page: str, kept: Path, folder: Path, capsys: pytest.CaptureFixture[str], whole: bool) -> None:
        self._page, self._workspace = page, Workspace(kept, folder, page)
        self._folder, self._capsys, self._whole = folder, capsys, whole
        self._server: Server | None = None
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._unmade: set[str] = set()
        self._done: set[str] = set()

    def follow(self, step: Step) -> None:
        if self._whole or self._is_light(step):
            getattr(self, f"_{step.kind}")(step.text)
        else:
            self._take_apart(step)

    def _is_light(self, step: Step) -> bool:
        if step.kind not in ("ringflow", "python", "shell"):
            return True
        if STARTS.search(step.text) or any(name in step.text for name in self._unmade):
            return False
        word = words_of(step.text)[0][0] if step.kind == "ringflow" else ""
        if word in self._done or self._page not in THEIRS.get(word, (self._page,)):
            return False
        self._done |= {word} & set(ONCE)
        return True

    def _take_apart(self, step: Step) -> None:
        """The command fits together, the snippet compiles and finds what it imports; what they would make is not there."""
        if step.kind == "ringflow":
            words, output = words_of(step.text)
            # A network that an earlier step was to make would be missed before a wrong option is.
            made = _outputs(words)
            there = ["shipped" if NETWORK.search(word) and word not in made else word for word in words]
            with suppress(DatasetError):
                app.parse_args(there, exit_on_error=False, print_error=False)
            self._unmade |= (_outputs(words) | ({str(output)} if output else set())) - PREPARED.keys()
        elif step.kind == "python":
            compile(step.text, "snippet", "exec")
            imports = "\n".join(re.findall(r"^(?:from|import) .*", step.text, flags=re.MULTILINE))
            exec(compile(imports, "imports", "exec"), self._names)

    def leave(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.stop()

    def _ringflow(self, text: str) -> None:
        words, output = words_of(text)
        if elsewhere(words):
            app.parse_args(words, exit_on_error=False, print_error=False)
            return
        outputs = set() if not self._whole and self._workspace.makes_as_prepared(words) else _outputs(words)
        words = made_small(words)
        if words[0] == "serve" and not self._whole and "--model" not in words:
            words += ["--model", "model.onnx"]  # else it exports the shipped one first
        self._workspace.provide(shlex.join(words), outputs)
        if outputs != _outputs(words):
            return
        if words[0] in SERVERS and not {"--static", "--phoenix"} & set(words):
            self.leave()
            self._server = Server([*words, *(["--port", "0"] if words[0] != "serve" else [])], self._folder)
            return
        if words[0] in ("launch", "perceptron") or {"ray", "spark"} & set(words):
            self._shell(shlex.join(["python", "-m", "ringflow.cli", *words]))
            return
        self._capsys.readouterr()
        code = main(words)
        told = self._capsys.readouterr()
        # With few events a gate may fail, and that is what the exit code says; nothing else may.
        assert code == 0 or (words[0] in GATES and code == 1 and "FAIL" in told.err), f"{text}\n{words}\n{told.err}"
        if output is not None:
            (self._folder / output).write_text(told.out)

    def _error(self, text: str) -> None:
        """An example of a mistake: one line."""
        self._capsys.readouterr()
        assert main(words_of(text)[0]) == 2
        assert self._capsys.readouterr().err.startswith("ringflow: error:")

    def _python(self, text: str) -> None:
        self._workspace.provide(text, set())
        if '"auto"' in text:  # a cluster that is not there
            text = "\n".join(line for line in text.splitlines() if re.match(r"(from|import) ", line))
        if re.search(r"\b(ray|spark)\b", text):  # they leave a cluster behind in their process
            (self._folder / "snippet.py").write_text(text)
            self._shell("python snippet.py")
            return
        with redirect_stdout(io.StringIO()):
            exec(compile(text, "snippet", "exec"), self._names)

    def _shell(self, text: str) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "SPARK_LOCAL_IP": "127.0.0.1"}
        environment = {**os.environ, **loopback, "PATH": path}
        words = ["bash", "-c", text]
        done = subprocess.run(words, cwd=self._folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{text}\n{done.stderr}"

    def _pip(self, text: str) -> None:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = re.findall(r"ringflow\[([\w,]+)\]", text)
        assert {name for names in asked for name in names.split(",")} <= set(extras), text

    def _other(self, text: str) -> None:
        """Not ours to run."""


GATES = ("validate", "check", "uncertainty", "reproduce", "prune")


OUTPUTS = ("--out", "-o", "--out-file", "--static", "--links", "--phoenix", "--triton")


def _outputs(words: list[str]) -> set[str]:
    return {word for before, word in itertools.pairwise(words) if before in OUTPUTS}


def _pages(pages: list[Path], whole: bool) -> Any:
    kind = "whole" if whole else "page"
    groups = [pytest.mark.xdist_group(f"{kind}-{page.stem}") for page in pages]
    params = [pytest.param(page, marks=group, id=page.stem) for page, group in zip(pages, groups, strict=True)]
    return pytest.mark.parametrize("page", params)


def _follow(page: Path, kept: Path, folder: Path, capsys: pytest.CaptureFixture[str], *, whole: bool) -> None:
    reader = Reader(page.stem, kept, folder, capsys, whole)
    try:
        for step in steps_of(page.read_text(encoding="utf-8")):
            reader.follow(step)
    finally:
        reader.leave()


@_pages(PAGES, whole=False)
def test_a_page_can_be_followed(
    page: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _follow(page, kept, tmp_path, capsys, whole=False)


@pytest.mark.heavy
@_pages(PAGES, whole=True)
def test_a_page_can_be_followed_to_its_last_word(
    page: Path, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _follow(page, kept, tmp_path, capsys, whole=True)

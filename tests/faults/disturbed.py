"""Commands that are disturbed at one of their steps, and what must hold afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from fnmatch import fnmatch
from functools import cached_property
from itertools import count, groupby
from pathlib import Path
from typing import Any, NamedTuple

from fixtures.fake_events import contents

SHIM = Path(__file__).with_name("shim.c")


class How(IntEnum):
    """What happens at a step, as the shim has it."""

    NOTHING, KILLED, STOPPED, DISK_FULL, DISK_BROKEN = range(5)


@dataclass(frozen=True)
class Scenario:
    """A command, given in a folder with the inputs; what it makes goes below `out`.

    `varies` are names below `out` that are not the same after an interruption: what it says of its starts, for example.
    """

    words: tuple[str, ...]
    varies: tuple[str, ...] = ()
    #: How it ends: some of them judge what they find.
    code: int = 0
    #: Two at once: whether each of them writes its file whole, instead of one of them waiting for the other.
    side_by_side: bool = False
    #: What is there before goes at once.
    replaces: bool = False
    #: What is given before, once, to make what the command starts from.
    before: tuple[tuple[str, ...], ...] = ()
    #: Makes what it needs beside what all find.
    more: Callable[[Path], object] | None = None


class Step(NamedTuple):
    """What the shim saw, numbered from 1."""

    number: int
    call: str
    path: str


class Outcome(NamedTuple):
    """How a command ended, and what it said; the code is `stopped`, or negative for a signal."""

    code: Any
    said: str
    steps: list[Step]

    @property
    def complaints(self) -> list[str]:
        """Lines that say what went wrong."""
        return [line for line in self.said.splitlines() if line.startswith("ringflow: error:")]


class Machine:
    """Runs commands, disturbed or not, each in a folder of its own."""

    def __init__(self, folder: Path, inputs: Callable[[Path], object]) -> None:
        self._folder, self._numbers = folder, count()
        library = folder / "shim.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl"], check=True)
        variables = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torch")  # which importing makes
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        words = [sys.executable, str(Path(__file__).with_name("server.py"))]
        self._server = subprocess.Popen(words, env=variables, text=True, **streams)
        self.inputs = folder / "inputs"
        (self.inputs / "tmp").mkdir(parents=True)
        inputs(self.inputs)

    def close(self) -> None:
        """End the process."""
        with self._server:  # the end of its requests is its own
            pass

    def _ask(self, question: Any) -> Any:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    @contextmanager
    def place(self, copied: Path | None = None) -> Iterator[Path]:
        """A folder with the inputs, and what the disturbed command found."""
        place = self._folder / str(next(self._numbers))
        shutil.copytree(copied or self.inputs, place)
        try:
            yield place
        finally:
            shutil.rmtree(place)

    def start(self, words: Sequence[str], place: Path, step: int = 0, how: How = How.NOTHING) -> tuple[int, Path]:
        """Begin a command; its process, and where its notes are."""
        notes = self._folder / f"notes-{next(self._numbers)}"
        notes.mkdir()
        request = {"words": words, "place": str(place), "step": step, "how": how, "notes": str(notes)}
        return self._ask(request), notes

    def end(self, process: int, notes: Path) -> Outcome:
        """Wait for a command, until it is stopped or ends."""
        code = self._ask(process)
        lines = (notes / "steps").read_text(encoding="utf-8").splitlines() if (notes / "steps").exists() else []
        steps = [Step(int(number), call, path) for number, call, path in (line.split(" ", 2) for line in lines)]
        return Outcome(code, (notes / "said").read_text(encoding="utf-8"), steps)

    def run(self, words: Sequence[str], place: Path, step: int = 0, how: How = How.NOTHING) -> Outcome:
        """A command from its beginning to its end."""
        return self.end(*self.start(words, place, step, how))

    def learn(self, words: Sequence[str], place: Path, code: int = 0) -> Outcome:
        """An undisturbed command; what it imports the later ones find."""
        process, notes = self.start(words, place)
        done = self.end(process, notes)
        assert (done.code, done.complaints) == (code, []), done.said
        self._ask(json.loads((notes / "imports").read_text(encoding="utf-8")))
        return done


@dataclass
class Disturbed:
    """A scenario on a machine: undisturbed once, then disturbed at one step after the other."""

    machine: Machine
    scenario: Scenario
    #: How often a disturbed command was killed, said in one line what is wrong, or ended as if nothing had been.
    ended: Counter[str] = field(default_factory=Counter)
    #: Of the undisturbed command.
    seconds: float = 0.0

    @cached_property
    def inputs(self) -> Path:
        """The folder that the command begins in."""
        if not self.scenario.before and self.scenario.more is None:
            return self.machine.inputs
        with self.machine.place() as place:
            if self.scenario.more is not None:
                self.scenario.more(place)
            for words in self.scenario.before:
                self.machine.learn(words, place)
            return Path(shutil.copytree(place, place.with_name(f"{place.name}-before")))

    @cached_property
    def undisturbed(self) -> tuple[list[Step], dict[str, bytes], set[str]]:
        """The steps, all files afterwards, and the names of those that differ from one time to the next."""
        found = []
        for _ in range(2):
            with self.machine.place(self.inputs) as place:
                begin = time.monotonic()
                steps = self.machine.learn(self.scenario.words, place, self.scenario.code).steps
                self.seconds = time.monotonic() - begin  # the second time counts: nothing is imported any more
                found.append(self._files(place))
        first, second = found
        assert first.keys() == second.keys(), first.keys() ^ second.keys()
        return steps, second, {name for name in first if first[name] != second[name]}

    def _files(self, place: Path) -> dict[str, bytes]:
        """All that is there, but for what varies."""
        files = contents(place) | {f"{path.relative_to(place)}/": b"" for path in place.rglob("*") if path.is_dir()}
        kept = {name for name in files if not any(fnmatch(name, varies) for varies in self.scenario.varies)}
        return {name: files[name] for name in kept}

    def chosen(self, most: int | None) -> list[int]:
        """Steps to disturb: all but those amidst many writes to one file, or `most` of them, the last among them."""
        found: list[int] = []
        for call, group in groupby(self.undisturbed[0], lambda step: step.call):
            alike = [step.number for step in group]
            found += [alike[0], alike[len(alike) // 2], alike[-1]] if call == "write" else alike
        found = sorted(set(found))
        if most is None or len(found) <= most:
            return found
        return [found[(place + 1) * len(found) // most - 1] for place in range(most)]

    def disturb(self, step: int, how: How) -> None:
        """The command, disturbed at a step and given again."""
        told = f"{how.name} at step {step} ({self.undisturbed[0][step - 1]})"
        with self.machine.place(self.inputs) as place:
            first = self.machine.run(self.scenario.words, place, step, how)
            self._recovers(place, first, told, killed=how is How.KILLED)

    def kill(self, share: float) -> None:
        """The command, killed when a share of its time is over, wherever it is then, and given again."""
        wait = share * (self.undisturbed and self.seconds)
        with self.machine.place(self.inputs) as place:
            process, notes = self.machine.start(self.scenario.words, place)
            time.sleep(wait)
            os.kill(process, signal.SIGKILL)
            self._recovers(place, self.machine.end(process, notes), f"killed after {wait:.3f} s", killed=True)

    def _recovers(self, place: Path, first: Outcome, told: str, *, killed: bool) -> None:
        words, fine = self.scenario.words, (self.scenario.code, [])
        told = f"{' '.join(words)}: {told}\n{first.said}"
        if killed:
            assert first.code in (-9, self.scenario.code), told  # it may have been at its end
        else:
            assert first.code in (0, 1), told
            assert (first.code, first.complaints) == fine or len(first.complaints) == 1, told
            assert "Traceback" not in first.said, told
        self._whole(place, told)
        if (first.code, first.complaints) == fine:
            self._same(place, told)
        again = self.machine.run(words, place)
        told += f"\n-- and again:\n{again.said}"
        assert (again.code, again.complaints) == fine, told
        self._same(place, told)
        unharmed = (first.code, first.complaints) == fine
        self.ended["unharmed" if unharmed else "killed" if first.code == -9 else "one line"] += 1

    def _same(self, place: Path, told: str) -> None:
        _, expected, timed = self.undisturbed
        found = self._files(place)
        assert found.keys() - expected.keys() == set(), f"{told}\nleft behind: {found.keys() - expected.keys()}"
        assert expected.keys() - found.keys() == set(), f"{told}\nlost: {expected.keys() - found.keys()}"
        other = [name for name in expected if name not in timed and expected[name] != found[name]]
        assert other == [], f"{told}\nother bytes: {other}"

    def _whole(self, place: Path, told: str) -> None:
        """What has its name is whole, and what was there before is there still."""
        before = contents(self.inputs)
        for name, content in contents(place).items():
            hidden = any(part.startswith(".") for part in Path(name).parts) or name.startswith("tmp/")
            if not hidden and before.get(name) != content:
                assert is_whole(place / name), f"{told}\n{name} is half-written"
        lost = {name for name in before if not self.scenario.replaces and not (place / name).exists()}
        assert lost == set(), f"{told}\nlost: {lost}"

    def twice(self, step: int) -> None:
        """The command, stopped at a step while the same command is given; then it goes on."""
        words = self.scenario.words
        with self.machine.place(self.inputs) as place:
            process, notes = self.machine.start(words, place, step, How.STOPPED)
            first = self.machine.end(process, notes)
            assert first.code == "stopped", first.said
            second = self.machine.run(words, place)
            os.kill(process, signal.SIGCONT)
            first = self.machine.end(process, notes)
            told = f"{' '.join(words)}: stopped at {self.undisturbed[0][step - 1]}"
            told += f"\n{first.said}\n-- the other:\n{second.said}"
            failed = [one for one in (first, second) if (one.code, one.complaints) != (self.scenario.code, [])]
            assert len(failed) == (not self.scenario.side_by_side), told
            assert "Traceback" not in told, told
            for one in failed:
                assert one.code in (1, 2), told
                assert ["another" in line for line in one.complaints] == [True], told
            self._same(place, told)


def is_whole(path: Path) -> bool:
    """Whether a file is one of its format from its first byte to its last."""
    content = path.read_bytes()
    if path.suffix in WHOLE:
        try:
            return WHOLE[path.suffix](path, content) is not False
        except Exception:
            return False
    return True


def _ends(*ends: bytes) -> Callable[[Path, bytes], bool]:
    return lambda path, content: content.rstrip().endswith(ends)


def _parquet(path: Path, content: bytes) -> None:
    import pyarrow.parquet as pq

    pq.read_table(path, page_checksum_verification=True)


def _toml(path: Path, content: bytes) -> None:
    import tomllib

    tomllib.loads(content.decode())


def _tensors(path: Path, content: bytes) -> None:
    from safetensors.numpy import load

    load(content)


def _onnx(path: Path, content: bytes) -> None:
    import onnx

    onnx.checker.check_model(onnx.load_from_string(content))


def _root(path: Path, content: bytes) -> None:
    import uproot

    with uproot.open(path) as file:
        for tree in file.values():
            getattr(tree, "arrays", list)()


WHOLE: dict[str, Callable[[Path, bytes], Any]] = {
    ".json": lambda path, content: json.loads(content),
    ".toml": _toml,
    ".parquet": _parquet,
    ".safetensors": _tensors,
    ".onnx": _onnx,
    ".root": _root,
    ".png": _ends(b"IEND\xaeB`\x82"),
    ".svg": _ends(b"</svg>"),
    ".html": _ends(b"</html>"),
}


def spread(found: Iterable[int]) -> Iterator[tuple[int, How]]:
    """Every step with one of the disturbances, in turn."""
    for number, step in enumerate(found):
        yield step, (How.KILLED, How.DISK_FULL, How.DISK_BROKEN)[number % 3]

"""What is unpickled can run anything, so it never comes from outside: where it is done at all is listed here, and why."""

from __future__ import annotations

import re
from pathlib import Path

import ringflow

SOURCE = Path(ringflow.__file__).parent

#: Everything in the package's dependencies that unpickles what it gets, by what it is called.
LOADS = re.compile(
    r"\b(?:\w*pickle\.(?:loads?|Unpickler)|import \w*pickle|pickle import|Unpickler|marshal|shelve|joblib|dill|jsonpickle"
    r"|torch\.load|allow_pickle|read_pickle|weights_only|\w+_object_list|\w+_gather_object|multiprocessing\.managers"
    r"|BaseManager|multiprocessing\.connection import [^\n]*(?:Client|Listener))\b"
)
#: File -> what of it is found there, and why nothing from outside gets there.
ALLOWED = {
    # Functions and their results, which can be anything, as Spark itself carries them between its driver and its executors;
    # the two loads are of a pipe between a process and its child, and of what Spark's own `collect` gave.
    "launch/spark.py": ["cloudpickle.loads", "import cloudpickle", "cloudpickle.load"],
}


def found(text: str) -> list[str]:
    return LOADS.findall(text)


def test_the_search_finds_what_it_is_for() -> None:
    lines = [
        *("import pickle", "from pyspark import cloudpickle", "cloudpickle.load(file)", "pickle.Unpickler(file)"),
        *("torch.load(path)", "np.load(path, allow_pickle=True)", "dist.all_gather_object(all, one)"),
        *("dist.broadcast_object_list([a])", "from multiprocessing.connection import Client, wait", "import shelve"),
    ]
    assert [line for line in lines if not found(line)] == []
    assert found("no pickle in here; from multiprocessing.connection import Connection, wait") == []


def test_nothing_is_unpickled_but_what_is_listed() -> None:
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert {name: found(text) for name, text in texts.items() if found(text)} == ALLOWED

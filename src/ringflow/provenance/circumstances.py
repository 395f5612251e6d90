"""What is different now from when something was made: code, versions, machine."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ringflow import __version__
from ringflow.base.provenance import KEY_DEPENDENCIES, code_version, package_version


class Difference(NamedTuple):
    """One thing that was another then."""

    what: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.what} was {self.was}, is {self.now} now"


def differences(record: Mapping[str, Any], machine: Mapping[str, Any] | None = None) -> list[Difference]:
    """What a record tells that is different here; what it does not tell is said to be not recorded."""
    found = list(_code(record.get("code")))
    pairs: list[tuple[str, Any, Any]] = [
        ("ringflow", record.get("ringflow"), __version__),
        ("Python", record.get("python"), platform.python_version()),
        ("platform", record.get("platform"), f"{platform.system()} {platform.machine()}"),
    ]
    before = record.get("packages") or {}
    pairs += [(name, before[name], package_version(name)) for name in KEY_DEPENDENCIES if name in before]
    if machine is not None:
        told = record.get("machine") or {}
        pairs += [(name, told.get(name), machine.get(name)) for name in machine]
    for what, was, now in pairs:
        if was != now:
            found.append(Difference(what, "not recorded" if was is None else str(was), str(now)))
    return found


def _code(was: Mapping[str, Any] | None) -> Iterator[Difference]:
    now = code_version()
    before, here = (code["commit"][:12] if code else "not a checkout" for code in (was, now))
    if before != here:
        yield Difference("commit", before, here)
    states = ["changed since its commit" if code and code.get("dirty") else "as committed" for code in (was, now)]
    if any(state.startswith("changed") for state in states):
        yield Difference("source", *states)

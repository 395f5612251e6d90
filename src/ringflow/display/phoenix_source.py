"""Events of a Phoenix file, to be shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ringflow.display.phoenix_read import phoenix_scene, read_phoenix
from ringflow.display.ranking import Errors


class PhoenixSource:
    """A source of events, see `source.py`."""

    notes: tuple[str, ...] = ()
    explained: tuple[int, ...] = ()

    def __init__(self, path: Path, events: int | None = None) -> None:
        self.path = path
        self._events = read_phoenix(path)
        self._keys = list(self._events)[:events]
        self.num_events = len(self._keys)

    @property
    def about(self) -> dict[str, Any]:
        """What all scenes have in common, as the first has it."""
        first = self.scene(0)
        return {
            "source": self.path.name,
            "sample": first["event"]["sample"],
            "detector": first["detector"]["name"],
            "truth": False,
            "reconstructions": [{name: one[name] for name in ("name", "title")} for one in first["reconstructions"]],
        }

    def scene(self, index: int) -> dict[str, Any]:
        """The scene of an event."""
        return phoenix_scene(self._keys[index], self._events[self._keys[index]], index)

    def errors(self, start: int, stop: int) -> Errors | None:
        """Nothing to compare with."""
        return None

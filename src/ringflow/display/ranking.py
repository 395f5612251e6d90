"""Which events are worst: errors of all events, computed in the background and given as far as they are known."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Any

#: Reconstruction -> measure (`jet`, `energy`) -> error of every event, in GeV.
Errors = dict[str, dict[str, list[float]]]
Compute = Callable[[int, int], Errors | None]

#: Few, because whoever asks for an event in the meantime waits for a portion.
_EVENTS_AT_ONCE = 10
_DIGITS = 3


class Ranking:
    """Errors of the first events; more and more of them, once somebody has asked."""

    def __init__(self, compute: Compute, num_events: int) -> None:
        self._compute, self._num_events = compute, num_events
        self._errors: Errors = {}
        self._done, self._failure = 0, ""
        self._lock, self._stop = Lock(), Event()
        self._thread: Thread | None = None

    def known(self) -> dict[str, Any]:
        """What is known by now; the first call starts the work."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._thread = Thread(target=self._work, name="ranking", daemon=True)
                self._thread.start()
            errors = {name: {by: list(column) for by, column in part.items()} for name, part in self._errors.items()}
            return {"done": self._done, "of": self._num_events, "failure": self._failure, "errors": errors}

    def complete(self) -> dict[str, Any]:
        """The errors of all events, computed here and now."""
        self._work()
        return self.known_so_far()

    def known_so_far(self) -> dict[str, Any]:
        """What is known, without starting anything."""
        with self._lock:
            return {"done": self._done, "of": self._num_events, "failure": self._failure, "errors": self._errors}

    def stop(self) -> None:
        """End the work."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            while self._done < self._num_events and not self._stop.is_set():
                last = min(self._done + _EVENTS_AT_ONCE, self._num_events)
                self._add(self._compute(self._done, last), last)
        except Exception as error:  # the page says why; the events themselves can still be shown
            with self._lock:
                self._failure = " ".join(str(error).split()) or type(error).__name__

    def _add(self, errors: Errors | None, done: int) -> None:
        with self._lock:
            for name, columns in (errors or {}).items():
                known = self._errors.setdefault(name, {})
                for by, values in columns.items():
                    known.setdefault(by, []).extend(round(value, _DIGITS) for value in values)
            self._done = done if errors is not None else self._num_events

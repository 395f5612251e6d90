"""Which events are worst: errors of all events, computed in the background and given as far as they are known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event, Thread
from typing import Any

#: Reconstruction -> measure (`jet`, `energy`) -> error of every event, in GeV.
Errors = dict[str, dict[str, list[float]]]
Compute = Callable[[int, int], Errors | None]

_DIGITS = 3


class Ranking:
    """Errors of the first events; more and more of them, once somebody has asked."""

    def __init__(self, compute: Compute, num_events: int) -> None:
        self._compute, self._num_events = compute, num_events
        self._errors: Errors = {}
        self._done, self._failure, self._people = 0, "", 0
        self._turn, self._stop = Condition(), Event()
        self._thread: Thread | None = None

    def known(self) -> dict[str, Any]:
        """What is known by now; the first call starts the work."""
        with self._turn:
            if self._thread is None and not self._stop.is_set():
                self._thread = Thread(target=self._work, name="ranking", daemon=True)
                self._thread.start()
            errors = {name: {by: list(column) for by, column in part.items()} for name, part in self._errors.items()}
            return {"done": self._done, "of": self._num_events, "failure": self._failure, "errors": errors}

    @contextmanager
    def giving_way(self) -> Iterator[None]:
        """For as long as somebody waits for an event, no other one is begun here."""
        with self._turn:
            self._people += 1
        try:
            yield
        finally:
            with self._turn:
                self._people -= 1
                self._turn.notify_all()

    def stop(self) -> None:
        """End the work."""
        self._stop.set()
        with self._turn:
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            while self._done < self._num_events:
                with self._turn:
                    self._turn.wait_for(lambda: self._stop.is_set() or not self._people)
                if self._stop.is_set():
                    return
                self._add(self._compute(self._done, self._done + 1))
        except Exception as error:  # the page says why; the events themselves can still be shown
            with self._turn:
                self._failure = " ".join(str(error).split()) or type(error).__name__

    def _add(self, errors: Errors | None) -> None:
        with self._turn:
            for name, columns in (errors or {}).items():
                known = self._errors.setdefault(name, {})
                for by, values in columns.items():
                    known.setdefault(by, []).extend(round(value, _DIGITS) for value in values)
            self._done = self._num_events if errors is None else self._done + 1

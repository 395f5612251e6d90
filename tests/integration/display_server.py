"""A server of the event display in the process of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from ringflow.display.server import Answers, open_server
from ringflow.display.source import EventSource


@contextmanager
def served(source: EventSource, start: int) -> Iterator[str]:
    """The address of the page, for as long as it lasts."""
    answers = Answers(source, start)
    server = open_server(answers, 0)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        answers.stop()

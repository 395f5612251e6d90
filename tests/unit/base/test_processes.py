"""Keeping freed memory is a request, never a failure."""

from __future__ import annotations

import ctypes

import pytest

from ringflow.base.processes import keep_freed_memory


def test_it_is_harmless_where_the_c_library_lacks_it(monkeypatch: pytest.MonkeyPatch):
    def no_library(name: object) -> object:
        raise OSError("no such library")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    keep_freed_memory()


def test_it_can_be_asked_twice():
    keep_freed_memory()
    keep_freed_memory()

"""What other code may import from `base`: a name that comes or goes does so on purpose."""

from __future__ import annotations

import importlib
import inspect

import pytest

import ringflow

EXPORTED = {
    "config": {"Settings", "preset_names", "preset_path", "to_toml", "write", "override", "explained", "value_of"},
    "errors": {
        "RingflowError",
        "UsageError",
        "SettingsError",
        "StoppedError",
        "FailureError",
        "InputFileError",
        "DatasetError",
    },
    "log": {"interactive", "say", "speaks", "complain", "table", "progress", "SparseProgress"},
    "output": {"finite_or_null", "print_json", "show_rows", "show_summary", "finish"},
    "provenance": {"collect", "package_version", "describe_input", "code_version"},
    "rundir": {"prepare", "write_atomic", "atomic_path", "write_errors", "require_suffix"},
    "toml": {"dump_toml", "toml_value"},
    "words": {"name_in_words", "time_in_words", "size_in_words"},
}


@pytest.mark.parametrize("name", EXPORTED)
def test_a_module_exports_these_names_and_explains_them(name: str) -> None:
    module = importlib.import_module(f"ringflow.base.{name}")
    public = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    made_here = {key for key, value in public.items() if inspect.isclass(value) or callable(value)}
    assert {key for key in made_here if type(public[key]).__name__ != "TypeVar"} == EXPORTED[name]
    assert [key for key in EXPORTED[name] if not inspect.getdoc(public[key])] == []


def test_the_package_has_a_version() -> None:
    major, minor, patch = ringflow.__version__.split(".")
    assert all(part.isdecimal() for part in (major, minor, patch))

"""Writing TOML: the standard library only reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def dump_toml(data: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """TOML text of nested dicts, lists, strings, numbers and booleans: values in the order given, then sections.

    Comments are by `section.key`; each stands above its value. TOML has no null: beside comments, what is None is one.
    """
    return "\n".join(_table(data, (), comments or {})) + "\n"


def _table(data: Mapping[str, Any], path: tuple[str, ...], comments: Mapping[str, str]) -> Iterator[str]:
    sections = {key: value for key, value in data.items() if isinstance(value, Mapping)}
    for key, value in data.items():
        if key not in sections:
            if comment := comments.get(".".join((*path, key))):
                yield f"# {comment}"
            yield f"# {_key(key)} =" if value is None and comments else f"{_key(key)} = {toml_value(value)}"
    for key, section in sections.items():
        inner = (*path, key)
        yield f"\n[{'.'.join(map(_key, inner))}]"
        yield from _table(section, inner, comments)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def toml_value(value: object) -> str:
    """One value as TOML writes it on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case Mapping():
            return "{" + ", ".join(f"{_key(key)} = {toml_value(inner)}" for key, inner in value.items()) + "}"
    raise TypeError(f"TOML has no {type(value).__name__}: {value!r}")


def _text(text: str) -> str:
    # JSON escapes all that TOML wants escaped, except DEL.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

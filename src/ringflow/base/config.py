"""Settings: frozen pydantic models, TOML presets and `section.field=value` overrides.

    settings = SimulateSettings.resolve("clic_small", ["production.events=500", "generator.sample=ttbar"])
    write(settings, run_folder / "settings.toml")
    again = SimulateSettings.resolve(run_folder / "settings.toml", [])

A preset is strict (no text where a number belongs) and complete (it names every field, so that a later default cannot
change it). TOML has no null: a field that may be None defaults to None and is left out; `section.field=` unsets it.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin

import pydantic

from ringflow.base.errors import SettingsError
from ringflow.base.rundir import write_atomic
from ringflow.base.words import did_you_mean

PRESETS = Path(__file__).parent.parent / "presets"

S = TypeVar("S", bound="Settings")
#: Characters of a wrong value that are shown.
_LONGEST_VALUE = 200
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STEERING = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Settings(pydantic.BaseModel):
    """Base of every settings section: immutable. Unknown fields are errors, and so are numbers that are not finite."""

    model_config: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    #: Words that others use for a setting, and what to write instead: a setting, or one with a value that means something else.
    also_called: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        for name, field in cls.model_fields.items():
            if _allows_none(field.annotation) and field.get_default() is not None:
                raise TypeError(f"{cls.__name__}.{name} may be None, so it must default to None: TOML has no null")

    @classmethod
    def resolve(cls, preset: Path | str | None = None, overrides: Sequence[str] = (), *, complete: bool = True) -> Self:
        """The preset (a TOML file, or the name of a shipped preset) with the overrides on top of it.

        A file that an earlier version wrote need not be complete: what was not yet there at that time has its default.
        """
        data: dict[str, Any] = {}
        if preset is not None:
            path = preset_path(preset)
            data = _read_toml(path)
            settings = _validate(cls, data, f"{path}: ")
            if complete and (missing := next(_left_out(settings), None)):
                raise SettingsError(f"{path}: missing setting {missing!r}; a settings file names every field")
        for override in overrides:
            _apply(cls, data, override)
        return _validate(cls, data, "")

    @classmethod
    def meant_by(cls, word: str, *, similar: bool = True) -> str | None:
        """What to write for a word: the setting of that name in any section, what others call so, or what is spelt alike."""
        known = {name.rpartition(".")[2]: name for name in reversed(list(explained(cls)))} | dict(cls.also_called)
        word = word.strip("-").replace("-", "_").lower()
        close = difflib.get_close_matches(word, known, n=1, cutoff=0.75) if similar else []
        return known.get(word) or (known[close[0]] if close else None)


def preset_names() -> list[str]:
    """Names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def preset_path(preset: Path | str) -> Path:
    """Where a preset is: a name without a suffix is one of ours, anything else a file."""
    path = Path(preset)
    if path.is_file():
        return path
    if isinstance(preset, str) and preset in preset_names():
        return PRESETS / f"{preset}.toml"
    known = preset_names()
    hint = did_you_mean(str(preset), known)
    then = f", and then data={path}" if path.is_dir() else ""
    raise SettingsError(
        f"no settings file or preset {str(preset)!r}; {hint}give a TOML file, or a preset ({', '.join(known)}){then}"
    )


def require_curve(points: Sequence[float], *curves: Sequence[float]) -> None:
    """For validators: points of a curve in the logarithm of an energy are positive and rise, and each has a value."""
    if not points or min(points) <= 0 or any(after <= before for before, after in pairwise(points)):
        raise ValueError(f"energies must be positive and rise, not {list(points)}")
    if wrong := [len(curve) for curve in curves if len(curve) != len(points)]:
        raise ValueError(f"there are {len(points)} energies and {wrong[0]} values; give as many of both")


def value_of(field: str, preset: Path | str | None, overrides: Sequence[str]) -> Any:
    """What a preset and overrides say of one field, None if nothing; for those who know no more of the settings."""
    value: Any = {} if preset is None else _read_toml(preset_path(preset))
    for key in field.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    said = [text.partition("=")[2] for text in overrides if text.partition("=")[0].strip() == field]
    return _parse(said[-1].strip()) if said else value


def to_toml(settings: Settings, *, explain: bool = False) -> str:
    """The resolved settings as text that `resolve` reads back to an equal object; if asked to, with what each means."""
    words = explained(type(settings)) if explain else {}
    return dump_toml(settings.model_dump(mode="json", exclude_none=not explain), words)


def explained(model: type[Settings], prefix: str = "") -> dict[str, str]:
    """Every setting as `section.field` of a class, with the comment `#:` above it."""
    found: dict[str, str] = {}
    comments: dict[str, str] = {}
    for base in reversed(model.__mro__[: model.__mro__.index(Settings)]):
        for comment, name in re.findall(r"((?:^    #: .*\n)+)^    (\w+):", inspect.getsource(base), flags=re.MULTILINE):
            comments[name] = " ".join(comment.replace("#: ", "").split())
    for name, field in model.model_fields.items():
        section = _section_of(field.annotation)
        found |= explained(section, f"{prefix}{name}.") if section else {prefix + name: comments.get(name, "")}
    return found


def write(settings: Settings, path: Path, *, explain: bool = False) -> None:
    """Write the resolved settings into a file; if asked to, with what each means."""
    write_atomic(path, to_toml(settings, explain=explain))


def override(field: str, value: object) -> str:
    """The `section.field=value` string that sets one field, whatever is in the value; None unsets it."""
    if value is None:
        return f"{field}="
    return f"{field}={toml_value(str(value) if isinstance(value, Path) else value)}"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (
        ValueError,
        RecursionError,
    ) as error:  # not only what it has a name for: a number of 5,000 digits, 1,000 brackets
        raise SettingsError(f"{path}: not a TOML file: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}; give a TOML file") from None


def _apply(model: type[Settings], data: dict[str, Any], text: str) -> None:
    """Put one override into the nested data, making the sections on its way."""
    name, equals, value = text.partition("=")
    keys = name.strip().split(".")
    if not equals or not all(keys):
        meant = f"data={text}" if "data" in model.model_fields and Path(text).exists() else "section.field=value"
        raise SettingsError(f"cannot read {text!r}; write {meant}")
    section: type[Settings] | None = model
    field: pydantic.fields.FieldInfo | None = None
    for depth, key in enumerate(keys):
        if section is not None and key not in section.model_fields:
            raise SettingsError(_unknown(model, keys[: depth + 1]))
        field = None if section is None else section.model_fields[key]
        section = None if field is None else _section_of(field.annotation)
        if depth < len(keys) - 1:
            data = data.setdefault(key, {})
            if not isinstance(data, dict):
                raise SettingsError(f"{'.'.join(keys[: depth + 1])!r} is a value, not a section, in {text!r}")
    if (parsed := _parse(value.strip())) is None:
        if field is not None and not _allows_none(field.annotation):
            raise SettingsError(f"{text} has no value; give one, or leave it out for {field.get_default()!r}")
        data.pop(keys[-1], None)
    else:
        data[keys[-1]] = parsed


def _parse(value: str) -> Any:
    """A TOML value; nothing is None, and what TOML cannot read is a bare word."""
    if not value:
        return None
    try:
        return tomllib.loads(f"value = {value}")["value"] if "\n" not in value else value
    except (ValueError, RecursionError):
        return value


def _validate(model: type[S], data: Mapping[str, Any], where: str) -> S:
    # Through JSON, because strict validation of Python objects takes no text for a path and no list for a tuple.
    try:
        text = json.dumps(data, default=str)
    except ValueError:  # a hexadecimal one, which TOML reads
        raise SettingsError(
            f"{where}a number has more than {sys.get_int_max_str_digits()} digits; write another"
        ) from None
    try:
        return model.model_validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        # A misspelt name also leaves the right one missing: the misspelling is what to tell.
        problems = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] != "extra_forbidden")
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise SettingsError(where + _explain(model, problems[0]) + more) from None


def _explain(model: type[Settings], problem: Mapping[str, Any]) -> str:
    keys = [str(key) for key in problem["loc"]]
    if problem["type"] == "extra_forbidden":
        return _unknown(model, keys)
    name = ".".join(keys)
    if problem["type"] == "missing":
        return f"missing setting {name!r}"
    message = problem["msg"].removeprefix("Value error, ")
    message = " ".join((message[:1].lower() + message[1:]).split())
    return f"{_short(name)}={_short(problem['input'])}: {_short(message)}" if name else _short(message)


def _short(given: object) -> str:
    text = str(given)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _unknown(model: type[Settings], keys: Sequence[str]) -> str:
    """Name the field and its neighbours."""
    section: type[Settings] | None = model
    for key in keys[:-1]:
        if section is not None and key in section.model_fields:
            section = _section_of(section.model_fields[key].annotation)
    fields = list(section.model_fields) if section is not None else []
    close = difflib.get_close_matches(keys[-1], fields, n=1)
    meant = ".".join([*keys[:-1], close[0]]) if close else model.meant_by(keys[-1])
    hint = f"; did you mean {meant!r}?" if meant else ";"
    return f"unknown setting {_short('.'.join(keys))!r}{hint} fields there: {', '.join(fields)}"


def _section_of(annotation: Any) -> type[Settings] | None:
    """The settings class inside an annotation such as `Part`, `Part | None` or `tuple[Part, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_of(part))), None)


def _allows_none(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


def _left_out(value: object, name: str = "") -> Iterator[str]:
    """Names of the fields a settings file did not give, except those that are None."""
    if isinstance(value, Settings):
        for key in type(value).model_fields:
            inner = getattr(value, key)
            if key in value.model_fields_set:
                yield from _left_out(inner, f"{name}.{key}" if name else key)
            elif inner is not None:
                yield f"{name}.{key}" if name else key
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _left_out(item, f"{name}.{index}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _left_out(item, f"{name}.{key}")


# Writing TOML: the standard library only reads it.


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
    # JSON escapes all that TOML wants escaped, except DEL; and on a terminal, others would steer it, see `base/log.py`.
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))

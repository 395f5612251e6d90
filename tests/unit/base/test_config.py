from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringflow.base.config import Settings, dump_toml, override, preset_names, to_toml, write
from ringflow.base.errors import SettingsError

TEXT = st.text(st.characters(codec="utf-8"))
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10)


class Layer(Settings):
    thickness: float
    name: str = "plain"


class Machine(Settings):
    seed: int = pydantic.Field(default=1, ge=0)
    note: str | None = None
    file: Path | None = None
    fast: bool = True
    limit: float = 1e9


class Whole(Settings):
    name: str = "first"
    machine: Machine = Machine()
    layers: tuple[Layer, ...] = ()
    sizes: dict[str, int] = pydantic.Field(default_factory=dict)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[[" * 1000, "not a TOML file"),
        ("seed = " + "1" * 5000, "not a TOML file"),
        ("seed = 0x" + "f" * 5000, "digits"),
        ("machine.limit = inf", "finite"),
        ("n" * 5000 + " = 1", "unknown setting"),
        ('name = ["' + "x" * 5000 + '"]', "name="),
    ],
)
def test_a_hostile_file_is_one_short_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    message = error_of([], path)
    assert words in message
    assert len(message) < 1000


def error_of(overrides: list[str], preset: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        Whole.resolve(preset, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_overrides_are_toml_values_or_bare_words() -> None:
    words = ["name=two words", "machine.seed=7", "machine.fast=false", "machine.limit=2", 'machine.note="7"']
    whole = Whole.resolve(None, [*words, "machine.file=/some/where", "sizes.a=3", "layers=[{thickness=1.5}]"])
    assert whole.machine == Machine(seed=7, fast=False, limit=2.0, note="7", file=Path("/some/where"))
    assert (whole.name, whole.sizes, whole.layers) == ("two words", {"a": 3}, (Layer(thickness=1.5),))
    with pytest.raises(pydantic.ValidationError):
        whole.name = "second"  # type: ignore[misc]


def test_the_last_override_wins_and_nothing_unsets() -> None:
    assert Whole.resolve(None, ["machine.seed=2", "machine.seed=3"]).machine.seed == 3
    assert Whole.resolve(None, ["machine.note=x", "machine.note="]).machine.note is None


@pytest.mark.parametrize(
    "value", ["plain", 'quo"ted', "a=b", "ä\x7f\n\\", "true", "7", "", " spaced ", "\x9b2J\u202e\u2028"]
)
def test_override_carries_any_text(value: str) -> None:
    assert Whole.resolve(None, [override("name", value)]).name == value


def test_override_carries_other_values() -> None:
    given_fields = {"machine.seed": 3, "machine.fast": False, "machine.file": Path("/a b"), "machine.note": None}
    whole = Whole.resolve(None, ["machine.note=x", *(override(name, value) for name, value in given_fields.items())])
    assert whole.machine == Machine(seed=3, fast=False, file=Path("/a b"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("machine.sead=3", "'machine.sead'; did you mean 'machine.seed'? fields there: seed, note, file, fast, limit"),
        ("computer.seed=3", "'computer'; fields there: name, machine, layers, sizes"),
        ("machine.seed", "write section.field=value"),
        (".seed=3", "write section.field=value"),
        ("machine.seed=ten", "machine.seed=ten: input should be a valid integer"),
        ("machine.seed=-1", "machine.seed=-1: input should be greater than or equal to 0"),
        ("machine.seed.low=1", "machine.seed"),
        ("machine=3", "machine=3"),
        ("machine=3 machine.seed=4", "'machine' is a value, not a section"),
        ("machine.seed=ten machine.fast=maybe", "(and 1 more)"),
    ],
)
def test_a_wrong_override_is_named(words: str, expected: str) -> None:
    assert expected in error_of(words.split())


@given(
    note=st.none() | TEXT,
    limit=st.floats(allow_nan=False, allow_infinity=False),
    sizes=st.dictionaries(TEXT, st.integers(-(2**63), 2**63 - 1)),
)
def test_any_settings_read_back(
    tmp_path_factory: pytest.TempPathFactory, note: str | None, limit: float, sizes: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("settings") / "settings.toml"
    whole = Whole(machine=Machine(note=note, limit=limit), sizes=sizes, layers=(Layer(thickness=limit),))
    write(whole, path)
    assert Whole.resolve(path) == whole
    assert Whole.resolve(str(path), ["machine.seed=9"]).machine.seed == 9


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seed = 1\n", "", "missing setting 'machine.seed'"),
        ("seed = 1", 'seed = "1"', "machine.seed=1: input should be a valid integer"),
        ("thickness", "thicknes", "unknown setting 'layers.0.thicknes'; did you mean 'layers.0.thickness'?"),
        ("fast = true", 'fast = true\nnotes = "x"', "unknown setting 'machine.notes'"),
        ('name = "first"', "name = ", "not a TOML file"),
    ],
)
def test_a_preset_is_strict_complete_and_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "preset.toml"
    text = to_toml(Whole(layers=(Layer(thickness=1.0),)))
    assert old in text
    path.write_text(text.replace(old, new))
    message = error_of([], path)
    assert message.startswith(str(path))
    assert expected in message


def test_a_preset_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "no settings file or preset" in error_of([], tmp_path / "missing.toml")
    assert "no settings file or preset" in error_of([], tmp_path)
    assert all(name.isidentifier() for name in preset_names())


def test_an_optional_field_must_default_to_none() -> None:
    with pytest.raises(TypeError, match="must default to None"):

        class Wrong(Settings):
            number: int | None = 5


@settings(max_examples=40)
@given(st.dictionaries(TEXT, VALUES))
def test_what_is_written_as_toml_reads_back(data: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(data)) == data


def test_toml_has_values_before_sections_and_no_null() -> None:
    assert dump_toml({"part": {"size": 1}, "name": "x"}) == 'name = "x"\n\n[part]\nsize = 1\n'
    with pytest.raises(TypeError, match="NoneType"):
        dump_toml({"nothing": None})

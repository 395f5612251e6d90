from __future__ import annotations

import math
from pathlib import Path

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringflow.base.config import Settings, override, preset_names, to_toml, write
from ringflow.base.errors import SettingsError


class Layer(Settings):
    thickness: float
    name: str = "plain"


class Machine(Settings):
    seed: int = pydantic.Field(default=1, ge=0)
    note: str | None = None
    file: Path | None = None
    fast: bool = True
    limit: float = math.inf


class Whole(Settings):
    name: str = "first"
    machine: Machine = Machine()
    layers: tuple[Layer, ...] = ()
    sizes: dict[str, int] = pydantic.Field(default_factory=dict)


def error_of(overrides: list[str], preset: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        Whole.resolve(preset, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_overrides_are_toml_values_or_bare_words() -> None:
    words = ["name=two words", "machine.seed=7", "machine.fast=false", "machine.limit=2", 'machine.note="7"']
    whole = Whole.resolve(None, [*words, "machine.file=/some/where", "sizes.a=3", "layers=[{thickness=1.5}]"])
    assert whole.name == "two words"
    assert whole.machine == Machine(seed=7, fast=False, limit=2.0, note="7", file=Path("/some/where"))
    assert whole.sizes == {"a": 3}
    assert whole.layers == (Layer(thickness=1.5),)


def test_the_last_override_wins_and_nothing_unsets() -> None:
    assert Whole.resolve(None, ["machine.seed=2", "machine.seed=3"]).machine.seed == 3
    assert Whole.resolve(None, ["machine.note=x", "machine.note="]).machine.note is None


def test_settings_do_not_change() -> None:
    with pytest.raises(pydantic.ValidationError):
        Whole().name = "second"  # type: ignore[misc]


@pytest.mark.parametrize("value", ["plain", 'quo"ted', "a=b", "ä\x7f\n\\", "true", "7", "", " spaced "])
def test_override_carries_any_text(value: str) -> None:
    assert Whole.resolve(None, [override("name", value)]).name == value


def test_override_carries_other_values() -> None:
    given_fields = {"machine.seed": 3, "machine.fast": False, "machine.file": Path("/a b"), "machine.note": None}
    whole = Whole.resolve(None, ["machine.note=x", *(override(name, value) for name, value in given_fields.items())])
    assert whole.machine == Machine(seed=3, fast=False, file=Path("/a b"))


def test_a_typo_names_the_field_and_its_neighbours() -> None:
    message = error_of(["machine.sead=3"])
    assert "'machine.sead'" in message
    assert "did you mean 'machine.seed'?" in message
    assert "seed, note, file, fast, limit" in message


def test_an_unknown_section_names_the_sections() -> None:
    message = error_of(["computer.seed=3"])
    assert "'computer'" in message
    assert "name, machine, layers, sizes" in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("machine.seed", "write section.field=value"),
        (".seed=3", "write section.field=value"),
        ("machine.seed=ten", "machine.seed=ten: input should be a valid integer"),
        ("machine.seed=-1", "machine.seed=-1: input should be greater than or equal to 0"),
        ("machine.seed.low=1", "machine.seed"),
        ("machine=3", "machine=3"),
    ],
)
def test_a_wrong_override_is_named(text: str, expected: str) -> None:
    assert expected in error_of([text])


def test_an_override_below_a_value_is_named() -> None:
    assert "'machine' is a value, not a section" in error_of(["machine=3", "machine.seed=4"])


def test_more_than_one_problem_is_counted() -> None:
    assert "(and 1 more)" in error_of(["machine.seed=ten", "machine.fast=maybe"])


def test_written_settings_read_back(tmp_path: Path) -> None:
    words = ["machine.note=x", "layers=[{thickness=1.5, name='l'}]", "sizes={'a b'=1}"]
    whole = Whole.resolve(None, words)
    write(whole, tmp_path / "settings.toml")
    assert Whole.resolve(tmp_path / "settings.toml") == whole
    assert Whole.resolve(str(tmp_path / "settings.toml"), ["machine.seed=9"]).machine.seed == 9


@given(
    note=st.none() | st.text(st.characters(codec="utf-8")),
    limit=st.floats(allow_nan=False),
    sizes=st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers(-(2**63), 2**63 - 1)),
)
def test_any_settings_read_back(
    tmp_path_factory: pytest.TempPathFactory, note: str | None, limit: float, sizes: dict[str, int]
) -> None:
    path = tmp_path_factory.mktemp("settings") / "settings.toml"
    whole = Whole(machine=Machine(note=note, limit=limit), sizes=sizes, layers=(Layer(thickness=limit),))
    path.write_text(to_toml(whole), encoding="utf-8", newline="\n")
    assert Whole.resolve(path) == whole


def preset(folder: Path, text: str) -> Path:
    path = folder / "preset.toml"
    path.write_text(text)
    return path


def test_a_preset_names_every_field(tmp_path: Path) -> None:
    text = to_toml(Whole()).replace("seed = 1\n", "")
    assert "missing setting 'machine.seed'" in error_of([], preset(tmp_path, text))


def test_a_preset_is_strict(tmp_path: Path) -> None:
    text = to_toml(Whole()).replace("seed = 1", 'seed = "1"')
    message = error_of([], preset(tmp_path, text))
    assert "machine.seed=1: input should be a valid integer" in message
    assert "preset.toml" in message


def test_a_typo_in_a_preset_names_the_file_and_the_field(tmp_path: Path) -> None:
    text = to_toml(Whole(layers=(Layer(thickness=1.0),))).replace("thickness", "thicknes")
    message = error_of([], preset(tmp_path, text))
    assert "preset.toml" in message
    assert "unknown setting 'layers.0.thicknes'; did you mean 'layers.0.thickness'?" in message


def test_an_unknown_optional_field_in_a_preset_is_refused(tmp_path: Path) -> None:
    text = to_toml(Whole()).replace("fast = true", 'fast = true\nnotes = "x"')
    assert "unknown setting 'machine.notes'" in error_of([], preset(tmp_path, text))


def test_a_broken_preset_is_named(tmp_path: Path) -> None:
    assert "not a TOML file" in error_of([], preset(tmp_path, "name = "))
    assert "no settings file or preset" in error_of([], tmp_path / "missing.toml")
    assert "no settings file or preset" in error_of([], tmp_path)


def test_every_shipped_preset_has_a_path_of_its_name() -> None:
    assert all(name.isidentifier() for name in preset_names())


def test_an_optional_field_must_default_to_none() -> None:
    with pytest.raises(TypeError, match="must default to None"):

        class Wrong(Settings):
            number: int | None = 5

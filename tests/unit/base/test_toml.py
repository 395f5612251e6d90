from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringflow.base.toml import dump_toml

TEXT = st.text(st.characters(codec="utf-8"))
SCALARS = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10)


@given(st.dictionaries(TEXT, VALUES))
def test_what_is_written_reads_back(data: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(data)) == data


def test_values_come_before_sections() -> None:
    assert dump_toml({"part": {"size": 1}, "name": "x"}) == 'name = "x"\n\n[part]\nsize = 1\n'


def test_what_toml_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="NoneType"):
        dump_toml({"nothing": None})

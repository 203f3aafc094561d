import dataclasses
import math
import tomllib
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfl.core.config import differences, dump_toml, from_table, to_table
from kfl.core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float = 0.5
    label: str = "a"


@dataclasses.dataclass(frozen=True)
class Outer:
    count: int = 3
    flag: bool = False
    kind: Literal["x", "y"] = "x"
    size: int | None = None
    many: tuple[float, ...] = (1.0, 2.0)
    inner: Inner = Inner()


outers = st.builds(
    Outer,
    count=st.integers(-(2**60), 2**60),
    flag=st.booleans(),
    kind=st.sampled_from(["x", "y"]),
    size=st.none() | st.integers(0, 100),
    many=st.lists(st.floats(allow_nan=False), max_size=4).map(tuple),
    inner=st.builds(
        Inner,
        rate=st.floats(allow_nan=False),
        label=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20) | st.just('a"b\\c\n\t'),
    ),
)


@given(outers)
def test_what_is_written_is_what_is_read(config):
    assert from_table(Outer, tomllib.loads(dump_toml(to_table(config)))) == config


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"count": 1.5}, ["count", "1.5", "integer"]),
        ({"count": True}, ["count", "integer"]),
        ({"flag": 1}, ["flag", "true or false"]),
        ({"kind": "z"}, ["kind", "'z'", "x, y"]),
        ({"many": "x"}, ["many", "a list"]),
        ({"many": ["a"]}, ["many[0]", "a number"]),
        ({"inner": {"rte": 1}}, ["inner.rte", "rate"]),
        ({"inner": 3}, ["inner", "table"]),
        ({"cuont": 3}, ["cuont", "did you mean count"]),
    ],
)
def test_a_wrong_value_is_named_with_what_would_be_right(table, words):
    with pytest.raises(ConfigError) as problem:
        from_table(Outer, table)
    assert all(word in str(problem.value) for word in words), str(problem.value)


def test_fields_that_are_not_given_keep_the_base():
    assert from_table(Outer, {"count": 9}, base=Outer(flag=True)) == Outer(count=9, flag=True)


def test_numbers_without_a_value_survive():
    text = dump_toml({"a": math.inf, "b": -math.inf, "c": math.nan})
    back = tomllib.loads(text)
    assert back["a"] == math.inf and back["b"] == -math.inf and math.isnan(back["c"])


def test_differences_name_nested_fields():
    before, after = to_table(Outer()), to_table(Outer(count=4, inner=Inner(rate=1.0)))
    assert differences(before, after) == ["count: 3 → 4", "inner.rate: 0.5 → 1.0"]

"""Files are whole or not there."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kfl.core.files import atomic_file, jsonable, write_atomic, write_json


def test_replaces_the_old_content_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path, error: type) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"old")
    with pytest.raises(error), atomic_file(path) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_readers_see_nothing_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with atomic_file(path) as file:
        file.write(b"x" * 100_000)
        assert not path.exists()
    assert path.stat().st_size == 100_000


def test_respects_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", b"")
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


def test_json_has_no_bare_nan_and_takes_numpy(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    value = {
        "nan": float("nan"),
        "list": [1.5, float("inf"), -np.inf],
        "array": np.array([[1.0, np.nan]]),
        "number": np.int64(3),
        "flag": np.bool_(True),
        "tuple": (Path("x/y"), None, "ü"),
        1: np.float32(0.5),
    }
    write_json(path, value)
    assert "NaN" not in path.read_text() and "Infinity" not in path.read_text()
    assert json.loads(path.read_text()) == {
        "nan": None,
        "list": [1.5, None, None],
        "array": [[1.0, None]],
        "number": 3,
        "flag": True,
        "tuple": ["x/y", None, "ü"],
        "1": 0.5,
    }


def test_json_refuses_what_it_does_not_know_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"thing": object()})
    assert list(tmp_path.iterdir()) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values)
def test_anything_plain_becomes_strict_json(value: object) -> None:
    text = json.dumps(jsonable(value), allow_nan=False)
    assert jsonable(json.loads(text)) == jsonable(value)

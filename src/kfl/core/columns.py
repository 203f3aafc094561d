"""Values of many devices as columns: one array for each field, where a tuple of objects for each device is too much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Column(Sequence[Any]):
    """Numbers that read like a tuple and take the memory of an array.

    >>> column = Column(np.array([1.5, 2.0]))
    >>> len(column), column[0], sum(column), column == (1.5, 2.0)
    (2, 1.5, 3.5, True)
    """

    __slots__ = ("values",)

    def __init__(self, values: NDArray[Any]) -> None:
        """Keep the array, which must not change from now on."""
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: Any) -> Any:
        found = self.values[index]
        return Column(found) if isinstance(index, slice) else found.item()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values.tolist())

    def __contains__(self, value: object) -> bool:
        return bool((self.values == value).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Column):
            return np.array_equal(self.values, other.values, equal_nan=self.values.dtype.kind == "f")
        return isinstance(other, tuple) and tuple(self) == other

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"<Column of {len(self):,} values>"

    def tolist(self) -> list[Any]:
        """Return the numbers as a list."""
        found: list[Any] = self.values.tolist()
        return found


WORDS = ".words"
"""Ends the name of the array with the words that a column of numbers stands for."""
OPTIONAL = "accuracy"
"""The field that is None where its column has NaN."""


class Records(Sequence[dict[str, Any]]):
    """One record for each device, made when it is asked for.

    A column of truth values for each class is a list of the classes that a device holds in its record, one with
    several numbers for each device a list of these, and one with words a text.

    >>> arrays = {"device": np.arange(2), "model": np.array([1, 0]), "model.words": np.array(["a", "b"])}
    >>> records = Records({**arrays, "classes": np.array([[True, False], [True, True]])})
    >>> records[0], len(records), records.column("model")
    ({'device': 0, 'model': 'b', 'classes': [0]}, 2, ['b', 'a'])
    """

    __slots__ = ("arrays", "stored")

    def __init__(self, arrays: Mapping[str, NDArray[Any]], *, stored: bool = False) -> None:
        """Keep the columns.

        Args:
            arrays: By field, one row for each device; in the order of a record.
            stored: Whether they come from a file: numbers that are not finite are then None, as in JSON.

        Raises:
            ValueError: They do not belong together.
        """
        rows = {name: values.shape[0] if values.ndim else -1 for name, values in arrays.items() if WORDS not in name}
        if "device" not in rows or len(set(rows.values())) != 1:
            raise ValueError(f"its columns have different lengths: {rows}")
        for name in arrays:
            if name.endswith(WORDS) and not _are_words(arrays.get(name.removesuffix(WORDS)), arrays[name]):
                raise ValueError(f"{name} does not fit its column")
        self.arrays, self.stored = dict(arrays), stored

    def __len__(self) -> int:
        return len(self.arrays["device"])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        place = range(len(self))[index]
        return {name: self._value(name, place) for name in self.arrays if not name.endswith(WORDS)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records | tuple) and len(self) == len(other) and all(map(_equal, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return f"<Records of {len(self):,} devices>"

    def column(self, name: str) -> list[Any]:
        """Return one field of all records."""
        values = self.arrays[name]
        if f"{name}{WORDS}" in self.arrays or values.dtype.kind == "b":
            return [self._value(name, place) for place in range(len(self))]
        found: list[Any] = values.tolist()
        if (name == OPTIONAL or self.stored) and values.dtype.kind == "f" and not np.isfinite(values).all():
            return [self._value(name, place) for place in range(len(self))]
        return found

    def _value(self, name: str, place: int) -> Any:
        value = self.arrays[name][place]
        if f"{name}{WORDS}" in self.arrays:
            return str(self.arrays[f"{name}{WORDS}"][value])
        if value.ndim:
            return np.flatnonzero(value).tolist() if value.dtype.kind == "b" else value.tolist()
        if value.dtype.kind == "f" and not np.isfinite(value) and (self.stored or name == OPTIONAL):
            return None
        return value.item()


def column_of(records: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """Return one field of all records, whether they are columns or not.

    Args:
        records: Of devices.
        name: Of the field.
    """
    return records.column(name) if isinstance(records, Records) else [record[name] for record in records]


def _are_words(codes: NDArray[Any] | None, words: NDArray[Any]) -> bool:
    if codes is None or codes.dtype.kind not in "iu" or codes.ndim != 1 or words.ndim != 1:
        return False
    return not len(codes) or bool(0 <= codes.min() <= codes.max() < len(words))


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)
